"""Host programs give the results of the tensor function and write them into the caller's buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import func, graph, host, tensor
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir.builder import Builder
from tilewright.ir.core import Constant, IRError, Module, Value
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f32
from tilewright.lowering.bufferize import KernelCall, bufferize
from tilewright.lowering.memory_plan import plan_memory
from tilewright.lowering.tensor_to_loop import kernel_of_group
from tilewright.schedule import Schedule, finalize

n = symbol("n", 1, 64)


def main_of(inputs: list[tuple[Any, ...]], body: Callable[..., list[Value]]) -> Module:
    module = Module()
    names = tuple(f"x{k}" for k in range(len(inputs)))
    main = func.Func(sym_name="main", arg_names=names)
    module.body.append(main)
    args = [main.body.add_arg(TensorType(f32, shape)) for shape in inputs]
    b = Builder(main.body)
    results = body(b, *args)
    main.result_names = tuple(f"y{k}" for k in range(len(results)))
    b.insert(func.Return(results))
    return module


def group(b: Builder, inputs: list[Value], body: Callable[..., list[Value]]) -> tuple[Value, ...]:
    """The results of a new group of computations; ``body(t, *tensors)`` returns the group's results."""
    made = tensor.Group(inputs, result_types=(), regions=None)
    made.drop_operands()
    inner = [made.body.add_arg(v.type) for v in inputs]
    t = TensorBuilder(Builder(made.body))
    results = body(t, *(t.wrap(v) for v in inner))
    Builder(made.body).insert(tensor.Yield([r.value for r in results]))
    final = tensor.Group(inputs, regions=[made.regions[0]])
    b.insert(final)
    return tuple(final.results)


def scaled(factor: float) -> Callable[..., list[Any]]:
    def body(t: TensorBuilder, x: Any) -> list[Any]:
        return [t.compute(x.shape, lambda *i: x[i] * t.constant(factor, f32))]

    return body


def lower(module: Module) -> None:
    names: dict[tensor.Group, str] = {}
    for op in list(module.walk()):
        if isinstance(op, tensor.Group):
            names[op] = f"k{len(names)}"
            module.body.append(finalize(Schedule(kernel_of_group(op, names[op]))))
    bufferize(module, lambda g: [names[g]])


def check(module: Module, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Lower a module and compare it with the tensor level, before and after memory planning. Returns the host
    operations.
    """
    rng = np.random.default_rng(0)
    data = [rng.random(s, np.float32) for s in shapes]
    wanted = Interpreter(module).run("main", data)
    lower(module)
    for planned in (False, True):
        if planned:
            plan_memory(module)
        results = [np.full(w.shape, np.nan, np.float32) for w in wanted]
        given = [d.copy() for d in data]
        Interpreter(module).run("main", [*given, *results])
        for r, w in zip(results, wanted, strict=True):
            np.testing.assert_allclose(r, w, rtol=1e-6)
        for before, after in zip(data, given, strict=True):
            np.testing.assert_array_equal(before, after)
    return list(module.symbol("main").body.ops)


def count(ops: list[Any], kind: type) -> int:
    return sum(isinstance(op, kind) for op in ops)


def test_results_are_written_in_place() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        (y,) = group(b, [x], scaled(2))
        (z,) = group(b, [y], scaled(3))
        return [y, z]

    ops = check(main_of([(n, 4)], body), [(5, 4)])
    assert count(ops, host.Alloc) == count(ops, host.Copy) == 0


def test_a_view_of_a_result_is_the_output() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        (y,) = group(b, [x], scaled(2))
        flat = b(tensor.Reshape(y, shape=(4 * n,)))
        (z,) = group(b, [flat], scaled(0.5))
        return [b(tensor.Reshape(flat, shape=(2, 2 * n))), z]

    ops = check(main_of([(n, 4)], body), [(3, 4)])
    assert count(ops, host.Alloc) == count(ops, host.Copy) == 0


def test_what_must_be_copied() -> None:
    """Results are copied if they are inputs, constants, or values that are already another result."""

    def body(b: Builder, x: Value) -> list[Value]:
        c = b(graph.Constant(value=Constant(np.arange(6, dtype=np.float32))))
        (y,) = group(b, [x], scaled(2))
        return [x, b(tensor.Reshape(x, shape=(4 * n,))), c, y, y, b(tensor.Reshape(y, shape=(2, 2 * n)))]

    ops = check(main_of([(n, 4)], body), [(3, 4)])
    assert count(ops, host.Copy) == 5
    assert count(ops, host.Alloc) == 0


def test_intermediates_and_weights() -> None:
    weight = np.random.default_rng(1).random((4,), np.float32)

    def body(b: Builder, x: Value) -> list[Value]:
        w = b(graph.Constant(value=Constant(weight)))
        (y,) = group(b, [x], scaled(2))
        (u,) = group(b, [y, w], lambda t, a, v: [t.compute(a.shape, lambda i, j: a[i, j] + v[j])])
        sums, same = group(
            b,
            [u],
            lambda t, a: [
                t.reduce("sum", (n,), (4,), lambda i, r: a[i, r]),
                t.compute(a.shape, lambda *i: a[i]),
            ],
        )
        return [sums, group(b, [same], scaled(-1))[0]]

    ops = check(main_of([(n, 4)], body), [(7, 4)])
    assert count(ops, host.Constant) == 1
    assert count(ops, host.Alloc) == 3


def test_a_group_of_several_kernels() -> None:
    """The kernels of a group pass buffers from one to the next, and give the group's result."""

    def body(b: Builder, x: Value) -> list[Value]:
        return list(group(b, [x], scaled(6)))

    module = main_of([(n, 4)], body)
    parts = main_of([(n, 4)], lambda b, x: [group(b, group(b, [x], scaled(2)), scaled(3))[0]])
    for k, op in enumerate([op for op in parts.walk() if isinstance(op, tensor.Group)]):
        module.body.append(kernel_of_group(op, f"phase{k}"))
    x = np.random.default_rng(0).random((3, 4), np.float32)
    bufferize(module, lambda g: [KernelCall("phase0", (0, 2)), KernelCall("phase1", (2, 1))])
    plan_memory(module)
    y = np.zeros_like(x)
    Interpreter(module).run("main", [x, y])
    np.testing.assert_allclose(y, 6 * x, rtol=1e-6)


def test_what_does_not_belong_is_named() -> None:
    module = main_of([(n, 4)], lambda b, x: [b(graph.Exp(x))])
    with pytest.raises(IRError, match=r"'graph\.exp': is not allowed between kernels"):
        bufferize(module, lambda g: [])


def test_a_kernel_of_other_arguments_is_refused() -> None:
    module = main_of([(n, 4)], lambda b, x: list(group(b, [x], scaled(2))))
    other = main_of([(n, 5)], lambda b, x: list(group(b, [x], scaled(2))))
    (wrong,) = [op for op in other.walk() if isinstance(op, tensor.Group)]
    module.body.append(kernel_of_group(wrong, "k0"))
    with pytest.raises(IRError, match="buffer 0 of 'k0' is"):
        bufferize(module, lambda g: ["k0"])
    module = main_of([(n, 4)], lambda b, x: list(group(b, [x], scaled(2))))
    with pytest.raises(IRError, match="no kernel 'missing'"):
        bufferize(module, lambda g: ["missing"])

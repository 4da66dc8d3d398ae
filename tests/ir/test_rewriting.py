"""Patterns, folding, CSE, DCE and the verifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dialects import func, graph, loop, tensor
from tilewright.dialects.graph.elementwise import BINARY, UNARY
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse, dce, sort_block
from tilewright.ir.core import Constant, IRError, Module, Operation, Region
from tilewright.ir.location import Location
from tilewright.ir.passes import CheckOptions, Pipeline
from tilewright.ir.printer import print_op
from tilewright.ir.rewrite import Rewriter, apply_patterns, pattern
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f16, f32
from tilewright.ir.verifier import verify

from .random_modules import random_graph, random_module

T = TensorType(f32, (symbol("n", 1, 8), 4))


def main_of(body: Any, type: TensorType = T) -> Module:
    """A module with a function of x and y that returns ``body(b, x, y)``."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x", "y"))
    module.body.append(f)
    x, y = (f.body.add_arg(type, n) for n in "xy")
    b = Builder(f.body)
    result = body(b, x, y)
    b.insert(func.Return([*result] if isinstance(result, tuple) else [result]))
    return module


def names(module: Module) -> list[str]:
    return [op.name.partition(".")[2] for op in module.symbol("main").body.ops]


def add(b: Builder, x: Any, y: Any) -> Any:
    return b(BINARY["add"](x, y))


def unary(b: Builder, name: str, x: Any) -> Any:
    return b(UNARY[name](x))


def negate_materialize(b: Builder, c: Constant) -> Any:
    return b(graph.Constant(value=c))


# -- Patterns ------------------------------------------------------------------------------------------------


@pattern(UNARY["neg"])
def double_negation(op: Any, rewriter: Rewriter) -> bool:
    inner = op.x.defining_op
    if not isinstance(inner, UNARY["neg"]):
        return False
    rewriter.replace(op, inner.x)
    return True


@pytest.mark.parametrize(
    "replacement",
    [
        lambda x: graph.Transpose(x, permutation=(1, 0)),
        lambda x: graph.Reshape(x, shape=(1, 3, 4)),
        lambda x: graph.Cast(x, dtype=f16),
    ],
)
def test_a_replacement_of_another_type_is_refused(replacement: Any) -> None:
    t = TensorType(f32, (3, 4))

    @pattern(UNARY["neg"])
    def careless(op: Any, rewriter: Rewriter) -> bool:
        rewriter.replace(op, rewriter.builder(replacement(op.x)))
        return True

    module = main_of(lambda b, x, y: unary(b, "neg", x), t)
    with pytest.raises(
        IRError, match=r"'graph.neg': pattern 'careless' replaces a result of type tensor<3x4xf32>"
    ):
        apply_patterns(module, [careless], fold=False)


def test_a_replacement_may_write_a_size_differently() -> None:
    m, n = symbol("m", 1, 8), symbol("n", 1, 8)

    @pattern(UNARY["neg"])
    def relabel(op: Any, rewriter: Rewriter) -> bool:
        rewriter.replace(op, op.parent.args[1])
        return True

    module = main_of(lambda b, x, y: unary(b, "neg", x), TensorType(f32, (n, 4)))
    module.symbol("main").body.args[1].type = TensorType(f32, (m, 4))
    assert apply_patterns(module, [relabel], fold=False) == 1


def test_a_replacement_by_an_operation_is_refused() -> None:
    @pattern(UNARY["neg"])
    def not_inserted(op: Any, rewriter: Rewriter) -> bool:
        rewriter.replace(op, UNARY["abs"](op.x))
        return True

    module = main_of(lambda b, x, y: unary(b, "neg", x))
    with pytest.raises(
        IRError, match=r"by an operation, 'graph.abs', not by a value: insert .* rewriter.builder"
    ):
        apply_patterns(module, [not_inserted], fold=False)


def test_a_function_that_is_no_pattern_is_refused() -> None:
    def undecorated(op: Any, rewriter: Rewriter) -> bool:
        return False

    with pytest.raises(TypeError, match=r"undecorated is not a pattern; decorate it with @pattern"):
        apply_patterns(Module(), [undecorated])  # type: ignore[list-item]


def test_a_chain_collapses_and_dead_producers_go() -> None:
    def chain(b: Builder, x: Any, y: Any) -> Any:
        for _ in range(9):
            x = unary(b, "neg", x)
        return x

    module = main_of(chain)
    assert apply_patterns(module, [double_negation], fold=False) == 4
    assert names(module) == ["neg", "return"]
    verify(module)


def test_new_operations_are_rewritten_too() -> None:
    @pattern(UNARY["exp"])
    def exp_to_two_negations(op: Any, rewriter: Rewriter) -> bool:
        b = rewriter.builder
        rewriter.replace(op, unary(b, "neg", unary(b, "neg", op.x)))
        return True

    module = main_of(lambda b, x, y: add(b, unary(b, "exp", x), y))
    apply_patterns(module, [exp_to_two_negations, double_negation], fold=False)
    assert names(module) == ["add", "return"]
    add_op = module.symbol("main").body.first
    assert add_op is not None
    assert add_op.operands[0] is module.symbol("main").body.args[0]


def test_new_operations_take_the_location() -> None:
    @pattern(UNARY["exp"])
    def exp_to_tanh(op: Any, rewriter: Rewriter) -> bool:
        rewriter.replace(op, unary(rewriter.builder, "tanh", op.x))
        return True

    module = main_of(lambda b, x, y: b(UNARY["exp"](x, location=Location("net/Exp"))))
    apply_patterns(module, [exp_to_tanh])
    first = module.symbol("main").body.first
    assert first is not None
    assert (first.name, str(first.location)) == ("graph.tanh", "net/Exp")


def test_a_pattern_that_never_stops_is_named() -> None:
    @pattern(BINARY["add"])
    def swap_operands(op: Any, rewriter: Rewriter) -> bool:
        a, b = op.operands
        op.set_operands([b, a])
        rewriter.changed(op)
        return True

    module = main_of(lambda b, x, y: add(b, x, y))
    with pytest.raises(
        IRError, match=r"'graph.add': pattern 'swap_operands' keeps rewriting after \d+ steps"
    ):
        apply_patterns(module, [swap_operands])


def test_patterns_of_a_base_class_apply_to_subclasses() -> None:
    seen: list[str] = []

    @pattern(graph.GraphOp)
    def look(op: Any, rewriter: Rewriter) -> bool:
        seen.append(op.name)
        return False

    apply_patterns(main_of(lambda b, x, y: unary(b, "exp", add(b, x, y))), [look], fold=False)
    assert sorted(seen) == ["graph.add", "graph.exp"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 5000), level=st.sampled_from(["graph", "tensor"]))
def test_folding_and_cleanup_keep_the_meaning(seed: int, level: str) -> None:
    def fold(module: Module) -> None:
        apply_patterns(module, [], materialize=negate_materialize)

    module = random_module(level, seed)
    Pipeline([fold, cse, dce, cse]).run(module, check=CheckOptions(draws=2, rtol=1e-5))


# -- Cleanup -------------------------------------------------------------------------------------------------


def test_cse_merges_equal_operations_only() -> None:
    def body(b: Builder, x: Any, y: Any) -> Any:
        a, same = unary(b, "exp", x), unary(b, "exp", x)
        first, second = (b(graph.Softmax(a, axis=k)) for k in (0, 1))
        return add(b, add(b, a, same), add(b, first, second))

    module = main_of(body)
    assert cse(module) == 1
    assert names(module) == ["exp", "softmax", "softmax", "add", "add", "add", "return"]
    verify(module)


def test_cse_keeps_values_of_different_types() -> None:
    def body(b: Builder, x: Any, y: Any) -> Any:
        constants = [
            b(graph.Constant(value=Constant(np.full(4, v, d))))
            for v, d in ((1, "f4"), (1, "f4"), (1, "i4"), (0, "f4"), (-0.0, "f4"))
        ]
        return tuple(constants)

    module = main_of(body)
    assert cse(module) == 1
    kept = [op.attributes["value"].array for op in module.walk() if isinstance(op, graph.Constant)]
    assert [(str(a.dtype), str(a[0])) for a in kept] == [
        ("float32", "1.0"),
        ("int32", "1"),
        ("float32", "0.0"),
        ("float32", "-0.0"),
    ]


def test_cse_sees_into_regions() -> None:
    module = random_module("tensor", 2)
    main = module.symbol("main")
    compute = next(op for op in main.body.ops if isinstance(op, tensor.Compute))
    twin = compute.clone()
    main.body.insert_after(compute, twin)
    assert cse(main) >= 1
    assert twin.parent is None or compute.parent is None
    verify(module)


def test_cse_leaves_effects_alone() -> None:
    kernel = random_module("loop", 2).body.first
    assert kernel is not None
    before = sum(isinstance(op, (loop.Store, loop.Load, loop.Alloc)) for op in kernel.walk())
    cse(kernel)
    assert sum(isinstance(op, (loop.Store, loop.Load, loop.Alloc)) for op in kernel.walk()) == before


def test_dce_removes_chains_and_keeps_effects() -> None:
    def body(b: Builder, x: Any, y: Any) -> Any:
        unary(b, "exp", unary(b, "tanh", x))
        return add(b, x, y)

    module = main_of(body)
    assert dce(module) == 2
    assert names(module) == ["add", "return"]
    kernel = random_module("loop", 2)
    before = print_op(kernel)
    dce(kernel)
    assert "loop.store" in print_op(kernel)
    assert print_op(kernel).count("loop.store") == before.count("loop.store")


def test_sort_block_moves_producers_up() -> None:
    module = random_graph(4)
    block = module.symbol("main").body
    ops = list(block.ops)[:-1]
    end = block.terminator
    for op in ops:  # each operation is moved to the front, which reverses the order
        block.insert_before(block.first, op)
    with pytest.raises(IRError, match="before"):
        verify(module)
    sort_block(block)
    assert block.last is end
    verify(module)


def test_sort_block_finds_cycles() -> None:
    module = main_of(lambda b, x, y: unary(b, "exp", unary(b, "tanh", x)))
    tanh, exp, *_ = module.symbol("main").body.ops
    tanh.set_operand(0, exp.results[0])
    with pytest.raises(IRError, match="depends on its own result"):
        sort_block(module.symbol("main").body)


# -- Verifier ------------------------------------------------------------------------------------------------


def broken(change: Any) -> Module:
    def body(b: Builder, x: Any, y: Any) -> Any:
        a = b(UNARY["exp"](x, location=Location("net/Exp", "net.py", 7)))
        return unary(b, "tanh", a)

    module = main_of(body)
    exp, tanh, end = module.symbol("main").body.ops
    change(module, exp, tanh, end)
    return module


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m, e, t, r: e.set_operand(0, t.results[0]),
            r"'graph.exp': operand 0 is used before .* \(at net/Exp \(net.py:7\)\)",
        ),
        (
            lambda m, e, t, r: setattr(e.results[0], "type", TensorType(f32, (9,))),
            r"'graph.exp': results have types \[tensor<9xf32>\], inference gives",
        ),
        (lambda m, e, t, r: e.operands[0]._uses.clear(), "'graph.exp': operand 0 does not know of this use"),
        (lambda m, e, t, r: e.parent.insert_before(e, r), "'func.return': "),
        (lambda m, e, t, r: setattr(e, "parent", None), "'graph.exp': does not know its block"),
        (
            lambda m, e, t, r: m.symbol("main").attributes.update(arg_names=("x",)),
            "'func.func': 1 names for 2 arguments",
        ),
        (
            lambda m, e, t, r: setattr(m.symbol("main").regions[0], "parent", None),
            "'func.func': a region does not know its operation",
        ),
    ],
)
def test_errors_name_the_defect_of_a_module(change: Any, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(broken(change))


def test_values_of_an_inner_region_are_not_seen_outside() -> None:
    module = random_module("tensor", 2)
    main = module.symbol("main")
    compute = next(op for op in main.body.ops if isinstance(op, tensor.Compute))
    inside = next(op for op in compute.body.ops if op.results)
    main.body.insert_after(compute, user := UNARY_ON_SCALAR(inside))
    with pytest.raises(IRError, match="used before \\(or outside of where\\) it is defined"):
        verify(module)
    user.erase()
    verify(module)


def UNARY_ON_SCALAR(op: Operation) -> Operation:
    from tilewright.dialects import scalar

    return scalar.UNARY["neg"](op.results[0])


@pytest.mark.parametrize("level", ["graph", "tensor", "loop"])
def test_sound_modules_pass(level: str) -> None:
    for seed in range(5):
        verify(random_module(level, seed))
    assert Region().blocks == []

"""The interpreter gives NumPy's results, the shape solver finds symbols from the shapes of inputs, and both
report errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dialects import func, graph, scalar
from tilewright.dialects.graph.elementwise import BINARY
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir.builder import Builder
from tilewright.ir.core import Effect, IRError, Module, Operand, Operation, operation
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.shape_solver import ShapeMismatch, ShapeSolver
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import DType, TensorType, f32, i64

from .random_modules import random_graph, random_tensor_module

N = symbol("n", 1, 16)
M = symbol("m", 2, 10)


def function(types: list[TensorType], body: Any) -> Module:
    module = Module()
    f = func.Func(sym_name="main", arg_names=tuple(f"x{k}" for k in range(len(types))))
    module.body.append(f)
    args = [f.body.add_arg(t) for t in types]
    b = Builder(f.body)
    b.insert(func.Return([body(b, *args)]))
    return module


def test_graph_level() -> None:
    t = TensorType(f32, (N, 4))
    module = function(
        [t, TensorType(f32, (4, M))], lambda b, x, w: b(graph.Softmax(b(graph.Matmul(x, w)), axis=-1))
    )
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4)).astype("f4"), rng.standard_normal((4, 5)).astype("f4")
    (y,) = Interpreter(module).run("main", [x, w])
    e = np.exp(x @ w)
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert y.dtype == np.float32


@pytest.mark.parametrize("n", [1, 5, 16])
def test_tensor_level_computations(n: int) -> None:
    def body(b: Builder, x: Any) -> Any:
        t = TensorBuilder(b)
        a = t.wrap(x)
        return t.reduce("max", (N,), (4,), lambda i, r: a[i, r] * 2.0).value

    x = np.random.default_rng(1).standard_normal((n, 4)).astype("f4")
    (y,) = Interpreter(function([TensorType(f32, (N, 4))], body)).run("main", [x])
    np.testing.assert_array_equal(y, (2 * x).max(1))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3000))
def test_levels_agree(seed: int) -> None:
    module, lowered = random_graph(seed), random_tensor_module(seed)
    args = module.symbol("main").body.args
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((3, a.type.shape[1])).astype("f4") for a in args]
    with np.errstate(all="ignore"):
        expected = Interpreter(module).run("main", inputs)
        actual = Interpreter(lowered).run("main", inputs)
    for e, a in zip(expected, actual, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-4)


def test_inputs_that_do_not_fit() -> None:
    module = function([TensorType(f32, (N,)), TensorType(f32, (N,))], lambda b, x, y: b(BINARY["add"](x, y)))
    run = Interpreter(module).run
    one = np.zeros(3, "f4")
    with pytest.raises(ValueError, match="takes 2 inputs, got 1"):
        run("main", [one])
    with pytest.raises(ValueError, match="input 1 of 'main' is float64, expected float32"):
        run("main", [one, np.zeros(3)])
    with pytest.raises(
        ShapeMismatch, match="input 'x1' has size 4 in dimension 0, but 'n' is 3 from dimension 0 of 'x0'"
    ):
        run("main", [one, np.zeros(4, "f4")])
    with pytest.raises(KeyError, match="no function or kernel 'f'"):
        run("f", [])


def test_an_operation_without_meaning_is_named() -> None:
    @operation
    class Mystery(Operation):
        name = "interpretertest.mystery"
        effects = Effect.PURE
        x: Operand

        def infer_types(self) -> Any:
            return (self.x.type,)

    module = function([TensorType(f32, (2,))], lambda b, x: b(Mystery(x)))
    with pytest.raises(IRError, match=r"'interpretertest.mystery': has no reference implementation"):
        Interpreter(module).run("main", [np.zeros(2, "f4")])


@pytest.mark.parametrize("name", sorted(scalar.UNARY))
def test_every_scalar_function_has_a_meaning(name: str) -> None:
    found = scalar.UNARY[name]
    assert callable(getattr(found, "interpret", None)), name


# -- The shape solver ----------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 16),
    m=st.integers(2, 10),
    a=st.integers(1, 4),
    b=st.integers(0, 3),
    order=st.permutations(range(3)),
)
def test_solving_finds_what_shapes_were_made_of(n: int, m: int, a: int, b: int, order: list[int]) -> None:
    shapes: list[tuple[str, tuple[Dim, ...]]] = [
        ("x", (N * a + b, 3)),
        ("y", (M + N, N)),
        ("z", (N * M, M - 2)),
    ]
    inputs = [shapes[k] for k in order]
    values = {"n": n, "m": m}
    actual = {name: tuple(evaluate(d, values) for d in shape) for name, shape in inputs}
    assert ShapeSolver(inputs).solve(actual) == values


@pytest.mark.parametrize(
    ("shape", "actual", "message"),
    [
        ((N, 4), (17, 4), "input 'x' has size 17 in dimension 0: 'n' must be between 1 and 16"),
        ((N, 4), (0, 4), "'n' must be between 1 and 16"),
        ((N, 4), (3, 5), "size 5 in dimension 1, expected 4"),
        ((N, 4), (3,), r"has 1 dimensions \(3,\), expected 2 \(n, 4\)"),
        ((2 * N + 1, 4), (4, 4), "which is not 2\\*n \\+ 1 for any whole 'n'"),
        ((symbol("k", 0, None, 8), 4), (12, 4), "'k' must be a multiple of 8"),
        ((symbol("k", 1, None), 4), (0, 4), "'k' must be at least 1"),
        ((N, N * 2), (3, 7), r"size 7 in dimension 1, but '2\*n' is 6 from dimension 0 of 'x'"),
    ],
)
def test_mismatches_name_the_input_and_the_dimension(shape: Any, actual: Any, message: str) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        ShapeSolver([("x", shape)]).solve({"x": actual})


def test_a_missing_input_and_a_symbol_that_no_input_tells() -> None:
    with pytest.raises(ShapeMismatch, match="input 'x' is missing"):
        ShapeSolver([("x", (N,))]).solve({})
    with pytest.raises(
        ValueError, match="no input determines m, n: each symbolic dimension must appear alone"
    ):
        ShapeSolver([("x", (N * M,))])
    assert DType.of(np.int64) is i64

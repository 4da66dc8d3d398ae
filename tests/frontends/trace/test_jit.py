"""`tw.jit`: signatures, nested containers, dynamic sizes, control flow, and operations that a traced function
must not use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp

X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def test_trees_and_fixed_arguments() -> None:
    @tw.jit
    def f(state: dict[str, Any], pair: Any, factor: float = 2, *, name: str = "a") -> Any:
        return {"sum": state["x"] + pair[0] * factor, name: [pair[1], factor, None]}, state["x"]

    result, again = f({"x": X}, (X, np.int64(3)))
    np.testing.assert_allclose(result["sum"], X + X * 2, rtol=1e-6)
    assert int(result["a"][0]) == 3 and result["a"][1:] == [2, None]
    np.testing.assert_array_equal(again, X)
    assert len(f.compiled) == 1
    result, _ = f({"x": X}, (X, np.int64(3)), factor=5, name="b")
    np.testing.assert_allclose(result["sum"], X + X * 5, rtol=1e-6)
    assert "b" in result and len(f.compiled) == 2
    assert [i.name for i in f.compiled[0].inputs] == ["state_x", "pair_0", "pair_1"]


def test_fixed_floats_are_distinguished() -> None:
    f = tw.jit(lambda x, k: x * k)
    ones = np.ones(2, np.float32)
    assert f(ones, 0.0).tolist() == [0, 0] and [str(v) for v in f(ones, -0.0).tolist()] == ["-0.0"] * 2
    f(ones, float("nan")), f(ones, float("nan"))
    assert len(f.compiled) == 3


def test_one_compilation_for_all_sizes() -> None:
    @tw.jit(dims={"x": {0: "rows<=64", 1: "columns"}})
    def f(x: tw.Tensor) -> Any:
        rows, columns = x.shape
        y = x.reshape(-1).reshape(columns, rows)[1:, : rows - 1]
        return (
            y / rows,
            tnp.concatenate([x, x[-1:]]).mean(0),
            tnp.arange(columns)[None] + tnp.zeros((rows, 1)),
            x[::-1, columns // 2 :],
        )

    for shape in ((3, 4), (2, 7), (9, 5)):
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        rows, columns = shape
        expected = (
            x.reshape(columns, rows)[1:, : rows - 1] / np.float32(rows),
            np.concatenate([x, x[-1:]]).mean(0),
            np.broadcast_to(np.arange(columns, dtype=np.float32), shape),
            x[::-1, columns // 2 :],
        )
        for a, b in zip(f(x), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert len(f.compiled) == 1


def test_control_flow() -> None:
    def branch(x: Any) -> Any:
        return tw.cond(x.sum() > 0, lambda y: (y * 2, tnp.zeros(2)), lambda y: (-y, tnp.ones(2)), x)

    def grow(x: Any) -> Any:
        return tw.while_loop(
            lambda s: (s["x"] < 100).all() & (s["n"] < 50),
            lambda s: {"x": s["x"] * 2, "n": s["n"] + 1},
            {"x": x, "n": 0},
        )

    def run(x: Any) -> Any:
        last, all_ = tw.scan(lambda c, v: (c * 0.5 + v, {"y": c}), tnp.zeros(4), x, reverse=True)
        counted, _ = tw.scan(lambda c, _: (c + 1, None), 0, length=5)
        return last, all_["y"], counted

    for f in (branch, grow, run):
        for x in (abs(X) + 0.5, -abs(X) - 0.5):
            if f is grow and (x < 0).any():
                continue
            flat = [tw.frontends.trace.tree.flatten(r)[0] for r in (f(tw.Tensor(x)), tw.jit(f)(x))]
            for a, b in zip(*flat, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5)


def line_of(error: pytest.ExceptionInfo[Any]) -> bool:
    return "test_jit.py:" in str(error.value)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda x: x if x.sum() > 0 else -x, "tw.cond"),
        (lambda x: [0] * int(x.sum()), "tw.scan"),
        (lambda x: x[range(3)[x.argmax()]], "x[i]"),
        (lambda x: float(x.max()) * x, "compute with it as a tensor"),
        (lambda x: np.asarray(x), "compute with it as a tensor"),
        (lambda x: x.item(), "compute with it as a tensor"),
    ],
)
def test_values_of_the_run(function: Any, advice: str) -> None:
    with pytest.raises(tw.TraceError, match="computed at run time") as error:
        tw.jit(function)(X)
    assert advice in str(error.value) and line_of(error)


def test_other_mistakes_name_the_line() -> None:
    kept: list[Any] = []
    tw.jit(lambda x: kept.append(x) or x * 2)(X)
    with pytest.raises(tw.TraceError, match="has ended") as error:
        kept[0] + 1
    assert line_of(error)
    with pytest.raises(tw.ShapeError, match="do not broadcast") as error:
        tw.jit(lambda x: x + x.T)(X)
    assert line_of(error)
    with pytest.raises(tw.ShapeError, match="the other") as error:
        tw.jit(lambda x: tw.cond(x.sum() > 0, lambda: x, lambda: x[0]))(X)
    assert line_of(error)
    with pytest.raises(tw.ShapeError, match="becomes") as error:
        tw.jit(lambda x: tw.while_loop(lambda s: s.sum() < 3, lambda s: s[None], x))(X)
    assert line_of(error)
    with pytest.raises(tw.CompileError, match="returns no tensor"):
        tw.jit(lambda x: 3)(X)
    with pytest.raises(tw.CompileError, match="not an input of the model"):
        tw.jit(lambda x: x, dims={"y": {0: "n"}})(X)


def test_compile_takes_functions() -> None:
    lib = tw.compile(lambda x, y: (x @ y, x.sum()), (X, X.T.copy()), dims={"x": {0: "rows"}})
    product, total = lib(X[:2], X.T.copy())
    np.testing.assert_allclose(product, X[:2] @ X.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, X[:2].sum(), rtol=1e-5)
    assert isinstance(lib(tw.Tensor(X), tw.Tensor(X.T))[0], tw.Tensor)
    assert "test_jit.py" in str(lib.metadata["kernels"])


def test_inside_each_other() -> None:
    inner = tw.jit(lambda x: x * 2)
    outer = tw.jit(lambda x: inner(x) + inner(x))
    np.testing.assert_allclose(outer(X), 4 * X)
    assert not inner.compiled

"""Programs exported with symbolic shapes, interpreted at several sizes and compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

from tilewright.frontends.stablehlo import import_stablehlo  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402

RANDOM = np.random.default_rng(0)


def f(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def running(x: Any) -> Any:
    return (
        jnp.cumsum(x, 1),
        lax.cummax(x, 1),
        lax.cumlogsumexp(x, 1, reverse=True),
        lax.cumsum(x, 1, reverse=True),
    )


def halves(x: Any) -> Any:
    middle = x.shape[0] // 2
    return x[:middle] + x[middle : 2 * middle]


@pytest.mark.parametrize(
    ("function", "shapes", "constraints", "inputs"),
    [
        (running, ["n, m, 3"], [], [(f(2, 5, 3),), (f(1, 1, 3),)]),
        (halves, ["n"], ["n >= 2"], [(f(7),), (f(4),)]),
        (lambda x, y: x.reshape(-1, 2).sum(1) + y, ["2*b", "b"], [], [(f(8), f(4))]),
        (lambda x: jnp.split(x, 2), ["2*n"], [], [(f(6),)]),
        (lambda x, y: x[: y.shape[0]] + y, ["a", "b"], ["a >= b"], [(f(6), f(4)), (f(3), f(3))]),
        (lambda x: (x.mean(0), x.std(), jnp.median(x, 0)), ["n, 3"], [], [(f(5, 3),), (f(4, 3),)]),
    ],
    ids=["running", "halves", "reshaped", "split", "limited", "statistics"],
)
def test_sizes_that_follow_from_others(
    function: Callable[..., Any], shapes: list[str], constraints: list[str], inputs: list[tuple[Any, ...]]
) -> None:
    scope = jax.export.SymbolicScope(constraints)
    specs = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32) for s in shapes]
    module = import_stablehlo(jax.export.export(jax.jit(function), platforms=["cpu"])(*specs))
    for args in inputs:
        found = Interpreter(module).run("main", list(args))
        for got, wanted in zip(found, jax.tree.leaves(function(*args)), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


def test_dims_of_a_jitted_function_are_symbolic_in_its_export() -> None:
    import tilewright as tw

    def scaled(p: Any, x: Any) -> Any:
        return p["w"] * x + x.sum(0)

    library = tw.compile(jax.jit(scaled), ({"w": f(3)}, f(4, 3)), dims={"x": {0: "2<=n<=16"}})
    for size in (2, 5, 16):
        w, x = f(3), f(size, 3)
        np.testing.assert_allclose(library(w, x), scaled({"w": w}, x), 1e-5, 1e-6)
    with pytest.raises(tw.CompileError, match="dims names 'y'"):
        tw.compile(jax.jit(scaled), ({"w": f(3)}, f(4, 3)), dims={"y": {0: "n"}})

"""Functions with a gradient rule of their own: at once, compiled, in loops, and for second derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp
from tilewright.errors import GradientError

X = np.array([0.5, -1.0, 2.0])


@tw.custom_gradient
def cube(x: Any) -> Any:
    """The rule gives 10 times the derivative, so that it is seen to be used."""
    return x * x * x, lambda dy: dy * x * x * 30


@tw.custom_gradient
def product(pair: Any, scale: Any) -> Any:
    a, b = pair["a"], pair["b"]

    def rule(dy: Any) -> Any:
        return {"a": dy["y"] * b * scale * 2, "b": None}, (dy["y"] * a * b).sum()

    return {"y": a * b * scale, "count": (a > 0).sum()}, rule


def test_without_derivatives_it_is_the_function() -> None:
    np.testing.assert_array_equal(np.asarray(cube(tw.tensor(X))), X**3)
    np.testing.assert_allclose(np.asarray(tw.compile(lambda x: cube(x), (X,))(X)), X**3)
    library = tw.compile(lambda x: cube(x), (X,))
    assert "custom_gradient" not in library.ir("graph")


def test_the_rule_is_used() -> None:
    gradient = tw.grad(lambda x: cube(x).sum())
    for found in (gradient(X), tw.compile(gradient, (X,))(X)):
        np.testing.assert_allclose(np.asarray(found), 30 * X**2)


def test_the_rule_is_differentiated() -> None:
    second = tw.grad(lambda x: (tw.grad(lambda x: cube(x).sum())(x) * x).sum())
    for found in (second(X), tw.compile(second, (X,))(X)):
        np.testing.assert_allclose(np.asarray(found), 90 * X**2)
    _, tangent = tw.jvp(cube, (X,), (np.ones(3),))
    np.testing.assert_allclose(np.asarray(tangent), 30 * X**2)


def test_trees_and_zero_gradients() -> None:
    def f(a: Any, b: Any, s: Any) -> Any:
        return product({"a": a, "b": b}, s)["y"].sum()

    gradient = tw.grad(f, argnums=(0, 1, 2))
    a, b, s = X, X + 3, np.array(2.0)
    for da, db, ds in (gradient(a, b, s), tw.compile(gradient, (a, b, s))(a, b, s)):
        np.testing.assert_allclose(np.asarray(da), 2 * b * s)
        np.testing.assert_array_equal(np.asarray(db), np.zeros(3))
        np.testing.assert_allclose(np.asarray(ds), (a * b).sum())


def test_in_a_scan_with_a_dynamic_length() -> None:
    def f(x: Any) -> Any:
        total, _ = tw.scan(lambda c, s: (c + cube(s), None), tw.tensor(0.0, "float64"), x)
        return total

    gradient = tw.grad(f)
    library = tw.compile(gradient, (X,), dims={"x": {0: "n"}})
    for found in (gradient(X), library(X)):
        np.testing.assert_allclose(np.asarray(found), 30 * X**2)
    np.testing.assert_allclose(np.asarray(library(X[:2])), 30 * X[:2] ** 2)


def test_wrong_rules_are_named() -> None:
    with pytest.raises(GradientError, match="returns its results and a function"):
        tw.grad(lambda x: tw.custom_gradient(lambda x: x)(x).sum())(X)
    with pytest.raises(GradientError, match=r"float64\[\] for argument 0, which is float64\[3\]"):
        tw.grad(lambda x: tw.custom_gradient(lambda x: (x, lambda dy: dy.sum()))(x).sum())(X)
    with pytest.raises(GradientError, match="structure"):
        tw.grad(lambda x: tw.custom_gradient(lambda x: (x, lambda dy: (dy, dy)))(x).sum())(X)


def test_the_rule_may_use_numpys_functions_of_the_forward_pass() -> None:
    @tw.custom_gradient
    def log1pexp(x: Any) -> Any:
        e = tnp.exp(x)
        return tnp.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    np.testing.assert_allclose(
        np.asarray(tw.grad(lambda x: log1pexp(x).sum())(X)), 1 / (1 + np.exp(-X)), rtol=1e-12
    )

"""`tw.grad`, `value_and_grad`, `vjp`, `jvp`, `stop_gradient`: trees, modules, states, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright import nn

X = np.array([0.5, -1.0, 2.0])


def run(function: Any, at_once: bool) -> Any:
    return function if at_once else tw.jit(function)


@pytest.mark.parametrize("at_once", [True, False])
def test_trees_of_arguments_and_several_positions(at_once: bool) -> None:
    def loss(weights: dict[str, Any], x: tw.Tensor, factor: float) -> tw.Tensor:
        return ((weights["a"] * x + weights["rest"][0]) ** 2).sum() * factor

    weights = {"a": X, "rest": [X * 2]}
    value, (first, second) = run(tw.value_and_grad(loss, (0, 1)), at_once)(weights, X + 1, 3.0)
    inner = X * (X + 1) + X * 2
    np.testing.assert_allclose(np.asarray(value), 3 * (inner**2).sum())
    np.testing.assert_allclose(np.asarray(first["a"]), 6 * inner * (X + 1))
    np.testing.assert_allclose(np.asarray(first["rest"][0]), 6 * inner)
    np.testing.assert_allclose(np.asarray(second), 6 * inner * X)


@pytest.mark.parametrize("at_once", [True, False])
def test_further_results_and_the_same_tensor_twice(at_once: bool) -> None:
    def loss(x: tw.Tensor, y: tw.Tensor) -> Any:
        return (x * y).sum(), {"sum": x + y}

    x = tw.Tensor(X)
    found, more = run(tw.grad(loss, has_aux=True), at_once)(x, x)
    np.testing.assert_array_equal(np.asarray(found), X)  # the second use is a constant
    np.testing.assert_array_equal(np.asarray(more["sum"]), 2 * X)


def test_parameters_of_a_module_are_differentiated_in_place() -> None:
    nn.seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    x = X.astype(np.float32)[None]

    def loss(model: nn.Module, x: tw.Tensor) -> tw.Tensor:
        return (model(x) ** 2).sum()

    found = tw.grad(loss)(model, x)
    assert list(found) == [n for n, _ in model.named_parameters()]
    step = 1e-3
    for name in ("0.weight", "2.bias"):
        path, _, attribute = name.rpartition(".")
        layer = model[int(path)]
        kept = getattr(layer, attribute)
        ends = []
        for sign in (1, -1):
            moved = kept.numpy().copy()
            moved.reshape(-1)[0] += sign * step
            setattr(layer, attribute, nn.Parameter(moved))
            ends.append(float(loss(model, tw.Tensor(x))))
        setattr(layer, attribute, kept)
        difference = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found[name].numpy().reshape(-1)[0], difference, rtol=1e-2, atol=1e-4)
    compiled = tw.jit(lambda x: tw.grad(loss)(model, x))(x)
    for name, value in found.items():
        np.testing.assert_allclose(np.asarray(compiled[name]), value.numpy(), rtol=1e-5, atol=1e-6)


def test_branches_and_loops_of_python_work_at_once() -> None:
    def loss(x: tw.Tensor) -> tw.Tensor:
        total = x.sum()
        while total < 10:
            total = total * 2
        return total if total > 11 else -total

    np.testing.assert_allclose(tw.grad(loss)(X).numpy(), 8)  # 1.5, 3, 6, 12
    with pytest.raises(tw.TraceError, match="tw.while_loop"):
        tw.jit(tw.grad(loss))(X)


@pytest.mark.parametrize("at_once", [True, False])
def test_stop_gradient_and_integers(at_once: bool) -> None:
    def loss(x: tw.Tensor, k: tw.Tensor) -> tw.Tensor:
        return (tw.stop_gradient(x) * x * k).sum()

    first, second = run(tw.grad(loss, (0, 1)), at_once)(X, np.array([1, 2, 3]))
    np.testing.assert_array_equal(np.asarray(first), X * [1, 2, 3])
    assert np.asarray(second).tolist() == [0, 0, 0]


def test_products_with_jacobians() -> None:
    def function(x: tw.Tensor) -> Any:
        return {"sin": tnp.sin(x), "products": x[:, None] * x}

    value, pull = tw.vjp(function, X)
    np.testing.assert_allclose(value["sin"].numpy(), np.sin(X))
    (found,) = pull({"sin": X, "products": None})
    np.testing.assert_allclose(found.numpy(), np.cos(X) * X)
    (found,) = pull({"sin": None, "products": np.ones((3, 3))})
    np.testing.assert_allclose(found.numpy(), 2 * X.sum())
    _, tangent = tw.jvp(function, (X,), (np.array([1.0, 0, 0]),))
    np.testing.assert_allclose(tangent["sin"].numpy(), [np.cos(X[0]), 0, 0])
    unit = np.array([1.0, 0, 0])
    np.testing.assert_allclose(tangent["products"].numpy(), unit[:, None] * X + X[:, None] * unit)


def test_states_are_read_and_replaced_once() -> None:
    count = tw.State("count", 3, "float64", np.ones(3))

    def loss(x: tw.Tensor) -> tw.Tensor:
        count.value = count.value + x
        return (x * count.value).sum()

    np.testing.assert_allclose(tw.grad(loss)(X).numpy(), 1 + 2 * X)
    np.testing.assert_allclose(count.value.numpy(), 1 + X)
    _, pull = tw.vjp(loss, X)
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(pull(scale)[0].numpy(), scale * (1 + X + 2 * X))
    np.testing.assert_allclose(count.value.numpy(), 1 + 2 * X)


def test_mistakes_are_named() -> None:
    with pytest.raises(tw.GradientError, match="floating-point scalar.*reduce it"):
        tw.grad(lambda x: x * 2)(X)
    with pytest.raises(tw.GradientError, match="no positional argument 2 among 1"):
        tw.grad(lambda x: x.sum(), 2)(X)
    with pytest.raises(tw.GradientError, match="no tensor to differentiate by"):
        tw.grad(lambda x: x)("text")
    with pytest.raises(tw.GradientError, match="returns a pair"):
        tw.grad(lambda x: x.sum(), has_aux=True)(X)
    with pytest.raises(tw.GradientError, match="structure"):
        tw.vjp(lambda x: {"a": x}, X)[1]([X])
    with pytest.raises(tw.GradientError, match="other structure|another structure"):
        tw.jvp(lambda x: x, (X,), ([X],))

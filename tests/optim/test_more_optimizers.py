"""Lion and Muon, groups of parameters, gradient clipping and accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import optim


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def tensors(arrays: dict[str, Any], dtype: str = "float64") -> dict[str, tw.Tensor]:
    return {n: tw.tensor(np.asarray(x, dtype)) for n, x in arrays.items()}


def test_lion_is_the_published_rule() -> None:
    lr, (b1, b2), decay = 0.02, (0.9, 0.99), 0.1
    w, m = draw((3, 4)), np.zeros((3, 4))
    optimizer = optim.Lion(lr, (b1, b2), decay)
    parameters = tensors({"w": w})
    state = optimizer.init(parameters)
    for k in range(20):
        g = draw((3, 4), k + 1) + 0.3 * w
        parameters, state = optimizer.update(parameters, tensors({"w": g}), state)
        w = w * (1 - lr * decay) - lr * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
        np.testing.assert_allclose(parameters["w"], w, rtol=1e-12)


def orthogonalized(x: np.ndarray[Any, Any], steps: int = 5) -> np.ndarray[Any, Any]:
    a, b, c = 3.4445, -4.775, 2.0315
    x = x / np.linalg.norm(x)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_muon_is_the_published_rule(shape: tuple[int, int]) -> None:
    w, buffer, lr = draw(shape), np.zeros(shape), 0.1
    optimizer = optim.Muon(lr, ns_dtype="float64")
    parameters = tensors({"w": w})
    state = optimizer.init(parameters)
    for k in range(10):
        g = draw(shape, k + 1)
        parameters, state = optimizer.update(parameters, tensors({"w": g}), state)
        buffer = 0.95 * buffer + 0.05 * g
        mixed = 0.05 * g + 0.95 * buffer
        step = orthogonalized(mixed) if shape[0] < shape[1] else orthogonalized(mixed.T).T
        w = w * (1 - 0.1 * lr) - lr * max(1, shape[0] / shape[1]) ** 0.5 * step
        np.testing.assert_allclose(parameters["w"], w, rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}])
def test_muon_like_torch(options: dict[str, Any]) -> None:
    """The iterations are in bfloat16 here and there, with roundings at the same places; an eighth of its unit
    of rounding is allowed for each update, because sums have other orders.
    """
    lr = 0.1
    p = torch.nn.Parameter(torch.tensor(draw((8, 5)), dtype=torch.float32))
    theirs = torch.optim.Muon([p], lr=lr, **options)
    ours = optim.Muon(lr, **options)
    parameters = tensors({"w": p.detach().numpy()}, "float32")
    state = ours.init(parameters)
    for k in range(10):
        g = draw((8, 5), k + 1).astype(np.float32)
        p.grad = torch.tensor(g)
        theirs.step()
        parameters, state = ours.update(parameters, tensors({"w": g}, "float32"), state)
    size = lr * 10 * (0.2 * 8**0.5 if options else 1.6**0.5)
    np.testing.assert_allclose(parameters["w"], p.detach().numpy(), atol=size * 2.0**-8)
    exact = optim.Muon(lr, **options)
    with pytest.raises(tw.CompileError, match=r"'b' is \(5,\).*optim.Groups"):
        exact.init(tensors({"b": draw((5,))}))


def test_groups_of_parameters() -> None:
    """Decay for matrices only, as in torch's parameter groups; the last pattern takes its own optimizer."""
    arrays = {"a.weight": draw((3, 4)), "a.bias": draw((4,), 1), "head.weight": draw((2, 3), 2)}
    theirs = {n: torch.nn.Parameter(torch.tensor(x)) for n, x in arrays.items()}
    optimizers = [
        torch.optim.AdamW(
            [
                {"params": [theirs["a.weight"]], "weight_decay": 0.5},
                {"params": [theirs["a.bias"]], "weight_decay": 0.0},
            ],
            lr=0.01,
        ),
        torch.optim.SGD([theirs["head.weight"]], lr=0.1, momentum=0.9),
    ]
    ours = optim.Groups(
        [
            ("head.*", optim.SGD(0.1, momentum=0.9)),
            (lambda path, p: p.ndim < 2, optim.AdamW(0.01, weight_decay=0.0)),
        ],
        optim.AdamW(0.01, weight_decay=0.5),
    )
    parameters = tensors(arrays)
    state = ours.init(parameters)
    for k in range(5):
        gradients = {n: draw(x.shape, k) for n, x in arrays.items()}
        for n, p in theirs.items():
            p.grad = torch.tensor(gradients[n])
        for optimizer in optimizers:
            optimizer.step()
        parameters, state = ours.update(parameters, tensors(gradients), state)
    assert list(parameters) == list(arrays)
    for n, p in theirs.items():
        np.testing.assert_allclose(parameters[n], p.detach().numpy(), rtol=1e-11, atol=1e-12)
    with pytest.raises(tw.CompileError, match="one part for each group"):
        ours.update(parameters, tensors(gradients), {"0": state["0"]})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_by_norm_like_torch(max_norm: float, norm_type: float, dtype: str) -> None:
    arrays = {"a": draw((3, 4)).astype(dtype), "b": draw((5,), 1).astype(dtype)}
    theirs = [torch.nn.Parameter(torch.tensor(x)) for x in arrays.values()]
    for p in theirs:
        p.grad = p.detach().clone()
    norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    tolerance = 1e-13 if dtype == "float64" else 1e-6
    for run in (optim.clip_grad_norm, tw.jit(optim.clip_grad_norm)):
        clipped, found = run(tensors(arrays, dtype), max_norm, norm_type)
        np.testing.assert_allclose(found, norm.numpy(), rtol=tolerance)
        for x, p in zip(clipped.values(), theirs, strict=True):
            assert x.dtype == dtype
            np.testing.assert_allclose(x, p.grad.numpy(), rtol=tolerance)


def test_clipping_by_value_like_torch() -> None:
    p = torch.nn.Parameter(torch.tensor(draw((20,))))
    p.grad = p.detach().clone()
    torch.nn.utils.clip_grad_value_([p], 0.4)
    np.testing.assert_array_equal(
        optim.clip_grad_value(tensors({"p": draw((20,))}), 0.4)["p"], p.grad.numpy()
    )
    with pytest.raises(ValueError, match="max_norm is -1"):
        optim.clip_grad_norm(tensors({"p": draw((2,))}), -1.0)


def test_clipped_optimizer() -> None:
    parameters, gradients = tensors({"w": draw((4,))}), tensors({"w": 10 * draw((4,), 1)})
    ours = optim.Clipped(optim.SGD(0.1), max_norm=1.0, clip_value=2.0)
    new, _ = ours.update(parameters, gradients, ours.init(parameters))
    g = np.clip(np.asarray(gradients["w"]), -2, 2)
    expected = np.asarray(parameters["w"]) - 0.1 * g / max(1.0, np.linalg.norm(g) + 1e-6)
    np.testing.assert_allclose(new["w"], expected, rtol=1e-12)


def accumulated(steps: int) -> tuple[Any, Any, list[dict[str, Any]]]:
    parameters = tensors({"w": draw((3, 2)), "b": draw((2,), 1)}, "float32")
    gradients = [{n: draw(p.shape, k + 2).astype("float32") for n, p in parameters.items()} for k in range(6)]
    return optim.Accumulate(optim.AdamW(0.1), steps), parameters, gradients


def test_accumulation_equals_updates_by_means() -> None:
    optimizer, parameters, gradients = accumulated(3)
    inner = optim.AdamW(0.1)
    expected, inner_state = dict(parameters), inner.init(parameters)
    new, state = dict(parameters), optimizer.init(parameters)

    def step(parameters: Any, gradients: Any, state: Any) -> Any:
        return optimizer.update(parameters, gradients, state)

    compiled, held, held_state = tw.jit(step), dict(parameters), optimizer.init(parameters)
    for k in range(6):
        new, state = optimizer.update(new, tensors(gradients[k], "float32"), state)
        held, held_state = compiled(held, gradients[k], held_state)
        if k % 3 == 2:
            mean = {n: sum(g[n] for g in gradients[k - 2 : k + 1]) / 3 for n in parameters}
            expected, inner_state = inner.update(expected, tensors(mean, "float32"), inner_state)
        for n, x in expected.items():
            np.testing.assert_allclose(new[n], x, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(held[n], x, rtol=1e-5, atol=1e-6)
    assert int(state["count"]) == 0
    assert int(state["optimizer"]["step"]) == int(held_state["optimizer"]["step"]) == 2
    with pytest.raises(tw.CompileError, match="another model"):
        optimizer.update({"w": parameters["w"]}, tensors({"w": gradients[0]["w"]}), state)
    with pytest.raises(ValueError, match="at least 1 step"):
        optim.Accumulate(inner, 0)

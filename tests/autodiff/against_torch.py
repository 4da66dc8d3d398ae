"""Gradients by `tw.grad` compared with those of torch.autograd, at once and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import tilewright as tw


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def loss_of(function: Callable[..., Any], weights: np.ndarray, order: int, count: int) -> Callable[..., Any]:
    """A scalar function of the results: their sum with `weights`, or at `order` 2 a sum of squares of its
    gradient by the first `count` arguments.
    """

    def first(*args: Any) -> Any:
        y = function(*args)
        return (y * weights.astype(y.dtype)).sum()

    def second(*args: Any) -> Any:
        found = tw.grad(first, argnums=tuple(range(count)))(*args)
        total = (found[0] * found[0]).sum()
        for g in found[1:]:
            total = total + (g * g).sum()
        return total

    return first if order == 1 else second


def torch_gradients(
    function: Callable[..., torch.Tensor],
    args: Sequence[np.ndarray],
    weights: np.ndarray,
    order: int,
    count: int,
) -> list[np.ndarray]:
    tensors = [torch.from_numpy(np.asarray(a)).clone() for a in args]
    for t in tensors[:count]:
        t.requires_grad_()
    wanted = tensors[:count]
    loss = (function(*tensors) * torch.from_numpy(weights)).sum()
    for _ in range(order - 1):
        found = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        loss = sum((g * g).sum() for g in found if g is not None)
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(wanted, found, strict=True)]


def check_gradients(
    function: Callable[..., Any],
    reference: Callable[..., torch.Tensor],
    *args: np.ndarray,
    count: int | None = None,
    order: int = 1,
    compiled: Sequence[str] = ("float32",),
    dims: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Compare the gradients of `function` by its first `count` arguments with those of `reference` in
    float64: recorded at once in float64 to 1e-9 of the scale, and compiled in each of the types `compiled`,
    float32 to 1e-5. `args` are of float64, or integers and booleans; `dims` are those of `tw.compile`.
    """
    count = len(args) if count is None else count
    with torch.no_grad():
        shape = reference(*(torch.from_numpy(np.asarray(a)) for a in args)).shape
    # With sizes that only the run knows, all results have one weight.
    weights = np.asarray(random(*(shape if dims is None else ()), seed=99))
    wanted = torch_gradients(reference, args, weights, order, count)
    gradient = tw.grad(loss_of(function, weights, order, count), argnums=tuple(range(count)))
    close(gradient(*args), wanted, 1e-9, "at once")
    for dtype in compiled:
        given = tuple(a.astype(dtype) if a.dtype == np.float64 else a for a in args)
        library = tw.compile(gradient, given, dims=dims)
        found = library(*given)  # one result is given without a tuple
        close(
            found if isinstance(found, tuple) else (found,),
            wanted,
            1e-9 if dtype == "float64" else 1e-5,
            f"compiled in {dtype}",
        )


def close(found: Sequence[Any], wanted: Sequence[np.ndarray], tolerance: float, how: str) -> None:
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        array = np.asarray(got, np.float64)
        assert array.shape == want.shape, f"argument {k}, {how}: {array.shape} for {want.shape}"
        scale = max(np.abs(want).max(initial=0), 1e-30)
        error = np.abs(array - want).max(initial=0) / scale
        assert error <= tolerance or np.abs(array - want).max(initial=0) < 1e-12, (
            f"argument {k}, {how}: {error}"
        )

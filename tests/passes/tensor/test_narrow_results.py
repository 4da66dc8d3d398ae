"""Values between kernels have the type that their readers convert them to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.devices import need, running, sources_only

import tilewright as tw

tnp = tw.numpy
RNG = np.random.default_rng(0)


def weight(*shape: int) -> tw.Tensor:
    return tw.Tensor(RNG.normal(size=shape).astype(ml_dtypes.bfloat16))


LEFT, RIGHT, LAST = weight(64, 96), weight(64, 96), weight(96, 64)


def shortcut(x: Any) -> Any:
    """Two rounded products are added: one is the other's epilogue."""
    y = tnp.maximum(x @ LEFT + x @ RIGHT, 0)
    return y @ LAST + y.astype("float32").sum(-1, keepdims=True).astype("bfloat16")


def both_types(x: Any) -> Any:
    """The sum is also needed as it is."""
    y = tnp.matmul(x.astype("float32"), LEFT.astype("float32"))
    z = (x @ RIGHT + y.astype("bfloat16")) @ LAST
    return z, tnp.exp(y - y.max(-1, keepdims=True))


def result(x: Any) -> Any:
    """The sum is a result of the function."""
    y = tnp.matmul(x.astype("float32"), LEFT.astype("float32"))
    return y, (x @ RIGHT + y.astype("bfloat16")) @ LAST


X = RNG.normal(size=(80, 64)).astype(ml_dtypes.bfloat16)


def compiled(function: Callable[..., Any], target: str, **options: Any) -> Any:
    with sources_only():
        return tw.compile(function, (X,), target=target, cache=False, **options)


def pair(function: Callable[..., Any], target: str) -> tuple[Any, Any]:
    """The library with and without the pass."""
    return compiled(function, target), compiled(function, target, disable=("narrow-results",))


def moved(library: Any) -> float:
    """Bytes that all kernels read and write."""
    return sum(k["bytes"] * k["launches"] for k in library.metadata["kernels"])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_shortcut_is_stored_rounded(target: str) -> None:
    need(target)
    new, old = pair(shortcut, target)
    assert moved(old) - moved(new) == 2 * 2 * 80 * 96  # written and read with two bytes less
    found, wanted = (np.asarray(running(library)(X)) for library in (new, old))
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("function", [both_types, result])
def test_values_that_are_needed_with_all_digits_stay(function: Callable[..., Any]) -> None:
    new, old = pair(function, "cuda")
    assert new.ir("tensor") == old.ir("tensor")

"""Compiled zoo models compared with PyTorch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

import tilewright as tw
from tests.zoo.models import MINILM, MODELS, ZooModel

SIZES = ((2, 16), (1, 11), (3, 37))
"""(batch, tokens); static models are exported with the first."""


def zoo(name: str) -> ZooModel:
    return MINILM if name == "minilm" else MODELS[name]


@lru_cache(maxsize=4)
def torch_model(name: str, size: str = "tiny") -> Any:
    return zoo(name).torch_model(size)


@lru_cache(maxsize=64)
def wanted(name: str, batch: int, seq: int, size: str = "tiny") -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs and PyTorch's result for them."""
    import torch

    inputs = zoo(name).inputs(size, batch=batch, seq=seq)
    with torch.no_grad():
        result = torch_model(name, size)(*inputs.values())
    return {k: v.numpy() for k, v in inputs.items()}, result.numpy()


def compiled(name: str, front_end: str, *, dynamic: bool, target: str = "cpu", **options: Any) -> Any:
    """Return the tiny model of a name, compiled from its ONNX export or from its module."""
    model = zoo(name)
    dims = model.dims if dynamic else None
    if front_end == "onnx":
        return tw.compile(
            model.onnx_model("tiny", dynamic=dynamic), dims=dims, target=target, cache=False, **options
        )
    batch, seq = SIZES[0]
    args = tuple(model.inputs("tiny", batch=batch, seq=seq).values())
    return tw.compile(torch_model(name), args, dims=dims, target=target, cache=False, **options)


def assert_matches(library: Any, name: str, batch: int, seq: int, size: str = "tiny") -> None:
    """Check that the library's result is PyTorch's, within rtol 1e-4 and atol 1e-5 of the largest
    magnitude.
    """
    inputs, result = wanted(name, batch, seq, size)
    found = library(*inputs.values())
    found = found[0] if isinstance(found, tuple) else found
    scale = max(float(np.abs(result).max()), 1e-30)
    np.testing.assert_allclose(
        found / scale, result / scale, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {(batch, seq)}"
    )

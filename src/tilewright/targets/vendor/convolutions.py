"""The convolutions that libraries compute, each described as a kernel with code for its target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ...dialects.graph.conv import window_size
from ...dialects.kernels import KernelDefinition
from ...ir.symbolic import symbol
from ...ir.types import TensorSpec, bf16, f16, f32, f64, u8
from ...passes.graph.library_forms import Convolution
from .cudnn import WORKSPACE, CudnnConvolution
from .kernels import library_kernel

DTYPES = (f32, f64, f16, bf16)
"""The element types that cuDNN convolves here."""


def convolves(library: str, form: Convolution) -> bool:
    """Whether a library computes convolutions of a form."""
    return library == "cudnn" and form.dtype in DTYPES and len(form.kernel) <= 3


def _with_workspace(form: Convolution, x: Any, w: Any) -> Any:
    return form.reference(x, w), np.zeros(WORKSPACE, np.uint8)


@cache
def convolution_kernel(library: str, form: Convolution) -> KernelDefinition:
    """The kernel that computes convolutions of a form by a library."""
    t = form.dtype
    spatial = [f"size{k}" for k in range(len(form.kernel))]
    windows = zip(spatial, form.kernel, form.strides, form.padding, form.dilations, strict=True)
    result = [str(window_size(symbol(n, 0, None), k, s, (p, p), d)) for n, k, s, p, d in windows]

    def ordered(first: str, channels: str, others: Sequence[str | int]) -> TensorSpec:
        sizes = (first, *others, channels) if form.channels_last else (first, channels, *others)
        return TensorSpec(t, sizes)

    call = CudnnConvolution(
        t.name, form.kernel, form.strides, form.padding, form.dilations, form.groups, form.channels_last
    )
    return library_kernel(
        library,
        form,
        call,
        {"x": ordered("images", "channels", spatial), "w": ordered("filters", "depth", form.kernel)},
        {"y": ordered("images", "filters", result), "workspace": TensorSpec(u8, (WORKSPACE,))},
        partial(_with_workspace, form),
    )


__all__ = ["DTYPES", "convolution_kernel", "convolves"]

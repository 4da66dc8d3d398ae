"""Kernels whose code is a call of a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...artifact import disk_cache
from ...dialects.kernels import KERNELS, Implementation, KernelDefinition
from ...ir.types import TensorSpec
from ...passes.graph.library_forms import Form

FAMILIES: Mapping[str, str] = {"mkl": "cpu", "onednn": "cpu", "cublas": "cuda", "cudnn": "cuda"}
"""The family of targets that each library is for."""


def library_kernel(
    library: str,
    form: Form,
    code: Implementation,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
    reference: Callable[..., Any],
    split: str | None = None,
) -> KernelDefinition:
    """The kernel that computes a form by a library; the other arguments are those of `KernelDefinition`."""
    digest = disk_cache.digest("vendor", library, form.label, code.fingerprint)
    kernel = KernelDefinition(
        f"{library}_{form.label}",
        inputs=inputs,
        outputs=outputs,
        scalars={},
        reference=reference,
        implementations={FAMILIES[library]: code},
        split=split,
        digest=digest,
    )
    KERNELS[digest] = kernel
    return kernel


__all__ = ["FAMILIES", "library_kernel"]

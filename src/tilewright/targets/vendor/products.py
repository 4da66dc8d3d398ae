"""The products of matrices that libraries compute, each described as a kernel with code for its target."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from ...dialects.kernels import KernelDefinition
from ...ir.types import DType, TensorSpec, bf16, f16, f32, f64, u8
from ...passes.graph.library_forms import Product
from .cublas import WORKSPACE, CublasProduct
from .kernels import library_kernel
from .sources import mkl_source, onednn_source

DTYPES: Mapping[str, tuple[DType, ...]] = {
    "mkl": (f32, f64),
    "onednn": (f32,),
    "cublas": (f32, f64, f16, bf16),
}
"""The element types that each library multiplies here."""


def multiplies(library: str, product: Product) -> bool:
    """Whether a library computes products of a form, with the same rounding as an operator after the other.

    A bias is added to float32 sums before they are rounded, so in narrower types it is left to the compiler.
    """
    if product.dtype not in DTYPES.get(library, ()) or (product.batched and product.epilogue):
        return False
    return not product.epilogue or (library == "cublas" and product.dtype is f32)


def _with_workspace(product: Product, *arrays: Any) -> Any:
    return product.reference(*arrays), np.zeros(WORKSPACE, np.uint8)


@cache
def product_kernel(library: str, product: Product) -> KernelDefinition:
    """The kernel that computes products of a form by a library."""
    t = product.dtype
    right = ("columns", "depth") if product.transposed else ("depth", "columns")
    lead = ("*batch",) if product.batched else ()
    left = (*lead, "rows", "depth") if product.batched else ("*rows", "depth")
    inputs = {"x": TensorSpec(t, left), "y": TensorSpec(t, (*lead, *right))}
    if product.epilogue:
        inputs["bias"] = TensorSpec(t, ("columns",))
    outputs = {"z": TensorSpec(t, (*left[:-1], "columns"))}
    if library == "cublas":
        call = CublasProduct(t.name, product.batched, product.transposed, product.epilogue)
        outputs["workspace"] = TensorSpec(u8, (WORKSPACE,))
        return library_kernel(library, product, call, inputs, outputs, partial(_with_workspace, product))
    if library == "onednn":
        code = onednn_source(product.label, product.batched, product.transposed)
        return library_kernel(library, product, code, inputs, outputs, product.reference)
    code = mkl_source(product.label, t is f64, product.batched, product.transposed)
    split = "batch" if product.batched else "rows"
    return library_kernel(library, product, code, inputs, outputs, product.reference, split)


__all__ = ["DTYPES", "multiplies", "product_kernel"]

"""The products that libraries compute, each described as a kernel with code for its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ...artifact import disk_cache
from ...dialects.kernels import KERNELS, Implementation, KernelDefinition
from ...errors import CompileError
from ...ir.types import DType, TensorSpec, bf16, f16, f32, f64, u8
from ...passes.graph.use_libraries import Choose, Shape
from .cublas import WORKSPACE, CublasProduct
from .sources import mkl_source, onednn_source


@dataclass(frozen=True)
class Product:
    """A form of products of matrices, row-major and dense: ``z = x @ y``."""

    dtype: DType
    """The element type of both factors and of the result."""
    batched: bool = False
    """Whether both factors have the same leading dimensions, and each pair of matrices is multiplied. Else
    `x` has any number of leading dimensions, and `y` none.
    """
    transposed: bool = False
    """Whether `y` has a row for each column of the result."""
    epilogue: str = ""
    """``bias``: the sum with a vector of the columns. Activations of libraries are not used: what they make
    of a NaN is not stated.
    """

    @property
    def label(self) -> str:
        """A name: ``f32_nt_bias``."""
        parts = (self.dtype.name, "nt" if self.transposed else "nn", "batched" * self.batched, self.epilogue)
        return "_".join(part for part in parts if part)

    def reference(self, x: Any, y: Any, bias: Any = None) -> Any:
        """The result in NumPy, summed in double precision."""
        y = np.swapaxes(y, -1, -2) if self.transposed else y
        z = np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(self.dtype.numpy)
        return z if bias is None else z + bias


DTYPES: Mapping[str, tuple[DType, ...]] = {
    "mkl": (f32, f64),
    "onednn": (f32,),
    "cublas": (f32, f64, f16, bf16),
}
"""The element types that each library multiplies here."""
FAMILIES: Mapping[str, tuple[str, ...]] = {"mkl": ("cpu",), "onednn": ("cpu",), "cublas": ("cuda",)}
"""The families of targets that each library is for."""


def takes(library: str, product: Product) -> bool:
    """Whether a library computes products of a form, with the same rounding as an operator after the other.

    A bias is added to float32 sums before they are rounded, so in narrower types it is left to the compiler.
    """
    if product.dtype not in DTYPES[library] or (product.batched and product.epilogue):
        return False
    return not product.epilogue or (library == "cublas" and product.dtype is f32)


def _with_workspace(product: Product, *arrays: Any) -> Any:
    return product.reference(*arrays), np.zeros(WORKSPACE, np.uint8)


@cache
def kernel_of(library: str, product: Product) -> KernelDefinition:
    """The kernel that computes products of a form by a library."""
    t = product.dtype
    right = ("columns", "depth") if product.transposed else ("depth", "columns")
    lead = ("*batch",) if product.batched else ()
    left = (*lead, "rows", "depth") if product.batched else ("*rows", "depth")
    inputs = {"x": TensorSpec(t, left), "y": TensorSpec(t, (*lead, *right))}
    if product.epilogue:
        inputs["bias"] = TensorSpec(t, ("columns",))
    outputs = {"z": TensorSpec(t, (*left[:-1], "columns"))}
    code: Implementation
    reference: Callable[..., Any] = product.reference
    split = "batch" if product.batched else "rows"
    if library == "cublas":
        code, split = CublasProduct(t.name, product.batched, product.transposed, product.epilogue), ""
        outputs["workspace"] = TensorSpec(u8, (WORKSPACE,))
        reference = partial(_with_workspace, product)
    elif library == "mkl":
        code = mkl_source(product.label, t is f64, product.batched, product.transposed)
    else:
        code, split = onednn_source(product.label, product.batched, product.transposed), ""
    digest = disk_cache.digest("vendor", library, product.label, code.fingerprint)
    kernel = KernelDefinition(
        f"{library}_{product.label}",
        inputs=inputs,
        outputs=outputs,
        scalars={},
        reference=reference,
        implementations=dict.fromkeys(FAMILIES[library], code),
        split=split or None,
        digest=digest,
    )
    KERNELS[digest] = kernel
    return kernel


def structure_of(product: Product, shape: Shape) -> str:
    """The text by which a database of measured choices knows a product."""
    sizes = f"{shape.batch} x {shape.rows} x {shape.columns} x {shape.terms}"
    return f"product {product.label} of {sizes}{' by a constant' if shape.constant else ''}"


Recorded = Callable[[str], Mapping[str, Any] | None]
"""The measured choices for a structure: ``{"library": name}``, an empty name for generated code; or None."""


def chooser(
    names: Sequence[str],
    recorded: Recorded | None = None,
    seen: list[tuple[Product, Shape]] | None = None,
) -> Choose:
    """Chooses, for `passes.graph.use_libraries`, what computes a product.

    Args:
        names: The libraries. The first that computes a product is taken where no choice is recorded.
        recorded: The recorded choices.
        seen: Gets each product that one of the libraries computes, whatever is chosen.
    """

    def choose(
        dtype: DType,
        batched: bool,
        transposed: bool,
        epilogue: str,
        shape: Shape,
    ) -> KernelDefinition | None:
        product = Product(dtype, batched, transposed, epilogue)
        able = [n for n in names if takes(n, product)]
        if able and seen is not None:
            seen.append((product, shape))
        known = recorded(structure_of(product, shape)) if able and recorded is not None else None
        if known is not None:
            able = [n for n in able if n == known.get("library")]
        return kernel_of(able[0], product) if able else None

    return choose


def checked_names(libraries: str | Iterable[str], target: str) -> tuple[str, ...]:
    """The option `libraries` of `tilewright.compile`, checked.

    Raises:
        CompileError: There is no such library, or it is for other targets.
    """
    names = (libraries,) if isinstance(libraries, str) else tuple(libraries)
    family = target.partition(":")[0]
    for name in names:
        if name not in FAMILIES:
            raise CompileError(f"libraries: {name!r} is unknown; known are {', '.join(FAMILIES)}")
        if family not in FAMILIES[name]:
            raise CompileError(
                f"libraries: {name!r} is for the target {FAMILIES[name][0]}, the model is compiled for "
                f"{target}"
            )
    return names


__all__ = ["DTYPES", "FAMILIES", "Product", "checked_names", "chooser", "kernel_of", "structure_of", "takes"]

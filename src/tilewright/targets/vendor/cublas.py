"""Products by cuBLASLt: what the runtime (`runtime/c/device_cublas.c`) is told about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .calls import VendorCall

WORKSPACE = 4 << 20
"""Bytes of memory that a product may use beside its operands. It is a buffer like others, so it lies in the
arena; NVIDIA recommends 4 MiB for GPUs before the H100 and 32 MiB for it.
"""
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
"""Numbers of element types in CUDA (cudaDataType)."""
EPILOGUES = {"": 1, "bias": 4}
"""Numbers of epilogues in cuBLASLt."""


@dataclass(frozen=True)
class CublasProduct(VendorCall):
    """The code of a product for CUDA."""

    library: ClassVar[str] = "cublas"
    module: ClassVar[int] = -1
    dtype: str
    batched: bool
    transposed: bool
    epilogue: str

    @property
    def facts(self) -> tuple[int, ...]:
        return (TYPES[self.dtype], self.batched, self.transposed, EPILOGUES[self.epilogue], WORKSPACE)


__all__ = ["EPILOGUES", "TYPES", "WORKSPACE", "CublasProduct"]

"""Products by cuBLASLt: what the runtime (`runtime/c/device_cublas.c`) is told about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialects.kernels import KernelDefinition, Scalar
from ...ir.symbolic import Dim, Expr
from ..llvm.host_calls import Argument, ArgumentKind

WORKSPACE = 4 << 20
"""Bytes of memory that a product may use beside its operands. It is a buffer like others, so it lies in the
arena; NVIDIA recommends 4 MiB for GPUs before the H100 and 32 MiB for it.
"""
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
"""Numbers of element types in CUDA (cudaDataType)."""
EPILOGUES = {"": 1, "bias": 4}
"""Numbers of epilogues in cuBLASLt."""


@dataclass(frozen=True)
class CublasProduct:
    """The code of a product for CUDA."""

    dtype: str
    batched: bool
    transposed: bool
    epilogue: str
    library: str = "cublas"

    @property
    def fingerprint(self) -> str:
        """As of `dialects.kernels.Implementation`."""
        return repr(self)

    def arguments(self, kernel: KernelDefinition, scalars: Mapping[str, Scalar]) -> tuple[Argument, ...]:
        """The facts that the runtime reads, in its order, then the buffers: those of `kernel`."""
        facts = (TYPES[self.dtype], self.batched, self.transposed, EPILOGUES[self.epilogue], WORKSPACE)
        buffers = len(kernel.inputs) + len(kernel.outputs)
        return (
            *(Argument(ArgumentKind.NUMBER, 8, int(fact)) for fact in facts),
            *(Argument(ArgumentKind.BUFFER, 8, number) for number in range(buffers)),
        )

    def launch(
        self, kernel: KernelDefinition, sizes: Mapping[Expr, Dim], scalars: Mapping[str, Scalar]
    ) -> tuple[Dim, ...]:
        """The launch: a grid that is empty where the result is."""
        by_name = {s.name: size for s, size in sizes.items()}
        grid = (by_name["rows"], by_name["columns"], by_name.get("batch", 1))
        return (*grid, 1, 1, 1, 0)


__all__ = ["EPILOGUES", "TYPES", "WORKSPACE", "CublasProduct"]

"""Convolutions by cuDNN: what the runtime (`runtime/c/device_cudnn.c`) is told about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .calls import VendorCall

WORKSPACE = 32 << 20
"""Bytes of memory that a convolution may use beside its operands, in the arena. Transformed weights and tiles
of images need some; algorithms that need more are left out.
"""
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
"""Numbers of element types in cuDNN (cudnnDataType_t)."""


@dataclass(frozen=True)
class CudnnConvolution(VendorCall):
    """The code of a convolution for CUDA. cuDNN has two or three spatial dimensions, so a single one gets a
    first one of size 1.
    """

    library: ClassVar[str] = "cudnn"
    module: ClassVar[int] = -2
    dtype: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    channels_last: bool

    @property
    def facts(self) -> tuple[int, ...]:
        rank = len(self.kernel)
        windows = list(zip(self.kernel, self.strides, self.padding, self.dilations, strict=True))
        if rank == 1:
            windows.insert(0, (1, 1, 0, 1))
        while len(windows) < 3:
            windows.append((1, 1, 0, 1))
        numbers = (n for window in windows for n in window)
        return (TYPES[self.dtype], rank, self.groups, self.channels_last, WORKSPACE, *numbers)


__all__ = ["TYPES", "WORKSPACE", "CudnnConvolution"]

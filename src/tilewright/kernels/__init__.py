"""Kernels of one's own: described once, and operators of `tilewright.nn`, of traced functions and of PyTorch
from then on.
"""

from __future__ import annotations

from .c import c_kernel
from .gpu import gpu_kernel, gpu_source, triton_source
from .kernel import Kernel

__all__ = ["Kernel", "c_kernel", "gpu_kernel", "gpu_source", "triton_source"]

"""Vulkan devices with matrix instructions: the extension ``VK_KHR_cooperative_matrix``.

Plain ``vulkan`` asks for none, so that a library runs on every device. The shapes of lavapipe were read from
the driver. The others are those that users report and were not checked on a device; the runtime asks the
driver for the product of each kernel before it loads it.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.matrix_atom import COOPERATIVE
from ...ir.target_info import Gpu
from ..gpu.portable import VULKAN


def _with_matrices(warp: int, *shapes: str) -> Gpu:
    """The description; every driver with the extension gives a block 32 KiB of shared memory, and the GPUs
    with matrices a thread 255 registers.
    """
    atoms = tuple(COOPERATIVE[f"cooperative_{shape}"] for shape in shapes)
    return replace(VULKAN, warp=warp, shared_bytes=32 * 1024, registers=255, atoms=atoms)


DEVICES = {
    "vulkan": VULKAN,
    "vulkan:cooperative_matrix": _with_matrices(32, "16x16x16_f16", "16x16x16_i8"),
    "vulkan:nvidia": _with_matrices(32, "16x16x16_f16", "16x16x32_i8"),
    "vulkan:lavapipe": _with_matrices(8, "8x8x8_f16", "8x8x8_i8"),
}
"""The descriptions by the names of targets: AMD's GPUs since RDNA3 have the shapes of
``cooperative_matrix``, NVIDIA's since Turing those for float16. Products of bytes have more terms on the
latter. Mesa's software driver lavapipe has smaller ones (since 2025).
"""

__all__ = ["DEVICES"]

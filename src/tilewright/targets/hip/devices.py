"""AMD's GPUs.

Limits: "Hardware features" of the HIP documentation, "Accelerator and GPU hardware specifications" of the
ROCm documentation, and LLVM's user guide for the AMDGPU backend (sizes of register files and allocation
units). Rates and bandwidths: the data sheets of the MI250X and MI300X, and AMD's page of the Radeon RX 7900
XTX; matrix rates are those without sparsity.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.matrix_atom import MFMA, MFMA_CDNA2, MFMA_CDNA3, WMMA
from ...ir.target_info import Gpu
from ..gpu.device import Device, Multiprocessor

CDNA2 = Gpu(
    warp=64,
    max_threads=1024,
    shared_bytes=64 * 1024,
    registers=256,
    multiprocessors=110,
    atoms=(*MFMA.values(), *MFMA_CDNA2.values()),
)
CDNA3 = replace(CDNA2, multiprocessors=304, atoms=(*MFMA.values(), *MFMA_CDNA3.values()))
RDNA3 = replace(CDNA2, warp=32, multiprocessors=96, atoms=tuple(WMMA.values()))

# Vector and accumulation registers are one file of 512 a lane.
_CDNA = Multiprocessor(
    partitions=4,
    warps=8,
    registers=512,
    register_unit=8,
    blocks=32,
    shared_bytes=64 * 1024,
    shared_unit=512,
)
# A work-group processor of two compute units has 128 KiB of shared memory; half of it is counted for each.
_RDNA3 = Multiprocessor(
    partitions=2,
    warps=16,
    registers=1536,
    register_unit=24,
    blocks=32,
    shared_bytes=64 * 1024,
    shared_unit=1024,
)

MI250X = Device(
    name="AMD Instinct MI250X (one of two dies)",
    arch="gfx90a",
    gpu=CDNA2,
    multiprocessor=_CDNA,
    clock=1.7e9,
    bandwidth=1.638e12,
    l2_bytes=8 << 20,
    rates=(
        ("f32", 23.95e12),
        ("f64", 23.95e12),
        ("f16", 47.9e12),
        ("f32 matrix", 47.85e12),
        ("f64 matrix", 47.85e12),
        ("f16 matrix", 191.5e12),
        ("bf16 matrix", 191.5e12),
        ("i8 matrix", 191.5e12),
    ),
    launch=6e-6,
)

MI300X = Device(
    name="AMD Instinct MI300X",
    arch="gfx942",
    gpu=CDNA3,
    multiprocessor=_CDNA,
    clock=2.1e9,
    bandwidth=5.3e12,
    l2_bytes=256 << 20,
    rates=(
        ("f32", 163.4e12),
        ("f64", 81.7e12),
        ("f16", 163.4e12),
        ("f32 matrix", 163.4e12),
        ("f64 matrix", 163.4e12),
        ("f16 matrix", 1307.4e12),
        ("bf16 matrix", 1307.4e12),
        ("i8 matrix", 2614.9e12),
    ),
    launch=6e-6,
)

RX7900XTX = Device(
    name="AMD Radeon RX 7900 XTX",
    arch="gfx1100",
    gpu=RDNA3,
    multiprocessor=_RDNA3,
    clock=2.5e9,
    bandwidth=0.96e12,
    l2_bytes=96 << 20,
    rates=(
        ("f32", 61.4e12),
        ("f64", 1.92e12),
        ("f16", 122.8e12),
        ("f16 matrix", 122.8e12),
        ("bf16 matrix", 122.8e12),
        ("i8 matrix", 122.8e12),
    ),
    launch=6e-6,
)

DEVICES = (MI250X, MI300X, RX7900XTX)


def device_of(arch: str) -> Device:
    """Return the device that predictions for an architecture are made for.

    Raises:
        KeyError: No device of this architecture is described.
    """
    return {device.arch: device for device in DEVICES}[arch]


__all__ = ["CDNA2", "CDNA3", "DEVICES", "MI250X", "MI300X", "RDNA3", "RX7900XTX", "device_of"]

"""NVIDIA's data center GPUs.

Limits: "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, and the occupancy
calculator of Nsight Compute. Rates and bandwidths: the data sheets of the A100, H100 and H200 and the
whitepapers "NVIDIA A100 Tensor Core GPU Architecture" and "NVIDIA H100 Tensor Core GPU Architecture"; matrix
rates are those without sparsity.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.matrix_atom import MMA_SYNC, WGMMA
from ...ir.target_info import Gpu
from ..gpu.device import Device, Multiprocessor

AMPERE = Gpu(
    warp=32,
    max_threads=1024,
    shared_bytes=163 * 1024,
    registers=255,
    multiprocessors=108,
    atoms=tuple(MMA_SYNC.values()),
    matrix_loads=True,
    async_copies=True,
)
HOPPER = replace(AMPERE, shared_bytes=227 * 1024, multiprocessors=132, shared_atoms=tuple(WGMMA.values()))

# 65536 registers of 32 bits are 512 a lane in each of the four partitions.
_AMPERE = Multiprocessor(
    partitions=4,
    warps=16,
    registers=512,
    register_unit=8,
    blocks=32,
    shared_bytes=164 * 1024,
    shared_unit=128,
    shared_reserved=1024,
)
_HOPPER = Multiprocessor(
    partitions=4,
    warps=16,
    registers=512,
    register_unit=8,
    blocks=32,
    shared_bytes=228 * 1024,
    shared_unit=128,
    shared_reserved=1024,
)

STATIC_SHARED_BYTES = 48 * 1024
"""The most bytes of shared memory that a kernel declares itself (``__shared__ float x[N]``). A kernel that
needs more declares ``extern __shared__`` memory, and the launch says how much, after the attribute
``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`` of the function was raised.
"""

A100 = Device(
    name="NVIDIA A100 80GB SXM",
    arch="sm_80",
    gpu=AMPERE,
    multiprocessor=_AMPERE,
    clock=1.41e9,
    bandwidth=2.039e12,
    l2_bytes=40 << 20,
    rates=(
        ("f32", 19.5e12),
        ("f64", 9.7e12),
        ("f16", 78e12),
        ("bf16", 39e12),
        ("f64 matrix", 19.5e12),
        ("f32 matrix", 156e12),  # factors rounded to TF32
        ("f16 matrix", 312e12),
        ("bf16 matrix", 312e12),
        ("i8 matrix", 624e12),
    ),
)

_HOPPER_RATES = (
    ("f32", 66.9e12),
    ("f64", 33.5e12),
    ("f16", 133.8e12),
    ("bf16", 133.8e12),
    ("f64 matrix", 66.9e12),
    ("f32 matrix", 494.7e12),  # factors rounded to TF32
    ("f16 matrix", 989.4e12),
    ("bf16 matrix", 989.4e12),
    ("i8 matrix", 1978.9e12),
    ("f8e4m3fn matrix", 1978.9e12),
    ("f8e5m2 matrix", 1978.9e12),
)

H100 = Device(
    name="NVIDIA H100 80GB SXM",
    arch="sm_90",
    gpu=HOPPER,
    multiprocessor=_HOPPER,
    clock=1.83e9,
    bandwidth=3.352e12,
    l2_bytes=50 << 20,
    rates=_HOPPER_RATES,
)

H200 = Device(
    name="NVIDIA H200 141GB SXM",
    arch="sm_90",
    gpu=HOPPER,
    multiprocessor=_HOPPER,
    clock=1.83e9,
    bandwidth=4.8e12,
    l2_bytes=50 << 20,
    rates=_HOPPER_RATES,
)

DEVICES = (A100, H100, H200)


def device_of(arch: str) -> Device:
    """Return the device that predictions for an architecture are made for. ``sm_90a`` is the code for
    ``sm_90`` with instructions that later architectures lack.

    Raises:
        KeyError: No device of this architecture is described.
    """
    return {"sm_80": A100, "sm_90": H100}[arch.removesuffix("a")]


__all__ = ["A100", "AMPERE", "DEVICES", "H100", "H200", "HOPPER", "STATIC_SHARED_BYTES", "device_of"]

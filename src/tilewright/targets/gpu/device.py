"""Descriptions of GPUs beyond what schedules read: the limits that decide how many blocks a multiprocessor
runs at the same time, and the speeds that bound a kernel's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.target_info import Gpu


@dataclass(frozen=True)
class Multiprocessor:
    """The resources of one multiprocessor (NVIDIA), compute unit (AMD) or core (Apple).

    A multiprocessor has `partitions` equal parts, each with registers and an instruction scheduler of its
    own. A warp stays in one partition; the warps of a block are spread over all of them.
    """

    partitions: int
    """Parts with registers of their own: 4 on NVIDIA's and AMD's CDNA, 2 SIMD units on RDNA."""

    warps: int
    """The most warps that a partition holds."""

    registers: int
    """32-bit registers of a lane, which the warps of a partition share."""

    register_unit: int
    """A warp gets a multiple of so many registers a lane."""

    blocks: int
    """The most blocks that run at the same time."""

    shared_bytes: int
    """Bytes of shared memory for all blocks together."""

    shared_unit: int
    """A block gets a multiple of so many bytes of shared memory."""

    shared_reserved: int = 0
    """Bytes of shared memory that the system takes for each block."""

    bytes_per_cycle: int = 64
    """The most bytes that the multiprocessor loads from the second-level cache in a cycle."""


@dataclass(frozen=True)
class Device:
    """A GPU that is for sale. The figures are those of its data sheet."""

    name: str
    """The name of the product."""

    arch: str
    """The architecture as the compiler of device code spells it: ``sm_90``, ``gfx942``."""

    gpu: Gpu
    """The facts that schedules read."""

    multiprocessor: Multiprocessor | None
    """The resources of a multiprocessor; None where the vendor publishes no figures."""

    clock: float
    """Cycles of a multiprocessor in a second, under load."""

    bandwidth: float
    """Bytes that the whole device reads from memory in a second."""

    l2_bytes: int
    """Bytes of the last cache before memory."""

    rates: tuple[tuple[str, float], ...]
    """Operations in a second of the whole device, a multiply-add counted as two, by the type of the factors:
    ``f32`` for ordinary instructions, ``bf16 matrix`` for matrix instructions.
    """

    launch: float = 3e-6
    """Seconds from the end of a kernel to the start of the next in a stream, without a graph of launches."""

    def rate(self, dtype: str, *, matrix: bool = False) -> float:
        """Operations in a second on factors of type `dtype`. Types that have no rate of their own are
        computed as float32.
        """
        rates = dict(self.rates)
        if matrix and f"{dtype} matrix" in rates:
            return rates[f"{dtype} matrix"]
        return rates.get(dtype, rates["f32"])


__all__ = ["Device", "Multiprocessor"]

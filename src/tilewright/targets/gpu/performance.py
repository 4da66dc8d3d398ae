"""The speed of a GPU kernel as far as its code tells: resources, occupancy, and a lower bound of its time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...ir.symbolic import Dim
from .device import Device, Multiprocessor


@dataclass(frozen=True)
class KernelResources:
    """The resources of one kernel, as the compiler of device code reports them."""

    registers: int
    """32-bit registers of a thread."""

    shared_bytes: int
    """Bytes of shared memory of a block, without those that a launch adds."""

    stack_bytes: int
    """Bytes of memory private to a thread: arrays that are not in registers, and spilled registers."""

    spill_bytes: int
    """Bytes of registers that a thread moves to memory because registers did not suffice, counted once each
    in the code.
    """

    instructions: tuple[tuple[str, int], ...] = ()
    """Numbers of instructions in the code by their kind, a loop's body counted once; empty where they were
    not counted. `KINDS` lists the kinds.
    """

    def count(self, kind: str) -> int | None:
        """Instructions of a kind; None if they were not counted."""
        return dict(self.instructions).get(kind, 0) if self.instructions else None

    def to_metadata(self) -> dict[str, Any]:
        """The resources as plain data."""
        return {
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "stack_bytes": self.stack_bytes,
            "spill_bytes": self.spill_bytes,
            "instructions": dict(self.instructions),
        }

    @staticmethod
    def from_metadata(entry: Mapping[str, Any]) -> KernelResources:
        """The resources that `to_metadata` described."""
        return KernelResources(
            entry["registers"],
            entry["shared_bytes"],
            entry["stack_bytes"],
            entry["spill_bytes"],
            tuple(entry["instructions"].items()),
        )


class Launched(Protocol):
    """The parts of a printed kernel that say how it is launched; see `DeviceKernel`."""

    @property
    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Blocks in each dimension."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of shared memory that the launch gives each block."""

    @property
    def matrix(self) -> bool:
        """Whether matrix instructions do its arithmetic."""


def kernel_metadata(kernel: Launched, code: Mapping[str, KernelResources]) -> dict[str, Any]:
    """Describe a kernel of a GPU for its entry ``device`` in an artifact's metadata.

    Args:
        kernel: How the kernel is launched.
        code: Its resources by architecture; empty where no compiler is installed.
    """
    x, y, z = kernel.grid
    blocks = x * y * z
    return {
        "blocks": blocks if isinstance(blocks, int) else str(blocks),
        "threads": kernel.threads,
        "dynamic_shared_bytes": kernel.dynamic_bytes,
        "matrix": kernel.matrix,
        "code": {arch: resources.to_metadata() for arch, resources in code.items()},
    }


KINDS = {
    "all": "instructions",
    "global load": "loads from global memory",
    "global load 16": "loads of 16 bytes from global memory",
    "global store": "stores to global memory",
    "global store 16": "stores of 16 bytes to global memory",
    "async copy": "copies from global to shared memory that run beside the thread",
    "matrix": "matrix instructions",
    "warpgroup matrix": "matrix instructions of four warps together (sm_90a)",
    "local": "loads and stores of private memory: spilled registers, arrays with computed indices",
    "barrier": "barriers of a block",
    "shuffle": "exchanges between the threads of a warp",
    "atomic": "atomic updates of memory",
}
"""Kinds of instructions that decide on a kernel's speed, with their meaning."""


def count_instructions(
    mnemonics: Mapping[str, int], patterns: Mapping[str, str]
) -> tuple[tuple[str, int], ...]:
    """Count instructions by their kind.

    Args:
        mnemonics: Numbers of instructions by name: ``LDG.E.128``.
        patterns: A regular expression for the beginning of the names of each kind in `KINDS`.
    """
    counts = {"all": sum(mnemonics.values())}
    for kind in KINDS:
        if kind in patterns:
            pattern = re.compile(patterns[kind])
            counts[kind] = sum(count for name, count in mnemonics.items() if pattern.match(name))
    return tuple(counts.items())


@dataclass(frozen=True)
class Occupancy:
    """The blocks of a kernel that a multiprocessor runs at the same time."""

    blocks: int
    """Blocks at the same time; 0 if not even one fits."""

    warps: int
    """Warps of these blocks."""

    share: float
    """`warps` as a part of the most that the multiprocessor holds."""

    limit: str
    """The resource that allows no more blocks: ``warps``, ``registers``, ``shared memory``, ``blocks``."""


def occupancy(device: Device, resources: KernelResources, threads: int, extra_shared: int = 0) -> Occupancy:
    """Return how many blocks of `threads` threads a multiprocessor of the device holds.

    Registers are allocated for a whole warp in units, shared memory for a block, as in the vendors' occupancy
    tables.

    Args:
        device: A device with a known multiprocessor.
        resources: The kernel's.
        threads: Threads of a block.
        extra_shared: Bytes of shared memory that the launch adds to those of the code.
    """
    unit = device.multiprocessor
    assert unit is not None
    warps = -(-threads // device.gpu.warp)
    registers = max(_up(resources.registers, unit.register_unit), unit.register_unit)
    shared = resources.shared_bytes + extra_shared
    limits = {
        "warps": unit.partitions * unit.warps // warps,
        "registers": unit.partitions * (unit.registers // registers) // warps,
        "blocks": unit.blocks,
    }
    if shared or unit.shared_reserved:
        taken = _up(shared + unit.shared_reserved, unit.shared_unit)
        limits["shared memory"] = unit.shared_bytes // taken
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / (unit.partitions * unit.warps), limit)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Prediction:
    """The time that a launch takes at least."""

    seconds: float
    """The larger of the two times below, and the launch's own."""

    memory_seconds: float
    """Time to move the kernel's bytes."""

    arithmetic_seconds: float
    """Time of the arithmetic on the unit that the kernel uses."""

    bound: str
    """The part that takes longest: ``memory``, ``arithmetic`` or ``launch``."""

    rounds: int
    """Blocks that the busiest multiprocessor runs."""

    waves: float | None
    """The number of blocks divided by those that the device runs at the same time; None if unknown."""


def predict(
    device: Device,
    blocks: int,
    flops: float,
    bytes_moved: float,
    dtype: str = "f32",
    *,
    matrix: bool = False,
    occupied: Occupancy | None = None,
) -> Prediction:
    """Return the lower bound of a launch's time.

    Blocks are taken to be equal. The multiprocessor with the most of them, ``ceil(blocks /
    multiprocessors)``, decides on the time: it computes and loads no faster than one multiprocessor can,
    while memory serves all of them together. Latencies, bank conflicts and bytes read twice are left out, so
    measured times are longer.

    Args:
        device: The device.
        blocks: Blocks of the launch.
        flops: Arithmetic operations of the launch, a multiply-add counted as two.
        bytes_moved: Bytes that the launch reads and writes, each once.
        dtype: The type of the factors, as in `Device.rates`.
        matrix: Whether matrix instructions do the arithmetic.
        occupied: How many blocks run at the same time, where it is known.
    """
    processors = device.gpu.multiprocessors
    blocks = max(blocks, 1)
    rounds = -(-blocks // processors)
    busiest = rounds / blocks  # the share of the work that the busiest multiprocessor does
    arithmetic = flops * busiest * processors / device.rate(dtype, matrix=matrix)
    unit = device.multiprocessor or _TYPICAL
    memory = max(
        bytes_moved / device.bandwidth, bytes_moved * busiest / (unit.bytes_per_cycle * device.clock)
    )
    seconds = max(arithmetic, memory)
    bound = "launch" if seconds < device.launch else "memory" if memory >= arithmetic else "arithmetic"
    waves = blocks / (occupied.blocks * processors) if occupied and occupied.blocks else None
    return Prediction(device.launch + seconds, memory, arithmetic, bound, rounds, waves)


_TYPICAL = Multiprocessor(4, 16, 512, 8, 32, 64 << 10, 256)

__all__ = [
    "KINDS",
    "KernelResources",
    "Launched",
    "Occupancy",
    "Prediction",
    "count_instructions",
    "kernel_metadata",
    "occupancy",
    "predict",
]

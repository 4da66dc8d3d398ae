"""A description of a device, which passes and schedules read in place of constants of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .matrix_atom import MatrixAtom
from .types import DType, bf16, f32


@dataclass(frozen=True)
class RegisterTile:
    """The part of a contraction's result that the innermost code keeps in registers: `rows` x `columns`
    elements. `copies_rows` says that the rows of a tile of several such parts are first copied into the order
    in which instructions take them.
    """

    rows: int
    columns: int
    copies_rows: bool = False


@dataclass(frozen=True)
class MatrixUnit:
    """An instruction that multiplies whole tiles: ``rows x depth`` by ``depth x columns`` elements of type
    `factors`, added to ``rows x columns`` elements of type `result`.
    """

    rows: int
    columns: int
    depth: int
    factors: DType
    result: DType
    cycles: int = 16
    """Processor cycles from the start of one such product to the start of the next."""

    @property
    def products_per_cycle(self) -> int:
        """Multiply-adds of single elements in a processor cycle."""
        return self.rows * self.columns * self.depth // self.cycles


@dataclass(frozen=True)
class ThreadAxis:
    """A kind of loop whose iterations run side by side: ``parallel`` (worker threads), ``block.x``,
    ``thread.x``, ...

    `limit` is the largest number of iterations that a loop of this kind may have; None where there is no
    limit.
    """

    name: str
    """The name of the kind of loop."""
    limit: int | None = None


@dataclass(frozen=True)
class Gpu:
    """The facts of a GPU that schedules and generated code depend on. The defaults hold on every device of
    the last ten years.
    """

    warp: int = 32
    """Threads that run in step and exchange values by shuffles: a warp, wavefront or subgroup."""

    max_threads: int = 256
    """The most threads of a block."""

    shared_bytes: int = 16 * 1024
    """Bytes of shared memory that a block may have."""

    shared_element: int = 1
    """The least bytes that an element takes in shared memory: 4 where the language has no narrower types."""

    registers: int = 255
    """The most 32-bit registers of a thread."""

    multiprocessors: int = 16
    """Multiprocessors (compute units, cores), among which blocks are divided."""

    vector_bytes: int = 16
    """The most bytes that a thread loads or stores with one instruction."""

    grid_limits: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """The most blocks in each dimension of a launch."""

    max_buffers: int | None = None
    """The most buffers of a kernel; None: as many as it needs. Fusion keeps to it."""

    atoms: tuple[MatrixAtom, ...] = ()
    """The matrix instructions that the code generator uses, the preferred ones for each type first."""

    shared_atoms: tuple[MatrixAtom, ...] = ()
    """The matrix instructions that read factors from shared memory, those with the most columns first. They
    are preferred to `atoms` where the tiles have the form that they need.
    """

    rounds_to: tuple[str, ...] = ()
    """The formats to which atoms may round wider factors (`MatrixAtom.rounds_to`), since the user asked for
    it.
    """

    matrix_loads: bool = False
    """Whether a warp can load parts of matrix instructions' factors from shared memory in rows of 16 bytes,
    as NVIDIA's ``ldmatrix`` does.
    """

    async_copies: bool = False
    """Whether threads can copy from global to shared memory without waiting for it."""

    shuffles: bool = True
    """Whether the threads of a warp can exchange values without shared memory."""


@dataclass(frozen=True)
class ReductionSplits:
    """Which reductions, other than contractions, are divided into pieces, so that several workers share one.
    The defaults are those of a CPU with few cores.
    """

    few_across: int = 64
    """Largest number of results of a reduction that is split: about one vector, which does not keep several
    workers busy. A larger value splits more reductions.
    """

    few_along: int = 8
    """The same for sums along contiguous memory: a vector (the threads of a block) runs along the sum, so
    each result is work of its own for a worker. Split sums cannot share a kernel with what uses them
    (softmax). A larger value splits more of them.
    """

    long: int = 1 << 18
    """Least number of points of a reduction that is split: the work that is worth a second kernel. A larger
    value splits fewer reductions.
    """

    pieces: int = 32
    """Number of pieces of a reduction, approximately."""


GPU_SPLITS = ReductionSplits(few_across=4096, few_along=32, long=1 << 18, pieces=128)
"""The thresholds of a GPU: only hundreds of blocks read as fast as memory allows."""


@dataclass(frozen=True)
class CacheLevel:
    """A data cache of `size` bytes that `cores` cores share; `level` 1 is nearest to the core."""

    level: int
    size: int
    cores: int = 1

    @property
    def share(self) -> int:
        """The bytes for one core while all cores that share the cache are busy."""
        return self.size // self.cores


@dataclass(frozen=True)
class Machine:
    """The part of a device's description that differs between machines of one instruction set.

    Schedules are made for these numbers; their results do not depend on them, except for the order of long
    sums. The defaults describe a machine of which nothing is known.
    """

    cores: int = 16
    """Cores that work is divided among. A library runs on any number of threads; schedules cut kernels into
    pieces that keep so many threads equally busy.
    """

    caches: tuple[CacheLevel, ...] = ()
    """Data caches whose sizes are known, nearest first."""

    bandwidth: float | None = None
    """Bytes per processor cycle that a core reads from memory while all cores read; None: see
    `core_bandwidth`.
    """

    def cache(self, level: int) -> CacheLevel | None:
        """The data cache of a level; None where it is not known."""
        return next((cache for cache in self.caches if cache.level == level), None)

    @property
    def l1_bytes(self) -> int:
        """Bytes of the first-level cache that one core has to itself; 32 KiB where it is not known."""
        cache = self.cache(1)
        return cache.share if cache is not None else 32 * 1024

    @property
    def l2_bytes(self) -> int:
        """Bytes of the second-level cache that one core has to itself; 1 MiB where it is not known."""
        cache = self.cache(2)
        return cache.share if cache is not None else 1024 * 1024

    @property
    def core_bandwidth(self) -> float:
        """Bytes per processor cycle that a core reads from memory while all cores read.

        Where it is not known: what one core's line buffers allow, or an equal share of what the memory
        channels of a server deliver.
        """
        if self.bandwidth is not None:
            return self.bandwidth
        return min(CORE_BANDWIDTH, SERVER_BANDWIDTH / self.cores)

    def describe(self) -> dict[str, Any]:
        """The description as plain data: the metadata and the cache's keys have it."""
        caches = {f"l{c.level}": [c.size, c.cores] for c in self.caches}
        return {"cores": self.cores, "caches": caches, "bandwidth": self.core_bandwidth}


CORE_BANDWIDTH = 4.0
"""Bytes per cycle that one core reads from memory: 16 outstanding cache lines of 64 bytes and a latency of
some 250 cycles.
"""
SERVER_BANDWIDTH = 128.0
"""Bytes per cycle that all cores together read from memory: eight to twelve channels of DDR5 at 3 GHz."""

UNKNOWN_MACHINE = Machine()


@dataclass(frozen=True)
class TargetInfo:
    """The description of a device for passes and schedules.

    Generated code follows from these numbers, so two devices with equal descriptions get equal schedules. The
    defaults describe a device of which nothing is known.
    """

    name: str = ""
    """The target's name, with its features: ``cpu:x86-64-v4``."""

    vector_bits: int = 128
    """Width of a vector register in bits; 0 where code has no vectors."""

    masked: bool = False
    """Whether every vector instruction can leave out lanes, so that loops with conditions run in lanes."""

    vector_registers: int = 16
    """Number of vector registers."""

    integer_bits: int = 0
    """Width of a register of integers of up to 32 bits, where floats have other registers; 0: the same."""

    integer_registers: int = 0
    """Number of registers of `integer_bits` bits."""

    machine: Machine = UNKNOWN_MACHINE
    """Cores, caches and memory."""

    memory_spaces: tuple[str, ...] = ("global", "local")
    """Spaces in which kernels may keep buffers: see `tilewright.ir.types.BufferType`."""

    thread_axes: tuple[ThreadAxis, ...] = (ThreadAxis("parallel"),)
    """Kinds of parallel loops that the code generator accepts."""

    matrix_units: tuple[MatrixUnit, ...] = ()
    """Matrix instructions that the code generator uses."""

    register_tiles: tuple[tuple[DType, RegisterTile], ...] = ((f32, RegisterTile(1, 4)),)
    """Tiles of contractions in registers, by the type of the factors. Types that are not listed use the tile
    of float32.
    """

    quantized_factors: DType = bf16
    """The type in which many rows are fastest multiplied by quantized weights: bf16, or i8 where products of
    bytes are several times as fast.
    """

    cache_line: int = 64
    """Bytes that the caches load at a time. Rows of local buffers begin at multiples of it; 0: they are not
    padded.
    """

    row_group_bytes: int = 512 * 1024
    """Upper bound, in bytes, on the intermediate values of one row in a row group (a softmax, a layer norm).

    A larger value fuses computations with longer rows into one kernel; their values may then leave the cache
    between two passes over a row. The default is the second-level cache of a core, or a little more.
    """

    reductions: ReductionSplits = ReductionSplits()
    """Which long reductions several workers share."""

    gpu: Gpu | None = None
    """The facts of a GPU; None for other devices."""

    alignment: int = 64
    """Bytes; buffers in the arena and among the weights begin at multiples of it."""

    byte_rows: int = 0
    """Rows of bytes that a product with packed weights takes at a time, with all columns; 0: it is divided
    into tiles of rows and columns.
    """

    integer_sums: bool = False
    """Whether sums of products of integers take no longer than those of float32. Otherwise sums of bytes are
    computed in float32 where that is exact.
    """

    features: tuple[str, ...] = ()
    """Further features, in the target's own spelling."""

    @property
    def family(self) -> str:
        """The name without features: ``cpu`` for ``cpu:x86-64-v4``."""
        return self.name.partition(":")[0]

    @property
    def l2_bytes(self) -> int:
        """Bytes of the second-level cache that one core has to itself; 1 MiB where it is not known."""
        return self.machine.l2_bytes

    @property
    def cores(self) -> int:
        """Cores that work is divided among."""
        return self.machine.cores

    def lanes(self, bits: int) -> int:
        """The number of elements of `bits` bits in a vector register, at least 1."""
        return max(1, self.vector_bits // bits)

    def vectors_of(self, factors: DType) -> tuple[int, int]:
        """The elements in a register of the sums of `factors`, and the number of such registers."""
        bits = max(factors.bits, 32)
        if self.integer_bits and not factors.is_float and bits == 32:
            return self.integer_bits // bits, self.integer_registers
        return self.lanes(bits), self.vector_registers

    def register_tile(self, factors: DType) -> RegisterTile:
        """The register tile of a contraction whose factors have type `factors`."""
        tiles = dict(self.register_tiles)
        return tiles.get(factors) or tiles[f32]

    def thread_limit(self, axis: str) -> int | None:
        """The largest number of iterations of a loop bound to a thread axis; None where there is no limit."""
        return next((a.limit for a in self.thread_axes if a.name == axis), None)

    def matrix_unit(self, factors: DType) -> MatrixUnit | None:
        """The matrix instruction that multiplies factors of a type; None if there is none."""
        return next((unit for unit in self.matrix_units if unit.factors is factors), None)

    def has_matrix_unit(self, factors: DType) -> bool:
        """Whether matrix instructions multiply factors of a type."""
        return self.matrix_unit(factors) is not None


__all__ = [
    "GPU_SPLITS",
    "UNKNOWN_MACHINE",
    "CacheLevel",
    "Gpu",
    "Machine",
    "MatrixUnit",
    "ReductionSplits",
    "RegisterTile",
    "TargetInfo",
    "ThreadAxis",
]

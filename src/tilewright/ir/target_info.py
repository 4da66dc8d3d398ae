"""A description of a device, which passes and schedules read in place of constants of their own."""

from __future__ import annotations

from dataclasses import dataclass

from .types import DType, f32


@dataclass(frozen=True)
class RegisterTile:
    """The part of a contraction's result that the innermost code keeps in registers: `rows` x `columns`
    elements.
    """

    rows: int
    columns: int


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
class CacheLevel:
    """A data cache: `level` 1 is nearest to the core; `size` is the number of bytes that one core has to
    itself.
    """

    level: int
    size: int


@dataclass(frozen=True)
class TargetInfo:
    """The description of a device for passes and schedules.

    Generated code follows from these numbers, so two devices with equal descriptions get equal schedules. The
    defaults describe a device of which nothing is known.
    """

    name: str = ""
    """The target's name, with its features: ``cpu:x86-64-v4``."""

    vector_bits: int = 128
    """Width of a vector register in bits."""

    caches: tuple[CacheLevel, ...] = ()
    """Data caches whose sizes are known, nearest first."""

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

    cache_line: int = 64
    """Bytes that the caches load at a time. Rows of local buffers begin at multiples of it."""

    row_group_bytes: int = 512 * 1024
    """Upper bound, in bytes, on the intermediate values of one row in a row group (a softmax, a layer norm).

    A larger value fuses computations with longer rows into one kernel; their values may then leave the cache
    between two passes over a row. The default is the second-level cache of a core, or a little more.
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
        return next((cache.size for cache in self.caches if cache.level == 2), 1024 * 1024)

    def lanes(self, bits: int) -> int:
        """The number of elements of `bits` bits in a vector register, at least 1."""
        return max(1, self.vector_bits // bits)

    def register_tile(self, factors: DType) -> RegisterTile:
        """The register tile of a contraction whose factors have type `factors`."""
        tiles = dict(self.register_tiles)
        return tiles.get(factors) or tiles[f32]

    def thread_limit(self, axis: str) -> int | None:
        """The largest number of iterations of a loop bound to a thread axis; None where there is no limit."""
        return next((a.limit for a in self.thread_axes if a.name == axis), None)

    def has_matrix_unit(self, factors: DType) -> bool:
        """Whether matrix instructions multiply factors of a type."""
        return any(unit.factors is factors for unit in self.matrix_units)


__all__ = ["CacheLevel", "MatrixUnit", "RegisterTile", "TargetInfo", "ThreadAxis"]

"""The choice of tiles that keep the cores of a machine equally busy.

A launch divides the tiles of a kernel among its threads, each of which takes equally many successive ones
(`runtime/c/pool.c`). With T tiles and n cores some core computes ``ceil(T / n)`` of them: 24 tiles take 16
cores as long as 32 would. The code of a library is the same for every number of threads, so tiles are chosen
for the cores of the machine's description; fewer threads get more tiles each, which divide more evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ....ir.symbolic import Dim
from ....ir.target_info import TargetInfo
from ....ir.types import DType

WORTHWHILE = 1.05
"""How many times faster other tiles must be, by the model, than the default ones. A larger value keeps the
default tiles in more kernels.
"""
FEW_FOR_A_CORE = 2
"""Tiles for each core from which on a thread that is held up leaves enough tiles for the others to take."""
FEW_PENALTY = 1.05
"""Factor on the estimated time of fewer tiles than `FEW_FOR_A_CORE` for each core. A larger value prefers
more tiles to larger ones.
"""
TILE_CYCLES = 500
"""Processor cycles that a tile costs beside its products: calls, the first rows of its operands. A larger
value prefers larger tiles.
"""
SMALL = 16384
"""Processor cycles, some 5 µs, below which a kernel without a tile for each core is not divided further:
waking a thread costs about one microsecond. A larger value divides fewer kernels.
"""

Tile = TypeVar("Tile")


@dataclass(frozen=True)
class Load:
    """The work of a kernel that is cut into tiles: how many there are, the processor cycles of a whole one,
    and those of all together. Tiles at the ends may be smaller.
    """

    tiles: int
    cycles: float
    total: float

    def on(self, cores: int, overhead: float = 0.0) -> float:
        """The cycles until the busiest core has finished, with `overhead` cycles for each tile: its last tile
        is a whole one, the others are of average size.
        """
        rounds = -(-self.tiles // cores)
        return (rounds - 1) * self.total / self.tiles + self.cycles + rounds * overhead


def balanced(
    default: Tile, others: Callable[[], Iterable[Tile]], load: Callable[[Tile], Load], cores: int
) -> Tile:
    """Return the fastest tile by the model: `default`, unless one of `others` is faster by `WORTHWHILE`.

    Args:
        default: The tile that is best for one core.
        others: Further tiles; called only if the default leaves cores idle.
        load: The work of the kernel if it is cut into such tiles.
        cores: The cores of the machine.
    """

    def few(tiles: int) -> bool:
        return cores > 1 and tiles < FEW_FOR_A_CORE * cores

    def time(tile: Tile) -> float:
        work = load(tile)
        return work.on(cores, TILE_CYCLES) * (FEW_PENALTY if few(work.tiles) else 1.0)

    usual = load(default)
    if usual.total < SMALL and usual.tiles <= cores:
        return default
    if usual.on(cores) <= WORTHWHILE * usual.total / cores and not few(usual.tiles):
        return default
    best = min(others(), key=lambda tile: (time(tile), -load(tile).tiles), default=default)
    return best if time(best) * WORTHWHILE <= time(default) else default


def balanced_part(
    default: int | None, extent: Dim, unit: int, others: Dim, cycles: Callable[[int], float], cores: int
) -> int | None:
    """Return the size of the parts of one loop: `default` (None: the loop stays whole), or a smaller multiple
    of `unit` by which the cores are busier. Sizes that the compiler does not know leave it as it is.

    Args:
        default: The size that is best for one core.
        extent: The iterations of the loop.
        unit: Sizes are multiples of this number.
        others: Iterations of the other parallel loops.
        cycles: The processor cycles of a part of so many iterations.
        cores: The cores of the machine.
    """
    if not (isinstance(extent, int) and isinstance(others, int)) or extent <= 0 or others <= 0:
        return default

    def sizes() -> Iterable[int | None]:
        return even_parts(extent, min(default or extent, extent), unit, unit)

    def load(part: int | None) -> Load:
        size = min(part or extent, extent)
        return Load(-(-extent // size) * others, cycles(size), total_of(extent, size, cycles) * others)

    return balanced(default, sizes, load, cores)


def total_of(extent: int, size: int, cost: Callable[[int], float]) -> float:
    """Return the cost of all parts of `size`, and of what is left, that cut `extent`."""
    whole, rest = divmod(extent, size)
    return whole * cost(size) + (cost(rest) if rest else 0)


def cost_of_rows(rows: int, tile: int) -> int:
    """Return the cost of `rows` rows of a tile, in rows of full register tiles of `tile` rows.

    Each register tile reads a panel of the right operand from the second-level cache, which takes about as
    long as the products of two thirds of its rows.
    """
    return max(rows, -(-rows // tile) * -(-2 * tile // 3))


def even_parts(extent: int, most: int, least: int, unit: int = 1) -> list[int]:
    """Return the sizes, from `most` down to `least`, of parts that cut `extent` into equal pieces; rounded up
    to multiples of `unit`.
    """
    sizes = (-(-extent // pieces) for pieces in range(-(-extent // most), -(-extent // least) + 1))
    rounded = (-(-size // unit) * unit for size in sizes if size <= most)
    return list(dict.fromkeys(rounded))


def products_per_cycle(info: TargetInfo, factor: DType) -> int:
    """Return how many products of single elements a core adds in a cycle: by a matrix unit, or by two
    multiply-adds of vectors.
    """
    unit = info.matrix_unit(factor)
    return unit.products_per_cycle if unit is not None else 2 * info.vectors_of(factor)[0]


__all__ = [
    "Load",
    "balanced",
    "balanced_part",
    "even_parts",
    "products_per_cycle",
    "cost_of_rows",
    "total_of",
]

"""The rule of transformed tiles (`graph.winograd_conv`): a block of tiles passes through the transform of its
elements, the products, and the transform back before the next block, so that the transformed elements stay in
the second-level cache.

    parallel for each block of tiles and, where there are few, part of the columns:
        for each tile, each vector of channels:                 # 16 loads, 16 stores
            V[0..15][tile][channels] = transformed elements
        for each panel of columns:
            for each e in 0..15:
                brgemm: M[e] = V[e] @ U[e][:, panel]
            for each tile, each vector of columns:              # 16 loads, 4 stores
                result = epilogue(transformed sums)
"""

from __future__ import annotations

from collections.abc import Iterator

from ....analysis.axis_roles import Roles
from ....dialects.graph.winograd import INPUT_CYCLES, OUT, OUTPUT_CYCLES, TILE
from ....ir.target_info import TargetInfo
from ....ir.types import DType
from ....schedule import Schedule, ScheduleError
from .balance import Load, balanced, cost_of_rows, even_parts, products_per_cycle, total_of
from .common import blocks_of, choose_part, fuse_all, loop_of
from .contraction import TILE_COLUMNS, choose_tile, even_part, factor_type, tensorize_tile

MOST_TILES = 48
"""The usual number of tiles in a block. The kernels are read once for each block: with a larger value less
often, and fewer blocks are left for the threads.
"""


def tiles(s: Schedule, rows: int) -> None:
    """Schedule a convolution by transformed tiles, as the module's text describes.

    `rows`, the number of leading axes that the members share, is not used: every member has its own axes.

    Raises:
        ScheduleError: The result is no image of known sizes with several rows, columns and channels.
    """
    info = s.info
    first, product, last = blocks_of(s)
    roles = Roles.of(product)
    image, row, column, channel = (loop_of(s, last, p) for p in range(4))
    if roles is None or row is None or column is None or channel is None:
        raise ScheduleError("tiles: the result is no image with several rows, columns and channels")
    row, row_in = s.split(row, OUT, guarded=True)
    column, column_in = s.split(column, OUT, guarded=True)
    outer = [x for x in (image, row, column) if x is not None]
    s.reorder(*outer, channel, row_in, column_in)
    tile = fuse_all(s, outer)
    count, width, depth = s.loop(tile).extent, s.loop(channel).extent, product.reduce_axes[0].upper + 1
    if not (isinstance(count, int) and isinstance(width, int) and isinstance(depth, int)):
        raise ScheduleError("tiles: the image has sizes that are not known")
    factor = factor_type(product)
    usual = _usual_block(count, width, depth, roles.nr, factor, info)
    mr = info.register_tile(factor).rows
    height = choose_part(s, "rows", usual[0], count, mr, 4 * MOST_TILES)
    columns = choose_part(s, "columns", usual[1], width, roles.nr, 16 * TILE_COLUMNS)
    block, tile = s.split(tile, height or count)
    part, channel = s.split(channel, columns or width)
    panels, channel = s.split(channel, max(1, TILE_COLUMNS // roles.nr) * roles.nr)
    s.reorder(block, part, panels, tile, channel, row_in, column_in)
    at = s.fuse(block, part)
    s.parallel(at)
    s.compute_at(product.sym_name, panels)
    tile_of, elements, depth_of = s.compute_at(first.sym_name, at)
    s.vectorize(channel)
    s.unroll(row_in)
    s.unroll(column_in)
    s.reorder(tile_of, depth_of, elements)
    s.vectorize(depth_of)
    s.unroll(elements)
    s.compact()
    tensorize_tile(s, product, roles, True, choose_tile(s, product, roles, True))


def _usual_block(
    count: int, width: int, depth: int, panel: int, factor: DType, info: TargetInfo
) -> tuple[int | None, int | None]:
    """Return the tiles and the columns of a block of products of a type of `factor`; None: all.

    The transformed elements of a block fill at most the second-level cache. Where blocks of all columns leave
    cores idle, blocks are smaller; each part of the columns transforms the elements again.
    """
    mr, lanes = info.register_tile(factor).rows, info.lanes(32)
    most = max(mr, min(MOST_TILES, info.l2_bytes // (TILE * TILE * factor.itemsize * depth)))
    height = -(-even_part(count, most) // mr) * mr
    term = TILE * TILE * depth / products_per_cycle(info, factor)

    def cycles(high: int, wide: int) -> float:
        products = cost_of_rows(high, mr) * -(-wide // panel) * panel * term
        return products + high * (-(-depth // lanes) * INPUT_CYCLES + -(-wide // lanes) * OUTPUT_CYCLES)

    def load(block: tuple[int, int]) -> Load:
        high, wide = block
        total = total_of(width, wide, lambda w: total_of(count, high, lambda h: cycles(h, w)))
        return Load(-(-count // high) * -(-width // wide), cycles(high, wide), total)

    def blocks() -> Iterator[tuple[int, int]]:
        for wide in even_parts(width, width, panel, panel):
            for high in even_parts(count, height, mr, mr):
                yield high, wide

    high, wide = balanced((height, width), blocks, load, info.cores)
    return (None if high >= count else high), (None if wide >= width else wide)

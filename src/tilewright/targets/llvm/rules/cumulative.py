"""The rule of running combinations (cumulative sums): one pass along the axis, with lanes along it or across
its neighbours.
"""

from __future__ import annotations

from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops
from ....schedule import Schedule
from .balance import balanced_part
from .common import blocks_of, choose_part, fuse_all, point_cost, set_grain, upper_limit, vector_loop

COLUMNS = 1024
"""Upper bound on the neighbouring columns that run together: their running values stay in the first-level
cache, and what they read of a row is about a page. A larger value leaves less work for other threads.
"""


def cumulative(s: Schedule, rows: int) -> None:
    """Schedule two blocks in one nest whose innermost loop runs along the axis: the running value, and its
    copy to the result.
    """
    blocks = blocks_of(s)
    last = blocks[-1]
    around = enclosing_loops(last)
    if not around:
        return
    *outer, run = around
    chosen = vector_loop(last, around)
    work = float(sum(map(point_cost, blocks))) * upper_limit(run.extent, 1024)
    parallel = [f.iv.name for f in outer if f is not chosen]
    lanes = run.iv.name
    if chosen is not None and chosen is not run:
        lanes = chosen.iv.name
        columns = []
        width = upper_limit(chosen.extent)
        unit = 8 * s.info.lanes(32)
        default = balanced_part(
            COLUMNS if width > COLUMNS else None,
            chosen.extent,
            unit,
            product(s.loop(x).extent for x in parallel),
            lambda n: n * work / s.info.lanes(32),
            s.info.cores,
        )
        part = choose_part(s, "columns", default, chosen.extent, unit, 4 * COLUMNS)
        if part:
            column, lanes = s.split(lanes, part)
            columns, width = [column], part
        parallel += columns
        work *= width
        s.reorder(*parallel, run.iv.name, lanes)
    if parallel:
        s.parallel(fuse_all(s, parallel))
        set_grain(s, work)
    s.vectorize(lanes)


__all__ = ["cumulative"]

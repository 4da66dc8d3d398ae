"""The rule of loops over time with independent columns: some columns, side by side in lanes, run through all
steps; other columns are for other threads.
"""

from __future__ import annotations

from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops
from ....ir import notes
from ....schedule import Schedule
from .balance import balanced_part
from .common import (
    blocks_of,
    choose_part,
    contiguity,
    fuse_all,
    point_cost,
    points_of,
    set_grain,
    upper_limit,
    vectorize_inner,
)

COLUMNS = 64
"""Upper bound on the columns that run side by side: a few vectors, whose carried values stay in the
first-level cache. A larger value leaves fewer pieces for the threads.
"""


def recurrence(s: Schedule, rows: int) -> None:
    """Schedule a nest of column loops around the time steps.

    Lanes run across columns if those are contiguous in memory, otherwise along loops inside the steps.
    """
    blocks = blocks_of(s)
    around = [enclosing_loops(b) for b in blocks]
    columns = [f for f in around[0] if all(f in others for others in around)]
    names = [f.iv.name for f in columns]
    work = float(
        sum(point_cost(b) * points_of(own[len(columns) :]) for b, own in zip(blocks, around, strict=True))
    )
    lanes = max(columns, key=lambda f: sum(contiguity(b, f.iv) for b in blocks))
    if sum(contiguity(b, lanes.iv) for b in blocks) > 0:
        name = lanes.iv.name
        names.remove(name)
        width = upper_limit(lanes.extent)
        default = balanced_part(
            COLUMNS if width > COLUMNS else None,
            lanes.extent,
            s.info.lanes(32),
            product(s.loop(x).extent for x in names),
            lambda n: n * work / s.info.lanes(32),
            s.info.cores,
        )
        part = choose_part(s, "columns", default, lanes.extent, s.info.lanes(32), 8 * COLUMNS)
        if part:
            outer, name = s.split(name, part)
            names, width = [*names, outer], part
        if names:
            s.reorder(*names, name)
            s.parallel(fuse_all(s, names))
            set_grain(s, work * width)
        for lane in s.fission(name):
            s.vectorize(lane)
        return
    s.parallel(fuse_all(s, names))
    set_grain(s, work)
    for block, own in zip(blocks, around, strict=True):
        vectorize_inner(s, block, [f for f in own[len(columns) :] if not notes.SEQUENTIAL.get(f)])


__all__ = ["recurrence"]

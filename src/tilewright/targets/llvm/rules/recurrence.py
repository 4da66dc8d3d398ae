"""The rule of loops over time whose columns are independent: some columns side by side in lanes go through all steps, others are for other threads."""

from __future__ import annotations

from ....dialects import loop
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops
from .common import blocks_of, contiguity, fuse_all, point_cost, points_of, set_grain, upper_limit, vectorize_inner

COLUMNS = 64
"""Columns that go side by side: a few vectors, with what they carry in the first-level cache."""


def recurrence(s: Schedule) -> None:
    """A nest of loops over columns around the steps; lanes run over columns where these lie side by side, else inside the steps' nests."""
    blocks = blocks_of(s)
    around = [enclosing_loops(b) for b in blocks]
    columns = [f for f in around[0] if all(f in others for others in around)]
    names = [f.iv.name for f in columns]
    work = float(sum(point_cost(b) * points_of(own[len(columns) :]) for b, own in zip(blocks, around, strict=True)))
    lanes = max(columns, key=lambda f: sum(contiguity(b, f.iv) for b in blocks))
    if sum(contiguity(b, lanes.iv) for b in blocks) > 0:
        name = lanes.iv.name
        names.remove(name)
        width = upper_limit(lanes.extent)
        if width > COLUMNS:
            outer, name = s.split(name, COLUMNS)
            names, width = [*names, outer], COLUMNS
        if names:
            s.reorder(*names, name)
            s.parallel(fuse_all(s, names))
            set_grain(s, work * width)
        for own in s.distribute(name):
            s.vectorize(own)
        return
    s.parallel(fuse_all(s, names))
    set_grain(s, work)
    for block, own in zip(blocks, around, strict=True):
        vectorize_inner(s, block, [f for f in own[len(columns) :] if not f.attributes.get(loop.STEPS)])


__all__ = ["recurrence"]

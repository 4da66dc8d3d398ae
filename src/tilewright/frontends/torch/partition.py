"""Partition of a graph into compiled parts and parts that torch runs, since their operators have no
importer.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def split(module: torch.fx.GraphModule, refused: Collection[Any]) -> tuple[Any, list[str]]:
    """Return a graph module that calls parts of `module` in order, and the names of the parts without a
    `refused` node.

    Compiled and refused parts alternate. A node goes into the first part of its kind that follows all parts
    it reads from, so there are as few parts as dependencies permit. Random operators go into refused parts
    and keep their order, which determines the numbers that each draws.
    """
    import torch
    from torch.fx.passes.split_module import split_module

    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    part: dict[Any, int] = {}
    drawn = 0
    for n in nodes:
        first = max((part.get(x, 0) for x in n.all_input_nodes), default=0)
        if n.target is operator.getitem and n.args[0] in part:
            part[n] = part[n.args[0]]
            continue
        random = torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
        first += (first + (random or n in refused)) % 2  # Parts with odd numbers are torch's.
        if random:
            first = drawn = max(first, drawn)
        part[n] = first
    output = next(n for n in module.graph.nodes if n.op == "output")
    for n in sorted(nodes, key=part.__getitem__):
        output.prepend(n)
    whole = split_module(module, None, part.__getitem__, keep_original_order=True)
    return whole, [f"submod_{k}" for k in sorted(set(part.values())) if k % 2 == 0]


__all__ = ["split"]

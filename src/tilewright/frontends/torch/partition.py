"""A graph in parts: what is compiled, and what torch runs because nobody imports it."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any


def split(module: Any, refused: Collection[Any]) -> tuple[Any, list[str]]:
    """A graph module that calls parts of `module` one after the other, and the names of those without a `refused` node.

    Parts alternate: a node belongs to the first part of its kind that stands behind all parts it reads from. So there are as few as
    dependencies allow. Random operators go with the refused ones and stay in their order, which decides what each of them draws.
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
        first += (first + (random or n in refused)) % 2  # the parts with odd numbers are torch's
        if random:
            first = drawn = max(first, drawn)
        part[n] = first
    output = next(n for n in module.graph.nodes if n.op == "output")
    for n in sorted(nodes, key=part.__getitem__):
        output.prepend(n)
    whole = split_module(module, None, part.__getitem__, keep_original_order=True)
    return whole, [f"submod_{k}" for k in sorted(set(part.values())) if k % 2 == 0]


__all__ = ["split"]

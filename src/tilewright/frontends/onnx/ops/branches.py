"""Branches of which one is chosen at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.symbolic import Dim, free_symbols, prove_eq
from ...unsupported import Unsupported
from ..values import Tensor

if TYPE_CHECKING:
    from ..node import Node


def choose(node: Node, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
    """Return the value that `then` builds if a bool scalar holds at run time, else the value that `otherwise`
    builds.

    Sizes in which the two differ are computed at run time.

    Raises:
        Unsupported: they differ in rank or element type, or in a size that one of them computes itself.
    """
    importer = node.importer
    blocks, values = [Block([]), Block([])], []
    try:
        for block, make in zip(blocks, (then, otherwise), strict=True):
            with importer.building(Builder(block, location=node.location)):
                values.append(make())
        first, second = (Tensor(v.type, value=v) for v in values)
        shape = common_shape(node, condition, first, second)
    except Unsupported:
        for block in blocks:
            discard(block)
        raise
    for block, value in zip(blocks, values, strict=True):
        b = Builder(block, location=node.location)
        b.insert(Yield([value if value.type.shape == shape else b(g.AssumeShape(value, shape=shape))]))
    op = g.If(condition, regions=[Region([block]) for block in blocks])
    importer.builder.insert(op)
    return op.results[0]


def common_shape(node: Node, condition: Value, a: Tensor, b: Tensor) -> tuple[Dim, ...]:
    """Return the common shape of the results of two branches. Where they differ, the size is chosen at run
    time.

    Raises:
        Unsupported: as `choose`.
    """
    importer = node.importer
    if a.dtype is not b.dtype or a.rank != b.rank:
        raise Unsupported(f"one branch gives {a.type}, the other {b.type}")
    shape = []
    for m, n in zip(a.shape, b.shape, strict=True):
        if prove_eq(m, n):
            shape.append(m)
            continue
        if any(
            s in free_symbols(d)
            for s, home in importer.computed.items()
            if home is not importer.builder
            for d in (m, n)
        ):
            raise Unsupported("a branch gives a tensor whose size it computes itself")
        chosen = node.emit(g.Select(condition, node.dims_value(m), node.dims_value(n)))
        shape.append(importer.computed_size(chosen, "if"))
    return tuple(shape)


def discard(block: Block) -> None:
    for op in block.ops:
        op.drop_all()

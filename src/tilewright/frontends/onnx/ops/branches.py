"""Regions that the importer builds: branches that the run chooses between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.symbolic import Dim, free_symbols, prove_eq
from ..values import Tensor
from .table import Unsupported

if TYPE_CHECKING:
    from ..importer import Importer
    from ..node import Node


def choose(node: Node, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
    """What `then` builds where a bool scalar holds, else what `otherwise` builds; sizes in which the two differ are the run's.

    Raises:
        Unsupported: they differ in rank or element type, or in a size that one of them computes itself.
    """
    importer = node.importer
    blocks, values = [Block([]), Block([])], []
    try:
        for block, make in zip(blocks, (then, otherwise), strict=True):
            with building(importer, Builder(block, location=node.location)):
                values.append(make())
        first, second = (Tensor(v.type, value=v) for v in values)
        shape = common_shape(importer, node, condition, first, second)
    except Unsupported:
        for block in blocks:
            discard(block)
        raise
    for block, value in zip(blocks, values, strict=True):
        b = Builder(block, location=node.location)
        b(Yield([value if value.type.shape == shape else b(g.AssumeShape(value, shape=shape))]))
    op = g.If(condition, regions=[Region([block]) for block in blocks])
    importer.builder.insert(op)
    return op.results[0]


def common_shape(importer: Importer, node: Node, condition: Value, a: Tensor, b: Tensor) -> tuple[Dim, ...]:
    """The shape of what one of two branches gives; where they differ, a size that the run chooses."""
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


@contextmanager
def building(importer: Importer, builder: Builder) -> Iterator[None]:
    """Let the importer build with another builder."""
    saved, importer.builder = importer.builder, builder
    try:
        yield
    finally:
        importer.builder = saved


def discard(block: Block) -> None:
    for op in block.ops:
        op.drop_all()

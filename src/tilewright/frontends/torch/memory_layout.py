"""The memory layouts of tensors that torch and compiled graphs exchange.

A compiled graph reads and writes dense tensors with their dimensions in the order of memory. A
permuted tensor, or a part of the columns of a matrix, such as one of three joined projections, is read where
it lies.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor of known strides lie.

    `order` are its dimensions from the outermost to the innermost. They are cut out of a dense tensor, whose
    dimension k has `sizes[k]` elements, of which `taken[k]` from `starts[k]` on belong to the tensor. `sizes`
    is empty where the tensor itself is dense.
    """

    order: tuple[int, ...]
    strides: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()

    @property
    def skipped(self) -> int:
        """The elements of the dense tensor in front of the first one of the tensor."""
        skipped = 0
        for size, start in zip(self.sizes, self.starts, strict=True):
            skipped = skipped * size + start
        return skipped

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        """Return the contiguous tensor that the library reads: memory of `x`, or a copy where `x` has another
        layout.
        """
        if not self.sizes:
            return x.permute(self.order).contiguous()
        first = x.storage_offset() - self.skipped
        end = (first + math.prod(self.sizes)) * x.element_size()
        if x.stride() == self.strides and first >= 0 and end <= x.untyped_storage().nbytes():
            return x.as_strided(self.sizes, contiguous_strides(self.sizes), first)
        whole = x.new_empty(self.sizes)
        whole.as_strided(x.shape, self.strides, self.skipped).copy_(x)
        return whole


def layout_of(x: object) -> Layout | None:
    """Return the layout of a fake tensor as an argument; None for a contiguous one, and for one that is
    copied to be read.
    """
    import torch

    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    order = memory_order(x)
    if order is not None:
        large = [d for d in order if not _is_one(x.shape[d])]
        return Layout(order) if large != sorted(large) else None
    return _part_of_a_matrix(x)


def _part_of_a_matrix(x: torch.Tensor) -> Layout | None:
    """Return the layout of a tensor of known sizes whose rows are parts of longer rows."""
    numbers = (*x.shape, *x.stride(), x.storage_offset())
    if not all(isinstance(n, int) for n in numbers) or 0 in x.shape:
        return None
    order = tuple(sorted(range(x.dim()), key=lambda d: (-x.stride(d), d)))
    unit, used = 1, 1
    axes: list[tuple[int, int, int]] = []
    for d in reversed(order):
        size, stride = x.shape[d], x.stride(d)
        if size == 1:
            continue
        if stride == unit * used:
            used *= size
            continue
        if stride < unit * used or stride % unit:
            return None  # Elements overlap, or are repeated.
        start = x.storage_offset() // unit % (stride // unit)
        axes.append((stride // unit, start, used))
        unit, used = stride, size
    axes.append((used, 0, used))
    if any(start + taken > size for size, start, taken in axes):
        return None
    sizes, starts, taken = zip(*reversed(axes), strict=True)
    found = Layout(order, x.stride(), sizes, starts, taken)
    first = x.storage_offset() - found.skipped
    end = (first + math.prod(sizes)) * x.element_size()
    bytes_there = x.untyped_storage().nbytes()
    inside = first >= 0 and isinstance(bytes_there, int) and end <= bytes_there
    return found if inside and len(axes) > 1 else None


def memory_order(val: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dimensions of a fake tensor from outermost to innermost in memory, None if its memory is not
    dense.
    """
    import sympy

    def expression(x: torch.SymInt | int) -> Any:
        return sympy.Integer(x) if isinstance(x, int) else x.node.expr

    def hint(x: torch.SymInt | int) -> int:
        return x if isinstance(x, int) else int(x.node.hint or 0) if x.node.has_hint() else 0

    strides = val.stride()
    order = tuple(sorted(range(val.dim()), key=lambda d: (-hint(strides[d]), d)))
    dense = sympy.Integer(1)
    for d in reversed(order):
        size = expression(val.shape[d])
        if size == 1:
            continue
        if sympy.expand(expression(strides[d]) - dense) != 0:
            return None
        dense = dense * size
    return order


def _is_one(size: torch.SymInt | int) -> bool:
    return isinstance(size, int) and size == 1


def contiguous_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions lie in this order, from the outermost to the
    innermost.
    """
    strides, dense = [0] * len(shape), 1
    for d in reversed(range(len(shape)) if order is None else order):
        strides[d], dense = dense, dense * shape[d]
    return tuple(strides)


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the order of dimensions (N, *spatial, C)."""
    return (0, *range(2, rank), 1)


def images(graph: torch.fx.Graph) -> set[Any]:
    """Return the nodes whose values are computed in channels-last layout: operands and results of
    convolutions, and what has as many dimensions and is computed from them. Their sizes are known.
    """
    found: set[Any] = set()
    for n in graph.nodes:
        if n.op != "call_function" or is_view(n):
            continue
        if str(n.target) == "aten.convolution.default":
            found |= {n, n.args[0]}
        elif any(a in found and _rank(a) == _rank(n) for a in n.all_input_nodes):
            found.add(n)
    return {n for n in found if n.op == "call_function" and not is_view(n) and _is_image(n.meta["val"])}


def _rank(node: torch.fx.Node) -> int:
    """Return the number of dimensions of a node's value, or of the first of several; 0 for others."""
    val = node.meta.get("val")
    first = val[0] if isinstance(val, (list, tuple)) and val else val
    return first.dim() if hasattr(first, "dim") else 0


def _is_image(val: object) -> bool:
    import torch

    return isinstance(val, torch.Tensor) and val.dim() > 2 and all(isinstance(d, int) for d in val.shape)


def is_view(node: torch.fx.Node) -> bool:
    """Return whether a node's value shares the memory of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return bool(getattr(node.target, "is_view", False))


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory a node's value is in."""
    while is_view(node):
        node = node.args[0]
    return node


__all__ = [
    "Layout",
    "channels_last",
    "contiguous_strides",
    "images",
    "is_view",
    "layout_of",
    "memory_order",
    "root_of",
]

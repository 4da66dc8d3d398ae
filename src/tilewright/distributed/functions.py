"""Collective operations on tensors, in compiled functions and at once.

Every process of the group calls the same functions in the same order, on tensors of the same shapes and
types. Each operation has a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dialects.graph.base import GraphOp
from ..errors import ShapeError
from ..frontends.trace.eager import is_compiling
from ..frontends.trace.numpy import concatenate
from ..frontends.trace.operands import apply, as_tensor
from ..frontends.trace.tensor import Tensor, TensorLike
from . import operators
from .groups import Group, world

BUCKET_BYTES = 8 << 20
"""Bytes of gradients that one operation of `all_reduce_tree` reduces: larger ones have less overhead, smaller
ones begin earlier, while the rest of the backward pass still runs.
"""
ALIGNMENT = 64
"""Bytes of a line of the cache."""


def _handle(group: Group) -> Tensor:
    return group.state.value if is_compiling() else Tensor(np.array([group.address], np.uint64))


def _reduced(cls: type[GraphOp], x: TensorLike, reduction: str, group: Group, **options: int) -> Tensor:
    """A reduction over the group. A mean is a sum that the reader of the result divides, in its own kernel.

    Raises:
        ShapeError: There is no such reduction, or it is the mean of integers.
    """
    x = as_tensor(x)
    if reduction != "mean":
        return apply(cls, x, _handle(group), reduction=reduction, **options)
    if not x.type.dtype.is_float:
        raise ShapeError(f"the mean of {x.dtype} over processes is no integer: reduce the sum, and divide it")
    return apply(cls, x, _handle(group), reduction="sum", **options) / np.asarray(group.size, x.dtype)


def all_reduce(x: TensorLike, reduction: str = "sum", group: Group | None = None) -> Tensor:
    """Reduce the tensors of all processes to one, which every process gets.

    Args:
        x: This process's tensor, of any shape and type of numbers.
        reduction: "sum", "mean" (of floating-point numbers), "max" or "min" of each element. Only sums and
            means have gradients.
        group: The processes; None is the group of `init`.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        GroupError: The group is not connected, or a process has ended.
        ShapeError: There is no such reduction for this type, or no numbers of it can be sent.
    """
    return _reduced(operators.AllReduce, x, reduction, group or world())


def all_gather(x: TensorLike, group: Group | None = None) -> Tensor:
    """Join the tensors of all processes along the first dimension, in the order of their ranks.

    Args:
        x: This process's tensor (n, ...), of any type of numbers.
        group: The processes; None is the group of `init`.

    Returns:
        A tensor (size * n, ...) of the type of `x`, the same in every process.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: `x` is a scalar, or no numbers of this type can be sent.
    """
    group = group or world()
    return apply(operators.AllGather, as_tensor(x), _handle(group), size=group.size)


def reduce_scatter(x: TensorLike, reduction: str = "sum", group: Group | None = None) -> Tensor:
    """Reduce the tensors of all processes, and give each process its part of the first dimension.

    Args:
        x: This process's tensor (size * n, ...), of any type of numbers.
        reduction: As for `all_reduce`.
        group: The processes; None is the group of `init`.

    Returns:
        A tensor (n, ...) of the type of `x`: part k in the process of rank k.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: The first dimension has no equal parts for all processes.
    """
    group = group or world()
    return _reduced(operators.ReduceScatter, x, reduction, group, size=group.size)


def broadcast(x: TensorLike, root: int = 0, group: Group | None = None) -> Tensor:
    """Give every process the tensor of one.

    Args:
        x: This process's tensor, of any shape and type of numbers.
        root: The rank of the process whose tensor all get.
        group: The processes; None is the group of `init`.

    Returns:
        A tensor of the shape and type of `x`.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: No numbers of this type can be sent.
    """
    group = group or world()
    return apply(operators.Broadcast, as_tensor(x), _handle(group), root=root)


def all_to_all(x: TensorLike, group: Group | None = None) -> Tensor:
    """Exchange blocks: block k of the first dimension goes to process k.

    Args:
        x: This process's tensor (size * n, ...), of any type of numbers.
        group: The processes; None is the group of `init`.

    Returns:
        A tensor of the shape and type of `x`: the blocks that came, in the order of the senders' ranks.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: The first dimension has no equal blocks for all processes.
    """
    group = group or world()
    return apply(operators.AllToAll, as_tensor(x), _handle(group), size=group.size)


def shift(x: TensorLike, distance: int = 1, group: Group | None = None) -> Tensor:
    """Send a tensor to the process `distance` ranks after this one, and receive that of the one before.

    Args:
        x: This process's tensor, of any shape and type of numbers.
        distance: How many ranks ahead the receiver is, counted in a circle.
        group: The processes; None is the group of `init`.

    Returns:
        The tensor of the process `distance` ranks before this one, of the shape and type of `x`.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: No numbers of this type can be sent.
    """
    group = group or world()
    return apply(operators.Shift, as_tensor(x), _handle(group), distance=distance)


def rank(group: Group | None = None) -> Tensor:
    """Return the number of this process in its group, an int64 scalar (shape ()) that a run reads.

    Args:
        group: The processes; None is the group of `init`.

    Raises:
        GroupError: There is no group.
    """
    return apply(operators.Rank, _handle(group or world()))


def all_reduce_tree(
    tensors: Mapping[str, TensorLike],
    reduction: str = "mean",
    group: Group | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> dict[str, Tensor]:
    """Reduce many tensors, such as gradients, in few operations.

    Tensors of one element type are joined to buckets, the last ones first, since a backward pass computes
    them first (Li et al., "PyTorch Distributed", 2020). In compiled code each bucket is reduced while the
    rest is still computed.

    Args:
        tensors: This process's tensors by name, of any shapes and types of numbers.
        reduction: As for `all_reduce`.
        group: The processes; None is the group of `init`.
        bucket_bytes: Bytes of a bucket; a larger tensor is a bucket of its own.

    Returns:
        The reduced tensors by name, of the same shapes and types.

    Raises:
        GroupError: As for `all_reduce`.
        ShapeError: As for `all_reduce`.
    """
    group = group or world()
    given = {name: as_tensor(x) for name, x in tensors.items()}
    found: dict[str, Tensor] = {}
    for names in _buckets(given, bucket_bytes):
        parts = [given[n].reshape(-1) for n in names]
        whole = all_reduce(parts[0] if len(parts) == 1 else concatenate(parts), reduction, group)
        place: Any = 0
        for name in names:
            size = given[name].size
            found[name] = whole[place : place + size].reshape(given[name].shape)
            place = place + size
    return {name: found[name] for name in tensors}


def _buckets(tensors: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    buckets: list[list[str]] = []
    last: dict[np.dtype[Any], tuple[list[str], int]] = {}
    for name, x in reversed(list(tensors.items())):
        bucket, size = last.get(x.dtype, ([], limit))
        if not bucket or size + int(x.nbytes) > limit:
            bucket, size = [], 0
            buckets.append(bucket)
        bucket.append(name)
        last[x.dtype] = bucket, size + int(x.nbytes)
    # Kernels write their results into the bucket: those of odd sizes come last, so that others are aligned.
    return [sorted(bucket, key=lambda n: int(tensors[n].nbytes) % ALIGNMENT != 0) for bucket in buckets]


__all__ = [
    "all_gather",
    "all_reduce",
    "all_reduce_tree",
    "all_to_all",
    "broadcast",
    "rank",
    "reduce_scatter",
    "shift",
]

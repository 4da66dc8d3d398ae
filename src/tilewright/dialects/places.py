"""Places of the parts of concatenations (`tensor.concat`) in the memory of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.core import IRError, Value
from ..ir.symbolic import Dim, prove_eq
from ..ir.types import Shape
from .tensor import Concat, Reshape


@dataclass(frozen=True)
class ConcatSlice:
    """Memory of one part of a concatenation, in elements: runs of `run` contiguous elements, which begin
    `full` elements apart; the first one begins at `offset`.
    """

    join: Concat
    offset: Dim
    run: Dim
    full: Dim

    def shape(self, part: Shape) -> Shape:
        """Shape of the whole concatenation as seen by a part of shape `part`: the part's dimensions before
        the runs, then `full`.
        """
        return (*part[: self._leading(part)], self.full)

    def index(self, part: Shape, indices: Sequence[Dim]) -> tuple[Dim, ...]:
        """Index into that shape of the part's element at `indices`."""
        lead = self._leading(part)
        inside: Dim = 0
        for i, n in zip(indices[lead:], part[lead:], strict=True):
            inside = inside * n + i
        return (*indices[:lead], self.offset + inside)

    def _leading(self, part: Shape) -> int:
        size: Dim = 1
        for d in range(len(part), -1, -1):
            if prove_eq(size, self.run):
                return d
            size = size * part[d - 1]
        raise IRError(f"runs of {self.run} elements are not trailing dimensions of {part}", self.join)

    @property
    def key(self) -> tuple[Dim, ...]:
        """Equal for equal places in concatenations of their own."""
        return self.offset, self.run, self.full


@dataclass(frozen=True)
class ConcatBox:
    """Memory of one part of concatenations of concatenations: the elements of `join`'s result (of the
    outermost one) from `offsets` on, `extents` of them in each dimension.
    """

    join: Concat
    offsets: tuple[Dim, ...]
    extents: Shape

    def shape(self, part: Shape) -> Shape:
        """Shape of the whole concatenation as seen by a part."""
        return tuple(self.join.result.type.shape)

    def index(self, part: Shape, indices: Sequence[Dim]) -> tuple[Dim, ...]:
        """Index into that shape of the element at `indices` of a part of shape `part`, whose dimensions
        divide those of the box.
        """
        groups = dimension_groups(part, self.extents)
        if groups is None:
            raise IRError(f"{part} does not divide the dimensions of {self.extents}", self.join)
        places = []
        for offset, group in zip(self.offsets, groups, strict=True):
            inside: Dim = 0
            for d in group:
                inside = inside * part[d] + indices[d]
            places.append(offset + inside)
        return tuple(places)

    @property
    def key(self) -> tuple[tuple[Dim, ...], ...]:
        """Equal for equal places in concatenations of their own."""
        return self.offsets, self.extents, tuple(self.join.result.type.shape)


def dimension_groups(part: Shape, extents: Shape) -> list[range] | None:
    """For each dimension of a shape, the successive dimensions of `part` into which a reshape divides it.

    None if some dimension of `part` spans several.
    """
    groups: list[range] = []
    at = 0
    for n in extents:
        start = at
        size: Dim = 1
        while at < len(part) and not prove_eq(size, n):
            size, at = size * part[at], at + 1
        if not prove_eq(size, n):
            return None
        groups.append(range(start, at))
    if not all(prove_eq(n, 1) for n in part[at:]):
        return None
    return groups


def place_of(value: Value) -> ConcatSlice | ConcatBox | None:
    """The memory of a value whose only use, directly or through views, is as a part of a concatenation; else
    None.
    """
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return None
        ((user, number),) = uses
        if not isinstance(user, Reshape):
            break
        value = user.result
    if not isinstance(user, Concat):
        return None
    if (outer := _part_of(user.result)) is not None:
        return _box(user, number, outer)
    inner: Dim = 1
    for n in user.result.type.shape[user.axis + 1 :]:
        inner = inner * n
    before: Dim = 0
    for part in user.parts[:number]:
        before = before + part.type.shape[user.axis]
    extents = (before, user.parts[number].type.shape[user.axis], user.result.type.shape[user.axis])
    return ConcatSlice(user, *(n * inner for n in extents))


def _part_of(value: Value) -> tuple[Concat, int] | None:
    """The concatenation that is the only use of another's result, and the number of its part."""
    uses = list(value.uses)
    if len(uses) != 1 or not isinstance(user := uses[0][0], Concat):
        return None
    return user, uses[0][1]


def _box(join: Concat, number: int, outer: tuple[Concat, int] | None) -> ConcatBox:
    extents = tuple(join.parts[number].type.shape)
    offsets: list[Dim] = [0] * len(extents)
    while True:
        for part in join.parts[:number]:
            offsets[join.axis] = offsets[join.axis] + part.type.shape[join.axis]
        if outer is None:
            return ConcatBox(join, tuple(offsets), extents)
        (join, number), outer = outer, _part_of(outer[0].result)


__all__ = ["ConcatBox", "ConcatSlice", "dimension_groups", "place_of"]

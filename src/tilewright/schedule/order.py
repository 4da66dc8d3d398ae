"""Tests whether a primitive that moves nests keeps the order of conflicting accesses.

Any two accesses to one element, of which at least one writes, have an order: that of the outermost loop
around both whose iterations differ, or else that of the program. The places of all accesses are noted before
a primitive and compared with those after it. Pairs that changed their order or the loops around both are
given to the dependence analysis. So nothing moves across the initial values of a sum, or across another write
of what it reads, whatever primitive moves it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from ..analysis.dependence import Sharing, commute, distance, writes
from ..analysis.loop_nest import Access, enclosing, enclosing_loops, reduce_variables, written_buffer
from ..dialects import loop
from ..ir import notes
from ..ir.core import Operation, Value
from .core import ScheduleCore, ScheduleError
from .legality import check_inputs_stay, check_pair

F = TypeVar("F", bound=Callable[..., Any])
Key = tuple[Access, Value]
"""An access and its buffer, which a primitive may change."""


@dataclass(frozen=True)
class _Place:
    """Where an access stands."""

    number: int
    """Its number in the program."""
    block: Operation | None
    loops: tuple[loop.For, ...]
    """The loops around it."""
    first: tuple[loop.For, ...] = ()
    """The loops around it in whose first iteration it takes place."""
    copy: Access | None = None
    """The access in a copy of the kernel, which stays as it is."""
    copies: tuple[loop.For, ...] = ()
    """The loops around the copy."""


def _places(kernel: loop.Kernel) -> dict[Key, _Place]:
    return {
        (op, op.buffer): _Place(number, enclosing(op, loop.Block), tuple(enclosing_loops(op)))
        for number, op in enumerate(kernel.walk())
        if isinstance(op, (loop.Load, loop.Store, loop.Accumulate))
    }


class Order:
    """The order of a kernel's accesses."""

    def __init__(self, kernel: loop.Kernel) -> None:
        """Note the places of the accesses of `kernel`."""
        copy = kernel.clone()
        assert isinstance(copy, loop.Kernel)
        self.kernel = copy
        """A copy of the kernel as it was."""
        pairs = zip(_places(kernel).items(), _places(copy).items(), strict=True)
        self.places = {
            key: replace(place, copy=other, copies=there.loops) for (key, place), ((other, _), there) in pairs
        }

    def check(
        self,
        primitive: str,
        kernel: loop.Kernel,
        own: Value | None = None,
        apart: Collection[Operation] = (),
    ) -> None:
        """Raise `ScheduleError` if accesses to one element of `kernel`, as it is now, have changed their
        order, but for those to the buffer `own`, and for those of two blocks in `apart`; `primitive` is the
        name for the message.

        A new access stands for those to its buffer that are gone; a new store, where none is gone, for the
        accumulations in the first iterations, which set the initial value.
        """
        sharing = Sharing.of(kernel)
        now = _places(kernel)
        groups: dict[Value, list[Key]] = {}
        for key in now:
            groups.setdefault(sharing.first(key[1]), []).append(key)
        for keys in groups.values():
            for first, second in itertools.combinations(keys, 2):
                (a, x), (b, y) = first, second
                if x is own or not (writes(a) or writes(b)) or commute(a, b):
                    continue
                if not sharing.may_be_same(x, y):
                    continue
                for was, other in itertools.product(self._former(first, now), self._former(second, now)):
                    if was.block is not other.block and not (was.block in apart and other.block in apart):
                        _compare(primitive, (a, was, now[first]), (b, other, now[second]))

    def _former(self, key: Key, now: dict[Key, _Place]) -> list[_Place]:
        """The places that an access, or those that it stands for, had before."""
        if key in self.places:
            return [self.places[key]]
        there = [(k, place) for k, place in self.places.items() if k[1] is key[1]]
        gone = [place for k, place in there if k not in now and writes(k[0]) == writes(key[0])]
        if gone or not writes(key[0]):
            return gone
        return [
            replace(place, first=tuple(f for f in place.loops if f.iv in reduce_variables(place.block)))
            for (op, _), place in there
            if isinstance(op, loop.Accumulate) and isinstance(place.block, loop.Block)
        ]


def _compare(primitive: str, a: tuple[Access, _Place, _Place], b: tuple[Access, _Place, _Place]) -> None:
    """Raise if two accesses, each with its place before and now, may have changed their order."""
    (first, before_a, now_a), (second, before_b, now_b) = a, b
    before = [(f, g) for f, g in zip(before_a.loops, before_a.copies, strict=True) if f in before_b.loops]
    now = [f for f in now_a.loops if f in now_b.loops]
    text_before = 1 if before_a.number < before_b.number else -1
    text_now = 1 if now_a.number < now_b.number else -1
    if [f for f, _ in before] == now and text_before == text_now:
        return
    assert before_a.copy is not None and before_b.copy is not None
    found = distance(before_a.copy, before_b.copy, [(g, g) for _, g in before])
    if found is None:
        return
    possible: dict[loop.For, tuple[int, ...]] = {}
    for (f, _), d in zip(before, found, strict=True):
        signs = (-1, 0, 1) if d is None else (_sign(d),)
        least, most = 0 if f in before_a.first else -1, 0 if f in before_b.first else 1
        possible[f] = tuple(x for x in signs if least <= x <= most)

    def changed(apart: tuple[int, ...]) -> bool:
        known = {f: (_sign(d),) for f, d in zip(now, apart, strict=True)}
        order = next((_sign(d) for d in apart if d), text_now)
        choices = itertools.product(*(known.get(f, signs) for f, signs in possible.items()))
        return any(next((d for d in signs if d), text_before) != order for signs in choices)

    check_pair(primitive, first, second, [(f, f) for f in now], changed, "the nests")


def _sign(d: int) -> int:
    return (d > 0) - (d < 0)


def keeps_order(own: Callable[..., Value] | None = None) -> Callable[[F], F]:
    """Return a decorator of primitives that move nests, below `primitive`: one is undone and refused where it
    changes the order of accesses to one element.

    `own`, called like the primitive, returns a buffer whose elements it may compute again, so that its own
    tests decide about their order.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(schedule: ScheduleCore, *args: Any, **kwargs: Any) -> Any:
            buffer = None if own is None else own(schedule, *args, **kwargs)
            order = Order(schedule.kernel)
            result = function(schedule, *args, **kwargs)
            try:
                if notes.BUFFER_ALIASES.present(schedule.kernel):
                    check_inputs_stay(function.__name__, schedule.kernel)
                order.check(function.__name__, schedule.kernel, buffer)
            except ScheduleError:
                schedule.kernel = order.kernel
                raise
            return result

        return cast(F, run)

    return decorate


def result_of(schedule: ScheduleCore, name: str, *args: Any, **kwargs: Any) -> Value:
    """The buffer that block `name` writes."""
    return written_buffer(schedule.block(name))


__all__ = ["Order", "keeps_order", "result_of"]

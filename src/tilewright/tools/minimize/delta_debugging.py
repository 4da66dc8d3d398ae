"""Delta debugging: smaller and smaller cases that fail in the same way (Zeller and Hildebrandt, "Simplifying
and Isolating Failure-Inducing Input", 2002).

Each step makes candidates, and keeps one that fails like the original. A step needs no knowledge of why a
model fails, and its candidates need not be valid: one that is not a module, or fails otherwise, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...ir.core import IRError
from ...ir.printer import print_op
from .failure import Failure, Options, attempt
from .graphs import (
    Case,
    branches,
    bypass,
    constants,
    keep,
    small_sizes,
    tidy,
    with_constant,
    with_size,
    with_sizes,
)

T = TypeVar("T")


def smallest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items` that still fails, and fails no more without any single item. Chunks of decreasing
    size are removed.
    """
    kept = list(items)
    size = len(kept) // 2
    while size:
        start, shorter = 0, False
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if rest and fails(rest):
                kept, shorter = rest, True
            else:
                start += size
        # Single items are tried until none can be removed; smaller chunks are tried in between.
        size = size if shorter and size == 1 else size // 2
    return kept


class Reducer:
    """Minimizes a case that fails like `original`; `case` is the smallest so far."""

    def __init__(self, case: Case, original: Failure, options: Options, say: Callable[[str], None]) -> None:
        self.case, self.original, self.failure = case, original, original
        self.options, self.say = options, say
        self.attempts = 0
        self._seen: set[Any] = set()

    def run(self) -> Case:
        """Apply all steps until none makes the case smaller."""
        before = None
        while before != (text := print_op(self.case.module)):
            before = text
            self._fix_sizes()
            self._drop_operations()
            self._first(branches(self.case))
            self._bypass_operations()
            self._shrink()
            self._flatten_constants()
        return self.case

    def _take(self, make: Callable[[], Case]) -> bool:
        """Make a candidate, and keep it as the case if it fails like the original."""
        try:
            candidate = make()
        except (IRError, ValueError, TypeError, ArithmeticError):
            return False
        key = print_op(candidate.module), *(op.value.digest() for op in constants(candidate))
        if not candidate.operations or key in self._seen:
            return False
        self._seen.add(key)
        self.attempts += 1
        failure, _ = attempt(candidate.module, candidate.inputs, self.options)
        if failure is None or not failure.is_like(self.original):
            return False
        try:
            candidate.values()
        except Exception:  # a case that the interpreter cannot run has no values to use as inputs
            return False
        self.case, self.failure = candidate, failure
        count = len(candidate.operations)
        self.say(f"{count} operations left after {self.attempts} attempts")
        return True

    def _first(self, candidates: Iterable[Callable[[], Case]]) -> bool:
        return any(self._take(make) for make in candidates)

    def _fix_sizes(self) -> None:
        sizes = self.case.values()[1] or small_sizes(self.case)
        if sizes:
            self._take(lambda: with_sizes(self.case, sizes))

    def _drop_operations(self) -> None:
        case, (values, _) = self.case, self.case.values()
        numbered = list(enumerate(case.operations))

        def fails(some: list[Any]) -> bool:
            return self._take(lambda: keep(case, values, [op for _, op in some]))

        smallest(numbered, fails)

    def _bypass_operations(self) -> None:
        index = len(self.case.operations) - 1
        while index >= 0:
            self._first(partial(tidy, c) for c in bypass(self.case, index))
            index = min(index, len(self.case.operations)) - 1

    def _shrink(self) -> None:
        """Make dimensions smaller, the largest first."""
        self._take(lambda: tidy(Case(self.case.module.clone(), self.case.inputs)))
        done: set[int] = set()
        while wider := sorted(self._sizes() - done - {0, 1}, reverse=True):
            n = wider[0]
            done.add(n)
            for new in dict.fromkeys((1, 2, 3, n // 4, n // 2)):
                if 0 < new < n and self._first(with_size(self.case, n, new)):
                    break

    def _sizes(self) -> set[int]:
        main = self.case.main
        types = [v.type for v in main.body.args] + [r.type for op in main.body.ops for r in op.results]
        return {d for t in types for d in getattr(t, "shape", ()) if isinstance(d, int)}

    def _flatten_constants(self) -> None:
        """Replace weights by arrays of one number, which take no space."""
        for index, op in enumerate(constants(self.case)):
            value = op.value
            if not value.is_splat and value.size > 1:
                flat = [np.broadcast_to(np.asarray(x, value.numpy_dtype), value.shape) for x in (1, 0)]
                self._first(partial(with_constant, self.case, index, f) for f in flat)


__all__ = ["Reducer", "smallest"]

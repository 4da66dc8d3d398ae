"""Delta debugging: ever smaller cases that still fail in the same way.

Each step offers candidates, and keeps one if it fails like the original. So a step need not know why a model fails, nor whether its
candidates mean anything: what is no module, or fails otherwise, is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..ir.core import IRError
from ..ir.printer import print_op
from .failure import Failure, Options, attempt
from .graphs import Case, branches, bypass, constants, keep, small_sizes, tidy, with_constant, with_size, with_sizes

T = TypeVar("T")


def smallest(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A part of `items` that still fails, and of which no single item can be left out: chunks of falling size are removed."""
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
        # Single items are tried until none goes; between, smaller chunks follow.
        size = size if shorter and size == 1 else size // 2
    return kept


class Reducer:
    """Reduces a case that fails like `original`; `case` is the smallest so far."""

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
        """Make a candidate the case, if it fails alike."""
        try:
            candidate = make()
        except (IRError, ValueError, TypeError, ArithmeticError):
            return False
        key = print_op(candidate.module), *(op.value.digest() for op in constants(candidate))
        if not candidate.operations or key in self._seen:
            return False
        self._seen.add(key)
        self.attempts += 1
        found, _ = attempt(candidate.module, candidate.inputs, self.options)
        if found is None or not found.is_like(self.original):
            return False
        try:
            candidate.values()
        except Exception:  # what the interpreter cannot run is nothing to go on with
            return False
        self.case, self.failure = candidate, found
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
        """Smaller dimensions, the largest first."""
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
        """Weights that are all one number take no room."""
        for index, op in enumerate(constants(self.case)):
            value = op.value
            if not value.is_splat and value.size > 1:
                flat = [np.broadcast_to(np.asarray(x, value.numpy_dtype), value.shape) for x in (1, 0)]
                self._first(partial(with_constant, self.case, index, f) for f in flat)


__all__ = ["Reducer", "smallest"]

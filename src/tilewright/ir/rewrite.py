"""Pattern rewriting: a worklist driver, with folding, over patterns indexed by the operation class at which
they start.

A pattern is a function ``(op, rewriter) -> bool``: it changes the IR through the rewriter and returns whether
it did. Where it did not, it may return the reason, a `Refusal`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .builder import Builder
from .core import Constant, Effect, IRError, Operation, OperationT, Value
from .location import Location
from .refusal import Refusal, refused
from .symbolic import prove_lt
from .types import TensorType, Type

PatternFunction = Callable[[Any, "Rewriter"], "bool | Refusal"]


@dataclass(frozen=True)
class Pattern:
    """A rewrite and the operation classes it starts at."""

    function: PatternFunction
    """``(op, rewriter) -> bool``: changes the IR through the rewriter; returns whether it did."""
    roots: tuple[type[Operation], ...]
    """The classes of operations at which it is tried."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__


def pattern(*roots: type[Operation]) -> Callable[[PatternFunction], Pattern]:
    """Declare a rewrite that starts at operations of the given classes.

    The decorated function is ``(op, rewriter) -> bool``; see `Pattern`.

    Args:
        *roots: The classes; subclasses of them count as well.
    """
    return lambda function: Pattern(function, roots)


class _Recorder(Builder):
    """A builder that adds the operations it inserts to the worklist."""

    __slots__ = ("enqueue",)
    enqueue: Callable[[Operation], None]

    def insert(self, op: OperationT) -> OperationT:
        super().insert(op)
        self.enqueue(op)
        return op


class Rewriter:
    """The interface by which patterns change the IR; it reports every change to the driver, `apply_patterns`,
    which makes it.
    """

    def __init__(self, enqueue: Callable[[Operation], None]) -> None:
        """`apply_patterns` makes the rewriter.

        Args:
            enqueue: Called with each operation that a change makes or affects, to try patterns on it.
        """
        self._enqueue = enqueue
        self.op: Operation | None = None
        self.pattern = ""

    @property
    def builder(self) -> Builder:
        """Inserts before the operation being rewritten, at its location."""
        assert self.op is not None and self.op.parent is not None
        recorder = _Recorder(self.op.parent, self.op, self.op.location)
        recorder.enqueue = self._enqueue
        return recorder

    def replace(self, op: Operation, values: Value | Sequence[Value]) -> None:
        """Replace the results of `op` by `values`, one for each, and erase it.

        Raises:
            IRError: A replacement is not a value, or its type is not that of the result; the message names
                the pattern.
        """
        new = (values,) if isinstance(values, (Value, Operation)) else values
        for result, value in zip(op.results, new, strict=False):
            if isinstance(value, Operation):
                raise IRError(
                    f"{self._pattern()}replaces it by an operation, '{value.name}', not by a value: insert "
                    "the operation with rewriter.builder(...), which returns its result",
                    op,
                )
            if value.type is not result.type and not _may_be_equal(value.type, result.type):
                raise IRError(
                    f"{self._pattern()}replaces a result of type {result.type} by a value of type "
                    f"{value.type}",
                    op,
                )
        for user in [u for r in op.results for u in r.users]:
            self._enqueue(user)
        producers = [v.defining_op for v in op.operands]
        op.replace_by(new)
        for producer in [*producers, *(v.defining_op for v in new)]:
            if producer is not None:
                self._enqueue(producer)

    def _pattern(self) -> str:
        return f"pattern '{self.pattern}' " if self.pattern else ""

    def changed(self, op: Operation) -> None:
        """Report that `op` was changed in place."""
        self._enqueue(op)
        for r in op.results:
            for user in r.users:
                self._enqueue(user)


rewrites_observed: ContextVar[Callable[[str, str, Location], None] | None] = ContextVar(
    "rewrites_observed", default=None
)
"""A function that is told of each rewrite: the pattern's name, and the name and location of the operation
that it started at.
"""


def _may_be_equal(a: Type, b: Type) -> bool:
    """Whether two types are equal for some sizes. Equal symbolic sizes may be written in different ways, so
    only sizes that differ provably count.
    """
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.dtype is not b.dtype or a.rank != b.rank:
        return False
    return not any(prove_lt(m, n) or prove_lt(n, m) for m, n in zip(a.shape, b.shape, strict=True))


def apply_patterns(
    root: Operation,
    patterns: Iterable[Pattern],
    *,
    fold: bool = True,
    materialize: Callable[[Builder, Constant], Value] | None = None,
    max_rewrites: int | None = None,
) -> int:
    """Rewrite until nothing applies; returns the number of rewrites.

    Pure operations that lose their uses are erased.

    Args:
        root: The operation whose regions are rewritten; it stays itself.
        patterns: The rewrites. At one operation those of its own class are tried before those of base
            classes.
        fold: Whether operations are folded, by their method ``fold``, before patterns are tried.
        materialize: Builds the operation of a constant that folding found; None leaves such operations.
        max_rewrites: The most rewrites; None is 64 per operation.

    Raises:
        IRError: More rewrites were needed; names the pattern that kept firing.
        TypeError: One of `patterns` is a function without the decorator `pattern`.
    """
    index: dict[type[Operation], list[Pattern]] = {}
    for p in patterns:
        if not isinstance(p, Pattern):
            name = getattr(p, "__name__", repr(p))
            raise TypeError(
                f"{name} is not a pattern; decorate it with @pattern(...), the classes it starts at"
            )
        for cls in p.roots:
            index.setdefault(cls, []).append(p)
    cache: dict[type[Operation], list[Pattern]] = {}
    queue: deque[Operation] = deque(root.walk())
    queued = set(queue)
    limit = max_rewrites if max_rewrites is not None else 64 * max(len(queue), 16)
    count = 0

    def enqueue(op: Operation) -> None:
        if op not in queued:
            queued.add(op)
            queue.append(op)

    rewriter = Rewriter(enqueue)
    observe = rewrites_observed.get()
    while queue:
        op = queue.popleft()
        queued.discard(op)
        if op is root or op.parent is None:
            continue
        if op.effects == Effect.PURE and not op.terminator and not any(r.has_uses for r in op.results):
            producers = [v.defining_op for v in op.operands]
            op.erase()
            for producer in producers:
                if producer is not None:
                    enqueue(producer)
            continue
        if fold and (folder := getattr(op, "fold", None)) is not None:
            operands = tuple(op.operands)
            folded = folder()
            if isinstance(folded, Constant) and materialize is not None:
                folded = materialize(Builder.before(op), folded)
            if isinstance(folded, Value) and folded is not op.results[0]:
                rewriter.op, rewriter.pattern = op, ""
                rewriter.replace(op, folded)
                count += 1
                continue
            if tuple(op.operands) != operands:  # Folded in place: its former operands may be dead now.
                for v in operands:
                    if v.defining_op is not None:
                        enqueue(v.defining_op)
                rewriter.changed(op)
                count += 1
                continue
        cls = type(op)
        candidates = cache.get(cls)
        if candidates is None:
            candidates = cache[cls] = [p for base in cls.__mro__ for p in index.get(base, ())]
        for p in candidates:
            rewriter.op, rewriter.pattern = op, p.name
            name, location = op.name, op.location
            verdict = p.function(op, rewriter)
            if not verdict:
                refused(p.name, verdict, op)
            else:
                count += 1
                if observe is not None:
                    observe(p.name, name, location)
                if count > limit:
                    raise IRError(
                        f"pattern '{p.name}' keeps rewriting after {limit} steps", op if op.parent else None
                    )
                if op.parent is not None:
                    enqueue(op)
                break
    return count

"""Records what each pass changes: the lines of the module's text before and after, the patterns that rewrote
operations, and the reasons for which rules left operations apart.
"""

from __future__ import annotations

import difflib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dialects.func import Func
from ..ir.core import Module, Operation
from ..ir.location import Location
from ..ir.passes import passes_observed
from ..ir.printer import print_op
from ..ir.refusal import refusals_observed
from ..ir.rewrite import rewrites_observed

CONTEXT = 3
"""Unchanged lines that are kept around changed ones."""
LONGEST_LINE = 300
MOST_COMPARED = 6000
"""Lines between the first and the last changed line of a text whose changes are listed."""
MOST_LINES = 4000
"""Lines of the changes of one pass; more are counted but not kept."""
_NUMBERED = re.compile(r"%\d+\b")


@dataclass
class PassRecord:
    """The work of one pass.

    Attributes:
        name: The pass's name.
        level: ``graph`` or ``tensor``.
        seconds: Its time.
        lines: The number of lines of the module's text after it.
        changes: Hunks: the first line before and after, and the lines, each with a sign ``-``, ``+`` or a
            space in front.
        dropped: The number of changed lines that were not kept.
        rewrites: The number of rewrites by pattern, with the first places.
        refusals: The number of times that a pattern did not apply for a reason, by pattern and reason, with
            the first places.
    """

    name: str
    level: str
    seconds: float = 0.0
    lines: int = 0
    changes: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0
    rewrites: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Apart:
    """A rule of fusion that left a computation and a reader of its result apart.

    Attributes:
        function: The function that both belong to.
        producers: The numbers of the operators that the computation is a part of, in the optimized graph.
        readers: The numbers of the reader's.
        rule: The name of the rule.
        reason: The reason in words.
    """

    function: str
    producers: tuple[int, ...]
    readers: tuple[int, ...]
    rule: str
    reason: str


class Recorder:
    """Watches the passes of a compilation inside of ``with Recorder() as recorder``, such as that of
    `tilewright.compile`, `tilewright.train_step` or a library of a language model. The cache is not used.

    Attributes:
        passes: The passes, in order.
        apart: The computations that rules of fusion left apart. Later entries of the same computations count.
    """

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        self.apart: list[Apart] = []
        self._module: Module | None = None
        self._text: list[str] = []
        self._start = 0.0
        self._tokens: list[Callable[[], None]] = []

    def __enter__(self) -> Recorder:
        rewrites = rewrites_observed.set(self._rewritten)
        refusals = refusals_observed.set(self._refused)
        passes = passes_observed.set(self)
        self._tokens += [
            lambda: rewrites_observed.reset(rewrites),
            lambda: refusals_observed.reset(refusals),
            lambda: passes_observed.reset(passes),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        while self._tokens:
            self._tokens.pop()()
        self._module, self._text = None, []

    def __call__(self, module: Module, name: str, when: str) -> None:
        if when == "before":
            if module is not self._module:
                self._module, self._text = module, _lines(module)
            self.passes.append(PassRecord(name, _level(module)))
            self._start = time.perf_counter()
            return
        record = self.passes[-1]
        record.seconds = time.perf_counter() - self._start
        before, self._text = self._text, _lines(module)
        record.lines = len(self._text)
        record.changes, record.dropped = _changes(before, self._text)

    def _rewritten(self, pattern: str, op: str, location: Location) -> None:
        _count(self.passes[-1].rewrites, pattern, op, location)

    def _refused(self, rule: str, reason: str, op: Operation, producers: Sequence[Operation]) -> None:
        if not producers:
            _count(self.passes[-1].refusals, f"{rule}: {reason}", op.name, op.location)
            return
        function = op.parent_op
        while function is not None and not isinstance(function, Func):
            function = function.parent_op
        name = function.sym_name if function is not None else ""
        readers = _operators(op)
        for producer in producers:
            if found := _operators(producer):
                self.apart.append(Apart(name, found, readers, rule, reason))


def _count(entries: dict[str, dict[str, Any]], key: str, op: str, location: Location) -> None:
    entry = entries.setdefault(key, {"count": 0, "at": []})
    entry["count"] += 1
    if len(entry["at"]) < 20:
        entry["at"].append(f"{op} at {location.portable}")


def _operators(op: Operation) -> tuple[int, ...]:
    """The numbers of the operators that a computation is a part of."""
    return tuple(sorted({k for inner in op.walk() for k in inner.location.operators}))


def _level(module: Module) -> str:
    names = {op.name for op in module.walk()}
    return "tensor" if any(name.startswith("tensor.") for name in names) else "graph"


def _lines(module: Module) -> list[str]:
    return [
        line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
        for line in print_op(module).split("\n")
    ]


def _changes(before: list[str], after: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The hunks between two texts. Lines that differ only in the numbers of values count as equal: a pass
    that removes one operation renumbers all after it.
    """
    if before == after:
        return [], 0
    masked = [[_NUMBERED.sub("%", x) for x in text] for text in (before, after)]
    # The comparison takes time that grows with the square of the lines: equal ends are left out of it, and
    # texts with many lines between them are only counted.
    shorter = min(map(len, masked))
    head = next((k for k in range(shorter) if masked[0][k] != masked[1][k]), shorter)
    tail = next((k for k in range(shorter - head) if masked[0][-1 - k] != masked[1][-1 - k]), shorter - head)
    middle = [text[head : len(text) - tail] for text in masked]
    if max(map(len, middle)) > MOST_COMPARED:
        removed, added = Counter(middle[0]) - Counter(middle[1]), Counter(middle[1]) - Counter(middle[0])
        return [], removed.total() + added.total()
    first = max(0, head - CONTEXT)
    last = max(0, tail - CONTEXT)
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    one, two = (text[first : len(text) - last] for text in masked)
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    hunks, kept, dropped = [], 0, 0
    for group in matcher.get_grouped_opcodes(CONTEXT):
        lines = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [" " + x for x in after[j1:j2]]
            else:
                lines += ["-" + x for x in before[i1:i2]] + ["+" + x for x in after[j1:j2]]
        if all(x.startswith(" ") for x in lines):
            continue
        if kept + len(lines) > MOST_LINES:
            dropped += sum(not x.startswith(" ") for x in lines)
            continue
        kept += len(lines)
        hunks.append({"before": first + group[0][1] + 1, "after": first + group[0][3] + 1, "lines": lines})
    return hunks, dropped


__all__ = ["Apart", "PassRecord", "Recorder"]

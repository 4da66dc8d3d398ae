"""Records what each pass changes: the lines of the module's text before and after, and the patterns that
rewrote operations.
"""

from __future__ import annotations

import difflib
import re
import time
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any

from ..ir.core import Module
from ..ir.location import Location
from ..ir.printer import print_op
from ..ir.rewrite import rewrites_observed

CONTEXT = 3
"""Unchanged lines that are kept around changed ones."""
LONGEST_LINE = 300
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
    """

    name: str
    level: str
    seconds: float = 0.0
    lines: int = 0
    changes: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0
    rewrites: dict[str, dict[str, Any]] = field(default_factory=dict)


class Recorder:
    """Watches the passes of a compilation: give it to `tilewright.compile` as the option `dump`."""

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        self._text: list[str] = []
        self._start = 0.0
        self._token: Token[Any] | None = None

    def __call__(self, module: Module, name: str, when: str) -> None:
        if when == "before":
            if not self._text:
                self._text = _lines(module)
            self.passes.append(PassRecord(name, _level(module)))
            self._token = rewrites_observed.set(self._rewritten)
            self._start = time.perf_counter()
            return
        record = self.passes[-1]
        record.seconds = time.perf_counter() - self._start
        if self._token is not None:
            rewrites_observed.reset(self._token)
        before, self._text = self._text, _lines(module)
        record.lines = len(self._text)
        record.changes, record.dropped = _changes(before, self._text)

    def _rewritten(self, pattern: str, op: str, location: Location) -> None:
        entry = self.passes[-1].rewrites.setdefault(pattern, {"count": 0, "at": []})
        entry["count"] += 1
        if len(entry["at"]) < 20:
            entry["at"].append(f"{op} at {location.portable}")


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
    matcher = difflib.SequenceMatcher(
        None, [_NUMBERED.sub("%", x) for x in before], [_NUMBERED.sub("%", x) for x in after], autojunk=False
    )
    hunks, kept, dropped = [], 0, 0
    for group in matcher.get_grouped_opcodes(CONTEXT) if before != after else ():
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
        hunks.append({"before": group[0][1] + 1, "after": group[0][3] + 1, "lines": lines})
    return hunks, dropped


__all__ = ["PassRecord", "Recorder"]

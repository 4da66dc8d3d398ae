"""Measured times of all points of the spaces of real kernels, which `record_tables.py` has recorded."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tilewright.artifact.choices import Choice, Knob
from tilewright.schedule.core import ScheduleError
from tilewright.tuning.space import Space, Values

PATH = Path(__file__).parent / "data" / "measured.json.gz"


class _Node:
    """The knob that the rule asks for after some choices, or a point's code."""

    def __init__(self, name: str, default: Knob, values: tuple[Knob, ...], code: int = -1) -> None:
        self.name, self.default, self.values, self.code = name, default, values, code
        self.below: dict[Knob, _Node] = {}


@dataclass(frozen=True)
class MeasuredTable:
    """The speedup of each point of a kernel's space over the default.

    The rule is replayed from the points: it asks for the knobs in order, and a knob's default and whether it
    is asked for are those of the points that have the choices so far.
    """

    name: str
    values: Mapping[str, Sequence[Knob]]
    """The values of each knob, in the order in which the rule asks."""
    points: Sequence[Sequence[int]]
    """For each point the number of each knob's value, then of each knob's default (-1: it is not asked for),
    then that of its code.
    """
    log_speedup: Sequence[float]
    """The natural logarithm of each code's speedup."""
    noise: float
    """The standard deviation of one block's sample."""
    default_seconds: float
    begin: Mapping[str, Knob] = field(default_factory=dict)
    """Values that take the place of the rule's defaults."""

    def rule(self, choices: Values) -> list[Choice]:
        """The schedule rule: record the knobs; refuse points that are not in the table."""
        return self._walk(choices)[1]

    def _walk(self, choices: Values) -> tuple[int, list[Choice]]:
        """The code and the recorded knobs of choices."""
        node, found = self._root, list[Choice]()
        while node.code < 0:
            default = self.begin.get(node.name, node.default)
            value = choices.get(node.name, default)
            found.append(Choice(node.name, value, default, node.values))
            following = node.below.get(value)
            if following is None:
                raise ScheduleError("the rule refuses these choices")
            node = following
        return node.code, found

    @cached_property
    def _root(self) -> _Node:
        knobs = [(name, tuple(values)) for name, values in self.values.items()]
        root: _Node | None = None
        for point in self.points:
            asked = [k for k in range(len(knobs)) if point[k] >= 0]
            parent: tuple[_Node, Knob] | None = None
            for k in [*asked, -1]:
                if parent is None and root is not None:
                    node = root
                elif parent is not None and parent[1] in parent[0].below:
                    node = parent[0].below[parent[1]]
                else:
                    name, values = knobs[k] if k >= 0 else ("", ())
                    default = values[point[len(knobs) + k]] if k >= 0 else 0
                    node = _Node(name, default, values, -1 if k >= 0 else point[-1])
                    if parent is None:
                        root = node
                    else:
                        parent[0].below[parent[1]] = node
                if k >= 0:
                    parent = node, knobs[k][1][point[k]]
        assert root is not None
        return root

    def speedup(self, values: Values) -> float:
        """The time of the defaults over that of a point."""
        return math.exp(self.log_speedup[self.code(values)] - self.log_speedup[self.code({})])

    def code(self, values: Values) -> int:
        """The number of a point's code."""
        return self._walk(values)[0]

    def space(self) -> Space:
        """The space, as a search sees it."""
        return Space(self.rule)

    @property
    def attainable(self) -> float:
        """The speedup of the fastest point."""
        return math.exp(max(self.log_speedup) - self.log_speedup[self.code({})])

    def slow(self) -> MeasuredTable:
        """The same table with the point of the median time as the default."""
        point = sorted(self.points, key=lambda p: self.log_speedup[p[-1]])[len(self.points) // 2]
        begin = {n: v[point[k]] for k, (n, v) in enumerate(self.values.items()) if point[k] >= 0}
        return replace(self, name=f"{self.name}, from the median point", begin=begin)


@cache
def contents() -> dict[str, Any]:
    """The file: "date", "machine" and "tables"."""
    found: dict[str, Any] = json.loads(gzip.decompress(PATH.read_bytes()))
    return found


@cache
def measured_tables() -> tuple[MeasuredTable, ...]:
    """The tables."""
    return tuple(MeasuredTable(**t) for t in contents()["tables"])

"""The search space of a schedule rule: the choices that it records while it runs.

A rule asks for its knobs by name. Running it with choices of one's own is the definition of the space: it
records the knobs that it asked for, or refuses the choices. A knob that is asked for only after some other
choice thereby needs no declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.artifact.choices import Choice
from tilewright.artifact.choices import Knob as Value
from tilewright.schedule.core import ScheduleError

Values = Mapping[str, Value]
"""Values of knobs by name."""
Key = tuple[tuple[str, Value], ...]
"""All values of a point in the order of their names: equal for equal points."""


Rule = Callable[[Values], Sequence[Choice]]
"""Runs a schedule rule with the given choices and returns all that it recorded.

Raises `ScheduleError` where the choices cannot be scheduled.
"""


@dataclass(frozen=True)
class Point:
    """Choices that a rule accepted."""

    choices: tuple[Choice, ...]
    """All recorded knobs, in the order in which the rule asked."""

    @property
    def values(self) -> dict[str, Value]:
        """The value of each recorded knob."""
        return {choice.name: choice.value for choice in self.choices}

    @property
    def overrides(self) -> dict[str, Value]:
        """The values that differ from the defaults: with these the rule takes the same decisions again."""
        return {c.name: c.value for c in self.choices if not _same(c.value, c.default)}

    @property
    def key(self) -> Key:
        """Equal for points with equal values."""
        return key_of(self.values)

    @property
    def reorders_sums(self) -> bool:
        """Whether results may differ from the default's by rounding: a knob that decides on the order of a
        sum has another value than its default.
        """
        return any(c.reorders_sums and not _same(c.value, c.default) for c in self.choices)


def key_of(values: Values) -> Key:
    """The values in the order of the knobs' names."""
    return tuple(sorted(values.items()))


def _same(one: Value, other: Value) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def is_ordered(domain: Sequence[Value]) -> bool:
    """Whether a domain has adjacent values: all of them are numbers."""
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in domain)


class Space:
    """The points that a rule accepts, found by running it. Each combination of choices is run once.

    Args:
        rule: Runs the schedule rule.
        refusals: The exceptions by which the rule refuses choices.
    """

    def __init__(self, rule: Rule, refusals: tuple[type[Exception], ...] = (ScheduleError,)) -> None:
        self._rule, self._refusals = rule, refusals
        self._known: dict[Key, Point | None] = {}
        self.domains: dict[str, tuple[Value, ...]] = {}
        """All values seen in the domain of each knob, numbers in rising order."""
        self.runs = 0
        """How often the rule has run."""
        default = self.point({})
        if default is None:
            raise ScheduleError("the rule refuses its own defaults, so there is nothing to tune")
        self.default = default
        """The rule without choices of one's own."""

    def point(self, overrides: Values) -> Point | None:
        """The point that the rule reaches with these choices; None where it refuses them. A choice of a knob
        that the rule does not ask for has no effect.
        """
        key = key_of(overrides)
        if key not in self._known:
            self.runs += 1
            try:
                found = Point(tuple(self._rule(dict(overrides))))
            except self._refusals:
                self._known[key] = None
            else:
                self._known[key] = found
                for choice in found.choices:
                    self._learn(choice)
        return self._known[key]

    def _learn(self, choice: Choice) -> None:
        seen, new = self.domains.get(choice.name, ()), tuple(choice.domain)
        if not set(new) <= set(seen):
            union = tuple(dict.fromkeys((*seen, *new)))
            self.domains[choice.name] = tuple(sorted(union)) if is_ordered(union) else union

    def neighbours(self, point: Point) -> list[dict[str, Value]]:
        """The choices that differ from a point in one knob: by one place in an ordered domain, in any way in
        another. The rule has not run with them, and may refuse some.
        """
        return [self.changed(point, {c.name: v}) for c in point.choices for v in _adjacent(c)]

    def along(self, point: Point, name: str) -> list[dict[str, Value]]:
        """The choices that differ from a point in the knob `name` only, by any of its values."""
        choice = next(c for c in point.choices if c.name == name)
        others = [v for v in choice.domain if not _same(v, choice.value)]
        return [self.changed(point, {name: v}) for v in others]

    @staticmethod
    def changed(point: Point, values: Values) -> dict[str, Value]:
        """The choices of a point with other values of some knobs. Knobs that have their defaults keep them,
        even where the defaults depend on what changes.
        """
        defaults = {c.name: c.default for c in point.choices}
        merged = {**point.overrides, **values}
        return {k: v for k, v in merged.items() if k not in defaults or not _same(v, defaults[k])}

    def scattered(self, point: Point, rng: np.random.Generator) -> dict[str, Value]:
        """Random choices far from a point: a random number of knobs, at least one, have random values. Knobs
        that other points have revealed are among them.
        """
        domains = {**self.domains, **{c.name: tuple(c.domain) for c in point.choices}}
        names = [name for name, domain in domains.items() if len(domain) > 1]
        if not names:
            return point.overrides
        count = int(rng.integers(1, len(names) + 1))
        picked = [names[i] for i in rng.permutation(len(names))[:count]]
        return self.changed(point, {n: domains[n][int(rng.integers(len(domains[n])))] for n in picked})

    def nearby(self, point: Point, rng: np.random.Generator, knobs: int = 2) -> dict[str, Value]:
        """Random choices near a point: up to `knobs` knobs move by one or two places each."""
        able = [c for c in point.choices if len(c.domain) > 1]
        if not able:
            return point.overrides
        count = int(rng.integers(1, min(knobs, len(able)) + 1))
        values: dict[str, Value] = {}
        for choice in (able[i] for i in rng.permutation(len(able))[:count]):
            options = _adjacent(choice, 2)
            values[choice.name] = options[int(rng.integers(len(options)))]
        return self.changed(point, values)

    def expected(self, overrides: Values) -> dict[str, Value]:
        """The values that the rule is expected to record with these choices, without running it: the
        defaults of the default point, replaced by the choices.
        """
        found = self._known.get(key_of(overrides))
        return found.values if found is not None else {**self.default.values, **overrides}

    def features(self, points: Sequence[Values]) -> np.ndarray:
        """Numbers that describe points to a model: float64 of shape (points, features).

        A numeric knob gives log2(1 + value), another one a 0 or 1 for each of its values; a knob that a
        point lacks gives -1. The sums of each two numeric columns follow: logarithms of areas and volumes of
        tiles, on which the use of caches depends.
        """
        columns: list[np.ndarray] = []
        numeric: list[np.ndarray] = []
        for name, domain in sorted(self.domains.items()):
            if is_ordered(domain) and min(map(float, domain)) >= 0:
                found = [p.get(name) for p in points]
                numeric.append(np.array([-1.0 if v is None else np.log2(1 + float(v)) for v in found]))
            else:
                columns += [
                    np.array([-1.0 if name not in p else float(_same(p[name], v)) for p in points])
                    for v in domain
                ]
        pairs = [a + b for i, a in enumerate(numeric) for b in numeric[:i]]
        every = [*numeric, *columns, *pairs]
        return np.stack(every, axis=1) if every else np.zeros((len(points), 1))

    def enumerate(self, most: int = 100_000) -> Iterator[Point]:
        """All points that changes of one knob reach from the default, each once, at most `most`."""
        seen, queue = {self.default.key}, [self.default]
        while queue and most > 0:
            point = queue.pop()
            most -= 1
            yield point
            for choice in point.choices:
                for overrides in self.along(point, choice.name):
                    found = self.point(overrides)
                    if found is not None and found.key not in seen:
                        seen.add(found.key)
                        queue.append(found)


def _adjacent(choice: Choice, radius: int = 1) -> list[Value]:
    """The values of a knob's domain within `radius` places of its value; all others if it has no order."""
    others = [v for v in choice.domain if not _same(v, choice.value)]
    if not is_ordered(choice.domain):
        return others
    value = float(choice.value)
    below = sorted((v for v in others if float(v) < value), key=float)[-radius:]
    above = sorted((v for v in others if float(v) > value), key=float)[:radius]
    return [*below, *above]

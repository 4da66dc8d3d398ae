"""Knobs of schedule rules: what a rule chose, and what else it could have chosen. The compiler writes choices
to an artifact's metadata, and a loaded library reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Knob = int | bool | str
"""The value of a knob of a schedule rule: a number, a flag, or the name of a loop."""


@dataclass(frozen=True)
class Choice:
    """The choice of a schedule rule for one of its knobs.

    Attributes:
        name: The knob's name, one for each kernel.
        value: The value that was chosen.
        default: The value that the rule chooses by itself.
        domain: All values that may be chosen, in order.
        reorders_sums: Whether another value changes the order in which a sum adds its terms, and so the last
            bits of the result.
    """

    name: str
    value: Knob
    default: Knob
    domain: tuple[Knob, ...]
    reorders_sums: bool = False

    def __str__(self) -> str:
        known = ", ".join(
            f"{part[0]}..{part[1]} by {part[2]}" if isinstance(part, list) else repr(part)
            for part in _runs(self.domain)
        )
        default = "" if self.value == self.default else f" (default {self.default!r})"
        return f"{self.name} = {self.value!r}{default}, among {known}"

    def to_metadata(self) -> dict[str, Any]:
        """The choice as plain data for JSON."""
        entry: dict[str, Any] = {"name": self.name, "value": self.value, "default": self.default}
        entry["domain"] = _runs(self.domain)
        return {**entry, **({"reorders_sums": True} if self.reorders_sums else {})}

    @classmethod
    def from_metadata(cls, entry: Mapping[str, Any]) -> Choice:
        """The choice that `entry`, one of a kernel's ``choices`` in an artifact's metadata, describes."""
        domain: list[Knob] = []
        for part in entry["domain"]:
            domain += range(part[0], part[1] + 1, part[2]) if isinstance(part, (list, tuple)) else [part]
        flag = entry.get("reorders_sums", False)
        return cls(entry["name"], entry["value"], entry["default"], tuple(domain), flag)


def _runs(values: Iterable[Knob]) -> list[Any]:
    """Values with runs of four or more evenly spaced numbers as [first, last, step]."""
    items: list[Any] = list(values)
    result: list[Any] = []
    k = 0
    while k < len(items):
        end = k + 1
        numbers = [x for x in items[k:] if type(x) is int]
        if len(numbers) == len(items) - k and len(numbers) > 1:
            step = items[k + 1] - items[k]
            while end < len(items) and items[end] - items[end - 1] == step:
                end += 1
            if end - k >= 4:
                result.append([items[k], items[end - 1], step])
                k = end
                continue
        result.append(items[k])
        k += 1
    return result


__all__ = ["Choice", "Knob"]

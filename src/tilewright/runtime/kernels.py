"""Descriptions of a library's kernels, as the artifact's metadata has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
        ranges: The values that may be chosen, in order: values, and (first, last, step) of numbers.
        reorders_sums: Whether another value changes the order in which a sum adds its terms, and so the last
            bits of the result.
    """

    name: str
    value: Knob
    default: Knob
    ranges: tuple[Any, ...]
    reorders_sums: bool = False

    @property
    def domain(self) -> tuple[Knob, ...]:
        """All values that may be chosen, in order."""
        values: list[Knob] = []
        for part in self.ranges:
            values += range(part[0], part[1] + 1, part[2]) if isinstance(part, tuple) else [part]
        return tuple(values)

    def __str__(self) -> str:
        known = ", ".join(
            f"{part[0]}..{part[1]} by {part[2]}" if isinstance(part, tuple) else repr(part)
            for part in self.ranges
        )
        default = "" if self.value == self.default else f" (default {self.default!r})"
        return f"{self.name} = {self.value!r}{default}, among {known}"

    @classmethod
    def from_metadata(cls, entry: Mapping[str, Any]) -> Choice:
        """The choice that `entry`, one of a kernel's ``choices`` in the metadata, describes."""
        ranges = _tuples(entry["domain"])
        flag = entry.get("reorders_sums", False)
        return cls(entry["name"], entry["value"], entry["default"], ranges, flag)


@dataclass(frozen=True)
class KernelDescription:
    """A kernel of a library.

    Attributes:
        name: Its name, which lists its operators: ``matmul_gelu``.
        kind: Its kind of group: ``contraction``, ``rows``, ...
        launches: How often a run launches it.
        choices: The knobs of its schedule rule; ``tw.pin`` gives them other values.
        trace: The primitives that scheduled it, as (name, arguments, options, result).
        slower: Why it has a slower form than its kind's; "" if it has not.
        when: The condition on sizes under which this variant of a kernel runs; "" for a kernel itself.
        variants: Kernels of the same computation that run in its place under conditions: the first whose
            condition holds. Their names are the kernel's with ``.1``, ``.2``, ...
    """

    name: str
    kind: str
    launches: int
    choices: tuple[Choice, ...]
    trace: tuple[tuple[str, tuple[Any, ...], Mapping[str, Any], Any], ...]
    slower: str = ""
    when: str = ""
    variants: tuple[KernelDescription, ...] = ()

    @property
    def schedule(self) -> str:
        """The schedule as Python code, which can be edited and given to `tilewright.compile`."""
        lines = [f"# {choice}" for choice in self.choices]
        kernel = self.name.partition(".")[0] if self.when else self.name
        when = f", when={self.when!r}" if self.when else ""
        lines += [f"@tw.schedule_kernel({kernel!r}{when})", "def own(s):"]
        for name, arguments, options, result in self.trace:
            given = [repr(a) for a in arguments] + [f"{k}={v!r}" for k, v in options.items()]
            made = f"  # makes {_names(result)}" if result else ""
            lines.append(f"    s.{name}({', '.join(given)}){made}")
        return "\n".join(lines if self.trace else [*lines, "    pass"])

    @classmethod
    def from_metadata(cls, entry: Mapping[str, Any]) -> KernelDescription:
        """The kernel that `entry`, one of the metadata's ``kernels``, describes."""
        return cls(
            entry["name"],
            entry["kind"],
            entry["launches"],
            tuple(map(Choice.from_metadata, entry.get("choices", ()))),
            tuple((n, _tuples(a), _options(o), _tuples(r)) for n, a, o, r in entry.get("trace", ())),
            entry.get("slower", ""),
            entry.get("when", ""),
        )


def describe_kernels(entries: Iterable[Mapping[str, Any]]) -> dict[str, KernelDescription]:
    """The kernels that `entries`, the metadata's ``kernels``, describe, by name, each with its variants."""
    variants: dict[str, list[KernelDescription]] = {}
    kernels = []
    for entry in entries:
        found = KernelDescription.from_metadata(entry)
        if "variant_of" in entry:
            variants.setdefault(entry["variant_of"], []).append(found)
        else:
            kernels.append(found)
    return {k.name: replace(k, variants=tuple(variants.get(k.name, ()))) for k in kernels}


def _names(result: Any) -> str:
    return ", ".join(map(str, result)) if isinstance(result, tuple) else str(result)


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in options.items()}


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


__all__ = ["Choice", "KernelDescription", "Knob", "describe_kernels"]

"""Descriptions of a library's kernels, as the artifact's metadata has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.artifact.choices import Choice


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


__all__ = ["KernelDescription", "describe_kernels"]

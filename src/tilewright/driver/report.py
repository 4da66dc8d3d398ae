"""`Report`: the record of a compilation, the attribute `report` of a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .opt_levels import DEFAULT, opt_level

if TYPE_CHECKING:
    from .precision import OutputError


@dataclass
class Report:
    """The record of a compilation: times, kernels and memory traffic before and after fusion, memory.

    Byte counts are those of one run with every symbolic dimension at its upper bound; a formula in text where
    a dimension has none.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time in seconds of each stage. They add up to the time of `tilewright.compile`."""
    pass_seconds: dict[str, float] = field(default_factory=dict)
    """Wall time in seconds of each pass, part of the stages "optimize" and "lower"; empty for a model from
    the cache.
    """
    kernels_before: int = 0
    """Kernel launches of one run before fusion."""
    kernels_after: int = 0
    """Kernel launches of one run after fusion."""
    distinct_kernels: int = 0
    """Kernels that code was generated for; equal ones share it."""
    bytes_before: int | str = 0
    """Bytes that the kernels of one run read and write before fusion."""
    bytes_after: int | str = 0
    """Bytes that the kernels of one run read and write after fusion."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The memory plan: sizes in bytes of weights and of the working memory."""
    cached: bool = False
    """Whether the model was taken from the cache."""
    uncached: str = ""
    """Why the cache was not used: code of the user's takes part whose contents have no fingerprint."""
    opt: str = DEFAULT
    """The optimization level."""
    passes: list[str] = field(default_factory=list)
    """Names of the passes that ran, in the order in which each ran first."""
    left_out: list[str] = field(default_factory=list)
    """Names of the passes that the optimization level, or the option `disable`, left out."""
    precision: str | None = None
    """The option `precision`; None for the model's own data types."""
    contractions: dict[str, int] = field(default_factory=dict)
    """Number of contractions by the data type of their operands."""
    conversions: int = 0
    """Kernel launches that only convert to the lower precision; other conversions are fused into their
    consumers."""
    slower: dict[str, str] = field(default_factory=dict)
    """Kernels that the schedule of their kind does not fit, and why: they run in a slower form."""
    tuned: dict[str, str] = field(default_factory=dict)
    """Kernels with an entry in the database of the option `tuned`: "measured choices" where they are used, or
    else why not."""
    libraries: dict[str, int] = field(default_factory=dict)
    """The number of operators that libraries of vendors compute, by the name of the kernel."""
    offered: list[Any] = field(default_factory=list)
    """The operators that the libraries could compute, with their shapes; empty for a model from the cache."""
    replaced: dict[str, int] = field(default_factory=dict)
    """Number of subgraphs that each kernel of the option `replace` took the place of, by the kernel's
    name."""
    measure_error: Callable[[], OutputError | None] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_cache(
        cls, metadata: Mapping[str, Any], seconds: float, measure_error: Callable[[], OutputError | None]
    ) -> Report:
        """The report of a model from the cache.

        Args:
            metadata: The metadata of the artifact.
            seconds: The time that loading took, in seconds.
            measure_error: The function that computes `error`.
        """
        fusion = metadata["fusion"]
        return cls(
            cached=True,
            seconds={"load": seconds},
            kernels_before=fusion["kernels_before"],
            kernels_after=fusion["kernels_after"],
            distinct_kernels=len(metadata["kernels"]),
            bytes_before=fusion["bytes_before"],
            bytes_after=fusion["bytes_after"],
            memory=metadata["memory"],
            opt=metadata["opt"],
            passes=metadata["passes"],
            left_out=sorted(opt_level(metadata["opt"]).without),
            precision=metadata["precision"],
            contractions=metadata["contractions"],
            conversions=metadata["conversions"],
            slower={k["name"]: k["slower"] for k in metadata["kernels"] if "slower" in k},
            tuned={k["name"]: k["tuned"] for k in metadata["kernels"] if "tuned" in k},
            replaced=metadata.get("replaced", {}),
            libraries=metadata.get("libraries", {}),
            measure_error=measure_error,
        )

    @property
    def tuned_unused(self) -> list[str]:
        """Why measured choices are not used, kernel by kernel."""
        from ..schedule.tuned import TUNED

        return [f"kernel '{name}': {state}" for name, state in self.tuned.items() if state != TUNED]

    @property
    def total_seconds(self) -> float:
        """The sum of the stages' seconds."""
        return sum(self.seconds.values())

    def finish(self, elapsed: float) -> None:
        """Record the time that no stage accounts for, of `elapsed` seconds in all, as "other"."""
        self.seconds["other"] = max(0.0, elapsed - self.total_seconds)

    @cached_property
    def error(self) -> OutputError | None:
        """The difference of the outputs from those of float32, on sample inputs.

        The first access compiles the model in float32 and runs both. None for the model's own data types, or
        where the artifact does not run on this machine.
        """
        return None if self.measure_error is None else self.measure_error()

    def __str__(self) -> str:
        lines = [
            f"kernels: {self.kernels_before} before fusion, {self.kernels_after} after, "
            f"{self.distinct_kernels} distinct",
            f"bytes moved per run: {self.bytes_before} before fusion, {self.bytes_after} after",
            "memory: " + ", ".join(f"{k} {v}" for k, v in self.memory.items()),
            f"seconds: {self.total_seconds:.3f}: "
            + ", ".join(f"{k} {v:.3f}" for k, v in self.seconds.items()),
        ]
        lines += [f"kernel '{name}' replaces {count} subgraphs" for name, count in self.replaced.items()]
        lines += [f"'{name}' computes {count} operators" for name, count in self.libraries.items()]
        lines += [f"kernel '{name}' has a slower form: {reason}" for name, reason in self.slower.items()]
        lines += self.tuned_lines()
        if self.pass_seconds:
            lines.append(
                "seconds of passes: " + ", ".join(f"{k} {v:.3f}" for k, v in self.pass_seconds.items())
            )
        if self.uncached:
            lines.append(f"not cached: {self.uncached}")
        return "\n".join([*lines, *self.opt_lines(), *self.precision_lines()])

    def opt_lines(self) -> list[str]:
        """The passes that ran, in one line; no line for a model of several parts, each of which has its own
        report."""
        if not self.passes:
            return []
        without = f"; without {', '.join(self.left_out)}" if self.left_out else ""
        return [
            f"optimization {self.opt} (LLVM {opt_level(self.opt).llvm}): {', '.join(self.passes)}{without}"
        ]

    def tuned_lines(self) -> list[str]:
        """The use of measured choices; no line without the option `tuned`."""
        from ..schedule.tuned import TUNED

        used = [name for name, state in self.tuned.items() if state == TUNED]
        return [*([f"measured choices: {', '.join(used)}"] if used else []), *self.tuned_unused]

    def precision_lines(self) -> list[str]:
        """The effect of the option `precision`, its error included, which is measured; no line without that
        option."""
        if self.precision is None:
            return []
        operands = ", ".join(f"{n} of {dtype}" for dtype, n in sorted(self.contractions.items())) or "none"
        return [
            f"precision {self.precision}: contractions {operands}; conversion kernels {self.conversions}",
            str(self.error or "output error against float32: not measured"),
        ]


__all__ = ["Report"]

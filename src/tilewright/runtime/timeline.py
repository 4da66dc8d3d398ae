"""A call's launches in time, each with what it computes: for profiles by operator, by layer and by line, for
traces, and for `tilewright explore`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tilewright.artifact.structure import read_structure

Grouping = Literal["kernel", "operator", "layer", "line"]
FLUSHED = 256 << 20
"""Bytes that are written before a cold call. Larger caches, as some servers have, keep a part of the data."""


class ThreadTime(NamedTuple):
    """A thread's part in a launch, from its first slice to its last.

    Attributes:
        thread: Its number; 0 is the thread that calls.
        begin: Its begin, on the clock of the launch.
        end: Its end.
    """

    thread: int
    begin: float
    end: float


class RawLaunch(NamedTuple):
    """A launch as the runtime measures it, in nanoseconds since the profile was enabled."""

    kernel: str
    begin: int
    end: int
    threads: tuple[ThreadTime, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel in a call.

    Attributes:
        kernel: The kernel's name.
        begin: Seconds since the call began.
        end: Seconds since the call began.
        step: The number of the host program's step, see `artifact.structure`; None if the artifact keeps no
            structure.
        operators: The operators that it computes: ``matmul``, ``gelu``.
        place: The path in the model of the operator that most of the work is expected of:
            ``blocks.0.up/linear``.
        source: The line of the user's code, ``FILE:LINE``, that called this operator; "" if unknown.
        sources: The lines of all its operators.
        threads: The parts of the threads that worked in it, in seconds since the call began; empty for a
            device, and for artifacts of earlier versions.
    """

    kernel: str
    begin: float
    end: float
    step: int | None = None
    operators: tuple[str, ...] = ()
    place: str = ""
    source: str = ""
    sources: tuple[str, ...] = ()
    threads: tuple[ThreadTime, ...] = ()

    @property
    def seconds(self) -> float:
        """Wall time in seconds."""
        return self.end - self.begin

    @property
    def layer(self) -> str:
        """The path of the module that it belongs to; "" for the model itself."""
        return self.place.rpartition("/")[0] if "/" in self.place else ""


@dataclass(frozen=True)
class Share:
    """A part of a timeline's launches.

    Attributes:
        name: The kernel, operators, layer or line.
        launches: The number of launches.
        seconds: Their wall time in seconds.
        sources: The lines of the user's code that they compute.
    """

    name: str
    launches: int
    seconds: float
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """The launches of one call, in order.

    Attributes:
        launches: The launches.
        seconds: The time of the whole call.
    """

    launches: tuple[Launch, ...]
    seconds: float

    @property
    def in_kernels(self) -> float:
        """Seconds of the call in which a kernel ran."""
        return sum(x.seconds for x in self.launches)

    def by(self, grouping: Grouping) -> list[Share]:
        """The launches by what they compute, the slowest first. A launch of several operators counts for the
        one that most of its work is expected of.

        Args:
            grouping: ``"kernel"``; ``"operator"``, the names of its operators; ``"layer"``, the path of the
                module in the model; ``"line"``, the line of the user's code.
        """
        parts: dict[str, list[Launch]] = {}
        for launch in self.launches:
            parts.setdefault(_key(launch, grouping), []).append(launch)
        shares = [
            Share(
                name,
                len(part),
                sum(x.seconds for x in part),
                tuple(dict.fromkeys(source for x in part for source in x.sources)),
            )
            for name, part in parts.items()
        ]
        return sorted(shares, key=lambda share: -share.seconds)

    def stacks(self) -> dict[str, int]:
        """The nanoseconds of the call by stack, for flame graphs: the modules of the model from the outside
        in, the operator, and the kernel, separated by semicolons.

        The format: "collapsed stacks" of B. Gregg's FlameGraph, a line ``STACK COUNT`` for each; Speedscope
        and inferno read it, too.
        """
        found: dict[str, int] = {}
        for x in self.launches:
            modules = [part for part in x.layer.split(".") if part]
            operator = x.place.rpartition("/")[2] or x.source
            frames = ["call", *modules, operator, x.kernel]
            stack = ";".join(f.replace(";", ",") for f in frames if f)
            found[stack] = found.get(stack, 0) + round(x.seconds * 1e9)
        outside = round((self.seconds - self.in_kernels) * 1e9)
        return {**found, "call;outside of kernels": max(outside, 0)}

    def trace_events(self) -> dict[str, Any]:
        """The launches in the Trace Event Format, as JSON: Perfetto, Chrome and Speedscope open it.

        The format: "Trace Event Format", the Chromium project. Times are microseconds.
        """
        thread = {"pid": 1, "tid": 1}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", **thread, "args": {"name": "tilewright"}},
            {"ph": "M", "name": "thread_name", **thread, "args": {"name": "launches"}},
            {"ph": "X", "name": "call", "cat": "call", "ts": 0, "dur": self.seconds * 1e6, **thread},
        ]
        for x in self.launches:
            about = {
                "operators": ", ".join(x.operators),
                "place": x.place,
                "source": x.source,
                "sources": ", ".join(x.sources),
            }
            events.append(
                {
                    "ph": "X",
                    "name": x.kernel,
                    "cat": "kernel",
                    "ts": x.begin * 1e6,
                    "dur": x.seconds * 1e6,
                    **thread,
                    "args": {k: v for k, v in about.items() if v},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ns"}


def _key(launch: Launch, grouping: Grouping) -> str:
    if grouping == "kernel":
        return launch.kernel
    if grouping == "operator":
        return " + ".join(launch.operators) or launch.kernel
    if grouping == "layer":
        return launch.layer or "(the model itself)"
    return launch.source or "(unknown)"


class Measured(Protocol):
    """A compiled model whose runtime measures launches."""

    metadata: dict[str, Any]

    def __call__(self, /, *args: Any) -> Any: ...

    def launches_raw(self, /, *args: Any) -> list[RawLaunch]: ...


def record_timeline(model: Measured, arrays: Sequence[np.ndarray], repeat: int, cold: bool) -> Timeline:
    """`CompiledModel.timeline` of arrays."""
    model(*arrays)  # the first run allocates memory and starts threads
    other = np.zeros(FLUSHED, np.uint8) if cold else None
    calls = []
    for number in range(max(repeat, 1)):
        if other is not None:
            other.fill(number & 1)
        start = time.perf_counter()
        launches = model.launches_raw(*arrays)
        calls.append((time.perf_counter() - start, launches))
    calls.sort(key=lambda call: call[0])
    seconds, launches = calls[len(calls) // 2]
    structure = read_structure(model.metadata).get(getattr(model, "name", "main"), {})
    return Timeline(tuple(_described(launches, structure, model.metadata.get("kernels", ()))), seconds)


def _next_step(
    steps: Sequence[Mapping[str, Any]], numbers: Sequence[int], last: int, names: Sequence[str]
) -> int:
    """The step that launches ``names[0]``, after step `last`: among `numbers`, the steps of this kernel.

    A loop begins again where the kernels of its steps are those that follow.
    """
    later = next((k for k in numbers if k > last), numbers[0])
    loop = steps[last].get("loop") if last >= 0 else None
    if loop is None or steps[later].get("loop") == loop:
        return later
    body = [k for k, step in enumerate(steps) if step.get("loop") == loop and step["kind"] == "launch"]
    again = [steps[k]["kernel"] for k in body]
    return body[0] if again == list(names[: len(again)]) else later


def _described(
    launches: Iterable[RawLaunch],
    structure: Mapping[str, Any],
    kernels: Iterable[Mapping[str, Any]],
) -> list[Launch]:
    """The launches with what they compute, from the steps that launch their kernels in turn."""
    base = {k["name"]: k.get("variant_of", k["name"]) for k in kernels}
    steps = structure.get("steps", [])
    operators = structure.get("operators", [])
    of_kernel: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        if step["kind"] == "launch":
            of_kernel.setdefault(step["kernel"], []).append(number)
    made, last = [], -1
    launches = list(launches)
    names = [base.get(launch.kernel, launch.kernel) for launch in launches]
    for position, (kernel, begin, end, raw) in enumerate(launches):
        threads = tuple(ThreadTime(x.thread, x.begin * 1e-9, x.end * 1e-9) for x in raw)
        numbers = of_kernel.get(names[position], [])
        if not numbers:
            made.append(Launch(kernel, begin * 1e-9, end * 1e-9, threads=threads))
            continue
        last = number = _next_step(steps, numbers, last, names[position:])
        step = steps[number]
        parts = [operators[k] for k in step["operators"]]
        main = operators[step["main"]] if step["main"] is not None else parts[-1] if parts else {}
        sources = dict.fromkeys(x["source"] for x in (main, *parts) if x.get("source"))
        made.append(
            Launch(
                kernel,
                begin * 1e-9,
                end * 1e-9,
                number,
                tuple(x["name"] for x in parts),
                main.get("place", ""),
                main.get("source", ""),
                tuple(sources),
                threads,
            )
        )
    return made


__all__ = ["Grouping", "Launch", "RawLaunch", "Share", "ThreadTime", "Timeline", "record_timeline"]

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

WARM = 0.005
"""Seconds of calls before warm ones are measured: a thread that slept needs about a millisecond to begin."""


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


class RunTime(NamedTuple):
    """A run of the host program, which launches the kernels, after all checks of the call.

    Attributes:
        begin: Nanoseconds since the profile was enabled.
        end: Nanoseconds since the profile was enabled.
        reads: The number of times that its thread read the clock in between.
        clock: The nanoseconds that these reads took, by what one takes in a loop.
    """

    begin: int
    end: int
    reads: int
    clock: int


class RawCall(NamedTuple):
    """A call as the runtime measures it.

    Attributes:
        launches: The launches, in order.
        seconds: The time of the whole call.
        began: When the profile was enabled, in nanoseconds of the monotonic clock.
        run: The run of the host program; None for artifacts of earlier versions.
    """

    launches: list[RawLaunch]
    seconds: float
    began: int
    run: RunTime | None = None


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
    def waiting(self) -> float:
        """Seconds of it in which no thread works yet or any more: the start of threads, and the wait for
        their end. 0 where the times of threads are unknown.
        """
        if not self.threads:
            return 0.0
        return self.seconds - (max(x.end for x in self.threads) - min(x.begin for x in self.threads))

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
        host: The seconds of its host program, which launches the kernels; None for artifacts of earlier
            versions.
        clock: The seconds of one read of the clock.
    """

    launches: tuple[Launch, ...]
    seconds: float
    host: float | None = None
    clock: float = 0.0

    @property
    def in_kernels(self) -> float:
        """Seconds of the call in which a kernel ran."""
        return sum(map(self._working, self.launches))

    def _working(self, launch: Launch) -> float:
        """The seconds of a launch in which threads work. One of the two reads of the clock lies in them."""
        return max(launch.seconds - launch.waiting - self.clock, 0.0)

    def outside(self) -> list[Share]:
        """The parts of the call outside of kernels; with those of `by` they add up to the call.

        ``threads``: launches in which no thread works yet or any more. ``between kernels``: the host program,
        outside of launches. ``call``: Python, checks and new outputs, before and after the host program.
        ``clock``: the reads of the clock that measure all this. For artifacts of earlier versions it is one
        part, ``outside of kernels``.
        """
        if self.host is None:
            return [Share("outside of kernels", 0, max(self.seconds - self.in_kernels, 0.0), ())]
        launched = sum(x.seconds for x in self.launches)
        threaded = sum(bool(x.threads) for x in self.launches)
        # Each measured interval contains one read: that of its end, or parts of both.
        parts = {
            "threads": sum(x.waiting for x in self.launches) - 2 * threaded * self.clock,
            "between kernels": self.host - launched - (len(self.launches) + 1) * self.clock,
            "call": self.seconds - self.host,
        }
        rows = {name: max(seconds, 0.0) for name, seconds in parts.items()}
        rows["clock"] = max(self.seconds - self.in_kernels - sum(rows.values()), 0.0)
        return [Share(name, 0, seconds, ()) for name, seconds in rows.items()]

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
                sum(map(self._working, part)),
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
            found[stack] = found.get(stack, 0) + round(self._working(x) * 1e9)
        return {**found, **{f"call;{x.name}": round(x.seconds * 1e9) for x in self.outside()}}

    def trace_events(self) -> dict[str, Any]:
        """The launches in the Trace Event Format, as JSON: Perfetto, Chrome and Speedscope open it. One track
        has the call and its launches, and one for each thread has its parts of them.

        The format: "Trace Event Format", the Chromium project. Times are microseconds.
        """
        thread = {"pid": 1, "tid": 1}
        numbers = sorted({part.thread for x in self.launches for part in x.threads})
        tracks = {number: {"pid": 1, "tid": 2 + number} for number in numbers}
        names = {1: "launches"} | {track["tid"]: f"thread {n}" for n, track in tracks.items()}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", **thread, "args": {"name": "tilewright"}},
            *(
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
                for tid, name in names.items()
            ),
            *(
                {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": tid, "args": {"sort_index": tid}}
                for tid in names
            ),
            {
                "ph": "X",
                "name": "call",
                "cat": "call",
                **_span(0.0, self.seconds),
                **thread,
                "args": {f"µs of {x.name}": round(x.seconds * 1e6, 3) for x in self.outside()},
            },
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
                    **_span(x.begin, x.end),
                    **thread,
                    "args": {k: v for k, v in about.items() if v},
                }
            )
            for part in x.threads:
                span = {**_span(part.begin, part.end), **tracks[part.thread]}
                events.append({"ph": "X", "name": x.kernel, "cat": "thread", **span})
        return {"traceEvents": events, "displayTimeUnit": "ns"}


def _span(begin: float, end: float) -> dict[str, float]:
    """The begin and the duration of an event in microseconds. Rounded to nanoseconds, as readers do, the ends
    of neighbours would overlap if the duration were rounded by itself.
    """
    first, last = round(begin * 1e9), round(end * 1e9)
    return {"ts": first / 1e3, "dur": (last - first) / 1e3}


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

    def call_raw(self, /, *args: Any) -> RawCall: ...


def record_timeline(model: Measured, arrays: Sequence[np.ndarray], repeat: int, cold: bool) -> Timeline:
    """`CompiledModel.timeline` of arrays."""
    model(*arrays)  # the first run allocates memory and starts threads
    start = time.perf_counter()
    while not cold and time.perf_counter() - start < WARM:
        model(*arrays)
    other = np.zeros(FLUSHED, np.uint8) if cold else None
    calls = []
    for number in range(max(repeat, 1)):
        if other is not None:
            other.fill(number & 1)
        else:
            model(*arrays)  # caches and threads are as in calls that follow one another
        calls.append(model.call_raw(*arrays))
    calls.sort(key=lambda call: call.seconds)
    call = calls[len(calls) // 2]
    structure = read_structure(model.metadata).get(getattr(model, "name", "main"), {})
    launches = tuple(_described(call.launches, structure, model.metadata.get("kernels", ())))
    # The profile is enabled a moment before the call begins, whose end is never before the last launch's.
    seconds = max([call.seconds, *(x.end for x in launches[-1:])])
    if call.run is None:
        return Timeline(launches, seconds)
    seconds = max(seconds, call.run.end * 1e-9)
    clock = call.run.clock * 1e-9 / max(call.run.reads, 1)
    return Timeline(launches, seconds, (call.run.end - call.run.begin) * 1e-9, clock)


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


__all__ = [
    "Grouping",
    "Launch",
    "RawCall",
    "RawLaunch",
    "RunTime",
    "Share",
    "ThreadTime",
    "Timeline",
    "record_timeline",
]

"""The process that makes the measuring ones: ``python -m tilewright.tuning.child``.

Standard input gives a job as a line of JSON, any number of them; when it ends, because the parent has died,
the process ends. A copy of this process does each job, since starting Python and NumPy takes longer than
measuring. Standard output gets one line of JSON for each event. Only NumPy and the harness are needed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from tilewright.tuning.harness import Argument, KernelDescription
from tilewright.tuning.memory import GuardedMemory

_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_INTEGERS = {
    f"{k}{b}": f"{n}{b}" for k, n in (("i", "int"), ("u", "uint"), ("ui", "uint")) for b in (8, 16, 32, 64)
}
_INTEGERS |= {"bool": "uint8", "i1": "uint8"}
_MOST_SETS = 64
_TRIES = 8
_MOST_COPIES = 1 << 30
"""Bytes of all copies of cold buffers."""


def dtype_of(name: str) -> np.dtype:
    """The data type of an argument's elements.

    Raises:
        ValueError: There is none of this name.
    """
    if name in _FLOATS:
        return np.dtype(_FLOATS[name])
    if name in _INTEGERS:
        return np.dtype(_INTEGERS[name])
    import ml_dtypes

    known = {
        "bf16": "bfloat16",
        "f8e4m3": "float8_e4m3fn",
        "f8e4m3fn": "float8_e4m3fn",
        "f8e5m2": "float8_e5m2",
    }
    if name not in known:
        raise ValueError(f"no data type {name!r}")
    return np.dtype(getattr(ml_dtypes, known[name]))


def filling(argument: Argument, seed: int) -> np.ndarray:
    """The initial contents of an argument as bytes: random numbers for what the kernel reads, NaN (integers:
    a pattern) for what it must write.
    """
    dtype = dtype_of(argument.dtype)
    shape = argument.shape
    if argument.role == "output":
        if argument.dtype in _INTEGERS:
            return np.full(math.prod(shape) * dtype.itemsize, 0xA5, np.uint8)
        return np.full(shape, np.nan, dtype).reshape(-1).view(np.uint8)
    rng = np.random.default_rng(seed)
    values: np.ndarray
    if argument.dtype in ("bool", "i1"):
        values = rng.integers(0, 2, shape)
    elif argument.dtype in _INTEGERS:
        values = rng.integers(int(argument.low), int(argument.high), shape, endpoint=True)
    else:
        values = rng.uniform(argument.low, argument.high, shape)
    return np.ascontiguousarray(values.astype(dtype)).reshape(-1).view(np.uint8)


def difference(argument: Argument, expected: np.ndarray, given: np.ndarray, kernel: KernelDescription) -> str:
    """How the results of a candidate differ from the default's, given as bytes; empty where they are equal.

    Where the order of sums may differ, each element may be off by the error of a sum of `terms` terms,
    relative to itself and to the root of the mean square of all, and by the rounding to its data type.
    """
    if bool((expected == given).all()):
        return ""
    dtype = dtype_of(argument.dtype)
    one, other = expected.view(dtype), given.view(dtype)
    if not kernel.reorders_sums or argument.dtype in _INTEGERS:
        wrong = (expected.reshape(len(one), -1) != given.reshape(len(one), -1)).any(axis=1)
        rule = "must be equal bit for bit"
    else:
        a, b = one.astype(np.float64), other.astype(np.float64)
        finite = np.abs(a[np.isfinite(a)])
        mean = math.sqrt(float((finite**2).mean())) if len(finite) else 0.0
        import ml_dtypes

        own = float(ml_dtypes.finfo(dtype).eps)
        sums = (4 * math.sqrt(kernel.terms) + 4) * min(own, 2.0**-23)
        with np.errstate(invalid="ignore"):
            allowed = sums * (np.abs(a) + mean) + 1.01 * own * np.abs(a) * (own > 2.0**-23)
            close = np.abs(a - b) <= allowed
        wrong = ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))
        rule = f"may differ by the rounding of sums of {kernel.terms} terms"
    count = int(wrong.sum())
    if not count:
        return ""
    first = int(np.argmax(wrong))
    place = tuple(int(i) for i in np.unravel_index(first, argument.shape)) if argument.shape else ()
    return (
        f"{count} of {len(one)} elements of {argument.name} differ from the default's, the first at {place}: "
        f"{other[first]} instead of {one[first]}; they {rule}"
    )


class _Code:
    """A kernel's function and the pool that runs it."""

    def __init__(self, harness: Any, path: str, kernel: KernelDescription) -> None:
        self.kernel, self._harness = kernel, harness
        self._library = ctypes.CDLL(path)
        self._function = ctypes.cast(getattr(self._library, kernel.symbol), ctypes.c_void_p)
        self.scratch = GuardedMemory(kernel.scratch, kernel.threads)
        self._dims = (ctypes.c_int64 * max(1, len(kernel.dims)))(*kernel.dims)
        self._pool = ctypes.c_void_p(
            harness.tw_harness_create(kernel.threads, self.scratch.address, self.scratch.stride)
        )
        self.repeats = 1

    def run(self, sets: _Sets, repeats: int = 1, most_sets: int | None = None) -> int:
        """Run the kernel and return nanoseconds."""
        return int(
            self._harness.tw_harness_run(
                self._pool,
                self._function,
                self.kernel.extent,
                self.kernel.grain,
                sets.pointers,
                min(sets.count, most_sets or sets.count),
                self._dims,
                repeats,
            )
        )


class _Sets:
    """The buffers of all arguments, and copies of the cold ones, in sets of pointers."""

    def __init__(self, arguments: Sequence[Argument], cache_bytes: int) -> None:
        self.arguments = arguments
        self.initial = [filling(a, i) for i, a in enumerate(arguments)]
        cold = sum(len(data) for a, data in zip(arguments, self.initial, strict=True) if a.cold)
        most = max(1, _MOST_COPIES // max(1, cold))
        self.count = min(_MOST_SETS, most, 1 + 2 * cache_bytes // cold) if cold and cache_bytes else 1
        self.memory = [
            [GuardedMemory(len(data)) for _ in range(self.count if a.cold else 1)]
            for a, data in zip(arguments, self.initial, strict=True)
        ]
        for data, copies in zip(self.initial, self.memory, strict=True):
            for copy in copies:
                copy.array()[:] = data
        rows = [
            (ctypes.c_void_p * max(1, len(arguments)))(*(m[i % len(m)].address for m in self.memory))
            for i in range(self.count)
        ]
        self._rows = rows
        self.pointers = (ctypes.c_void_p * self.count)(*(ctypes.addressof(row) for row in rows))

    def restore(self) -> None:
        """Give everything that kernels write its initial contents."""
        for argument, data, copies in zip(self.arguments, self.initial, self.memory, strict=True):
            if argument.role != "input":
                for copy in copies:
                    copy.array()[:] = data

    def results(self) -> list[np.ndarray]:
        """The bytes that the kernel has written; an empty array for an input."""
        return [
            copies[0].array().copy() if a.role != "input" else np.empty(0, np.uint8)
            for a, copies in zip(self.arguments, self.memory, strict=True)
        ]

    def protect(self, on: bool) -> None:
        """Let writes to inputs end the process, or not."""
        for argument, copies in zip(self.arguments, self.memory, strict=True):
            if argument.role == "input":
                for copy in copies:
                    copy.allow_writes(not on)

    def damaged(self) -> str:
        """The argument around which a kernel has written; empty where there is none."""
        written = (a.name for a, m in zip(self.arguments, self.memory, strict=True) if not m[0].is_intact())
        return next(written, "")


def say(event: str, **fields: Any) -> None:
    """Write an event."""
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def _harness(path: str) -> Any:
    library = ctypes.CDLL(path)
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.tw_harness_create.restype = pointer
    library.tw_harness_create.argtypes = [ctypes.c_int32, pointer, count]
    library.tw_harness_run.restype = count
    library.tw_harness_run.argtypes = [pointer, pointer, count, count, pointer, count, pointer, count]
    return library


def _checked(code: _Code, sets: _Sets) -> tuple[list[np.ndarray], int, str]:
    """The results of a run on fresh outputs, its nanoseconds, and what it has written elsewhere."""
    sets.restore()
    sets.protect(True)
    nanoseconds = code.run(sets, most_sets=1)
    sets.protect(False)
    name = sets.damaged() or ("its scratch memory" if not code.scratch.is_intact() else "")
    return sets.results(), nanoseconds, f"it writes outside of {name}" if name else ""


def _switches() -> int:
    """How often the system has put a thread of this process aside; 0 where it does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _undisturbed(code: _Code, sets: _Sets) -> int:
    """The nanoseconds of a leg during which no thread was put aside, or else the least of eight. Under load a
    leg of 1 ms is often interrupted for several.
    """
    least = 0
    for _ in range(_TRIES):
        sets.restore()
        before = _switches()
        nanoseconds = code.run(sets, code.repeats)
        least = min(least, nanoseconds) if least else nanoseconds
        if _switches() == before:
            return nanoseconds
    return least


def measure(job: Mapping[str, Any]) -> None:
    """Do a job: run both, compare their results, then measure blocks.

    Events: "default" and "candidate" (seconds of the first run), "wrong" (message), "block" (the nanoseconds
    per run of each leg of the default, and of the candidate), "done".
    """
    kernels = [KernelDescription.from_json(job[side]["kernel"]) for side in ("default", "candidate")]
    if kernels[0].arguments != kernels[1].arguments:
        raise ValueError("the default and the candidate must have the same arguments")
    harness = _harness(job["harness"])
    sets = _Sets(kernels[0].arguments, int(job["cache_bytes"]))
    say("ready")
    default = _Code(harness, job["default"]["library"], kernels[0])
    expected, nanoseconds, outside = _checked(default, sets)
    if outside:
        raise ValueError(f"the default is wrong: {outside}")
    say("default", seconds=nanoseconds * 1e-9)
    candidate = _Code(harness, job["candidate"]["library"], kernels[1])

    def is_right() -> bool:
        results, nanoseconds, message = _checked(candidate, sets)
        pairs = zip(sets.arguments, expected, results, strict=True)
        message = message or next((d for a, e, r in pairs if (d := difference(a, e, r, kernels[1]))), "")
        say("wrong", message=message) if message else say("candidate", seconds=nanoseconds * 1e-9)
        return not message

    if not is_right():
        return
    leg = float(job["leg_seconds"]) * 1e9
    once = []
    for code in (default, candidate):
        code.run(sets)  # wakes threads, fills caches
        while True:
            # The least of three: a process that is put aside while it runs once seems slow, and with too few
            # repeats a leg measures cold caches and the call.
            elapsed = max(1, min(code.run(sets, code.repeats) for _ in range(3)))
            if elapsed >= leg or code.repeats >= 1 << 24:
                break
            code.repeats = math.ceil(code.repeats * min(10.0, max(1.2, 1.1 * leg / elapsed)))
        once.append(elapsed / code.repeats)
        say("ready")
    if 0.5 < once[0] / once[1] < 2:
        # Legs of equal length: under load, the longer ones are interrupted more often.
        default.repeats = candidate.repeats = max(default.repeats, candidate.repeats)
    hopeless = 0
    for number in range(int(job["blocks"])):
        times: dict[_Code, list[float]] = {default: [], candidate: []}
        # The process that has read the last block runs now, and disturbs what comes first. Neither side
        # always does.
        order = (default, candidate, candidate, default) * 2
        for code in (default, candidate):
            code.run(sets)
        for code in order[2 * (number % 2) :][:4]:
            times[code].append(_undisturbed(code, sets) / code.repeats)
        say("block", default=times[default], candidate=times[candidate])
        ratio = sum(times[default]) / sum(times[candidate])
        hopeless = hopeless + 1 if ratio < float(job["hopeless"]) else 0
        if hopeless == 3:
            break
    if is_right():  # a race of threads may show only now
        say("done")


def serve() -> None:
    """Do each job in a forked process with a session of its own. The events "begin" (pid) and "end" (pid,
    status as `os.waitpid` gives it) enclose those of a job.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rest = b""
    while True:
        while b"\n" not in rest:
            data = os.read(0, 1 << 16)
            if not data:
                return
            rest += data
        line, _, rest = rest.partition(b"\n")
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            say("begin", pid=os.getpid())
            _work(json.loads(line))
        ended = 0
        while not ended:
            ready, _, _ = select.select([0, woken], [], [])
            if woken in ready:
                os.read(woken, 1 << 10)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and 0 in ready:  # the parent has died: it sends no job before the end of this one
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                return
        say("end", pid=pid, status=status)


def _work(job: Mapping[str, Any]) -> NoReturn:
    """Do a job and end the process."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        measure(job)
    except Exception as error:
        say("error", message=f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve()
    os._exit(0)

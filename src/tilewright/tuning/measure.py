"""Measuring a candidate beside the default, in a process of its own that may crash or hang.

Times are compared in A-B-B-A blocks: default, candidate, candidate, default. Linear changes of the clock rate
and of the load cancel within a block, and the logarithm of its ratio is one sample.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError

from ..driver.tuning_database import Failure
from .harness import KernelDescription, harness_library


class MeasureError(TilewrightError):
    """Measuring is impossible, whatever the candidate: the default fails, or no process can be started."""


@dataclass(frozen=True)
class Built:
    """A kernel that can be measured."""

    library: Path
    """A shared library that exports the kernel's function."""
    kernel: KernelDescription
    digest: str = ""
    """A digest of its code."""


@dataclass(frozen=True)
class Measurement:
    """The result of measuring a candidate."""

    samples: tuple[float, ...] = ()
    """Natural logarithms of the speedup, the default's time ÷ the candidate's; one for each block."""
    seconds: float | None = None
    """The median time of one run of the candidate."""
    default_seconds: float | None = None
    """The same of the default."""
    failure: Failure | None = None
    """Why there are no samples."""
    message: str = ""
    """The failure in words."""


@dataclass(frozen=True)
class Measurer:
    """How to measure."""

    harness: Path | None = None
    """The harness for this machine; None: it is compiled at the first use."""
    cache_bytes: int = 0
    """Bytes of the last cache: cold arguments get so many copies that they do not stay in twice as much."""
    leg_seconds: float = 1e-3
    """The least time of each of a block's four legs."""
    start_seconds: float = 60.0
    """The time in which a process must start, make its buffers, and run the default once."""
    least_seconds: float = 2.0
    """The least time after which a candidate counts as hanging; a machine under load needs it."""
    patience: float = 50.0
    """A candidate's run that takes more than so many times the default's, and the time above, hangs."""
    hopeless: float = 0.4
    """Measuring ends after three blocks with lower speedups."""

    def measure(self, default: Built, candidate: Built, blocks: int = 5) -> Measurement:
        """Measure a candidate. Failures of the candidate are results; nothing is tried again.

        Raises:
            MeasureError: The default fails.
        """
        job = {
            "harness": str(self.harness or harness_library()),
            "default": {"library": str(default.library.absolute()), "kernel": default.kernel.to_json()},
            "candidate": {"library": str(candidate.library.absolute()), "kernel": candidate.kernel.to_json()},
            "blocks": blocks,
            "cache_bytes": self.cache_bytes,
            "leg_seconds": self.leg_seconds,
            "hopeless": self.hopeless,
        }
        default_seconds, seen = None, "start"
        blocks_seen: list[tuple[list[float], list[float]]] = []
        with _SERVER.doing(job) as child:
            while True:
                wait = self._deadline(seen, default_seconds)
                try:
                    event = child.next_event(wait)
                except queue.Empty:
                    return self._failed(seen, "hang", f"no answer in {wait:.3g} s", default_seconds)
                if event is None:
                    return self._failed(seen, "crash", child.ended(), default_seconds)
                seen = event["event"]
                if seen == "error":
                    raise MeasureError(f"the default cannot be measured: {event['message']}")
                if seen == "default":
                    default_seconds = float(event["seconds"])
                elif seen == "wrong":
                    return Measurement(
                        default_seconds=default_seconds, failure="wrong", message=event["message"]
                    )
                elif seen == "block":
                    blocks_seen.append((event["default"], event["candidate"]))
                elif seen == "done":
                    break
        times = np.array(blocks_seen)
        samples = tuple(np.log(times[:, 0].sum(1) / times[:, 1].sum(1)).tolist())
        medians = np.median(times, axis=(0, 2)) * 1e-9
        return Measurement(samples, float(medians[1]), float(medians[0]))

    def _deadline(self, seen: str, default_seconds: float | None) -> float:
        """Seconds until the next event must come."""
        if default_seconds is None:
            return self.start_seconds
        return self.least_seconds + self.patience * max(default_seconds, self.leg_seconds)

    @staticmethod
    def _failed(seen: str, kind: Failure, message: str, default_seconds: float | None) -> Measurement:
        if default_seconds is None:
            raise MeasureError(f"the default cannot be measured: {kind}: {message}")
        return Measurement(default_seconds=default_seconds, failure=kind, message=message)


_PATIENCE = 10
"""A process that waits without computing, as one does that the system does not run, has so many times as long
as one that computes.
"""


class _Child:
    """A process that does a job."""

    def __init__(self, pid: int, events: queue.Queue[dict[str, Any] | None]) -> None:
        self.pid, self._events = pid, events
        self.status: int | None = None
        """How it ended, as `os.waitpid` gives it; None: it runs, or nobody knows."""

    def next_event(self, seconds: float) -> dict[str, Any] | None:
        """The next event; None at the end of the process.

        Raises:
            queue.Empty: There is none though the process has computed for so long, or ten times as long has
                passed. Time in which the process is stopped does not count.
        """
        before, waits = _computed(self.pid), 0
        while True:
            try:
                event = self._events.get(timeout=seconds)
            except queue.Empty:
                now = _computed(self.pid)
                if now is None or before is None or now - before >= 0.5 * seconds or waits >= _PATIENCE:
                    raise
                waits += not _is_stopped(self.pid)
                continue
            if event is not None and event["event"] == "end":
                self.status = int(event["status"])
                return None
            return event

    def ended(self) -> str:
        """How the process ended, in words."""
        if self.status is None:
            return "the process ended"
        code = os.waitstatus_to_exitcode(self.status)
        if code >= 0:
            return f"the process ended with status {code}"
        with suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process was ended by signal {-code}"


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on, as Linux lists them; none elsewhere."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _computed(pid: int) -> float | None:
    """The seconds that a process has computed; None where the system does not say."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def _is_stopped(pid: int) -> bool:
    return _stat(pid)[:1] in (["T"], ["t"])


class _Server:
    """The process that makes the measuring ones, started at the first job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()

    @contextmanager
    def doing(self, job: dict[str, Any]) -> Iterator[_Child]:
        """Begin a job. Leaving kills its process and what that has started."""
        with self._lock:
            try:
                child = self._begin(job)
            except BaseException:  # such as an interruption: whose job's events follow is unknown
                self.stop()
                raise
            try:
                yield child
            finally:
                self._end(child)

    def _begin(self, job: dict[str, Any]) -> _Child:
        line = json.dumps(job).encode() + b"\n"
        for _ in range(2):  # a server that has died since the last job is started again
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
                event = self._events.get(timeout=_START_SECONDS)
            except (OSError, queue.Empty):
                event = None
            if event is not None:
                return _Child(int(event["pid"]), self._events)
            self.stop()
        raise MeasureError("the process that measures cannot be started")

    def _end(self, child: _Child) -> None:
        if child.status is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(queue.Empty):
            while (event := self._events.get(timeout=_START_SECONDS)) is not None:
                if event["event"] == "end":
                    return
        self.stop()

    def _start(self) -> None:
        if not hasattr(os, "fork"):
            raise MeasureError("measuring needs a system on which processes fork: Linux, macOS, BSD")
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.tuning.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **one, "PYTHONPATH": path},
                start_new_session=True,
            )
        except OSError as error:
            raise MeasureError(f"no process can be started: {error}") from error
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with suppress(ValueError):
                    events.put(json.loads(line))
            events.put(None)

        threading.Thread(target=read, daemon=True).start()
        self._process, self._events = process, events

    def stop(self) -> None:
        """End the process; the next job starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


_START_SECONDS = 120.0
"""The time in which the server must start and answer."""
_SERVER = _Server()

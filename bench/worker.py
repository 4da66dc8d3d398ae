"""Engines in child processes, one each, stopped during the turns of the others.

The libraries, spinning threads and memory of an engine do not disturb other engines. A hang or crash affects
one engine only, and the peak memory of a process is that of its engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .case import Case

_CONTEXT = multiprocessing.get_context("spawn")
SAMPLE = 2e-4  # seconds: a shorter inference is timed in groups that take this long


@contextlib.contextmanager
def holding(path: Path | None) -> Iterator[None]:
    """Hold the lock file at `path`, for benchmarks that must not run at the same time."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prioritize(process: int, nice: int | None) -> None:
    """Set the scheduling priority of all threads of a process, and of its session where the kernel schedules
    sessions. Root may go below 0.
    """
    if nice is None:
        return
    folder = Path(f"/proc/{process}")
    for thread in (folder / "task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    if (folder / "autogroup").exists():
        (folder / "autogroup").write_text(str(nice))


class EngineError(Exception):
    """The engine failed; the message is one line."""


class NoAnswer(EngineError):
    """The time limit of an answer is exceeded."""


class Child:
    """A process that calls `function(*arguments)`, which yields answers to the questions of `ask`; the first
    answer needs no question.

    Raises:
        EngineError: from `ask` and `first`: the function raised, the process died, or `timeout` seconds
            passed.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, threads: int) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        self._log = tempfile.NamedTemporaryFile(mode="r", errors="replace")  # noqa: SIM115
        self._process = _CONTEXT.Process(
            target=serve, args=(theirs, self._log.name, threads, function, arguments), daemon=True
        )
        self._process.start()
        self._pid: int = self._process.pid  # type: ignore[assignment]  # it has started
        theirs.close()

    def first(self, timeout: float) -> Any:
        """The first answer."""
        return self._answer(timeout)

    def ask(self, question: Any, timeout: float) -> Any:
        """Wake the process, ask, and stop it again."""
        self._signal(signal.SIGCONT)
        self._connection.send(question)
        return self._answer(timeout)

    def _answer(self, timeout: float) -> Any:
        try:
            if not self._connection.poll(timeout):
                raise NoAnswer(f"no answer in {timeout:.0f} s")
            good, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join(10)
            tail = re.sub(r"\S*/", "", " ".join(Path(self._log.name).read_text(errors="replace").split()))[
                -300:
            ]
            raise EngineError(f"the process ended with exit code {self._process.exitcode}: {tail}") from None
        if not good:
            raise EngineError(answer)
        self._signal(signal.SIGSTOP)
        return answer

    def prioritize(self, nice: int | None) -> None:
        """`prioritize` the process."""
        prioritize(self._pid, nice)

    def _signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self._pid, number)

    def close(self) -> None:
        """End the process and its child processes in any state."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._log.close()


def serve(
    connection: Connection, log: str, threads: int, function: Callable[..., Any], arguments: Any
) -> None:
    """Be a `Child`'s process: call the function, send what it yields."""
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    answers = function(*arguments)
    question = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            try:
                answer = answers.send(question)
            except StopIteration:
                return
            except BaseException as error:
                text = re.sub(
                    r"\S*/", "", " ".join(str(error).split())
                )  # without paths, which differ between machines
                connection.send((False, f"{type(error).__name__}: {text[:300]}"))
                return
            connection.send((True, answer))
            question = connection.recv()


def preparation(case: Case) -> Any:
    """Child: make the case's files."""
    from .case import prepare

    prepare(case)
    yield None


def building(engine: Any, case: Case, folder: Path) -> Any:
    """Child: compile ahead of time; answers with the engine's figures and the processor's seconds of all of
    it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = engine.build(case, folder)
    yield figures | {"processor_seconds": sum(os.times()[:4])}


def running(engine: Any, case: Case, folder: Path) -> Any:
    """Child: import what the engine needs; load and run once when asked to; then answer methods of `_Runner`
    by name.

    The first answers are seconds of importing, and `_Runner.report`.
    """
    baseline = _memory("VmRSS")
    start = time.perf_counter()
    for module in engine.modules:
        importlib.import_module(module)
    yield time.perf_counter() - start
    runner = _Runner(engine, case, folder)
    answer: Any = runner.report(baseline)
    while True:
        method, *arguments = yield answer
        answer = getattr(runner, method)(*arguments)


class _Runner:
    def __init__(self, engine: Any, case: Case, folder: Path) -> None:
        self.case = case
        start = time.perf_counter()
        self.loaded = engine.load(case, folder)
        self.outputs = self.loaded.arrays(self.loaded.run())
        self.seconds = time.perf_counter() - start
        start = time.perf_counter()
        self.loaded.run()
        again = time.perf_counter() - start
        if again < SAMPLE:
            self.group = max(1, int(SAMPLE / min(self.turn(0.1))))

    group = 1

    def turn(self, seconds: float) -> list[float]:
        """Seconds of single inferences, at least one, for about `seconds`; one before is not counted, unless
        it took longer.
        """
        run, group, clock = self.loaded.run, self.group, time.perf_counter
        end = clock() + seconds
        run()
        times = [] if clock() < end else [clock() - end + seconds]
        while not times or clock() < end:
            start = clock()
            for _ in range(group):
                run()
            times.append((clock() - start) / group)
        return times

    def report(self, baseline: int) -> dict[str, float]:
        """Seconds of loading with the first inference, peak bytes of the process and what it had before it
        imported the engine, error against float32 PyTorch.
        """
        from .case import largest_error

        peak = _memory("VmHWM")
        return {
            "load_seconds": self.seconds,
            "peak_bytes": peak,
            "baseline_bytes": baseline,
            "error": largest_error(self.outputs, self.case.expected()),
        }

    def inside(self) -> float | None:
        """Seconds of one inference without the call from Python, if the engine can measure them."""
        return self.loaded.inside() if self.loaded.inside else None

    def kernels(self) -> list[tuple[int, int]] | None:
        """(flops, bytes) of each kernel, if the engine reports them."""
        return self.loaded.kernels() if self.loaded.kernels else None


def _memory(line: str) -> int:
    """Bytes this process has resident ("VmRSS") or has had at most ("VmHWM"; getrusage would count its
    parent's).
    """
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(line):
            return int(text.split()[1]) * 1024
    return 0

"""Work in processes of their own: what crashes or takes too long costs its own outcome alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any


@dataclass
class _Run:
    name: str
    process: Any
    deadline: float
    outcomes: list[Any] = field(default_factory=list)


def each_in_a_process(
    names: Sequence[str], work: Callable[[str], Iterator[Any]], processes: int, seconds: float
) -> Iterator[tuple[str, list[Any]]]:
    """What `work` yields for each name, as it ends; a crash, or the end of the `seconds` for a name, stands as the last outcome."""
    context = get_context("fork")
    pending = list(reversed(names))
    running: dict[Any, _Run] = {}
    while pending or running:
        while pending and len(running) < processes:
            here, there = context.Pipe(duplex=False)
            name = pending.pop()
            process = context.Process(target=_send, args=(there, work, name), daemon=True)
            process.start()
            there.close()
            running[here] = _Run(name, process, time.monotonic() + seconds)
        for here in connection.wait(list(running), timeout=1.0):
            try:
                running[here].outcomes.append(here.recv())  # type: ignore[attr-defined, index]
            except EOFError:
                run = running.pop(here)
                run.process.join()
                if run.process.exitcode:
                    run.outcomes.append(f"crash: exit code {run.process.exitcode}")
                yield run.name, run.outcomes
        for here, run in list(running.items()):
            if time.monotonic() > run.deadline:
                run.process.kill()
                del running[here]
                yield run.name, [*run.outcomes, f"more than {seconds:.0f} s"]


def _send(there: Any, work: Callable[[str], Iterator[Any]], name: str) -> None:
    for outcome in work(name):
        there.send(outcome)

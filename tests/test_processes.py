"""Worker processes of the test suites whose work crashes, takes too long or takes too much memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from . import processes
from .processes import Limits, in_processes


def _work(task: str, first: int) -> Iterator[str]:
    for k, step in list(enumerate(task.split()))[first:]:
        match step:
            case "crash":
                os._exit(3)
            case "sleep":
                time.sleep(60)
            case "spin":
                while True:
                    pass
            case "grow":
                bytes(1 << 30)
        yield f"{k} {step}"


def test_a_crash_is_one_outcome_and_the_others_are_computed() -> None:
    found = dict(in_processes(["a crash crash b", "c", "", "d crash"], _work, 2, Limits(60)))
    assert found == {
        "a crash crash b": ["0 a", "crash: exit code 3", "crash: exit code 3", "3 b"],
        "c": ["0 c"],
        "": [],
        "d crash": ["0 d", "crash: exit code 3"],
    }


def test_tasks_beyond_the_time_limit_are_ended() -> None:
    found = dict(in_processes(["a spin b", "sleep c"], _work, 2, Limits(0.5)))
    assert found == {
        "a spin b": ["0 a", "out of time: more than 0.5 s", "2 b"],
        "sleep c": ["out of time: more than 0.5 s", "1 c"],
    }


def test_memory_is_bounded() -> None:
    [(_, outcomes)] = in_processes(["a grow b"], _work, 1, Limits(60, memory=1 << 28))
    assert outcomes[0] == "0 a" and outcomes[1].startswith("crash") and outcomes[2] == "2 b"


def test_a_task_that_never_gets_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 5)
    [(_, outcomes)] = in_processes([0], _crash, 1, Limits(60))
    assert outcomes == ["crash: exit code 4"] * 5


def _crash(task: int, first: int) -> Iterator[str]:
    os._exit(4)
    yield ""

"""Threads of this process in place of processes that divide a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tilewright.distributed as td
from tilewright.distributed.engine import ThreadEngine
from tilewright.llm.parallel.place import Place


def on_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of functions that run at the same time; the first error is raised."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            results[k] = calls[k]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def worlds(size: int) -> list[td.Group]:
    """The group of each thread."""
    return [td.Group(engine) for engine in ThreadEngine.of_size(size)]


def places(tensor: int, pipeline: int = 1) -> list[Place]:
    """The places of threads that run a model without compiling it: their groups are connected."""
    found = [Place(tensor, pipeline, rank) for rank in range(tensor * pipeline)]
    for place, world in zip(found, worlds(len(found)), strict=True):
        for group in place.join(world):
            place.groups[group.name].engine = group.engine
    return found

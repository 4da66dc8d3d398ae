"""`Leader`: the `Runner` of a model that several processes compute; `follow`: the loop of the others."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...artifact.disk_cache import digest
from ...distributed.engine import Kind
from ...distributed.groups import Group, GroupError, connect
from ...errors import CompileError, ShapeError
from ..library import LibraryRunner
from .calls import END, NOTHING, Calls
from .place import Place, place_of

if TYPE_CHECKING:
    from ...runtime.model import CompiledModel

PERIOD = 2.0
"""Seconds between two signs of life without calls. A larger value loads idle processes less, and finds later
that one has ended.
"""
LEAVING = 10.0
"""Seconds after which a process that has been let end is killed. A larger value only delays the end."""
_HERE = ("sample",)
"""Functions without weights, which the first process calls alone."""


def joined(library: CompiledModel, world: Group) -> list[Group]:
    """Connect a library to the groups of its place; all processes of `world` do so at the same time.

    Raises:
        CompileError: The library is for another rank, for another number of processes, or of another model
            than those of other processes.
        GroupError: A process has ended.
    """
    place = place_of(library.metadata)
    check_together(place, whole_of(library.metadata, library.functions), world)
    groups = place.join(world)
    connect(library, *groups)
    return groups


def whole_of(metadata: Mapping[str, Any], functions: Iterable[str]) -> str:
    """A key of what the libraries of all processes have in common: the model, the options, the functions."""
    of_process = ("rank", "weight_bytes", "flops")
    common = {k: v for k, v in metadata["llm"].items() if k not in of_process}
    return digest(json.dumps([common, sorted(functions)], sort_keys=True))


def check_together(place: Place, key: str, world: Group) -> None:
    """Check that libraries are those of the ranks of their processes, and were compiled alike. Otherwise
    weights of several models would be added up.

    Args:
        place: The place that this process's library was compiled for.
        key: The key of its library, from `whole_of`.
        world: All processes, which call this at the same time.

    Raises:
        CompileError: They are not, in all processes.
        GroupError: A process has ended.
    """
    mine = np.frombuffer(f"{place.rank:8d}{key}".encode(), np.uint8)
    rows = world.run(Kind.ALL_GATHER, mine, (world.size, mine.size))
    told = [bytes(row).decode() for row in rows]
    for rank, text in enumerate(told):
        if int(text[:8]) != rank:
            raise CompileError(
                f"the process of rank {rank} has the library of rank {int(text[:8])}: each needs its own file"
            )
        if text[8:] != told[0][8:]:
            raise CompileError(
                f"the library of rank {rank} is not of the same model and options as that of rank 0: compile "
                "all of them together"
            )


class Leader(LibraryRunner):
    """The runner of rank 0. Each call is told to the other processes, which compute their parts of it.

    Arguments of wrong shapes are refused by all processes. If a call fails otherwise in one process, or a
    process ends, this and all later calls fail: the caches of the processes no longer agree.

    Args:
        library: The library of rank 0.
        world: All processes.
    """

    def __init__(self, library: CompiledModel, world: Group) -> None:
        super().__init__(library)
        self.page_access = None  # the other processes have the rest of each page
        self.lost: GroupError | None = None
        """The error that ended the group."""
        self.when_lost: Callable[[GroupError], None] = lambda error: None
        """Called once, in any thread, when the group has ended."""
        self.workers: Sequence[subprocess.Popen[bytes]] = ()
        """The processes that this one has started."""
        self._world, self._groups = world, joined(library, world)
        self._calls = Calls(world, sorted(self._functions))
        self._one = threading.Lock()  # calls and signs of life have the same order in all processes
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, name="tilewright-workers", daemon=True)
        self._watch.start()

    def _call(self, name: str, *arguments: object) -> Any:
        if name in _HERE or name not in self._functions:
            return super()._call(name, *arguments)
        with self._one:
            if self.lost is not None:
                raise self.lost
            message = self._calls.packed(name, arguments)
            try:
                self._calls.send(message)
                return super()._call(name, *self._calls.unpacked(message)[1])
            except ShapeError:  # before the call has begun; the other processes refuse it as well
                raise
            except Exception as error:
                raise self._lose(error) from error
            except BaseException as error:  # the others compute a call that this process has left
                self._lose(error)
                raise

    def _look(self) -> None:
        while not self._ended.wait(PERIOD):
            with self._one:
                if self.lost is not None or self._ended.is_set():
                    return
                try:
                    self._calls.send(self._calls.packed(NOTHING))
                    self._calls.meet()
                except Exception as error:
                    self._lose(error)

    def _lose(self, error: BaseException) -> GroupError:
        missing = ", ".join(map(str, self._world.engine.missing()))
        told = str(error) or type(error).__name__
        reason = f"its process of rank {missing} has ended or does not answer" if missing else told
        self.lost = GroupError(f"the model is computed by {self._world.size} processes, and {reason}")
        self.when_lost(self.lost)
        return self.lost

    def close(self) -> None:
        """Let the other processes end, unless the group has ended."""
        self._ended.set()
        with self._one:
            if self.lost is None:
                self.lost = GroupError("the processes of the model have been ended")
                with contextlib.suppress(GroupError):  # one has ended, so the others do as well
                    self._calls.send(self._calls.packed(END))
        self._watch.join()
        for worker in self.workers:
            try:
                worker.wait(LEAVING)
            except subprocess.TimeoutExpired:
                worker.kill()
        super().close()


def follow(library: CompiledModel, world: Group) -> None:
    """Compute this process's part of all calls of rank 0, until it lets the processes end.

    Args:
        library: The library of this rank.
        world: All processes.

    Raises:
        CompileError: The library is for another rank, or for another number of processes.
        GroupError: A process has ended.
    """
    groups: Sequence[Group] = joined(library, world)
    functions = library.functions
    calls = Calls(world, sorted(functions))
    while True:
        name, arguments = calls.receive()
        if name == END:
            return
        if name == NOTHING:
            calls.meet()
            continue
        try:
            functions[name](*arguments)
        except ShapeError:  # rank 0 refuses the call as well, and goes on
            continue
        except Exception:
            for group in groups:
                group.check()
            raise


__all__ = ["Leader", "check_together", "follow", "joined", "whole_of"]

"""`Leader`: the `Runner` of a model that several processes compute; `follow`: the loop of the others."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...distributed.groups import Group, GroupError, connect
from ...errors import ShapeError
from ..library import LibraryRunner
from .calls import END, NOTHING, Calls
from .place import place_of

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
        CompileError: The library is for another rank, or for another number of processes.
        GroupError: A process has ended.
    """
    groups = place_of(library.metadata).join(world)
    connect(library, *groups)
    return groups


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
                return super()._call(name, *arguments)
            except ShapeError:  # before the call has begun; the other processes refuse it as well
                raise
            except Exception as error:
                raise self._lose(error) from error

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

    def _lose(self, error: Exception) -> GroupError:
        missing = ", ".join(map(str, self._world.engine.missing()))
        reason = f"its process of rank {missing} has ended or does not answer" if missing else str(error)
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


__all__ = ["Leader", "follow", "joined"]

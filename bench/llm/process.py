"""`Elsewhere`: an engine's process with the interpreter of its own environment."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.worker import Child, serve  # noqa: E402

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class Elsewhere(Child):
    """A `Child` that runs under the interpreter `python`, which finds `function` by its module and name."""

    def __init__(self, python: Path, function: Callable[..., Any], *arguments: Any, threads: int) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._log = tempfile.NamedTemporaryFile(mode="r", errors="replace")  # noqa: SIM115
        number = theirs.fileno()
        self._process = _Process(
            [python, "-m", __name__, str(number), self._log.name, str(threads)], pass_fds=[number], cwd=ROOT
        )
        self._pid = self._process.pid
        theirs.close()
        self._connection.send((function, arguments))


class _Process(subprocess.Popen[bytes]):
    """A process with the interface of `multiprocessing.Process`."""

    @property
    def exitcode(self) -> int | None:
        return self.returncode

    def is_alive(self) -> bool:
        return self.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)


def main(number: str, log: str, threads: str) -> None:
    # A stopped process would outlive its parent.
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    connection = Connection(int(number))
    os.set_inheritable(int(number), False)
    with open(log, "w") as file:  # Also receives errors of imports during unpickling.
        os.dup2(file.fileno(), 2)
    function, arguments = connection.recv()
    serve(connection, log, int(threads), function, arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])

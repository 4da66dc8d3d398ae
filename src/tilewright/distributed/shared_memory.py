"""`SharedMemoryEngine`: collective operations between processes of one machine, without sockets.

The work is done in C (c/shared_memory.c), compiled at the first use, which compiled code calls without
Python. The segment is anonymous memory
(``memfd_create``), which other processes open through the first one's descriptor: it has no name that could
stay behind, and no limit such as that of /dev/shm in containers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..artifact import disk_cache, link, temporary
from ..errors import ArtifactError
from .engine import REDUCTIONS, Array, Engine, GroupError, Kind, Operation, TorchEngine

FOLDER = Path(__file__).parent / "c"
SOURCES = FOLDER / "shared_memory.c", FOLDER / "group.h"
EXPORTS = (
    "tw_shared_group_start",
    "tw_shared_group_wait",
    "tw_shared_bytes",
    "tw_shared_join",
    "tw_shared_leave",
    "tw_shared_lost",
    "tw_shared_settle",
    "tw_shared_start",
    "tw_shared_told",
    "tw_shared_wait",
)
_FLAGS = ("-std=gnu11", "-O3", "-fvisibility=hidden")
_CODES = {"i": 0, "u": 1, "f": 2}
"""DLPack's codes of NumPy's kinds of elements."""


@cache
def _library() -> Any:
    """The functions of shared_memory.c.

    Raises:
        ArtifactError: There is no C compiler, or it fails.
    """
    triple = f"{platform.machine()}-unknown-linux-gnu"
    key = disk_cache.digest(triple, *_FLAGS, *(source.read_bytes() for source in SOURCES))
    path = temporary.folder() / f"shared-memory-{key}-{os.getpid()}.so"
    data = disk_cache.read("shared-memory", key)
    if data is None:
        link.link_shared(link.compile_c([SOURCES[0]], [FOLDER], triple, _FLAGS), path, triple, EXPORTS)
        disk_cache.write("shared-memory", key, path.read_bytes())
    else:
        path.write_bytes(data)
    code = ctypes.CDLL(str(path))
    path.unlink()
    number, address, wide = ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64
    code.tw_shared_bytes.argtypes, code.tw_shared_bytes.restype = [number], wide
    code.tw_shared_join.argtypes = [number, number, number, ctypes.c_double]
    code.tw_shared_join.restype = address
    code.tw_shared_leave.argtypes, code.tw_shared_leave.restype = [address], None
    code.tw_shared_start.argtypes = [address, *(number,) * 5, address, address, wide]
    code.tw_shared_start.restype = wide
    code.tw_shared_wait.argtypes, code.tw_shared_wait.restype = [address, wide], number
    code.tw_shared_settle.argtypes, code.tw_shared_settle.restype = [address], number
    code.tw_shared_lost.argtypes, code.tw_shared_lost.restype = [address, number], number
    code.tw_shared_told.argtypes, code.tw_shared_told.restype = [address], number
    return code


def _leave(code: Any, handle: int, file: int) -> None:
    code.tw_shared_leave(handle)
    os.close(file)


class SharedMemoryEngine(Engine):
    """Processes of one machine that share a segment of memory.

    Args:
        file: A descriptor of the segment, `segment_bytes` long and zero at first. The engine closes it.
        rank: The number of this process.
        size: The number of processes.
        patience: Seconds without any progress after which an operation fails.
        other: An engine of the same group, which is asked for missing ranks where all processes are alive.

    Raises:
        ArtifactError: The C code cannot be compiled.
        OSError: The segment cannot be mapped.
    """

    def __init__(self, file: int, rank: int, size: int, patience: float, other: Engine | None = None) -> None:
        self.rank, self.size, self.patience, self.other = rank, size, patience, other
        self._code = _library()
        self._handle = self._code.tw_shared_join(file, rank, size, patience)
        if not self._handle:
            os.close(file)
            raise OSError("the segment cannot be mapped or locked")
        weakref.finalize(self, _leave, self._code, self._handle, file)
        # Memory that an operation reads and writes until it is complete, also if nobody waits for it.
        self._held: dict[int, Operation] = {}

    def start(self, operation: Operation) -> Callable[[], None]:
        source, target = operation.source.reshape(-1), operation.target.reshape(-1)
        number = self._code.tw_shared_start(
            self._handle,
            int(operation.kind),
            _code(source),
            8 * source.itemsize,
            REDUCTIONS.index(operation.reduction),
            operation.peer,
            source.ctypes.data,
            target.ctypes.data,
            source.size,
        )
        if number < 0:
            raise GroupError(self._told(number, source.dtype))
        self._held[number] = operation

        def wait() -> None:
            status = self._code.tw_shared_wait(self._handle, number)
            self._held.pop(number, None)  # after a failure the engine writes no more
            if status:
                raise GroupError(self._told(status, source.dtype))

        return wait

    def functions(self) -> tuple[int, int, int] | None:
        start, wait = (
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (self._code.tw_shared_group_start, self._code.tw_shared_group_wait)
        )
        return start, wait, self._handle

    def settle(self) -> Exception | None:
        status = self._code.tw_shared_settle(self._handle)
        self._held.clear()
        return GroupError(self._told(status)) if status else None

    def missing(self) -> list[int]:
        lost = [k for k in range(self.size) if self._code.tw_shared_lost(self._handle, k)]
        return lost or (self.other.missing() if self.other else [])

    def divided(self, parts: Sequence[Sequence[int]]) -> Engine | None:
        mine = next((part for part in parts if self.rank in part), None)
        place, made = b"", None
        error: Exception | None = None  # raised at the end: the other processes wait for this one
        if mine and mine[0] == self.rank:
            try:
                file = segment(len(mine))
                place = marked(file).encode()
                made = SharedMemoryEngine(file, 0, len(mine), self.patience)
            except OSError as failure:
                place, error = b"", failure
        sent = np.zeros(_PLACE, np.uint8)
        sent[: len(place)] = np.frombuffer(place, np.uint8)
        places = np.empty((self.size, _PLACE), np.uint8)
        self.start(Operation(Kind.ALL_GATHER, sent, places))()
        if mine is not None and made is None and error is None:
            path, _, mark = bytes(places[mine[0]]).rstrip(b"\0").decode().partition(" ")
            try:
                made = SharedMemoryEngine(opened(path, mark), mine.index(self.rank), len(mine), self.patience)
            except OSError as failure:
                error = failure
        failed = np.empty(self.size, np.uint8)  # told when all have joined
        self.start(Operation(Kind.ALL_GATHER, np.array([error is not None], np.uint8), failed))()
        if failed.any():
            ranks = ", ".join(map(str, np.flatnonzero(failed)))
            raise GroupError(f"rank {ranks} cannot join a smaller group: {error or 'its error tells why'}")
        return made

    def joined(self, seconds: float, here: Callable[[], bool] = lambda: True) -> None:
        """Wait until all processes have joined: until then an operation would take them for ended ones.

        Args:
            seconds: The most seconds to wait.
            here: Whether the others may still join.

        Raises:
            GroupError: One has not joined.
        """
        end = time.monotonic() + seconds
        while lost := [k for k in range(self.size) if self._code.tw_shared_lost(self._handle, k)]:
            if time.monotonic() > end or not here():
                raise GroupError(f"the processes of rank {', '.join(map(str, lost))} have not joined")
            time.sleep(0.01)

    def _told(self, status: int, dtype: object = "this type") -> str:
        told = self._code.tw_shared_told(self._handle)
        seconds = "as long as it waits" if told else f"for {self.patience:g} seconds"
        reason = {
            -1: "a process has ended before it took part",
            -2: f"no process has made progress {seconds}",
            -3: "the processes take part with different operations or sizes: every process must call the "
            "same operations in the same order",
            -4: "there is no memory for another operation",
            -5: f"elements of {dtype} cannot be reduced",
        }[status]
        return f"the engine of rank {told - 1} has failed: {reason}" if told else reason


def _code(array: Array) -> int:
    return 4 if array.dtype.name == "bfloat16" else _CODES.get(array.dtype.kind, -1)


def segment(size: int) -> int:
    """Return a descriptor of a new segment for `size` processes.

    Raises:
        ArtifactError: The C code cannot be compiled.
        OSError: The system has no anonymous memory with descriptors.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("shared memory without a name needs Linux")
    length = _library().tw_shared_bytes(size)
    file = os.memfd_create("tilewright", os.MFD_CLOEXEC)
    os.ftruncate(file, length)
    return file


def of_one_machine(engine: TorchEngine, patience: float) -> SharedMemoryEngine | None:
    """Return an engine for the same processes if all of them run on this machine, else None. Every process of
    the group calls it.

    Rank 0 makes a segment with a random mark and tells the others through the store where its descriptor is;
    each votes for shared memory if it has found and joined the segment with this mark.

    Args:
        engine: An engine for all processes of ``torch.distributed``.
        patience: Seconds without any progress after which an operation fails.
    """
    store, rank, size = engine.store, engine.rank, engine.size
    place = f"tilewright/segment/{store.add(f'tilewright/segments/{rank}', 1)}"
    answer, shared = "", None
    try:
        _library()
        if rank == 0:
            file = segment(size)
            answer = marked(file)
        else:
            path, _, mark = store.get(f"{place}/0").decode().partition(" ")
            file = opened(path, mark)
            answer = "yes"
        shared = SharedMemoryEngine(file, rank, size, patience, engine)
    except (ArtifactError, OSError):
        answer = ""
    store.set(f"{place}/{rank}", answer)
    votes = [store.get(f"{place}/{k}") for k in range(size)]  # waits until all have joined
    return shared if all(votes) else None


_MARK = 32
"""Bytes of the random mark at the end of a new segment."""
_PLACE = 128
"""Bytes that are enough for what `marked` returns."""


def marked(file: int) -> str:
    """Return the path by which other processes open a segment, and a new random mark at its end."""
    mark = secrets.token_hex(_MARK // 2)
    os.pwrite(file, mark.encode(), os.fstat(file).st_size - _MARK)
    return f"/proc/{os.getpid()}/fd/{file} {mark}"


def opened(path: str, mark: str) -> int:
    """Return a descriptor of the segment with this mark.

    Raises:
        OSError: It is not on this machine.
    """
    if not path or not os.readlink(path).startswith("/memfd:tilewright"):
        raise OSError("the segment is on another machine")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if os.pread(file, _MARK, os.fstat(file).st_size - _MARK) != mark.encode():
        os.close(file)
        raise OSError("the segment is on another machine")
    return file


__all__ = ["SharedMemoryEngine", "marked", "of_one_machine", "opened", "segment"]

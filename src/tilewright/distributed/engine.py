"""Engines that move data between processes: torch.distributed (gloo, NCCL, MPI) and mpi4py.

An engine starts operations on NumPy arrays and waits for them. Compiled code reaches it through a C structure
of two functions (`CHandle`), whose address is the handle of a group. They call Python, unless the engine has
functions in C.
"""

from __future__ import annotations

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ..errors import TilewrightError
from .heartbeat import Heartbeat

Array = np.ndarray[Any, Any]


class Kind(IntEnum):
    """The collective operations, with the numbers that C sources use."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    BROADCAST = 3
    ALL_TO_ALL = 4
    SHIFT = 5


AWAKE, NAP = 5e-4, 5e-5
"""Seconds for which a process looks for messages of MPI without sleeping, and seconds between two looks after
that. A longer nap delays operations, a shorter one takes more from processes that compute meanwhile.
"""
REDUCTIONS = ("sum", "max", "min")
"""Reductions, in the order of their numbers in C sources."""


class GroupError(TilewrightError):
    """A collective operation failed: a process of the group has ended, does not answer, or takes part with
    other data.
    """


@dataclass(frozen=True)
class Operation:
    """One collective operation on contiguous arrays of one element type.

    `source` and `target` have as many elements, but for `ALL_GATHER`, whose target has those of all processes
    in the order of their ranks, and `REDUCE_SCATTER`, whose source is that large. `ALL_TO_ALL` exchanges
    blocks, one for each process. `peer` is the root of a broadcast, or how far `SHIFT` sends.
    """

    kind: Kind
    source: Array
    target: Array
    reduction: str = "sum"
    peer: int = 0


class Engine(ABC):
    """The processes of a group and a way to reach them.

    Attributes:
        rank: The number of this process, 0 .. size - 1.
        size: The number of processes.
    """

    rank: int
    size: int

    @abstractmethod
    def start(self, operation: Operation) -> Callable[[], None]:
        """Begin an operation, which all processes of the group begin in the same order.

        Returns:
            A function that waits until the target is complete. The source may be changed after that.
        """

    def functions(self) -> tuple[int, int, int] | None:
        """Return the addresses of C functions that start operations and wait for them, and the `engine` that
        they need (c/group.h); None: compiled code calls Python.
        """
        return None

    def settle(self) -> Exception | None:
        """Wait for all operations that the functions in C have begun; return the error of the first one that
        failed.
        """
        return None

    def missing(self) -> list[int]:
        """Return the ranks whose processes have ended or do not answer, as far as the engine can tell. Called
        after an operation has failed; may take some seconds.
        """
        return []

    def divided(self, parts: Sequence[Sequence[int]]) -> Engine | None:
        """Return an engine for one of several smaller groups; None if this process is in none of them.

        All processes of the group call it with the same arguments.

        Args:
            parts: The ranks of each group, ascending. No rank is in two of them.

        Raises:
            GroupError: The engine cannot make groups, or a process has ended.
        """
        raise GroupError(f"{type(self).__name__} cannot be divided into smaller groups")


class TorchEngine(Engine):
    """A process group of ``torch.distributed``, of any backend.

    Args:
        group: The process group; None is the default one.

    Raises:
        GroupError: torch is not installed, or its process group is not initialized.
    """

    def __init__(self, group: Any = None) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise GroupError("process groups of torch.distributed need torch: pip install torch") from None
        if not dist.is_initialized():
            raise GroupError(
                "torch.distributed is not initialized: call tilewright.distributed.init(), in processes that "
                "torchrun starts"
            )
        self.torch, self.dist, self.group = torch, dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.store = dist.distributed_c10d._get_default_store()
        if dist.get_world_size() > 1:
            Heartbeat.begin(self.store, dist.get_rank())

    def missing(self) -> list[int]:
        places = {k: self.dist.get_global_rank(self.group, k) if self.group else k for k in range(self.size)}
        silent = Heartbeat.silent(list(places.values()))
        return [k for k, place in places.items() if place in silent]

    def divided(self, parts: Sequence[Sequence[int]]) -> Engine | None:
        found = None
        for part in parts:
            ranks = [self.dist.get_global_rank(self.group, k) if self.group else k for k in part]
            made = self.dist.new_group(ranks)  # every process makes every group
            if self.rank in part:
                found = TorchEngine(made)
        return found

    def _tensor(self, array: Array) -> Any:
        flat = array.reshape(-1)
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(flat.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(flat)

    def start(self, operation: Operation) -> Callable[[], None]:
        dist, kind = self.dist, operation.kind
        source, target = self._tensor(operation.source), self._tensor(operation.target)
        ops = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
        op = ops.get(operation.reduction, dist.ReduceOp.SUM)
        options = {"group": self.group, "async_op": True}
        works: list[Any]
        after: Callable[[], object] = lambda: None  # noqa: E731
        if kind is Kind.ALL_REDUCE:
            if source.data_ptr() != target.data_ptr():
                target.copy_(source)
            works = [dist.all_reduce(target, op, **options)]
        elif kind is Kind.ALL_GATHER:
            works = [dist.all_gather(list(target.chunk(self.size)), source, **options)]
        elif kind is Kind.REDUCE_SCATTER:
            # gloo has no operation for it: the sum of everything, of which this process keeps its part.
            whole = source.clone()
            works = [dist.all_reduce(whole, op, **options)]
            after = lambda: target.copy_(whole.chunk(self.size)[self.rank])  # noqa: E731
        elif kind is Kind.BROADCAST:
            target.copy_(source)
            root = dist.get_global_rank(self.group, operation.peer) if self.group else operation.peer
            works = [dist.broadcast(target, root, **options)]
        elif kind is Kind.ALL_TO_ALL:
            works = self._exchange(
                [(k, source.chunk(self.size)[k], target.chunk(self.size)[k]) for k in range(self.size)]
            )
        else:
            to, origin = (self.rank + operation.peer) % self.size, (self.rank - operation.peer) % self.size
            if to == self.rank:
                target.copy_(source)
                works = []
            else:
                works = self._exchange([(to, source, None), (origin, None, target)])

        def wait() -> None:
            for work in works:
                work.wait()
            after()

        return wait

    def _exchange(self, parts: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        """Send and receive parts: triples of another rank, what to send to it, what to receive from it."""
        works = []
        for peer, sent, received in parts:
            if peer == self.rank:
                received.copy_(sent)
                continue
            place = self.dist.get_global_rank(self.group, peer) if self.group else peer
            if sent is not None:
                works.append(self.dist.isend(sent, place, group=self.group))
            if received is not None:
                works.append(self.dist.irecv(received, place, group=self.group))
        return works


class MpiEngine(Engine):
    """A communicator of mpi4py.

    Args:
        communicator: The communicator; None is ``MPI.COMM_WORLD``.

    Raises:
        GroupError: mpi4py or an MPI library is not installed.
    """

    def __init__(self, communicator: Any = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise GroupError(
                f"mpi4py cannot be used ({error}): pip install mpi4py, with an MPI library such as mpich"
            ) from None
        self.MPI = MPI
        self.communicator = MPI.COMM_WORLD if communicator is None else communicator
        self.communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self.communicator.Get_rank(), self.communicator.Get_size()

    def divided(self, parts: Sequence[Sequence[int]]) -> Engine | None:
        mine = [k for k, part in enumerate(parts) if self.rank in part]
        made = self.communicator.Split(mine[0] if mine else self.MPI.UNDEFINED, self.rank)
        return MpiEngine(made) if mine else None

    def start(self, operation: Operation) -> Callable[[], None]:
        MPI, comm, kind = self.MPI, self.communicator, operation.kind
        narrow = operation.source.dtype.name in ("bfloat16", "float16")
        # MPI has no arithmetic on 16-bit floats: they are reduced in float32.
        reduces = kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
        source = operation.source.reshape(-1)
        target = operation.target.reshape(-1)
        if narrow and reduces:
            source, target = source.astype(np.float32), np.empty(target.size, np.float32)
        elif narrow:
            source, target = source.view(np.uint16), target.view(np.uint16)
        op = {"max": MPI.MAX, "min": MPI.MIN}.get(operation.reduction, MPI.SUM)
        if kind is Kind.ALL_REDUCE:
            aliased = np.shares_memory(source, target)
            requests = [comm.Iallreduce(MPI.IN_PLACE if aliased else source, target, op)]
        elif kind is Kind.ALL_GATHER:
            requests = [comm.Iallgather(source, target)]
        elif kind is Kind.REDUCE_SCATTER:
            requests = [comm.Ireduce_scatter_block(source, target, op)]
        elif kind is Kind.BROADCAST:
            target[...] = source
            requests = [comm.Ibcast(target, operation.peer)]
        elif kind is Kind.ALL_TO_ALL:
            requests = [comm.Ialltoall(source, target)]
        else:
            to, origin = (self.rank + operation.peer) % self.size, (self.rank - operation.peer) % self.size
            requests = [comm.Isend(source, to), comm.Irecv(target, origin)]

        def wait() -> None:
            asleep = time.perf_counter() + AWAKE
            # `Waitall` would keep a core busy, which another stage of a pipeline may need.
            while not MPI.Request.Testall(requests):
                time.sleep(NAP if time.perf_counter() > asleep else 0)
            if narrow and reduces:
                operation.target.reshape(-1)[...] = target

        return wait


class ThreadEngine(Engine):
    """One of several threads of this process that act as a group: for tests and for trying programs out."""

    def __init__(self, rank: int, size: int, shared: dict[str, Any]) -> None:
        self.rank, self.size, self.shared = rank, size, shared
        self.count = 0

    @staticmethod
    def of_size(size: int) -> list[ThreadEngine]:
        """Return the engines of a group, one for each thread.

        Args:
            size: The number of threads.
        """
        shared: dict[str, Any] = {"lock": threading.Condition(), "sources": {}, "left": {}, "parts": {}}
        return [ThreadEngine(rank, size, shared) for rank in range(size)]

    def divided(self, parts: Sequence[Sequence[int]]) -> Engine | None:
        number, self.count = self.count, self.count + 1
        with self.shared["lock"]:
            made = self.shared["parts"].setdefault(number, [self.of_size(len(part)) for part in parts])
        for engines, part in zip(made, parts, strict=True):
            if self.rank in part:
                return engines[part.index(self.rank)]
        return None

    def start(self, operation: Operation) -> Callable[[], None]:
        number, lock = self.count, self.shared["lock"]
        self.count += 1
        with lock:
            self.shared["sources"].setdefault(number, {})[self.rank] = operation.source.reshape(-1).copy()
            lock.notify_all()

        def wait() -> None:
            with lock:
                sources = self.shared["sources"][number]
                if not lock.wait_for(lambda: len(sources) == self.size, timeout=60):
                    raise GroupError(f"a thread of the group of {self.size} does not take part")
            self._finish(operation, [sources[k] for k in range(self.size)])
            with lock:
                left = self.shared["left"]
                left[number] = left.get(number, 0) + 1
                if left[number] == self.size:
                    del left[number], self.shared["sources"][number]

        return wait

    def _finish(self, operation: Operation, sources: list[Array]) -> None:
        kind, target, rank = operation.kind, operation.target.reshape(-1), self.rank
        if kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER):
            combine = {"max": np.maximum, "min": np.minimum}.get(operation.reduction, np.add)
            total = sources[0]
            for source in sources[1:]:
                total = combine(total, source)
            target[...] = total if kind is Kind.ALL_REDUCE else np.split(total, self.size)[rank]
        elif kind is Kind.ALL_GATHER:
            target[...] = np.concatenate(sources)
        elif kind is Kind.BROADCAST:
            target[...] = sources[operation.peer]
        elif kind is Kind.ALL_TO_ALL:
            target[...] = np.concatenate([np.split(source, self.size)[rank] for source in sources])
        else:
            target[...] = sources[(rank - operation.peer) % self.size]


MAGIC = 0x5457_4744
"""The first field of a handle, which compiled code checks. A change of the structure changes it."""

StartFunction = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    *(ctypes.c_int32,) * 5,
    *(ctypes.c_void_p,) * 2,
    *(ctypes.c_int64,) * 2,
)
WaitFunction = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 2)


class CHandle(ctypes.Structure):
    """The C structure that compiled code calls: ``tw_group`` of c/group.h."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("start", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("engine", ctypes.c_void_p),
    ]


__all__ = [
    "MAGIC",
    "REDUCTIONS",
    "CHandle",
    "Engine",
    "GroupError",
    "Kind",
    "MpiEngine",
    "Operation",
    "StartFunction",
    "ThreadEngine",
    "TorchEngine",
    "WaitFunction",
]

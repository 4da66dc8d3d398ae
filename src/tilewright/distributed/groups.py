"""`Group`: processes that take part in collective operations, as compiled code and as Python see them."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..errors import CompileError
from ..frontends.trace import State
from .engine import (
    MAGIC,
    REDUCTIONS,
    CHandle,
    Engine,
    GroupError,
    Kind,
    MpiEngine,
    Operation,
    StartFunction,
    TorchEngine,
    WaitFunction,
)
from .heartbeat import Heartbeat
from .shared_memory import of_one_machine

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel

_WORLD: list[Group] = []
"""The group of `init`, if it has been called."""
_BY_ADDRESS: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
"""DLPack's codes of element types."""


def element_type(code: int, bits: int) -> np.dtype[Any]:
    """Return the NumPy type of DLPack's code and number of bits."""
    return np.dtype(ml_dtypes.bfloat16 if code == 4 else f"{_KINDS[code]}{bits}")


class Group:
    """A group of processes.

    Compiled functions refer to it by its name: `connect` gives a library the group's handle.

    Args:
        engine: Moves the data, for example a `TorchEngine`.
        name: The name, an identifier. Functions that use several groups give them different names.
    """

    def __init__(self, engine: Engine, name: str = "world") -> None:
        self.engine, self.name = engine, name
        self.rank, self.size = engine.rank, engine.size
        self.error: Exception | None = None
        self.state = State(state_name(name), 1, np.uint64)
        self._waiting: dict[int, tuple[Callable[[], None], Any]] = {}
        self._callbacks = _start_function(weakref.ref(self)), _wait_function(weakref.ref(self))
        in_python = *(ctypes.cast(f, ctypes.c_void_p).value for f in self._callbacks), None
        self._handle = CHandle(MAGIC, self.rank, self.size, 0, *(engine.functions() or in_python))
        _BY_ADDRESS[self.address] = self

    @property
    def address(self) -> int:
        """The address of the C structure that compiled code calls, valid as long as the group."""
        return ctypes.addressof(self._handle)

    def run(self, kind: Kind, source: np.ndarray[Any, Any], shape: tuple[int, ...], **options: Any) -> Any:
        """Run a collective operation on an array.

        Args:
            kind: The operation.
            source: This process's part, of any shape and type.
            shape: The result's shape.
            **options: `reduction` and `peer` of the operation.

        Returns:
            The result, of the type of `source`.

        Raises:
            GroupError: The operation fails.
        """
        target = np.empty(shape, source.dtype)
        try:
            self.engine.start(Operation(kind, np.ascontiguousarray(source), target, **options))()
        except GroupError:
            raise
        except Exception as error:
            raise GroupError(self._told(f"{kind.name.lower()} of group '{self.name}'", error)) from error
        return target

    # -- Called by compiled code where the engine has no functions in C. An exception cannot pass through C:
    # it is kept in `error`.

    def begin(self, operation: Operation, target: int) -> int:
        """Start an operation whose target has the address `target`; return 0, or 1 if it fails."""
        try:
            self._waiting[target] = self.engine.start(operation), operation
            return 0
        except Exception as error:
            self.error = self.error or error
            return 1

    def finish(self, target: int) -> int:
        """Wait for the operation on the target with this address; return 0, or 1 if it fails."""
        try:
            wait, _ = self._waiting.pop(target)
            wait()
            return 0
        except Exception as error:
            self.error = self.error or error
            return 1

    def settle(self) -> None:
        """Wait for all operations that a run has begun and, since it ended with an error, will not wait for:
        the engine must not write to its memory any more. Their errors are those of `check`.
        """
        for target in list(self._waiting):
            self.finish(target)
        self.engine.settle()

    def check(self) -> None:
        """Raise the error of the first collective operation of a compiled function that failed.

        Raises:
            GroupError: One failed.
        """
        error, self.error = self.error or self.engine.settle(), None
        if error is not None:
            raise GroupError(self._told(f"a collective operation of group '{self.name}'", error)) from error

    def _told(self, what: str, error: Exception) -> str:
        """The text of an error: what failed, which processes are missing, and the engine's own words."""
        missing = ", ".join(map(str, self.engine.missing()))
        if not missing:
            return f"{what} failed: {error}"
        return f"{what} failed: rank {missing} has ended or does not answer ({error})"

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"


def state_name(name: str) -> str:
    """Return the name of the state that holds the handle of the group `name`."""
    return f"group.{name}"


def _bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    if not size:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8)


def _start_function(group: weakref.ref[Group]) -> Any:
    def start(
        _: int,
        kind: int,
        code: int,
        bits: int,
        reduction: int,
        peer: int,
        source: int,
        target: int,
        n: int,
        m: int,
    ) -> int:
        owner = group()
        if owner is None:
            return 1
        dtype = element_type(code, bits)
        sent = _bytes_at(source or 0, n * dtype.itemsize).view(dtype)
        received = _bytes_at(target or 0, m * dtype.itemsize).view(dtype)
        return owner.begin(Operation(Kind(kind), sent, received, REDUCTIONS[reduction], peer), target or 0)

    return StartFunction(start)


def _wait_function(group: weakref.ref[Group]) -> Any:
    def wait(_: int, target: int) -> int:
        owner = group()
        return 1 if owner is None else owner.finish(target or 0)

    return WaitFunction(wait)


def group_at(address: int) -> Group:
    """Return the group whose handle has this address.

    Raises:
        GroupError: There is none in this process.
    """
    group = _BY_ADDRESS.get(address)
    if group is None:
        raise GroupError("no group of processes is connected: call tilewright.distributed.init() first")
    return group


def world() -> Group:
    """Return the group that `init` made.

    Raises:
        GroupError: `init` has not been called.
    """
    if not _WORLD:
        raise GroupError("there is no group of processes: call tilewright.distributed.init() first")
    return _WORLD[0]


def init(backend: str = "gloo", shared_memory: bool = True, **options: Any) -> Group:
    """Join the group of all processes that ``torchrun`` has started, and make it the default.

    Args:
        backend: The backend of ``torch.distributed``: "gloo" for CPUs, "nccl", "mpi".
        shared_memory: Whether processes with gloo exchange tensors in shared memory if all of them run on
            one Linux machine. Errors and other machines' processes are still found by gloo.
        **options: Further arguments of ``torch.distributed.init_process_group``, such as `timeout`.

    Returns:
        The group. A process that was not started by ``torchrun`` is a group of one.

    Raises:
        GroupError: PyTorch is not installed, or the other processes cannot be reached.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise GroupError("gloo comes with torch: pip install torch") from None
    if not dist.is_initialized():
        alone = "RANK" not in os.environ and not {"rank", "store", "init_method"} & options.keys()
        if alone:
            options = {"rank": 0, "world_size": 1, "store": dist.HashStore(), **options}
        try:
            dist.init_process_group(backend, **options)
        except Exception as error:
            raise GroupError(f"cannot join the processes of torchrun: {error}") from error
        atexit.register(_leave)
    engine = TorchEngine()
    shared = None
    if shared_memory and engine.size > 1 and dist.get_backend() == "gloo":
        limit = options.get("timeout") or dist.distributed_c10d._get_default_timeout("gloo")
        shared = of_one_machine(engine, limit.total_seconds())
    _WORLD[:] = [Group(shared or engine)]
    return _WORLD[0]


def _leave() -> None:
    """End the process group that `init` began: gloo's threads must have ended when the process exits."""
    import torch.distributed as dist

    _WORLD.clear()
    Heartbeat.end()
    if dist.is_initialized():
        dist.destroy_process_group()


def init_mpi(communicator: Any = None) -> Group:
    """Join the group of all processes that ``mpirun`` has started, and make it the default.

    Args:
        communicator: A communicator of mpi4py; None is ``MPI.COMM_WORLD``.

    Raises:
        GroupError: The package mpi4py or an MPI library is not installed.
    """
    _WORLD[:] = [Group(MpiEngine(communicator))]
    return _WORLD[0]


def connect(library: CompiledModel, *groups: Group) -> None:
    """Let the collective operations of a compiled model reach their groups.

    Args:
        library: A compiled or loaded model that contains collective operations.
        *groups: The groups that it uses; none means that of `init`.

    Raises:
        CompileError: The model uses no group of such a name.
    """
    for group in groups or (world(),):
        name = state_name(group.name)
        if name not in library.state:
            raise CompileError(f"the model has no collective operations of a group '{group.name}'")
        library.state[name] = np.array([group.address], np.uint64)
        library.after_error(name, group.settle)  # also keeps the group as long as the library


__all__ = [
    "Group",
    "GroupError",
    "connect",
    "element_type",
    "group_at",
    "init",
    "init_mpi",
    "state_name",
    "world",
]

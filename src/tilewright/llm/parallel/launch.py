"""`open_parallel`: opens a library of several processes, which it starts unless ``torchrun`` or ``mpirun``
did.

``python -m tilewright.llm.parallel.launch`` is the program of a process that it starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...distributed.groups import Group, GroupError, init, init_mpi
from ...distributed.shared_memory import SharedMemoryEngine, segment
from ...driver.cores import usable_cores
from ...driver.load import load
from ...errors import ArtifactError, TilewrightError
from ..library import LibraryRunner
from ..tokenizer import TOKENIZER, Tokenizer
from .place import MPI_RANKS, computing_here, part_path, place_of
from .runner import Leader, follow

if TYPE_CHECKING:
    from ...runtime.model import CompiledModel

JOINING = 60.0
"""Seconds within which the started processes must join. A larger value is needed only where starting Python
takes that long.
"""
PATIENCE = 600.0
"""Seconds without progress after which a process that has not ended counts as lost. A smaller value would
take the longest chunk of a prompt on a slow machine for a loss.
"""


def launched() -> Group | None:
    """The group of the processes that ``torchrun`` or ``mpirun`` has started; None if neither did.

    Raises:
        GroupError: PyTorch or mpi4py is missing, or the other processes cannot be reached.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return init()
    return init_mpi() if any(name in os.environ for name in MPI_RANKS) else None


def open_parallel(library: CompiledModel, path: Path, threads: int | None = None) -> Leader:
    """The runner of a library that several processes compute.

    In other processes of ``torchrun`` or ``mpirun`` than rank 0 this follows rank 0 and then exits.

    Args:
        library: The library of rank 0, loaded.
        path: Its file; the other processes' files are beside it.
        threads: The most threads of each process; None: an equal share of the cores among processes that
            compute at the same time.

    Raises:
        ArtifactError: A file of another process is missing.
        CompileError: There is another number of processes than the library needs.
        GroupError: A process has ended, or none can be started.
    """
    place = place_of(library.metadata)
    missing = [p for k in range(place.size) if not (p := part_path(path, k)).exists()]
    if missing:
        raise ArtifactError(f"{missing[0]}: no such file; the library needs it for one of its processes")
    library.close()
    world = launched()
    threads = threads or max(1, usable_cores() // computing_here(place))
    if world is not None:
        library = load(part_path(path, world.rank), threads=threads)
        if world.rank:
            follow(library, world)
            sys.exit(0)
        return Leader(library, world)
    library = load(path, threads=threads)
    world, workers = started(path, place.size, threads)
    try:
        leader = Leader(library, world)
    except BaseException:
        killed(workers)
        raise
    leader.workers = workers
    return leader


def open_runner(path: str | Path, **where: Any) -> tuple[LibraryRunner, Tokenizer]:
    """The runner and the tokenizer of a library, of one process or of several.

    Args:
        path: The library's file, of several processes that of rank 0.
        **where: `device` and `simulate` of `tilewright.load`.

    Raises:
        ArtifactError: A file is missing, damaged or built for another machine.
        DeviceError: The driver of its device is missing, or there is no such device.
        CompileError: It is not a language model, or needs another number of processes.
        GroupError: A process has ended, or none can be started.
    """
    path = Path(path)
    library = load(path, **where)
    size = place_of(library.metadata).size
    runner = LibraryRunner(library) if size == 1 else open_parallel(library, path)
    return runner, Tokenizer.from_folder(path.with_suffix(TOKENIZER))


def started(path: Path, size: int, threads: int) -> tuple[Group, list[subprocess.Popen[bytes]]]:
    """Start the other processes of a library on this machine; return the group and the processes.

    Raises:
        GroupError: They do not join, or the system has no shared memory without a name.
    """
    try:
        file = segment(size)
        engine = SharedMemoryEngine(file, 0, size, PATIENCE)
    except (OSError, ArtifactError) as error:
        raise GroupError(
            f"processes cannot be started here: {error}. Start them with torchrun or mpirun"
        ) from None
    program = [sys.executable, "-m", "tilewright.llm.parallel.launch"]
    workers = [
        subprocess.Popen([*program, *map(str, (path, k, size, file, threads))], pass_fds=(file,))
        for k in range(1, size)
    ]
    try:
        engine.joined(JOINING, alive(workers))
    except BaseException:
        killed(workers)
        raise
    return Group(engine), workers


def killed(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes at once."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait()


def alive(workers: Sequence[subprocess.Popen[bytes]]) -> Callable[[], bool]:
    """A function that tells whether all processes still run."""
    return lambda: all(worker.poll() is None for worker in workers)


def main(path: str, *numbers: str) -> None:
    """Follow rank 0.

    Args:
        path: The file of the library of rank 0.
        *numbers: This process's rank, the number of processes, the descriptor of the segment, the threads.
    """
    rank, size, file, threads = map(int, numbers)
    # Rank 0 gets the signals of a terminal or of a service as well, and lets this process end when the
    # answers in progress are finished.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    engine = SharedMemoryEngine(file, rank, size, PATIENCE)
    engine.joined(JOINING, lambda: os.getppid() == parent)
    follow(load(part_path(Path(path), rank), threads=threads), Group(engine))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TilewrightError as error:
        sys.exit(f"tilewright: a process of the model has ended: {error}")


__all__ = ["launched", "open_parallel", "open_runner", "started"]

"""`Place`: the part of a model that one of several processes has, and the groups that it takes part in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...distributed.engine import Engine, GroupError, Operation
from ...distributed.groups import Group
from ...errors import CompileError

MPI_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Variables by which launchers of MPI tell a process its rank."""
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables by which torchrun, Open MPI and MPICH tell a process how many run on its machine."""


class PlannedEngine(Engine):
    """Stands for processes that do not run yet, while their programs are compiled.

    Args:
        rank: The number of this process in the group.
        size: The number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def start(self, operation: Operation) -> Callable[[], None]:
        raise GroupError("the processes of this group do not run yet")


@dataclass(frozen=True)
class Place:
    """The place of a process among ``tensor * pipeline`` processes.

    A model's layers are divided into `pipeline` stages, and the matrices of a stage into `tensor` parts.
    Neighboring ranks have the parts of one stage.

    Raises:
        CompileError: A number is below 1, or there is no such rank.
    """

    tensor: int = 1
    """The processes among which each matrix is divided."""
    pipeline: int = 1
    """The stages among which the layers are divided."""
    rank: int = 0
    """The number of the process."""

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.pipeline < 1:
            raise CompileError(
                f"tensor_parallel={self.tensor} and pipeline_parallel={self.pipeline}: both must be at "
                "least 1"
            )
        if not 0 <= self.rank < self.size:
            raise CompileError(f"rank {self.rank} of {self.size} processes does not exist")

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.tensor * self.pipeline

    @property
    def part(self) -> int:
        """The number of this process's part of matrices."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        """The number of this process's stage."""
        return self.rank // self.tensor

    @property
    def first(self) -> bool:
        """Whether this is the first stage, which has the embedding and the head."""
        return self.stage == 0

    def members(self) -> dict[str, list[list[int]]]:
        """The ranks of all groups, by the groups' names: those that divide the matrices of a stage, and
        pairs of processes of which the first sends to the second. Groups of a name are disjoint.
        """
        found: dict[str, list[list[int]]] = {}
        stages = [[k * self.tensor + part for part in range(self.tensor)] for k in range(self.pipeline)]
        if self.tensor > 1:
            found["tensor"] = stages
        if self.pipeline > 1:
            for k, stage in enumerate(stages):
                after = stages[(k + 1) % self.pipeline]
                found[f"stage{k}"] = [sorted(pair) for pair in zip(stage, after, strict=True)]
        return found

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """The groups of this process by name, for compiling; their processes need not run."""
        found = {}
        for name, lists in self.members().items():
            for ranks in lists:
                if self.rank in ranks:
                    engine = PlannedEngine(ranks.index(self.rank), len(ranks))
                    found[name] = Group(engine, name)
        return found

    def join(self, world: Group) -> list[Group]:
        """Make the groups of this process. All processes of `world` call it at the same time.

        Raises:
            CompileError: `world` has another number of processes.
            GroupError: A process has ended.
        """
        if world.size != self.size:
            raise CompileError(
                f"the library is one of {self.size} parts (tensor parallel {self.tensor}, pipeline parallel "
                f"{self.pipeline}), but there are {world.size} processes"
            )
        made = []
        for name, lists in self.members().items():
            engine = world.engine.divided(lists)
            if engine is not None:
                made.append(Group(engine, name))
        return made


def place_of(metadata: Mapping[str, Any]) -> Place:
    """The place of the process that a library with this metadata was compiled for."""
    described = metadata.get("llm") or {}
    names = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel", "rank": "rank"}
    return Place(**{name: described[key] for name, key in names.items() if key in described})


def part_path(path: Path, rank: int) -> Path:
    """The file of a process's library beside that of rank 0, `path`."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path


def launched_rank() -> int:
    """The rank that ``torchrun`` or ``mpirun`` gave this process; 0 if neither started it."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"])
    return next((int(os.environ[name]) for name in MPI_RANKS if name in os.environ), 0)


def computing_here(place: Place) -> int:
    """The most processes of this one's machine that compute at the same time: stages take turns. Where no
    launcher tells how many it has started here, all of them run here.
    """
    here = next((int(os.environ[name]) for name in LOCAL_SIZES if name in os.environ), place.size)
    return max(1, min(here, place.tensor))


__all__ = [
    "LOCAL_SIZES",
    "MPI_RANKS",
    "Place",
    "PlannedEngine",
    "computing_here",
    "launched_rank",
    "part_path",
    "place_of",
]

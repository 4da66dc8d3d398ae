"""`tilewright.distributed`: collective operations between processes, over an engine such as gloo or MPI."""

from __future__ import annotations

from .functions import (
    all_gather,
    all_reduce,
    all_reduce_tree,
    all_to_all,
    broadcast,
    rank,
    reduce_scatter,
    shift,
)
from .groups import Group, GroupError, connect, init, init_mpi

__all__ = [
    "Group",
    "GroupError",
    "all_gather",
    "all_reduce",
    "all_reduce_tree",
    "all_to_all",
    "broadcast",
    "connect",
    "init",
    "init_mpi",
    "rank",
    "reduce_scatter",
    "shift",
]

"""Operators over several devices, in a program for one: what it sends it gets itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....ir.core import Value
from ....ir.types import u32
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node


def _alone(n: Node) -> None:
    """Raises Unsupported where a program is for several devices."""
    attributes = n.importer.program.module.operation.attributes
    counts = [attributes[a].value for a in ("mhlo.num_partitions", "mhlo.num_replicas") if a in attributes]
    groups = n.ints("replica_groups")
    if any(count > 1 for count in counts) or any(len(group) > 1 for group in groups):  # type: ignore[arg-type]
        raise Unsupported("of several devices; export the program for one")


@importer(
    *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "cross-replica-sum", "reduce_scatter"),
    complex="whole",
)
def _own(n: Node) -> Sequence[Any]:
    _alone(n)
    return n.inputs


@importer("collective_permute", complex="parts")
def _permute(n: Node) -> Any:
    """Zeros where nobody sends."""
    _alone(n)
    pairs = n.ints("source_target_pairs")
    if any(max(pair) > 0 for pair in pairs):  # type: ignore[call-overload]
        raise Unsupported("of several devices; export the program for one")
    x = n.inputs[0]
    return x if pairs else n.broadcast(n.like(0, x), x.type.shape)


@importer("partition_id", "replica_id")
def _number(n: Node) -> Value:
    _alone(n)
    return n.constant(0, u32)


@importer("sharding_constraint", "reshard", dialect="sdy", complex="whole")
def _placed(n: Node) -> Any:
    """Where a tensor lies is no matter of its value."""
    return n.inputs[0]

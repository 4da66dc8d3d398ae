"""Operations over several devices, in a program for one device: it receives its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....ir.core import Value
from ....ir.types import u32
from ...unsupported import Unsupported
from ..registry import importer

if TYPE_CHECKING:
    from ..node import Node


def _alone(n: Node) -> None:
    """Check that the program is for one device.

    Raises:
        Unsupported: it is for several.
    """
    attributes = n.importer.program.module.operation.attributes
    counts = [attributes[a].value for a in ("mhlo.num_partitions", "mhlo.num_replicas") if a in attributes]
    groups = n.rows("replica_groups")
    if any(count > 1 for count in counts) or any(len(group) > 1 for group in groups):
        raise Unsupported("several devices; export the program for one device")


@importer(
    *(
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "cross-replica-sum",
        "reduce_scatter",
    ),
    complex="whole",
)
def _own(n: Node) -> Sequence[Any]:
    _alone(n)
    return n.inputs


@importer("collective_permute", complex="parts")
def _permute(n: Node) -> Any:
    """Return the operand if the device sends to itself, else zeros."""
    _alone(n)
    pairs = n.rows("source_target_pairs")
    if any(max(pair) > 0 for pair in pairs):
        raise Unsupported("several devices; export the program for one device")
    x = n.inputs[0]
    return x if pairs else n.broadcast(n.like(0, x), x.type.shape)


@importer("partition_id", "replica_id")
def _number(n: Node) -> Value:
    _alone(n)
    return n.constant(0, u32)


@importer("sharding_constraint", "reshard", dialect="sdy", complex="whole")
def _placed(n: Node) -> Any:
    """The placement of a tensor does not change its value."""
    return n.inputs[0]

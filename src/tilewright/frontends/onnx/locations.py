"""The place of an ONNX node in the program that it was exported from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...ir.location import Location
from ..user_location import last_user_frame

if TYPE_CHECKING:
    import onnx


def location_of(node: onnx.NodeProto, scope: str = "") -> Location:
    """The node's name, and what an exporter's metadata say of it: the path of its module, and the line.

    Args:
        node: The node. PyTorch's exporter notes modules and stacks in its metadata.
        scope: The beginning of the names of nodes in a function or a branch.
    """
    label = node.name or f"{node.op_type}({next((o for o in node.output if o), '')})"
    notes = {entry.key: entry.value for entry in node.metadata_props}
    modules = re.findall(r"'([^']*)'", notes.get("pkg.torch.onnx.name_scopes", ""))
    path = modules[-2] if len(modules) > 1 and "/" not in label else ""
    file, line = last_user_frame(notes.get("pkg.torch.onnx.stack_trace", ""))
    return Location(f"{scope}{path}/{label}" if path else f"{scope}{label}", file, line)


__all__ = ["location_of"]

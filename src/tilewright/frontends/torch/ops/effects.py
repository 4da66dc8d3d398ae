"""Operators with effects and without results."""

from __future__ import annotations

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import boolean
from ..importer import Node
from ..registry import importer


@importer("aten._assert_async.default", "aten._assert_async.msg")
def assert_async(n: Node, condition: Value, message: str = "an assertion of the model does not hold") -> None:
    flag = n.reshape(n.cast(condition, boolean), ())
    n.importer.builder.insert(g.Check(flag, message=f"{message} ({n.location})"))

"""Structural equality of operations: equal operations, attributes, types and data flow, regardless of value
names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .constant import Constant
from .core import Operation, Value


def modules_equal(a: Operation, b: Operation, *, locations: bool = False) -> bool:
    """Whether two modules (or single operations) are equal up to names of values and, unless `locations`,
    locations.
    """
    return first_difference(a, b, locations=locations) is None


def first_difference(a: Operation, b: Operation, *, locations: bool = False) -> str | None:
    """A readable description of the first difference of two operations; None if there is none.

    Constants are compared by content; operands from outside both operations must be the same values.
    """
    return _compare(a, b, {}, locations, a.name)


def attributes_equal(
    a: Operation, b: Operation, form: Callable[[Operation, str, Any], Any] = lambda op, key, value: value
) -> bool:
    """Whether two operations have equal attributes, notes left out.

    Args:
        a: An operation.
        b: An operation.
        form: The form in which the value of an attribute is compared.
    """
    first, second = ({k: form(op, k, v) for k, v in op.attributes.items() if "." not in k} for op in (a, b))
    return first.keys() == second.keys() and all(_equal(v, second[k]) for k, v in first.items())


def _compare(a: Operation, b: Operation, same: dict[Value, Value], locations: bool, path: str) -> str | None:
    if type(a) is not type(b):
        return f"{path}: '{a.name}' against '{b.name}'"
    if len(a.operands) != len(b.operands):
        return f"{path}: {len(a.operands)} operands against {len(b.operands)}"
    for k, (x, y) in enumerate(zip(a.operands, b.operands, strict=True)):
        if same.get(x, x) is not y:
            return f"{path}: operand {k} differs"
    if a.attributes.keys() != b.attributes.keys():
        return f"{path}: attributes {sorted(a.attributes)} against {sorted(b.attributes)}"
    for key, value in a.attributes.items():
        if not _equal(value, b.attributes[key]):
            return f"{path}: attribute '{key}' is {value!r} against {b.attributes[key]!r}"
    if locations and a.location != b.location:
        return f"{path}: location {a.location!r} against {b.location!r}"
    if [r.type for r in a.results] != [r.type for r in b.results]:
        return f"{path}: results {[r.type for r in a.results]} against {[r.type for r in b.results]}"
    if len(a.regions) != len(b.regions):
        return f"{path}: {len(a.regions)} regions against {len(b.regions)}"
    for ra, rb in zip(a.regions, b.regions, strict=True):
        # A region that was never touched has no block yet; it equals one with an empty block.
        blocks_a, blocks_b = ra.blocks or [ra.block], rb.blocks or [rb.block]
        if len(blocks_a) != len(blocks_b):
            return f"{path}: {len(blocks_a)} blocks against {len(blocks_b)}"
        for ba, bb in zip(blocks_a, blocks_b, strict=True):
            if [x.type for x in ba.args] != [y.type for y in bb.args]:
                return (
                    f"{path}: block arguments {[x.type for x in ba.args]} against {[y.type for y in bb.args]}"
                )
            same.update(zip(ba.args, bb.args, strict=True))
            ops_a, ops_b = list(ba.ops), list(bb.ops)
            for k, (p, q) in enumerate(zip(ops_a, ops_b, strict=False)):
                difference = _compare(p, q, same, locations, f"{path} > {k}:{p.name}")
                if difference is not None:
                    return difference
            if len(ops_a) != len(ops_b):
                return f"{path}: {len(ops_a)} operations against {len(ops_b)}"
    same.update(zip(a.results, b.results, strict=True))
    return None


def _equal(a: Any, b: Any) -> bool:
    """Equality of attribute values that distinguishes 1, 1.0 and True, and treats NaN as equal to itself."""
    if a is b:
        return True
    a, b = _plain(a), _plain(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(v, b[k]) for k, v in a.items())
    if isinstance(a, Constant):
        return a.type is b.type and a.name == b.name and a.digest() == b.digest()
    return bool(a == b)


def _plain(value: object) -> Any:
    """A NumPy number as a Python number, and a member of a string enumeration as its string."""
    if isinstance(value, str):
        return str(value)
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


__all__ = ["attributes_equal", "first_difference", "modules_equal"]

"""Shape computations: ONNX operators on small integer tensors, evaluated symbolically.

Each rule takes a `Node` whose inputs have `content` (object arrays of symbolic integers or booleans). It
returns the content of the outputs, or None if it cannot be known; the node is then imported as ordinary data.
ONNX divides toward zero, so the rule of a division returns None unless the signs of the operands are
provable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.symbolic import Dim, Expr, depth_of, prove_eq, prove_le, prove_lt, smax, smin
from ...ir.types import DType, boolean, i32, i64
from .values import CONTENT_DTYPES, MAX_CONTENT, MAX_CONTENT_DEPTH, Content, to_content

if TYPE_CHECKING:
    from .node import Node

RULES: dict[str, Callable[[Any], Any]] = {}


class _Unknown(Exception):
    """An element of the result cannot be determined; the node is imported as data."""


def _rule(*names: str, needs_content: bool = True) -> Callable[[Any], Any]:
    def register(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        def checked(node: Node) -> Any:
            if needs_content and any(x is not None and x.content is None for x in node.inputs):
                return None
            try:
                return function(node)
            except _Unknown:
                return None

        for name in names:
            RULES[name] = checked
        return function

    return register


def evaluate_content(node: Node) -> tuple[DType, list[Content]] | None:
    """Return the data type of a node's outputs and their symbolic contents, or None if they are data."""
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    result = rule(node)
    if result is None:
        return None
    dtype, contents = result if isinstance(result, tuple) else (node.inputs[0].dtype, result)
    contents = contents if isinstance(contents, list) else [contents]
    if dtype not in CONTENT_DTYPES or any(c.size > MAX_CONTENT for c in contents):
        return None
    if any(depth_of(e) > MAX_CONTENT_DEPTH for c in contents for e in c.reshape(-1) if isinstance(e, Expr)):
        return None
    if dtype is i32 and any(
        not -(2**31) <= e < 2**31 for c in contents for e in c.reshape(-1) if not isinstance(e, Expr)
    ):
        return None  # it wraps around: left to the graph operator
    return dtype, contents


def _content(node: Node, index: int) -> Content:
    x = node.inputs[index]
    assert x is not None and x.content is not None
    return x.content


def _numbers(node: Node, index: int) -> list[int]:
    """Return the content of an input whose elements must be plain integers."""
    numbers = []
    for e in _content(node, index).reshape(-1):
        if isinstance(e, Expr):
            raise _Unknown
        numbers.append(int(e))
    return numbers


def _array(values: list[Any], shape: Sequence[int] | None = None) -> Content:
    result = np.empty(len(values), object)
    result[:] = values
    return result if shape is None else result.reshape(shape)


def _elementwise(function: Callable[..., Any], *contents: Content) -> Content:
    grids = np.broadcast_arrays(*contents)
    if grids[0].size > MAX_CONTENT:
        raise _Unknown
    return _array([function(*e) for e in zip(*(g.reshape(-1) for g in grids), strict=True)], grids[0].shape)


@_rule("Shape", needs_content=False)
def _shape(node: Node) -> Any:
    shape = list(node.inputs[0].shape)
    return i64, _array(shape[slice(node.attr("start", 0), node.attr("end", len(shape)))])


@_rule("Size", needs_content=False)
def _size(node: Node) -> Any:
    return i64, _array([node.inputs[0].type.size], ())


def _integers(node: Node) -> None:
    if not node.inputs[0].dtype.is_integer:
        raise _Unknown


@_rule("Add")
def _add(node: Node) -> Any:
    return _elementwise(lambda a, b: a + b, _content(node, 0), _content(node, 1))


@_rule("Sub")
def _sub(node: Node) -> Any:
    return _elementwise(lambda a, b: a - b, _content(node, 0), _content(node, 1))


@_rule("Mul")
def _mul(node: Node) -> Any:
    return _elementwise(lambda a, b: a * b, _content(node, 0), _content(node, 1))


def _truncated_div(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int) and b == 0:
        raise _Unknown
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if prove_lt(0, b) and prove_le(0, a):
        return a // b
    if prove_lt(0, b) and prove_le(a, 0):
        return -((-a) // b)
    raise _Unknown


@_rule("Div")
def _div(node: Node) -> Any:
    return _elementwise(_truncated_div, _content(node, 0), _content(node, 1))


@_rule("Mod")
def _mod(node: Node) -> Any:
    fmod = node.attr("fmod", 0)

    def element(a: Dim, b: Dim) -> Dim:
        if (isinstance(b, int) and b == 0) or (fmod and not (prove_le(0, a) and prove_lt(0, b))):
            raise _Unknown
        return a % b

    return _elementwise(element, _content(node, 0), _content(node, 1))


@_rule("Neg")
def _neg(node: Node) -> Any:
    return _elementwise(lambda a: -a, _content(node, 0))


def _absolute(a: Dim) -> Dim:
    if isinstance(a, int):
        return abs(a)
    if prove_le(0, a):
        return a
    if prove_le(a, 0):
        return -a
    raise _Unknown


@_rule("Abs")
def _abs(node: Node) -> Any:
    return _elementwise(_absolute, _content(node, 0))


@_rule("Min")
def _min(node: Node) -> Any:
    return _elementwise(lambda *e: reduce(smin, e), *(_content(node, k) for k in range(len(node.inputs))))


@_rule("Max")
def _max(node: Node) -> Any:
    return _elementwise(lambda *e: reduce(smax, e), *(_content(node, k) for k in range(len(node.inputs))))


@_rule("Clip")
def _clip(node: Node) -> Any:
    _integers(node)
    x = _content(node, 0)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        x = _elementwise(smax, x, _content(node, 1))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        x = _elementwise(smin, x, _content(node, 2))
    return x


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceProd": lambda a, b: a * b,
    "ReduceSum": lambda a, b: a + b,
    "ReduceMax": smax,
    "ReduceMin": smin,
}


@_rule(*_REDUCTIONS)
def _reduce(node: Node) -> Any:
    x = _content(node, 0)
    listed = node.attr("axes")
    if listed is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        listed = _numbers(node, 1)
    if not listed and node.attr("noop_with_empty_axes", 0):
        return x
    axes = {a % x.ndim for a in listed} if listed else set(range(x.ndim))
    kept = [d for d in range(x.ndim) if d not in axes]
    rows = np.transpose(x, [*kept, *sorted(axes)]).reshape([*(x.shape[d] for d in kept), -1])
    lead = rows.shape[:-1]
    if rows.shape[-1] == 0:
        raise _Unknown
    function = _REDUCTIONS[node.op_type]
    values = [reduce(function, row) for row in rows.reshape(-1, rows.shape[-1])]
    keep = node.attr("keepdims", 1)
    return _array(values, [1 if d in axes else x.shape[d] for d in range(x.ndim)] if keep else lead)


@_rule("CumSum")
def _cumsum(node: Node) -> Any:
    x, axis = _content(node, 0), _numbers(node, 1)[0]
    y = np.flip(x, axis) if node.attr("reverse", 0) else x
    y = np.add.accumulate(y, axis) - (y if node.attr("exclusive", 0) else 0)
    return np.flip(y, axis) if node.attr("reverse", 0) else y


def _equal(a: Dim, b: Dim) -> bool:
    if prove_eq(a, b):
        return True
    if prove_lt(a, b) or prove_lt(b, a):
        return False
    raise _Unknown


def _less(a: Dim, b: Dim) -> bool:
    if prove_lt(a, b):
        return True
    if prove_le(b, a):
        return False
    raise _Unknown


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: not _less(b, a),
    "GreaterOrEqual": lambda a, b: not _less(a, b),
}


@_rule(*_COMPARISONS)
def _compare(node: Node) -> Any:
    return boolean, _elementwise(_COMPARISONS[node.op_type], _content(node, 0), _content(node, 1))


_LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "Xor": lambda a, b: a != b,
}


@_rule(*_LOGIC)
def _logic(node: Node) -> Any:
    return boolean, _elementwise(_LOGIC[node.op_type], _content(node, 0), _content(node, 1))


@_rule("Not")
def _not(node: Node) -> Any:
    return boolean, _elementwise(lambda a: not a, _content(node, 0))


@_rule("Where", needs_content=False)
def _where(node: Node) -> Any:
    condition, a, b = node.inputs
    if condition.content is None:
        return None
    if a.content is None or b.content is None:
        return None
    return a.dtype, _elementwise(lambda c, x, y: x if c else y, condition.content, a.content, b.content)


@_rule("Cast")
def _cast(node: Node) -> Any:
    target = node.dtype_attr("to")
    if target.is_sub_byte:
        raise _Unknown  # such integers wrap around
    if target is boolean:
        return boolean, _elementwise(
            lambda a: a if isinstance(a, bool) else not _equal(a, 0), _content(node, 0)
        )
    return target, _elementwise(lambda a: int(a) if isinstance(a, bool) else a, _content(node, 0))


@_rule("Identity")
def _identity(node: Node) -> Any:
    return _content(node, 0)


@_rule("Gather")
def _gather(node: Node) -> Any:
    x, axis = _content(node, 0), node.attr("axis", 0)
    indices = np.array(_numbers(node, 1), np.int64).reshape(_content(node, 1).shape)
    if indices.size and not (-x.shape[axis] <= indices.min() and indices.max() < x.shape[axis]):
        raise _Unknown
    return to_object(np.take(x, indices, axis))


def to_object(x: object) -> Content:
    """Wrap a bare element, which NumPy returns in place of an array of rank 0."""
    return x if isinstance(x, np.ndarray) else _array([x], ())


@_rule("Slice")
def _slice(node: Node) -> Any:
    x = _content(node, 0)
    starts, stops = _numbers(node, 1), _numbers(node, 2)
    axes = _numbers(node, 3) if len(node.inputs) > 3 and node.inputs[3] is not None else range(len(starts))
    steps = _numbers(node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else [1] * len(starts)
    where: list[slice] = [slice(None)] * x.ndim
    for a, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        # A stop below -dim means "before the first element" in ONNX and in NumPy.
        where[a] = slice(start, stop, step)
    return x[tuple(where)]


@_rule("Concat")
def _concat(node: Node) -> Any:
    return np.concatenate([_content(node, k) for k in range(len(node.inputs))], node.attr("axis"))


@_rule("Squeeze")
def _squeeze(node: Node) -> Any:
    axes = tuple(_numbers(node, 1)) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return to_object(np.squeeze(_content(node, 0), axes))


@_rule("Unsqueeze")
def _unsqueeze(node: Node) -> Any:
    return np.expand_dims(_content(node, 0), tuple(_numbers(node, 1)))


@_rule("Reshape")
def _reshape(node: Node) -> Any:
    x = _content(node, 0)
    target = _numbers(node, 1)
    if not node.attr("allowzero", 0):
        target = [x.shape[k] if n == 0 else n for k, n in enumerate(target)]
    return x.reshape(target)


@_rule("Flatten")
def _flatten(node: Node) -> Any:
    x = _content(node, 0)
    axis = node.attr("axis", 1) % (x.ndim + 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@_rule("Expand")
def _expand(node: Node) -> Any:
    x, target = _content(node, 0), tuple(_numbers(node, 1))
    shape = np.broadcast_shapes(x.shape, target)
    if math.prod(shape) > MAX_CONTENT:
        raise _Unknown
    return np.broadcast_to(x, shape)


@_rule("Tile")
def _tile(node: Node) -> Any:
    repeats = _numbers(node, 1)
    if _content(node, 0).size * math.prod(repeats) > MAX_CONTENT:
        raise _Unknown
    return np.tile(_content(node, 0), repeats)


@_rule("Transpose")
def _transpose(node: Node) -> Any:
    return np.transpose(_content(node, 0), node.attr("perm"))


@_rule("Split")
def _split(node: Node) -> Any:
    x, axis = _content(node, 0), node.attr("axis", 0)
    sizes = node.split_sizes(x.shape[axis])
    if any(isinstance(n, Expr) for n in sizes):
        raise _Unknown
    ends = np.cumsum([n for n in sizes if isinstance(n, int)])
    return node.inputs[0].dtype, np.split(x, ends[:-1].tolist(), axis)


@_rule("ScatterElements", "ScatterND")
def _scatter(node: Node) -> Any:
    x, updates = _content(node, 0), _content(node, 2)
    if node.attr("reduction", "none") != "none" or x.ndim != 1:
        raise _Unknown
    result = x.copy()
    for index, update in zip(_numbers(node, 1), updates.reshape(-1), strict=True):
        result[index] = update
    return result


@_rule("ConstantOfShape")
def _constant_of_shape(node: Node) -> Any:
    shape = _numbers(node, 0)
    fill = node.tensor_attr("value")
    dtype = DType.of(fill) if fill is not None else DType.named("f32")
    if fill is None or dtype not in CONTENT_DTYPES or math.prod(shape) > MAX_CONTENT:
        return None
    return dtype, to_content(np.full(shape, fill.reshape(-1)[0]))


@_rule("Range")
def _range(node: Node) -> Any:
    _integers(node)
    start, limit, step = (_numbers(node, k)[0] for k in range(3))
    if step == 0 or len(range(start, limit, step)) > MAX_CONTENT:
        raise _Unknown
    return _array(list(range(start, limit, step)))


@_rule("NonZero")
def _nonzero(node: Node) -> Any:
    x = np.array(_numbers(node, 0)).reshape(_content(node, 0).shape)
    return i64, to_content(np.stack(np.nonzero(x)))

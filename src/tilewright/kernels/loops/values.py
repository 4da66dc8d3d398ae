"""Values in a loop program: elements as typed expressions, and numbers without a type of their own.

Integers, indices and sizes stay symbolic (`Dim`) as long as they do not depend on data. They and Python's
numbers are weak: they take the type of the element that they meet. Elements of different types do not mix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...dialects import scalar
from ...ir.core import Value
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, prove_lt, smax, smin
from ...ir.types import DType, boolean, f32, i64
from .source import Problem

COSTLY = scalar.EXPENSIVE
_INTERNED: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


class Node:
    """An expression of one element; equal expressions are one object.

    `kind` is ``literal`` (data: the number), ``index`` (data: a symbolic expression; its type is i64),
    ``read`` (data: the tensor, the indices with None for each of `args`, and the guarded ends), ``call``
    (data: the name of a scalar function), ``cast``, ``select`` or ``undefined``, an element that was never
    written.
    """

    __slots__ = ("__weakref__", "args", "costly", "data", "dtype", "kind", "reads", "symbols", "undefined")

    kind: str
    dtype: DType
    args: tuple[Node, ...]
    data: Any
    symbols: frozenset[Expr]
    costly: bool
    reads: bool
    undefined: bool


def make(kind: str, dtype: DType, args: tuple[Node, ...] = (), data: Any = None) -> Node:
    """The expression of these parts."""
    key = (kind, dtype, tuple(map(id, args)), data if kind != "literal" else (type(data), repr(data)))
    found = _INTERNED.get(key)
    if found is not None:
        return found
    node = Node()
    node.kind, node.dtype, node.args, node.data = kind, dtype, args, data
    symbols: set[Expr] = set()
    for a in args:
        symbols |= a.symbols
    if kind == "index":
        symbols |= free_symbols(data)
    if kind == "read":
        for e in data[1]:
            if e is not None:
                symbols |= free_symbols(e)
    node.symbols = frozenset(symbols)
    node.costly = any(a.costly for a in args) or (kind == "call" and f"scalar.{data}" in COSTLY)
    node.reads = kind == "read" or any(a.reads for a in args)
    node.undefined = kind == "undefined" or any(a.undefined for a in args)
    _INTERNED[key] = node
    return node


class Weak:
    """A number without a type that is not a symbolic integer: ``i / n``, or a choice between numbers."""

    __slots__ = ("build", "is_float")

    def __init__(self, is_float: bool, build: Callable[[DType], Node]) -> None:
        self.is_float, self.build = is_float, build


Number = bool | int | float
Scalar = Node | Weak | Expr | bool | int | float
"""The value of an expression of a loop program."""


def is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float))


def is_dim(x: Any) -> bool:
    """Whether a value is an integer that does not depend on data."""
    return isinstance(x, (int, Expr)) and not isinstance(x, bool)


def is_scalar(x: Any) -> bool:
    """Whether a value is one number."""
    return isinstance(x, (Node, Weak, Expr, bool, int, float))


def literal(value: Number, dtype: DType) -> Node:
    """A number of type `dtype`.

    Raises:
        Problem: It is not a number of this type.
    """
    if dtype is boolean:
        if not isinstance(value, bool):
            raise Problem(f"{value} is not a bool; compare it, as in `x != 0`")
        return make("literal", dtype, data=value)
    if dtype.is_float:
        return make("literal", dtype, data=float(value))
    if isinstance(value, float):
        raise Problem(f"{value} is a float, {dtype.label} is needed; convert it by tw.cast(..., {dtype})")
    low, high = dtype.limits
    if not low <= value <= high:
        raise Problem(f"{value} is not a number of {dtype.label}, which has {low} to {high}")
    return make("literal", dtype, data=int(value))


def to_node(x: Scalar, dtype: DType | None = None) -> Node:
    """A value as an element of type `dtype`; None: that of an element, float32 for floats, i64 for integers.

    Raises:
        Problem: It is an element of another type, or not a number of this one.
    """
    if isinstance(x, Node):
        if dtype is not None and x.dtype is not dtype:
            raise Problem(
                f"{x.dtype.label} is given, {dtype.label} is needed; convert it by tw.cast(..., {dtype})"
            )
        return x
    if isinstance(x, Weak):
        if x.is_float and dtype is not None and not dtype.is_float:
            raise Problem(f"a float is given, {dtype.label} is needed; convert it by tw.cast(..., {dtype})")
        return x.build(dtype or (f32 if x.is_float else i64))
    if isinstance(x, Expr):
        if dtype is boolean:
            raise Problem("an integer is given, a bool is needed; compare it, as in `x != 0`")
        return convert(make("index", i64, data=x), dtype or i64)
    if dtype is None:
        dtype = boolean if isinstance(x, bool) else f32 if isinstance(x, float) else i64
    return literal(x, dtype)


def convert(node: Node, dtype: DType) -> Node:
    """An element converted to the type `dtype`."""
    if node.dtype is dtype:
        return node
    if node.kind == "literal" and dtype.is_float and not isinstance(node.data, bool):
        return make("literal", dtype, data=float(node.data))
    return make("cast", dtype, (node,))


def call(name: str, *args: Node) -> Node:
    """A scalar function of elements of one type.

    Raises:
        Problem: It is not defined for this type.
    """
    function = scalar.UNARY[name] if len(args) == 1 else scalar.BINARY[name]
    dtype = args[0].dtype
    if dtype.kind not in function.kinds:
        kinds = "a float" if function.kinds == ("float",) else " or ".join(function.kinds)
        raise Problem(f"{name!r} needs {kinds}, got {dtype.label}; convert it by tw.cast(...)")
    if dtype.is_sub_byte and dtype.is_integer and not function.to_bool:
        raise Problem(f"{dtype.label} has no arithmetic; convert it to a wider integer by tw.cast(...)")
    return make("call", boolean if function.to_bool else dtype, args, name)


def unary(name: str, x: Scalar) -> Scalar:
    """A scalar function of one value."""
    if isinstance(x, Node):
        return call(name, x)
    if isinstance(x, (bool, int, float)) and name != "not":
        with np.errstate(all="ignore"):
            if name in ("neg", "abs", "sign") or not scalar.UNARY[name].to_bool:
                value = scalar.UNARY[name].function(
                    np.float64(x) if scalar.UNARY[name].kinds == ("float",) else x
                )
                return float(value) if isinstance(value, (float, np.floating)) else int(value)
            return bool(scalar.UNARY[name].function(np.float64(x)))
    if isinstance(x, Expr):
        if name == "neg":
            return -x
        if name == "abs":
            return smax(x, -x)
    weak = Weak(True, lambda dtype: call(name, to_node(x, dtype)))
    return to_node(x, f32) and call(name, to_node(x, f32)) if scalar.UNARY[name].to_bool else weak


_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "max": lambda a, b: a if math.isnan(a) or a > b else b,
    "min": lambda a, b: a if math.isnan(a) or a < b else b,
    "atan2": math.atan2,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_ON_DIMS: dict[str, Callable[[Any, Any], Dim]] = {**_PYTHON, "max": smax, "min": smin}


def binary(name: str, a: Scalar, b: Scalar) -> Scalar:
    """A scalar function of two values; a weak one takes the other's type.

    Raises:
        Problem: The types differ, or the function is not defined for them.
    """
    if is_number(a) and is_number(b):
        try:
            return _PYTHON[name](a, b)
        except (ArithmeticError, TypeError) as error:
            raise Problem(str(error)) from None
    if is_dim(a) and is_dim(b):
        return _of_dims(name, a, b)
    if not isinstance(a, Node) and not isinstance(b, Node):
        return _of_weak(name, a, b)
    return _of_nodes(name, a, b)


def _of_dims(name: str, a: Any, b: Any) -> Scalar:
    if name in COMPARISONS:
        known = _compared(name, a, b)
        if known is not None:
            return known
        return call(name, to_node(a, i64), to_node(b, i64))
    if name == "div":
        return Weak(True, lambda dtype: call("div", to_node(a, dtype), to_node(b, dtype)))
    if name in ("floordiv", "mod") and not prove_lt(0, b):
        if isinstance(b, int):
            raise Problem(f"an index is divided by {b}; only positive divisors are possible")
        return call(name, to_node(a, i64), to_node(b, i64))
    if name == "pow":
        if not isinstance(b, int) or not 0 <= b <= 16:
            return call("pow", to_node(a, i64), to_node(b, i64))
        result: Dim = 1
        for _ in range(b):
            result = result * a
        return result
    if name in _ON_DIMS and name not in ("and", "or", "xor", "shl", "shr", "atan2"):
        return _ON_DIMS[name](a, b)
    if name == "shl" and isinstance(b, int):
        return a * (1 << b)
    if name == "shr" and isinstance(b, int):
        return a // (1 << b)
    return call(name, to_node(a, i64), to_node(b, i64))


def _compared(name: str, a: Dim, b: Dim) -> bool | None:
    """The result of a comparison of integers where it is known."""
    if name in ("gt", "ge"):
        a, b, name = b, a, _FLIPPED[name]
    if name == "lt":
        return True if prove_lt(a, b) else False if prove_le(b, a) else None
    if name == "le":
        return True if prove_le(a, b) else False if prove_lt(b, a) else None
    same = True if prove_eq(a, b) else False if prove_lt(a, b) or prove_lt(b, a) else None
    return same if name == "eq" or same is None else not same


def _of_weak(name: str, a: Scalar, b: Scalar) -> Scalar:
    is_float = any(isinstance(x, float) or (isinstance(x, Weak) and x.is_float) for x in (a, b))
    dtype = f32 if is_float else i64
    if name in COMPARISONS:
        return call(name, to_node(a, dtype), to_node(b, dtype))
    is_float = is_float or name == "div"
    if is_float:
        return Weak(True, lambda dtype: _of_typed(name, to_node(a, dtype), to_node(b, dtype), b))
    # Parts of a number without a type may be too large for the type that it gets in the end.
    return Weak(False, lambda dtype: convert(_of_typed(name, to_node(a, i64), to_node(b, i64), b), dtype))


def _of_nodes(name: str, a: Scalar, b: Scalar) -> Node:
    dtype = a.dtype if isinstance(a, Node) else b.dtype  # type: ignore[union-attr]
    for x in (a, b):
        if isinstance(x, Node) and x.dtype is not dtype:
            raise Problem(
                f"the operands are {dtype.label} and {x.dtype.label}; convert one of them by tw.cast(...)"
            )
    if name == "div" and not dtype.is_float:
        raise Problem(f"{dtype.label} is divided by `/`; use `//`, or tw.cast(..., tw.f32) first")
    return _of_typed(name, to_node(a, dtype), to_node(b, dtype), b)


def _of_typed(name: str, a: Node, b: Node, exponent: Scalar) -> Node:
    if name == "pow":
        if isinstance(exponent, int) and not isinstance(exponent, bool) and 1 <= exponent <= 4:
            result = a
            for _ in range(exponent - 1):
                result = call("mul", result, a)
            return result
        if exponent in (0.5, -0.5) and a.dtype.is_float:
            return call("sqrt" if exponent == 0.5 else "rsqrt", a)
    return call(name, a, b)


def negation(c: Node) -> Node:
    """The opposite of a condition."""
    if c.kind == "literal":
        return literal(not c.data, boolean)
    return c.args[0] if c.kind == "call" and c.data == "not" else call("not", c)


def select(c: Node, a: Node, b: Node) -> Node:
    """`a` where the condition `c` holds, else `b`."""
    if c.kind == "call" and c.data == "not":
        return select(c.args[0], b, a)
    if c.kind == "literal":
        return a if c.data else b
    a, b = _under(a, c, True), _under(b, c, False)
    return a if a is b else make("select", a.dtype, (c, a, b))


def _under(node: Node, c: Node, holds: bool) -> Node:
    """`node` where it is known whether the condition `c` holds."""
    if node.kind != "select":
        return node
    d, a, b = node.args
    if d is c:
        return _under(a if holds else b, c, holds)
    x, y = _under(a, c, holds), _under(b, c, holds)
    return node if x is a and y is b else select(d, x, y)


def choose(c: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """`a` where the condition holds, else `b`, of values of any kind.

    Raises:
        Problem: The condition is no bool, or the types differ.
    """
    if isinstance(c, bool):
        return a if c else b
    if not isinstance(c, Node) or c.dtype is not boolean:
        raise Problem("the condition is a number, not a bool; compare it, as in `x != 0`")
    if a is b or (is_number(a) and is_number(b) and a == b and type(a) is type(b)):
        return a
    if isinstance(a, bool) and isinstance(b, bool):
        return c if a else negation(c)
    if not isinstance(a, Node) and not isinstance(b, Node):
        is_float = any(isinstance(x, float) or (isinstance(x, Weak) and x.is_float) for x in (a, b))
        if is_float:
            return Weak(True, lambda dtype: select(c, to_node(a, dtype), to_node(b, dtype)))
        return Weak(False, lambda dtype: convert(select(c, to_node(a, i64), to_node(b, i64)), dtype))
    dtype = a.dtype if isinstance(a, Node) else b.dtype  # type: ignore[union-attr]
    return select(c, to_node(a, dtype), to_node(b, dtype))


def defined(node: Node) -> Node:
    """The condition that an element was written."""
    if not node.undefined:
        return literal(True, boolean)
    if node.kind == "undefined":
        return literal(False, boolean)
    if node.kind == "select":
        c, a, b = node.args
        x, y = defined(a), defined(b)
        if x.kind == "literal" and y.kind == "literal":
            return (c if x.data else negation(c)) if x is not y else x
        if x.kind == "literal":
            return call("or", c, y) if x.data else call("and", negation(c), y)
        if y.kind == "literal":
            return call("or", negation(c), x) if y.data else call("and", c, x)
        return select(c, x, y)
    raise Problem("an element is used that may not have been written")


def fill(node: Node, other: Node) -> Node:
    """`node` with `other` in place of what was never written."""
    if not node.undefined:
        return node
    if node.kind == "undefined":
        return other
    c, a, b = node.args
    return select(c, fill(a, other), fill(b, other))


def read(
    tensor: Value,
    dtype: DType,
    indices: tuple[Dim | Node, ...],
    guards: frozenset[tuple[int, bool]] = frozenset(),
) -> Node:
    """An element of a tensor; `guards` are the ends (dimension, whether it is the upper one) at which an
    index is outside where the element is not used.
    """
    plan = tuple(None if isinstance(i, Node) else i for i in indices)
    return make("read", dtype, tuple(i for i in indices if isinstance(i, Node)), (tensor, plan, guards))

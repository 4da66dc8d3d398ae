"""Evaluation of the expressions of a loop program."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from typing import Any

from ...errors import KernelError, TilewrightError
from ...ir.symbolic import Expr
from ...ir.types import i64
from .arrays import Array, Index
from .generic import ElementType
from .language import PRIMITIVES, Primitive
from .source import Missing, Problem, Source
from .state import State, Unassigned, Variable
from .values import (
    Node,
    Weak,
    binary,
    call,
    choose,
    is_dim,
    is_number,
    is_scalar,
    negation,
    to_node,
    unary,
)

BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}
_COMPARE = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_STATIC_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ADVICE = {
    "ListComp": "write a generator inside of tw.sum, tw.max, ...",
    "Lambda": "define a function by `def`",
    "Slice": "write a loop over the indices",
    "JoinedStr": "a kernel has no texts",
    "Await": "a kernel computes numbers",
    "NamedExpr": "assign in a statement of its own",
    "Starred": "write the values out",
}


class Expressions(State):
    """Evaluates expressions at the state's place in the program."""

    source: Source

    def value(self, node: ast.expr) -> Any:
        """The meaning of an expression: an element, a number, an array, or another object of Python's."""
        try:
            return self._value(node)
        except Problem as problem:
            raise self.source.error(node, str(problem)) from None
        except TilewrightError as error:
            if isinstance(error, KernelError):
                raise
            raise self.source.error(node, str(error)) from None
        except (ArithmeticError, TypeError, ValueError) as error:
            if not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare)):
                raise
            # Python's operators refuse the user's constants.
            raise self.source.error(node, f"{type(error).__name__}: {error}") from None

    def _value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            name = type(node).__name__
            advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
            raise Problem(f"{name} is not possible in a kernel{advice}")
        return method(node)

    def scalar(self, node: ast.expr) -> Any:
        """The value of an expression that must be a number."""
        x = plain(self.value(node))
        if not is_scalar(x):
            raise self.source.error(node, f"a number is needed, this is {describe(x)}")
        return x

    # -- Names -----------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        found = self.variables.get(node.id, Missing)
        if found is Missing:
            found = self.source.lookup(node.id)
        if found is Missing:
            raise self.source.undefined(node.id, self.variables)
        if isinstance(found, ElementType):
            return self.chosen.get(found, found)
        return self._of_variable(node.id, found) if isinstance(found, Variable) else plain(found)

    def _of_variable(self, name: str, found: Variable) -> Any:
        if found.value is Unassigned:
            raise Problem(f"{name!r} is assigned only in one branch of the `if` in line {found.line}")
        if list(found.loops) != self.loops[: len(found.loops)]:
            inner = next(
                (a for k, a in enumerate(found.loops) if k >= len(self.loops) or a is not self.loops[k]), None
            )
            loop = inner.name if inner is not None else "?"
            raise Problem(
                f"{name!r} is assigned in line {found.line}, inside of the loop over {loop!r}, and has a "
                "value for each of its iterations"
            )
        if found.parts:
            raise Problem(
                f"{name!r} is read while independent iterations combine values with it (line "
                f"{found.parts[0].line}); loop by `range` if its running value is needed"
            )
        return found.value

    def _attribute(self, node: ast.Attribute) -> Any:
        x = self.value(node.value)
        if isinstance(x, Array):
            found = x.attribute(node.attr)
            if found is None:
                known = ", ".join([*x.sizes, "shape", "ndim", "dtype"])
                raise Problem(f"the array {x.name!r} has no {node.attr!r}; it has {known}")
            return found
        if isinstance(x, (Node, Weak, Expr)):
            raise Problem(f"a number has no attribute {node.attr!r}")
        try:
            found = getattr(x, node.attr)
            return self.chosen.get(found, found) if isinstance(found, ElementType) else plain(found)
        except AttributeError as error:
            raise Problem(str(error)) from None

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.value(e) for e in node.elts)

    def _list(self, node: ast.List) -> tuple[Any, ...]:
        return tuple(self.value(e) for e in node.elts)

    # -- Elements --------------------------------------------------------------------------------------------

    def indices(self, node: ast.Subscript) -> tuple[Index, ...]:
        """The indices of an element."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return tuple(self._index(e) for e in parts)

    def _index(self, node: ast.expr) -> Index:
        x = self.scalar(node)
        if isinstance(x, Weak) and not x.is_float:
            x = to_node(x, i64)
        if isinstance(x, Node) and x.dtype.is_integer:
            return x
        if is_dim(x):
            if isinstance(x, int) and x < 0:
                raise self.source.error(
                    node, f"the index is {x}; indices count from 0, the last one is x.shape[...] - 1"
                )
            return x
        raise self.source.error(node, f"an index is an integer, this is {describe(x)}")

    def _subscript(self, node: ast.Subscript) -> Any:
        x = self.value(node.value)
        if isinstance(x, Array):
            return self.read(x, self.indices(node), self.source.line(node), self.source.location(node))
        if isinstance(x, (Node, Weak, Expr)) or is_number(x):
            raise Problem("a number has no elements")
        index = self.value(node.slice)
        if isinstance(index, (Node, Weak, Expr)):
            raise Problem(
                f"{describe(x)} is indexed by a number that is not known when the kernel is compiled"
            )
        try:
            return plain(x[index])
        except (LookupError, TypeError, ValueError) as error:
            raise Problem(f"{type(error).__name__}: {error}") from None

    # -- Operators -------------------------------------------------------------------------------------------

    def _binop(self, node: ast.BinOp) -> Any:
        name = BINARY.get(type(node.op))
        if name is None:
            raise Problem(f"the operator {type(node.op).__name__} is not possible in a kernel")
        return binary(name, self.scalar(node.left), self.scalar(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        x = self.scalar(node.operand)
        if isinstance(node.op, ast.UAdd):
            return x
        if isinstance(node.op, ast.USub):
            return unary("neg", x)
        if isinstance(node.op, ast.Invert):
            return ~x if is_number(x) else call("not", to_node(x))
        c = self.condition(x)
        return not c if isinstance(c, bool) else negation(c)

    def _boolop(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.And)
        result: bool | Node = wanted
        seen: list[Node] = []
        for part in node.values:
            # A later part is evaluated only where the earlier ones leave the result open.
            with self.under(*seen):
                c = self.condition(self.scalar(part))
            if isinstance(c, bool):
                if c is not wanted:
                    return (not wanted) if isinstance(result, bool) or not seen else self._joined(result, c)
                continue
            seen.append(c if wanted else negation(c))
            result = c if isinstance(result, bool) else call("and" if wanted else "or", result, c)
        return result

    def _joined(self, result: Node, c: bool) -> bool | Node:
        return c

    def _compare(self, node: ast.Compare) -> Any:
        result: bool | Node = True
        left = plain(self.value(node.left))
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = plain(self.value(right_node))
            if is_scalar(left) and is_scalar(right) and type(op) in _COMPARE:
                c = self.condition(binary(_COMPARE[type(op)], left, right))
            elif type(op) in _STATIC_COMPARE and (
                left is None or right is None or not any(map(is_symbolic, (left, right)))
            ):
                c = bool(_STATIC_COMPARE[type(op)](left, right))
            else:
                raise Problem(f"{describe(left)} and {describe(right)} cannot be compared so")
            if c is False:
                return False
            if c is not True:
                result = c if result is True else call("and", to_node(result), c)
            left = right
        return result

    def _ifexp(self, node: ast.IfExp) -> Any:
        c = self.condition(self.scalar(node.test))
        if isinstance(c, bool):
            return self.value(node.body if c else node.orelse)
        with self.under(c):
            a = self.scalar(node.body)
        with self.under(negation(c)):
            b = self.scalar(node.orelse)
        return choose(c, a, b)


def primitive_of(function: Any) -> Primitive | None:
    """The meaning of a function in a loop program."""
    try:
        return PRIMITIVES.get(function)
    except TypeError:
        return None


def is_symbolic(x: Any) -> bool:
    """Whether a value is a number that is not known when the kernel is compiled."""
    return isinstance(x, (Node, Weak, Expr))


def plain(x: Any) -> Any:
    """NumPy's numbers as Python's."""
    import numpy as np

    if isinstance(x, np.generic) and x.dtype.kind in "biuf":
        return x.item()
    return x


def describe(x: Any) -> str:
    """A value as error texts name it."""
    if isinstance(x, Node):
        return f"an element of {x.dtype.label}"
    if isinstance(x, Array):
        return f"the array {x.name!r} (index it)"
    if isinstance(x, Weak):
        return "a float" if x.is_float else "an integer"
    if isinstance(x, Expr):
        return "an integer"
    import numpy as np

    if isinstance(x, np.ndarray):
        return "an array of NumPy's (give it to the kernel as an input)"
    if inspect.isroutine(x):
        return f"the function {getattr(x, '__qualname__', x)!r}"
    return f"{type(x).__name__} {x!r}"[:80]

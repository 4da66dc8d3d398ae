"""Evaluation of calls in a loop program: scalar functions, casts, reductions over generators."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Sequence
from typing import Any

from ...dialects import scalar
from ...ir.symbolic import Dim, Expr, ceildiv, smax, symbol
from ...ir.types import DType, boolean, i64
from .arrays import Array
from .expressions import Expressions, describe, is_symbolic, plain, primitive_of
from .facts import Known, Loop, widest
from .language import Primitive
from .source import Problem
from .state import Variable
from .values import (
    Node,
    Weak,
    binary,
    call,
    choose,
    convert,
    is_dim,
    is_number,
    is_scalar,
    literal,
    select,
    to_node,
    unary,
)

_OWN = ("axis", "range", "axes", "cast", "array", "claim", "where", "position")
"""Primitives that mean something in a kernel even on known numbers."""


class Calls(Expressions):
    """Evaluates calls at the state's place in the program."""

    # -- Calls -----------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        primitive = primitive_of(function)
        generator = (
            node.args[0] if len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp) else None
        )
        if primitive is not None and generator is not None:
            if primitive.kind == "reduce":
                return self._reduction(primitive.name, generator)
            if primitive.kind == "position":
                return self._position(primitive.name, generator)
        args = [self.value(a) for a in node.args]
        by_name = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        if primitive is not None and (any(map(is_symbolic, args)) or primitive.kind in _OWN):
            if by_name:
                raise Problem("this function takes no arguments by name in a kernel")
            return self._primitive(primitive, args, node)
        if isinstance(function, types.FunctionType) and (
            any(isinstance(a, Array) or is_symbolic(a) for a in (*args, *by_name.values()))
        ):
            return self.inline(function, args, by_name, node)
        if function is print:
            raise Problem("print is not possible in a kernel; Kernel.plain runs it as Python, where it is")
        if any(isinstance(a, Array) or is_symbolic(a) for a in (*args, *by_name.values())):
            raise Problem(
                f"{describe(function)} is no function of elements; there are those of tw, math and NumPy on "
                "one number, and functions of your own"
            )
        try:
            return plain(function(*args, **by_name))
        except Exception as error:
            raise Problem(f"{type(error).__name__}: {error}") from None

    def inline(
        self, function: types.FunctionType, args: list[Any], by_name: dict[str, Any], node: ast.Call
    ) -> Any:
        """The result of a function of the user's on elements."""
        raise NotImplementedError

    def _primitive(self, primitive: Primitive, args: list[Any], node: ast.Call) -> Any:
        kind, name = primitive.kind, primitive.name
        if kind in ("axis", "range", "axes"):
            raise Problem("this is possible only as what a `for` runs over")
        if kind == "cast":
            return self._cast(args)
        if kind == "array":
            return self._array(args, node)
        if kind == "claim":
            raise Problem("tw.claim is a statement of its own")
        args = [plain(a) for a in args]
        for a in args:
            if not is_scalar(a):
                raise Problem(f"a number is needed, {describe(a)} is given")
        counts = {"unary": (1, 1), "binary": (2, 2), "where": (3, 3), "convert": (1, 1), "reduce": (2, 9)}
        low, high = counts.get(kind, (0, 0))
        if not low <= len(args) <= high:
            raise Problem(
                f"it takes a generator, such as `{name}(x[i] for i in tw.axis(n))`, or several numbers"
                if kind in ("reduce", "position")
                else f"it takes {low} numbers in a kernel, {len(args)} are given"
            )
        if kind == "unary":
            return unary(name, args[0])
        if kind == "where":
            return choose(self.condition(args[0]), args[1], args[2])
        if kind == "convert":
            if isinstance(args[0], Node):
                raise Problem(f"{name}(...) does not say how many bits; write tw.cast(..., tw.f32)")
            if isinstance(args[0], (bool, int, float)):
                return {"int": int, "bool": bool, "float": float}[name](args[0])
            fraction = isinstance(args[0], Weak) and args[0].is_float
            if name == "bool" or (name == "int" and fraction):
                better = "//" if name == "int" else "!= 0"
                raise Problem(f"{name}(...) of a number that depends on indices or sizes; write {better}")
            if isinstance(args[0], Expr) and name == "float":
                number = args[0]
                return Weak(True, lambda dtype: to_node(number, dtype))
            return args[0]
        if kind == "reduce" and name not in ("max", "min"):
            raise Problem(f"it takes a generator, such as `{name}(x[i] for i in tw.axis(n))`")
        result = args[0]
        for a in args[1:]:
            result = binary(name, result, a)
        return result

    def _cast(self, args: list[Any]) -> Node:
        if len(args) != 2 or not isinstance(args[1], DType) or not is_scalar(plain(args[0])):
            raise Problem("tw.cast takes a number and an element type, as in tw.cast(x[i], tw.f32)")
        x, dtype = plain(args[0]), args[1]
        if is_number(x):
            value = scalar.cast_array(x, dtype)[()]
            return literal(
                bool(value) if dtype is boolean else float(value) if dtype.is_float else int(value), dtype
            )
        if isinstance(x, Weak) and dtype.is_float == x.is_float:
            return to_node(x, dtype)
        return convert(to_node(x), dtype)

    def _array(self, args: list[Any], node: ast.Call) -> Array:
        if not args or not isinstance(args[0], DType) or not all(map(is_dim, args[1:])):
            raise Problem("tw.array takes an element type and sizes, as in tw.array(tw.f32, x.n, 4)")
        if self.loops:
            raise Problem("a local array is made outside of loops")
        array = Array(f"array of line {self.source.line(node)}", args[0], args[1:], {}, "local")
        self.arrays.append(array)
        return array

    # -- Reductions ------------------------------------------------------------------------------------------

    def loops_of(
        self, target: ast.expr, iterator: ast.expr, kind: str
    ) -> list[tuple[ast.expr, Loop, Dim]] | None:
        """The loops that an iterator stands for, with the target and the value of each variable; None if it
        is another object, which is known when the kernel is compiled.
        """
        if not isinstance(iterator, ast.Call):
            return None
        primitive = primitive_of(self.value(iterator.func))
        if primitive is None or primitive.kind not in ("axis", "range", "axes"):
            return None
        limits = [self._limit(a) for a in iterator.args]
        if iterator.keywords or not limits:
            raise self.source.error(iterator, "it takes one or several numbers")
        own: Any = kind or ("range" if primitive.kind == "range" else "axis")
        if primitive.kind == "axes":
            if not isinstance(target, ast.Tuple) or len(target.elts) != len(limits):
                raise self.source.error(target, f"{len(limits)} variables are needed")
            parts: list[tuple[ast.expr, tuple[Dim, Dim, Dim]]] = [
                (t, (0, n, 1)) for t, n in zip(target.elts, limits, strict=True)
            ]
        elif len(limits) > 3:
            raise self.source.error(iterator, "it takes at most three numbers")
        else:
            start, stop = (0, limits[0]) if len(limits) == 1 else (limits[0], limits[1])
            parts = [(target, (start, stop, limits[2] if len(limits) == 3 else 1))]
        result: list[tuple[ast.expr, Loop, Dim]] = []
        for place, (start, stop, step) in parts:
            if not isinstance(place, ast.Name):
                raise self.source.error(place, "the variable of a loop is a name")
            around = [*self.loops, *(loop for _, loop, _ in result)]
            loop = self._loop(place, start, stop, step, own, around)
            result.append((place, loop, start + step * loop.symbol))
        return result

    def _limit(self, node: ast.expr) -> Dim:
        x = self.scalar(node)
        if not is_dim(x):
            raise self.source.error(
                node,
                f"the length of a loop is an integer that does not depend on data, this is {describe(x)}; "
                "loop over the greatest length and use `if`",
            )
        return x

    def _loop(
        self, target: ast.Name, start: Dim, stop: Dim, step: Dim, kind: Any, around: Sequence[Loop]
    ) -> Loop:
        if not isinstance(step, int) or step == 0:
            raise self.source.error(target, "the step of a loop is a number other than 0")
        limit = stop - start if step == 1 else ceildiv(stop - start if step > 0 else start - stop, abs(step))
        rest = limit
        if not Known(self.sizes).not_negative(limit):
            limit = smax(limit, 0)
        try:
            most = widest(limit, around)
        except Problem as problem:
            raise self.source.error(target, str(problem)) from None
        self.counter += 1
        counter = symbol(f"{target.id.strip('_') or 'i'}__{self.counter}", 0, most - 1)
        loop = Loop(target.id, counter, limit, kind, self.source.line(target), rest=rest - 1 - counter)
        if limit is not most and not (isinstance(limit, int) and limit == most):
            loop.bound = to_node(binary("lt", counter, limit), boolean)
        return loop

    def generator(self, node: ast.GeneratorExp, build: Callable[[list[Loop], Any], Any]) -> Any:
        """``build`` of the loops of a generator and of its element, which is None where a condition leaves it
        out.
        """
        saved = dict(self.variables)
        loops: list[Loop] = []
        conditions: list[Node] = []
        loop_count = len(self.loops)
        try:
            for part in node.generators:
                found = self.loops_of(part.target, part.iter, "reduce")
                if found is None:
                    raise self.source.error(part.iter, "a generator in a kernel runs over tw.axis(...)")
                for target, loop, number in found:
                    assert isinstance(target, ast.Name)
                    self.loops.append(loop)
                    loops.append(loop)
                    self.variables[target.id] = Variable(number, tuple(self.loops), self.source.line(target))
                for test in part.ifs:
                    with self.under(*conditions):
                        c = self.condition(self.scalar(test))
                    if c is not True:
                        conditions.append(to_node(c))
            with self.under(*conditions):
                element = self.scalar(node.elt)
            return build(loops, (element, conditions))
        finally:
            self.variables = saved
            del self.loops[loop_count:]

    def _reduction(self, combiner: str, node: ast.GeneratorExp) -> Node:
        def build(loops: list[Loop], found: Any) -> Node:
            element, conditions = found
            value = to_node(element)
            if combiner in ("and", "or"):
                value = to_node(self.condition(element))
            elif value.dtype is boolean:
                value = convert(value, i64)
            return self.combined(combiner, value, conditions, loops)

        return self.generator(node, build)

    def combined(self, combiner: str, value: Node, conditions: Sequence[Node], loops: Sequence[Loop]) -> Node:
        """A reduction over the innermost `loops`."""
        if value.dtype.is_sub_byte and value.dtype.is_integer:
            raise Problem(
                f"{value.dtype.label} has no arithmetic; convert it to a wider integer by tw.cast(...)"
            )
        identity = literal(scalar.combiner_identity(combiner, value.dtype), value.dtype)
        for c in reversed(conditions):
            value = select(c, value, identity)
        outer = (
            self.loops[: len(self.loops) - len(loops)] if self.loops[-1:] == list(loops[-1:]) else self.loops
        )
        if any(isinstance(loop.extent, int) and loop.extent <= 0 for loop in loops):
            return identity
        return self.emitter.reduce(combiner, value, outer, loops)

    def _position(self, combiner: str, node: ast.GeneratorExp) -> Node:
        def build(loops: list[Loop], found: Any) -> Node:
            element, conditions = found
            if len(loops) != 1 or conditions:
                raise Problem("the position is that of one axis without conditions")
            (loop,) = loops
            value = to_node(element)
            best = self.combined(combiner, value, (), loops)
            hit = call("eq", value, best)
            if value.dtype.is_float:
                hit = call("or", hit, call("isnan", value))
            place = select(hit, to_node(loop.symbol, i64), to_node(loop.extent, i64))
            return self.combined("min", place, (), loops)

        return self.generator(node, build)

"""Assignments of a loop program: local variables, elements, and values that iterations combine."""

from __future__ import annotations

import ast
from typing import Any

from ...dialects.scalar import COMBINER_OP, combiner_identity
from ...ir.types import DType
from .arrays import Array
from .calls import Calls
from .expressions import BINARY, describe, plain, primitive_of
from .source import Problem
from .state import Part, Variable
from .values import Node, binary, choose, is_number, is_scalar, literal, to_node, unary

COMBINING = {ast.Add: "sum", ast.Sub: "sum", ast.Mult: "prod", ast.BitAnd: "and", ast.BitOr: "or"}
"""The combiners of ``+=`` and its like."""


class Assignments(Calls):
    """Does assignments at the state's place in the program."""

    # -- Assignments -----------------------------------------------------------------------------------------

    def _assign_statement(self, node: ast.Assign) -> None:
        if len(node.targets) == 1:
            target = node.targets[0]
            found = self._combination(target, node.value)
            if found is not None:
                self._combine(target, *found, node)
                return
        value = self.value(node.value)
        for target in node.targets:
            self._assign(target, value, node)

    def _annassign_statement(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            raise Problem("a variable begins with a value")
        dtype = self.value(node.annotation)
        if not isinstance(dtype, DType):
            raise self.source.error(
                node.annotation, "the type of a variable is an element type, as in tw.f32"
            )
        self._assign(node.target, to_node(self.scalar(node.value), dtype), node)

    def _augassign_statement(self, node: ast.AugAssign) -> None:
        combiner = COMBINING.get(type(node.op))
        if isinstance(node.target, ast.Name) and not self._is_outer(node.target.id):
            old = self.value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
            self._assign(node.target, binary(BINARY[type(node.op)], old, self.scalar(node.value)), node)
            return
        if combiner is None:
            raise Problem(f"the operator {type(node.op).__name__}= does not combine values in any order")
        value = self.scalar(node.value)
        if isinstance(node.op, ast.Sub):
            value = unary("neg", value)
        self._combine(node.target, combiner, value, node)

    def _is_outer(self, name: str) -> bool:
        """Whether a variable belongs outside of independent loops around."""
        found = self.variables.get(name)
        if not isinstance(found, Variable):
            return False
        same = list(found.loops) == self.loops[: len(found.loops)]
        return same and any(loop.kind == "axis" for loop in self.loops[len(found.loops) :])

    def _combination(self, target: ast.expr, value: ast.expr) -> tuple[str, Any] | None:
        """The combiner and the other operand of ``total = total + x`` and ``y[i] = max(y[i], x)``, where it
        combines values of independent iterations; else None.
        """
        if isinstance(target, ast.Name):
            if not self._is_outer(target.id):
                return None
        elif not isinstance(target, ast.Subscript) or isinstance(value, ast.BinOp):
            return None
        text = ast.dump(target).replace("Store()", "Load()")
        if isinstance(value, ast.BinOp) and type(value.op) in COMBINING:
            parts, combiner = [value.left, value.right], COMBINING[type(value.op)]
            if isinstance(value.op, ast.Sub):
                parts = parts[:1] + parts[1:] if ast.dump(parts[0]) == text else []
        elif isinstance(value, ast.Call) and len(value.args) == 2 and not value.keywords:
            primitive = primitive_of(self.value(value.func))
            if primitive is None or primitive.name not in ("max", "min"):
                return None
            parts, combiner = list(value.args), primitive.name
        else:
            return None
        own = [p for p in parts if ast.dump(p) == text]
        others = [p for p in parts if ast.dump(p) != text]
        if len(own) != 1 or len(others) != 1:
            return None
        other = self.scalar(others[0])
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            other = unary("neg", other)
        return combiner, other

    def _assign(self, target: ast.expr, value: Any, node: ast.stmt) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value if isinstance(value, (tuple, list)) else None
            if values is None or len(values) != len(target.elts):
                raise self.source.error(target, f"{len(target.elts)} values are needed")
            for t, v in zip(target.elts, values, strict=True):
                self._assign(t, v, node)
        elif isinstance(target, ast.Name):
            self._assign_name(target, value, node)
        elif isinstance(target, ast.Subscript):
            array = self.value(target.value)
            if not isinstance(array, Array):
                raise self.source.error(target, f"only arrays have elements, this is {describe(array)}")
            x = plain(value)
            if not is_scalar(x):
                raise self.source.error(target, f"an element is a number, this is {describe(x)}")
            try:
                self.write(
                    array,
                    self.indices(target),
                    to_node(x, array.dtype),
                    None,
                    self.source.line(node),
                    self.source.location(node),
                )
            except Problem as problem:
                raise self.source.error(target, str(problem)) from None
        else:
            raise self.source.error(target, "only variables and elements can be assigned")

    def _assign_name(self, target: ast.Name, value: Any, node: ast.stmt) -> None:
        name = target.id
        if isinstance(self.variables.get(name), Array):
            raise self.source.error(target, f"{name!r} is an array; assign its elements, {name}[...] = ...")
        if self._is_outer(name):
            found = self.variables[name]
            raise self.source.error(
                target,
                f"{name!r}, of line {found.line}, is assigned in independent iterations; combine values by "
                "`+=`, loop by `range` to carry it from one to the next, or take a name of its own",
            )
        x = plain(value)
        if isinstance(x, Node) and x.costly and x.reads:
            x = self.emitter.materialize(x, self.loops)
        self.variables[name] = Variable(x, tuple(self.loops), self.source.line(node), len(self.conditions))

    def _combine(self, target: ast.expr, combiner: str, value: Any, node: ast.stmt) -> None:
        line = self.source.line(node)
        if isinstance(target, ast.Subscript):
            array = self.value(target.value)
            if not isinstance(array, Array):
                raise self.source.error(target, f"only arrays have elements, this is {describe(array)}")
            element = to_node(value, array.dtype)
            try:
                self.write(array, self.indices(target), element, combiner, line, self.source.location(node))
            except Problem as problem:
                raise self.source.error(target, str(problem)) from None
            return
        assert isinstance(target, ast.Name)
        found = self.variables[target.id]
        if any(p.combiner != combiner for p in found.parts):
            raise Problem(f"{target.id!r} is combined in different ways (line {found.parts[0].line})")
        old = found.value
        element = to_node(value, old.dtype if isinstance(old, Node) else None)
        identity = literal(combiner_identity(combiner, element.dtype), element.dtype)
        loops = tuple(self.loops[len(found.loops) :])
        for c in reversed(self.own_conditions(found.conditions)):
            element = choose(c, element, identity)  # type: ignore[assignment]
        found.parts.append(Part(combiner, element, loops, line))

    def _finish(self, outer: int) -> None:
        """Give variables the values that the iterations of the loop that has ended combined with them."""
        for name, found in list(self.variables.items()):
            if not isinstance(found, Variable) or not found.parts or len(found.loops) != outer:
                continue
            value = found.value
            for part in found.parts:
                total = self.combined(part.combiner, part.value, (), part.loops)
                identity = combiner_identity(part.combiner, total.dtype)
                if is_number(value) and to_node(value, total.dtype) is literal(identity, total.dtype):
                    value = total
                else:
                    value = binary(COMBINER_OP[part.combiner], value, total)
            self.variables[name] = Variable(value, found.loops, found.line, found.conditions)

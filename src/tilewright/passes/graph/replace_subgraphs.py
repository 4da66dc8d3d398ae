"""Puts kernels of the user's in place of equal subgraphs, and their patterns in place of kernels that a
target has no code for.

A kernel's pattern is a traced function: a graph of operators over its inputs with one result. An occurrence
is found in two steps. First the graph's operators and wiring are compared with those of the pattern, sizes
and numbers left out, which finds the inputs, and the values of the kernel's numbers. Then the pattern is
traced on exactly these inputs, and all is compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...dialects import func, graph
from ...dialects.graph.elementwise import splat_value
from ...dialects.kernels import Apply, KernelDefinition, Scalar, definition_of, scalars_of
from ...errors import ShapeError, UnsupportedOperator, UnsupportedOperatorError
from ...ir.builder import Builder
from ...ir.cleanup import cse, dce
from ...ir.core import IRError, Module, Operation, OpResult, Value
from ...ir.equality import attributes_equal
from ...ir.symbolic import Expr, prove_eq, symbol
from ...ir.target_info import TargetInfo
from ...ir.types import TensorType
from .fold_constants import fold_constants
from .recognize import recognize
from .simplify import simplify

COMMUTATIVE = (graph.Add, graph.Mul, graph.Max, graph.Min, graph.Eq, graph.Ne)
LEADING = (1, 2, 3)
"""Numbers of leading dimensions that ``"*n"`` is tried with."""
_Environment = tuple[dict[Value, Value], dict[str, Scalar]]
"""The values and numbers that a pattern's values and numbers stand for."""


def replace_subgraphs(module: Module, kernels: Sequence[KernelDefinition]) -> dict[str, int]:
    """Put kernels in place of the occurrences of their patterns; return the number of each kernel's by name.

    A pattern is looked for as it is written, as constant folding and simplification leave it, and with
    normalizations and activations recognized. Earlier kernels come
    first. Operators whose results something else needs as well stay.

    Raises:
        KernelError: A pattern does not return what its kernel's description says.
    """
    counts = {}
    for kernel in kernels:
        replacer = _Replacer(kernel)
        counts[kernel.name] = sum(replacer.replace(op) for op in list(module.walk()))
        dce(module)
    return counts


def inline_kernels(module: Module, info: TargetInfo) -> None:
    """Put the patterns of kernels that the target has no code for in their place.

    Raises:
        UnsupportedOperatorError: A kernel has neither code for the target nor a pattern.
    """
    missing = []
    for op in list(module.walk()):
        if not isinstance(op, Apply):
            continue
        definition = definition_of(op)
        if definition.program is not None or definition.implementation(info.name) is not None:
            continue
        if definition.pattern is None:
            known = ", ".join(definition.implementations) or "no target"
            missing.append(
                UnsupportedOperator(
                    f"kernel {op.kernel!r}",
                    1,
                    (str(op.location),),
                    f"it has code for {known}, none for {info.name}",
                    "give it a pattern=, which is compiled in its place",
                )
            )
            continue
        pattern = definition.pattern([v.type for v in op.inputs], scalars_of(op)).symbol("main")
        assert isinstance(pattern, func.Func)
        builder = Builder.before(op)
        values: dict[Value, Value] = dict(zip(pattern.body.args, op.inputs, strict=True))
        for inner in pattern.body.ops:
            if inner.terminator:
                op.replace_by(tuple(values[v] for v in inner.operands))
                op.erase()
                break
            builder.insert(inner.clone(values))
    if missing:
        raise UnsupportedOperatorError(missing, info.name)


class _Replacer:
    """Looks for the pattern of one kernel."""

    def __init__(self, kernel: KernelDefinition) -> None:
        assert kernel.pattern is not None
        self.kernel = kernel
        # A number of the kernel is recognized in its pattern by an unusual value near the default.
        self.marks: dict[str, Scalar] = {
            name: (default or 1.0) * (1.3105857863 + 0.0137 * k)
            for k, (name, default) in enumerate(kernel.scalars.items())
            if isinstance(default, float)
        }
        self.forms = [form for types in self._types() for form in self._forms(types, self.marks)]
        self._exact: dict[Any, list[Value]] = {}

    def _types(self) -> Iterator[list[TensorType]]:
        """Symbolic types of the inputs, for each number of leading dimensions."""
        has_lead = any(p.spec.lead is not None for p in self.kernel.inputs)
        for count in LEADING if has_lead else (0,):
            lead = tuple(symbol(f"lead{k}", 1, None) for k in range(count))
            symbols: dict[str, Expr] = {}
            types = []
            for p in self.kernel.inputs:
                shape = p.spec.shape(symbols)
                types.append(TensorType(p.dtype, (*lead, *shape[1:]) if p.spec.lead is not None else shape))
            yield types

    def _forms(self, types: Sequence[TensorType], numbers: Mapping[str, Scalar]) -> list[Value]:
        """The result of the pattern on inputs of these types: as written, simplified, and with its operators
        recognized."""
        assert self.kernel.pattern is not None
        written = self.kernel.pattern(types, {**self.kernel.scalars, **numbers})
        cse(written)
        simple = written.clone()
        for step in (fold_constants, simplify, cse):
            step(simple)
        recognized = simple.clone()
        recognize(recognized)
        results = []
        for module in (written, simple, recognized):
            main = module.symbol("main")
            assert isinstance(main, func.Func)
            if len(main.outputs) != 1:
                raise self.kernel.error("a kernel with several outputs cannot replace a subgraph")
            (result,) = main.outputs
            if result.defining_op is None or isinstance(result.defining_op, graph.Constant):
                raise self.kernel.error("its pattern contains no operator, so nothing can be replaced")
            results.append(result)
        return results

    def replace(self, op: Operation) -> bool:
        """Put the kernel in place of `op` and what it depends on, if that is the pattern."""
        if len(op.results) != 1 or not isinstance(op, graph.GraphOp):
            return False
        for form in self.forms:
            assert form.defining_op is not None
            if type(form.defining_op) is not type(op):
                continue
            for values, numbers in self._loose(form, op.results[0], ({}, {})):
                arguments = self._arguments(form, values)
                if arguments is not None and self._is_exact(arguments, numbers, op.results[0]):
                    self._put(op, arguments, numbers)
                    return True
        return False

    def _arguments(self, form: Value, values: Mapping[Value, Value]) -> list[Value] | None:
        """The graph's values that the pattern's arguments stand for; None if one is missing or does not
        fit.
        """
        assert form.defining_op is not None and form.defining_op.parent is not None
        arguments = [values.get(a) for a in form.defining_op.parent.args]
        if any(v is None or not isinstance(v.type, TensorType) for v in arguments):
            return None
        known = [v for v in arguments if v is not None]
        try:
            self.kernel.bind([v.type for v in known])
        except ShapeError:
            return None
        return known

    def _numbers(self, found: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return {**self.kernel.scalars, **found}

    def _is_exact(self, arguments: list[Value], found: Mapping[str, Scalar], result: Value) -> bool:
        numbers = self._numbers(found)
        key = tuple(v.type for v in arguments), tuple(numbers.items())
        if key not in self._exact:
            self._exact[key] = self._forms([v.type for v in arguments], numbers)
        for form in self._exact[key]:
            assert form.defining_op is not None and form.defining_op.parent is not None
            same: dict[Value, Value] = dict(zip(form.defining_op.parent.args, arguments, strict=True))
            if _equal(form, result, same):
                return True
        return False

    def _put(self, op: Operation, arguments: list[Value], found: Mapping[str, Scalar]) -> None:
        numbers = self._numbers(found)
        apply = Builder.before(op)(
            Apply(
                arguments,
                kernel=self.kernel.name,
                digest=self.kernel.digest,
                scalars=tuple(numbers[n] for n in self.kernel.scalars),
                location=op.location,
            )
        )
        op.replace_by((_shaped(op, apply),))

    # -- Comparison without sizes and numbers ----------------------------------------------------------------

    def _loose(self, pattern: Value, value: Value, known: _Environment) -> Iterator[_Environment]:
        """The meaning of the pattern's values and numbers if `pattern` is `value`, for each way to match."""
        values, numbers = known
        if pattern in values:
            if values[pattern] is value:
                yield known
            return
        op = pattern.defining_op
        if op is None:
            if isinstance(value.type, TensorType) and value.type.dtype is pattern.type.dtype:
                yield {**values, pattern: value}, numbers
            return
        other = value.defining_op
        if isinstance(op, graph.Constant | graph.Symbolic):
            if isinstance(other, graph.Constant | graph.Symbolic):
                yield {**values, pattern: value}, self._with_number(numbers, _number(pattern), _number(value))
            return
        if (
            other is None
            or type(op) is not type(other)
            or op.regions
            or len(op.results) != len(other.results)
        ):
            return
        if len(op.operands) != len(other.operands) or _number_of(pattern) != _number_of(value):
            return
        for key, attribute in op.attributes.items():
            numbers = self._with_number(numbers, attribute, other.attributes.get(key))
        orders = [list(other.operands)]
        if isinstance(op, COMMUTATIVE) and op.operands[0] is not op.operands[1]:
            orders.append(orders[0][::-1])
        for order in orders:
            start: _Environment = ({**values, pattern: value}, numbers)
            yield from self._all_loose(list(op.operands), order, start)

    def _all_loose(
        self, patterns: list[Value], values: list[Value], known: _Environment
    ) -> Iterator[_Environment]:
        if not patterns:
            yield known
            return
        for found in self._loose(patterns[0], values[0], known):
            yield from self._all_loose(patterns[1:], values[1:], found)

    def _with_number(self, numbers: dict[str, Scalar], pattern: Any, value: Any) -> dict[str, Scalar]:
        """`numbers` with the one whose mark `pattern` is."""
        if not isinstance(pattern, float) or not isinstance(value, (int, float)):
            return numbers
        for name, mark in self.marks.items():
            if abs(pattern - mark) <= 4e-3 * abs(mark) and name not in numbers:  # rounded to 16 bits
                return {**numbers, name: float(value)}
        return numbers


def _number_of(value: Value) -> int:
    """The place of a value among the results of its operation."""
    assert isinstance(value, OpResult)
    return value.index


def _number(value: Value) -> Any:
    element = splat_value(value)
    return None if element is None or element.dtype.kind not in "iuf" else float(element)


def _equal(pattern: Value, value: Value, same: dict[Value, Value]) -> bool:
    """Whether a pattern on given inputs computes `value`; `same` has the values known to be equal."""
    if pattern in same:
        return same[pattern] is value
    op, other = pattern.defining_op, value.defining_op
    if op is None or other is None or type(op) is not type(other):
        return False
    if isinstance(op, graph.Constant):
        mine, its = op.value, other.attributes["value"]
        return mine.type == its.type and _equal_arrays(mine.array, its.array)
    if len(op.operands) != len(other.operands) or _number_of(pattern) != _number_of(value):
        return False
    if not attributes_equal(op, other, _compared):
        return False
    orders = [list(other.operands)]
    if isinstance(op, COMMUTATIVE):
        orders.append(orders[0][::-1])
    for order in orders:
        trial = dict(same)
        if all(_equal(a, b, trial) for a, b in zip(op.operands, order, strict=True)):
            same.update(trial)
            same[pattern] = value
            return True
    return False


def _compared(op: Operation, key: str, value: Any) -> Any:
    """An attribute as it is compared: axes counted from the front, and numbers rounded to float32, since
    some front ends state a number that others have in a float32 constant.
    """
    if isinstance(value, float):
        return float(np.float32(value))
    if key not in ("axis", "axes") or not op.operands or not isinstance(op.operands[0].type, TensorType):
        return value
    rank = op.operands[0].type.rank
    if isinstance(value, int):
        return value % rank
    return tuple(a % rank for a in value) if isinstance(value, tuple) and rank else value


def _equal_arrays(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether constants are equal; numbers of a formula up to the rounding of their elements."""
    if a.size > 64 or a.dtype.kind not in "f":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True))


def _shaped(op: Operation, value: Value) -> Value:
    """`value` in the shape of the result that it replaces, if the sizes are written differently."""
    wanted = op.results[0].type
    if value.type is wanted:
        return value
    if value.type.dtype is not wanted.dtype or not all(
        itertools.starmap(prove_eq, zip(value.type.shape, wanted.shape, strict=True))
    ):
        raise IRError(f"is {wanted}, but the kernel in its place gives {value.type}", op)
    result: Value = Builder.before(op)(graph.Reshape(value, shape=wanted.shape))
    return result


__all__ = ["inline_kernels", "replace_subgraphs"]

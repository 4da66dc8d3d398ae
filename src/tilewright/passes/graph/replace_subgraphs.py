"""Puts kernels of the user's in place of equal subgraphs, and their patterns in place of kernels that a
target has no code for.

A kernel's pattern is a traced function: a graph of operators over its inputs with one or several results. An
occurrence is found in two steps. First the graph's operators and wiring are compared with those of the
pattern, sizes and numbers left out, which finds the inputs, and the values of the kernel's numbers: from the
first result, then from each of the others. Then the pattern is traced on exactly these inputs, and all is
compared.
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
from ...ir.core import Effect, IRError, Module, Operation, OpResult, Value
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
_Form = tuple[Value, ...]
"""The results of a pattern."""


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
            known, family = ", ".join(definition.implementations) or "no target", info.name.partition(":")[0]
            missing.append(
                UnsupportedOperator(
                    f"kernel {op.kernel!r}",
                    1,
                    (str(op.location),),
                    f"it has code for {known}, none for {info.name}",
                    f"give it a pattern=, which is compiled in its place, or code for {family}",
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
        self._exact: dict[Any, list[_Form]] = {}

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

    def _forms(self, types: Sequence[TensorType], numbers: Mapping[str, Scalar]) -> list[_Form]:
        """The results of the pattern on inputs of these types: as written, simplified, and with its operators
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
            form = tuple(main.outputs)
            for result in form:
                if result.defining_op is None or isinstance(result.defining_op, graph.Constant):
                    raise self.kernel.error("its pattern contains no operator, so nothing can be replaced")
            if len(set(form)) != len(form):
                raise self.kernel.error("two results of its pattern are the same")
            results.append(form)
        return results

    def replace(self, op: Operation) -> bool:
        """Put the kernel in place of `op`, which gives its first output, and of what gives the others, if
        they are the pattern.
        """
        if op.parent is None or not isinstance(op, graph.GraphOp):
            return False
        for form in self.forms:
            root = form[0].defining_op
            if root is None or type(root) is not type(op) or len(op.results) != len(root.results):
                continue
            first = op.results[_number_of(form[0])]
            for values, numbers in self._loose(form[0], first, ({}, {})):
                for results, (known, found) in self._others(form[1:], (first,), (values, numbers)):
                    arguments = self._arguments(form[0], known)
                    if (
                        arguments is not None
                        and self._is_exact(arguments, found, results)
                        and self._put(results, arguments, found)
                    ):
                        return True
        return False

    def _others(
        self, patterns: Sequence[Value], found: _Form, known: _Environment
    ) -> Iterator[tuple[_Form, _Environment]]:
        """The values of the block that the pattern's further results may be, behind those `found`."""
        if not patterns:
            yield found, known
            return
        first, *rest = patterns
        op = first.defining_op
        anchor = found[0].defining_op
        assert op is not None and anchor is not None and anchor.parent is not None
        for candidate in anchor.parent.ops:
            if type(candidate) is not type(op) or len(candidate.results) != len(op.results):
                continue
            value = candidate.results[_number_of(first)]
            if value in found:
                continue
            for environment in self._loose(first, value, known):
                yield from self._others(rest, (*found, value), environment)

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

    def _is_exact(self, arguments: list[Value], found: Mapping[str, Scalar], results: _Form) -> bool:
        numbers = self._numbers(found)
        key = tuple(v.type for v in arguments), tuple(numbers.items())
        if key not in self._exact:
            self._exact[key] = self._forms([v.type for v in arguments], numbers)
        for form in self._exact[key]:
            first = form[0].defining_op
            assert first is not None and first.parent is not None
            same: dict[Value, Value] = dict(zip(first.parent.args, arguments, strict=True))
            if all(_equal(a, b, same) for a, b in zip(form, results, strict=True)):
                return True
        return False

    def _put(self, results: _Form, arguments: list[Value], found: Mapping[str, Scalar]) -> bool:
        """Put the kernel in place of `results`; whether that is possible."""
        roots = [r.defining_op for r in results]
        place = _earliest([op for op in roots if op is not None])
        if not _moved_before(place, arguments, {op for op in roots if op is not None}):
            return False
        numbers = self._numbers(found)
        apply = Builder.before(place).insert(
            Apply(
                arguments,
                kernel=self.kernel.name,
                digest=self.kernel.digest,
                scalars=tuple(numbers[n] for n in self.kernel.scalars),
                location=place.location,
            )
        )
        for old, new in zip(results, apply.results, strict=True):
            old.replace_by(_shaped(place, old, new))
        for op in dict.fromkeys(r.defining_op for r in results):
            assert op is not None
            if not any(r.users for r in op.results):
                op.erase()
        return True

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


def _earliest(ops: Sequence[Operation]) -> Operation:
    """The first of operations of one block."""
    if len(ops) == 1:
        return ops[0]
    block = ops[0].parent
    assert block is not None
    return next(op for op in block.ops if op in ops)


def _moved_before(place: Operation, values: Sequence[Value], roots: set[Operation]) -> bool:
    """Move what computes `values` to before `place` where it stands behind; False, and nothing is moved, if
    it depends on one of `roots` or has effects.
    """
    if len(roots) == 1:
        return True
    block = place.parent
    assert block is not None
    behind: dict[Operation, None] = {}
    op: Operation | None = place
    while op is not None:
        behind[op] = None
        op = op.next
    needed: set[Operation] = set()
    stack = [v.defining_op for v in values]
    while stack:
        op = stack.pop()
        if op is None or op not in behind or op in needed:
            continue
        if op in roots or op.regions or op.effects is not Effect.PURE:
            return False
        needed.add(op)
        stack += [v.defining_op for v in op.operands]
    for op in [op for op in behind if op in needed]:
        block.insert_before(place, op)
    return True


def _shaped(place: Operation, old: Value, value: Value) -> Value:
    """`value` in the shape of `old`, which it replaces, if the sizes are written differently."""
    wanted = old.type
    if value.type is wanted:
        return value
    if value.type.dtype is not wanted.dtype or not all(
        itertools.starmap(prove_eq, zip(value.type.shape, wanted.shape, strict=True))
    ):
        raise IRError(f"is {wanted}, but the kernel in its place gives {value.type}", place)
    result: Value = Builder.before(place)(graph.Reshape(value, shape=wanted.shape))
    return result


__all__ = ["inline_kernels", "replace_subgraphs"]

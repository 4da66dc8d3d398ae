"""Wrong uses of graph operators, made from the valid ones of the test cases: an operand of another shape or
element type, or another value of an attribute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Operation, Region, Value
from tilewright.ir.types import DType, TensorType, boolean, f16, f32, i32, i64, u8

from .harness import Case, build_module

SEGMENTS = "operand_segments"


@dataclass(frozen=True)
class Use:
    """A use of an operator: the operator `like`, with operands of these types and these attributes."""

    like: Operation
    types: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    change: str
    """The difference from the valid use."""

    def __str__(self) -> str:
        return f"{self.like.name}({', '.join(map(str, self.types))}; {dict(self.attributes)}): {self.change}"

    def module(self) -> Module:
        """A module whose function `main` takes the operands and returns the results.

        Raises:
            IRError: The operator refuses the operands or the attributes.
        """
        module = Module()
        f = func.Func(sym_name="main", arg_names=tuple(f"x{k}" for k in range(len(self.types))))
        module.body.append(f)
        args = [f.body.add_arg(t) for t in self.types]
        op = self._operation(args)
        op.verify()
        Builder(f.body).insert(op)
        f.result_names = tuple(f"y{k}" for k in range(len(op.results)))
        Builder(f.body).insert(func.Return(list(op.results)))
        return module

    def _operation(self, args: Sequence[Value]) -> Operation:
        cls = type(self.like)
        mapping: dict[Value, Value] = {}
        regions: list[Region] = [r.clone(mapping) for r in self.like.regions]
        counts = self.like.attributes.get(SEGMENTS)
        operands: list[Any] = []
        rest = list(args)
        for k, (_, kind) in enumerate(cls._operand_fields):
            count = counts[k] if counts else 1
            if cls._flexible == 1 and kind != "one":
                count = len(args) - len(cls._operand_fields) + 1
            group, rest = rest[:count], rest[count:]
            operands.append(group if kind == "variadic" else group[0] if group else None)
        attributes = {k: v for k, v in self.attributes.items() if k != SEGMENTS}
        return cls(*operands, regions=regions, **attributes)

    def arrays(self, rng: np.random.Generator) -> list[Any]:
        """Random operands: small integers, normally distributed numbers."""
        return [_random(t, rng) for t in self.types]


def _random(t: TensorType, rng: np.random.Generator) -> Any:
    if t.dtype is boolean:
        return rng.random(t.shape) < 0.5
    if t.dtype.is_float:
        return rng.standard_normal(t.shape).astype(t.dtype.numpy)
    return rng.integers(0, 2 if t.dtype.bits <= 2 else 4, t.shape).astype(t.dtype.numpy)


def uses(case: Case) -> Iterator[Use]:
    """The valid uses of the case's operator in the case."""
    for op in build_module(case, case.sizes[0]).walk():
        if isinstance(op, graph.OPERATORS[case.operator]):
            types = tuple(v.type for v in op.operands)
            if all(isinstance(t, TensorType) and t.is_static for t in types):
                yield Use(op, types, dict(op.attributes), "nothing")


def mutations(use: Use) -> Iterator[Use]:
    """`use` with one operand's type or one attribute changed."""
    for k, t in enumerate(use.types):
        for other in _other_types(t):
            types = (*use.types[:k], other, *use.types[k + 1 :])
            yield Use(use.like, types, use.attributes, f"operand {k} was {t}")
    for name, value in use.attributes.items():
        if name != SEGMENTS:
            for change in _other_values(value):
                attributes = {**use.attributes, name: change}
                yield Use(use.like, use.types, attributes, f"{name} was {value!r}")


def _other_types(t: TensorType) -> Iterator[TensorType]:
    shape = tuple(t.shape)
    assert all(isinstance(n, int) for n in shape)
    others: list[tuple[Any, ...]] = []
    for d, n in enumerate(shape):
        for m in (n + 1, n - 1, 1, 0):
            if m != n and m >= 0:
                others.append((*shape[:d], m, *shape[d + 1 :]))
    others += [(*shape, 1), (1, *shape), (*shape, 2), (2, *shape), ()]
    others += [shape[1:], shape[:-1]] if shape else []
    for other in dict.fromkeys(others):
        if other != shape:
            yield TensorType(t.dtype, other)
    for dtype in (f32, f16, i32, i64, u8, boolean):
        if dtype is not t.dtype:
            yield TensorType(dtype, shape)


def _other_values(value: Any) -> Iterator[Any]:
    if value is None or isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 0, -1, -3, 100, "nonsense", None)
    elif isinstance(value, float):
        yield from (value + 1, 0.0, -1.0, math.nan, "nonsense")
    elif isinstance(value, str):
        yield "nonsense"
    elif isinstance(value, DType):
        yield from (d for d in (f32, i32, i64, boolean) if d is not value)
        yield "nonsense"
    elif isinstance(value, tuple):
        yield from (value[:-1], (*value, *value[-1:])) if value else ((0,), (1,))
        for k, part in enumerate(value):
            for other in _other_values(part):
                yield (*value[:k], other, *value[k + 1 :])
        yield "nonsense"
        yield 7

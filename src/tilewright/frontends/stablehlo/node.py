"""One operation of a StableHLO program as its importer sees it: operands, attributes, and insertion of graph
operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from ...dialects import graph as g
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, i64
from ..complex import Complex, ComplexMath, each
from ..unsupported import Unsupported
from .module_builder import Content, ModuleBuilder
from .quantized_types import is_quantized, quantization
from .reading import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from jaxlib.mlir import ir as mlir

Tensor = TypeVar("Tensor", bound=Value | Complex)
"""A tensor, or the two parts of a complex one."""

Number = complex | np.generic | Expr
"""A Python or NumPy number (``complex`` includes ``float`` and ``int`` for type checkers), or a symbolic
size.
"""


class Node:
    """One operation as its importer sees it. Operands and results are numbered from 0."""

    real = False
    """Whether quantized operands and results are passed as the real numbers that they represent."""

    def __init__(
        self, importer: ModuleBuilder, op: mlir.Operation, inputs: list[Any], location: Location
    ) -> None:
        self.importer = importer
        self.op = op
        self.name: str = op.name
        self.inputs = inputs  # values, or `Complex` pairs of values
        self.location = location

    def has(self, name: str) -> bool:
        """Whether an optional attribute is present."""
        return name in self.op.attributes

    def attr(self, name: str) -> Any:
        """Return an attribute as a jaxlib object."""
        return self.op.attributes[name]

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Return an attribute that is a list of integers or booleans."""
        return [int(v) for v in self.attr(name)] if self.has(name) else list(default)

    def pairs(self, name: str, rank: int) -> list[tuple[int, int]]:
        """Return an attribute that is a matrix of two columns, such as ``padding``; `rank` pairs (0, 0) if
        missing.
        """
        rows = self.rows(name)
        return [(row[0], row[1]) for row in rows] if self.has(name) else [(0, 0)] * rank

    def rows(self, name: str) -> list[list[int]]:
        """Return an attribute that is a matrix of integers, as a list of rows; an empty one if it is
        missing.
        """
        return [[int(v) for v in row] for row in np.array(self.attr(name))] if self.has(name) else []

    def number(self, name: str, default: int = 0) -> int:
        """Return an attribute that is an integer or a boolean."""
        return int(self.attr(name).value) if self.has(name) else default

    def word(self, name: str, default: str = "") -> str:
        """Return the value of an enumeration such as ``#stablehlo<comparison_direction LT>``, or a string."""
        if not self.has(name):
            return default
        text = str(self.attr(name))
        match = re.search(r"(\w+)>?$", text.strip('"'))
        return match.group(1) if match is not None else text

    def dtype(self, k: int = 0) -> DType:
        """Return the element type of a result; for complex numbers the type of their parts."""
        type = self.op.results[k].type
        return quantization(type).expressed if self.real and is_quantized(type) else dtype_of(type)

    def is_complex(self, k: int = 0) -> bool:
        """Whether a result is complex."""
        return is_complex(self.op.results[k].type)

    def shape(self, k: int = 0) -> tuple[int | None, ...]:
        """Return the shape of a result; None for a size that only the operands determine."""
        return shape_of(self.op.results[k].type)

    def content(self, k: int) -> Content | None:
        """Return the elements of an operand as symbolic integers, or None if they are not known."""
        x = self.inputs[k]
        return self.importer.content(x) if isinstance(x, Value) else None

    def sizes(self, k: int) -> list[Dim]:
        """Return the elements of an operand that are sizes.

        Raises:
            Unsupported: they depend on data.
        """
        content = self.content(k)
        if content is None or any(self.importer.is_inner(e) for e in content.reshape(-1)):
            raise Unsupported(f"operand {k} depends on data; it must follow from shapes and constants")
        return list(content.reshape(-1))

    def block(self, k: int = 0) -> Any:
        """Return the only block of a region."""
        return self.op.regions[k].blocks[0]

    def emit(self, op: Operation) -> Value:
        """Insert an operator with one result and return the result; see `ModuleBuilder.emit`."""
        return self.importer.emit(op)

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operator and return all its results."""
        return self.importer.emit_all(op)

    def constant(self, value: npt.ArrayLike, dtype: DType) -> Value:
        """Return a constant of any shape."""
        return self.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))

    @property
    def math(self) -> ComplexMath:
        """Operations on complex numbers."""
        return ComplexMath(self.emit)

    def like(self, value: Number, x: Tensor) -> Tensor:
        """Return a number or a symbolic expression as a rank-0 tensor of the element type of `x`."""
        y: Any
        if isinstance(value, Expr):
            size = self.cast(self.emit(g.Symbolic(values=(value,))), x.type.dtype)
            y = self.math.complex(size) if isinstance(x, Complex) else size
        elif isinstance(x, Complex):
            y = self.math.number(value, x)
        else:
            y = self.constant(value, x.type.dtype)
        return cast(Tensor, y)

    def unary(self, name: str, x: Value | Complex) -> Any:
        """Apply a function by the name of its graph operator; ``abs`` of complex numbers is real."""
        return self._complex(name, x) if isinstance(x, Complex) else self.emit(g.elementwise.UNARY[name](x))

    def binary(self, name: str, a: Value | Complex, b: Value | Complex | Number) -> Any:
        """Apply a function of two tensors, or of a tensor and a number, by the name of its graph operator."""
        b = b if isinstance(b, (Value, Complex)) else self.like(b, a)
        if isinstance(a, Complex) or isinstance(b, Complex):
            return self._complex(name, self.math.complex(a), self.math.complex(b))
        return self.emit(g.elementwise.BINARY[name](a, b))

    def _complex(self, name: str, *operands: Complex) -> Any:
        function = getattr(self.math, name, None)
        if function is None:
            raise Unsupported("complex numbers")
        return function(*operands)

    def _each(self, operator: Callable[[Value], Operation], x: Tensor) -> Tensor:
        """Insert an operator, for complex numbers once per part."""
        return cast(Tensor, each(lambda part: self.emit(operator(part)), x))

    def select(self, condition: Value, a: Value | Complex, b: Value | Complex) -> Any:
        return each(lambda a, b: self.emit(g.Select(condition, a, b)), a, b)

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return self._each(lambda part: g.Cast(part, dtype=dtype), x)

    def reshape(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        return self._each(lambda part: g.Reshape(part, shape=tuple(shape)), x)

    def broadcast(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        return self._each(lambda part: g.BroadcastTo(part, shape=tuple(shape)), x)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        return self._each(lambda part: g.Transpose(part, permutation=tuple(permutation)), x)

    def slice(
        self, x: Tensor, starts: Sequence[Dim], stops: Sequence[Dim], steps: Sequence[int] | None = None
    ) -> Tensor:
        where = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps or (1,) * len(starts))}
        return self._each(lambda part: g.Slice(part, **where), x)

    def concat(self, parts: Sequence[Value | Complex], axis: int) -> Any:
        return each(lambda *parts: self.emit(g.Concat(list(parts), axis=axis)), *parts)

    def iota(self, shape: Sequence[Dim], axis: int = 0, dtype: DType = i64) -> Value:
        return self.emit(g.Iota(shape=tuple(shape), axis=axis, dtype=dtype))

    def apply(self, block: mlir.Block, arguments: Sequence[Value | Complex]) -> list[Any]:
        """Apply a body that is written for scalars to tensors, and return its results.

        Raises:
            Unsupported: it has an operation that is not elementwise.
        """
        self.importer.check_elementwise(block)
        results = self.importer.block(block, arguments, scalar=True)
        shape = max((a.type.shape for a in arguments), key=len)
        return [self.broadcast(r, shape) for r in results]


__all__ = ["Node"]

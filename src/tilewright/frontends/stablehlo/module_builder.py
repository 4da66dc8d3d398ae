"""The module that a StableHLO program is translated to, while it is built: values, known integers, loops.

`Importer` extends `ModuleBuilder` with the walk over the program's operations. Importers of operations see
only this class (as ``node.importer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.symbolic import Dim, Expr, free_symbols, symbol
from ...ir.types import DType, boolean, i32, i64
from .reading import Program

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir

Content = np.ndarray[Any, Any]
"""Object arrays of Python integers, booleans and `Expr`: the elements of a tensor that are known as numbers
or symbolic expressions.
"""

FOLLOWED = (i32, i64, boolean)
"""Element types of tensors that are followed symbolically."""
MAX_FOLLOWED = 64
"""Maximum number of elements of a tensor that is followed symbolically; larger tensors are data."""


class UnsupportedBody(Exception):
    """A body holds an unsupported operation, which is on the list of problems already."""


class ModuleBuilder(ABC):
    """Builds the values of one module."""

    builder: Builder
    """The current insertion point."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.expansions: dict[Any, Any] = {}
        """MLIR modules with the decompositions of composed elementwise operators, by operator and type."""
        self.functions = {
            op.sym_name.value: op for op in program.module.body.operations if hasattr(op, "sym_name")
        }
        self.contents: dict[Value, Content] = {}
        """Tensors of integers that are known up to symbols."""
        self.values: dict[Any, Any] = {}
        """Values by MLIR value; None is the result of an unsupported operation."""
        self.inner: set[Expr] = set()
        """Symbols for the counters of loops: followed, but not usable as sizes."""
        self.loops: list[Any] = []
        self.scalar = False
        """Whether a body that is written for scalars is being imported on tensors."""

    @abstractmethod
    def block(self, block: mlir.Block, arguments: Sequence[Any], scalar: bool = False) -> list[Any]:
        """Import an MLIR block with `arguments` and return the values that it returns.

        None stands for the result of an unsupported operation. `scalar`: see `ModuleBuilder.scalar`.
        """

    @abstractmethod
    def check_elementwise(self, block: mlir.Block, calls: tuple[str, ...] = ()) -> None:
        """Check that a body and the functions it calls consist of elementwise operations. `calls` are the
        functions around it.

        Raises:
            Unsupported: it has another operation.
        """

    def content(self, value: Value) -> Content | None:
        """Return the elements as symbolic integers or booleans, if they are known and few, else None."""
        content = self.contents.get(value)
        op = value.defining_op
        if (
            content is None
            and isinstance(op, g.Constant)
            and value.type.dtype in FOLLOWED
            and op.value.size <= MAX_FOLLOWED
        ):
            content = self.contents[value] = op.value.array.astype(object)
        return content

    def known(self, content: Content, dtype: DType) -> Value:
        """Return symbolic integers as a value."""
        flat = list(content.reshape(-1))
        if not any(isinstance(e, Expr) for e in flat):
            value = self.emit(g.Constant(value=Constant(content.astype(dtype.numpy))))
        else:
            value = self.emit(g.Symbolic(values=tuple(flat), shape=content.shape))
            value = value if dtype is i64 else self.emit(g.Cast(value, dtype=dtype))
        self.contents[value] = content
        return value

    def is_inner(self, e: object) -> bool:
        """Whether a size depends on the counter of a loop."""
        return isinstance(e, Expr) and not self.inner.isdisjoint(free_symbols(e))

    def new_symbol(self, hint: str, upper: Dim | None = None) -> Expr:
        """Return a symbol with a new name for a value in ``[0, upper]``."""
        return symbol(f"{hint}_{len(self.inner)}_", 0, upper)

    def emit(self, op: Operation) -> Value:
        """Insert an operator with one result and return the result.

        An operator that folds to an existing value or a constant is not inserted.
        """
        folded = op.fold() if isinstance(op, g.GraphOp) else None
        if folded is None:
            return self.builder(op)
        op.drop_operands()
        return folded if isinstance(folded, Value) else self.builder(g.Constant(value=folded))

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operator and return its results."""
        return tuple(self.builder.insert(op).results)

    @contextmanager
    def building(self, builder: Builder) -> Iterator[Builder]:
        """Insert with another builder inside the ``with``."""
        saved, self.builder = self.builder, builder
        try:
            yield builder
        finally:
            self.builder = saved


__all__ = ["Content", "ModuleBuilder", "UnsupportedBody"]

"""The module that an ONNX model is translated to, while it is built: values, constants, sizes, example
inputs.

`Importer` extends `ModuleBuilder` with the walk over the model's nodes. Importers of operators see only this
class (as ``node.importer``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.interpreter import Frame
from ...ir.symbolic import Dim, Expr, free_symbols, prove_le, symbol
from ...ir.types import DType, TensorType, i64
from .elements import element_behind
from .model import OnnxFile
from .scope import Binding, Scope
from .values import Absent, Content, Tensor, TensorList, is_concrete

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

FOLD_LIMIT = 1024
"""Largest number of elements of a result that is computed at import when all operands are constants.

A larger limit keeps larger tables of sizes out of the graph and makes the import slower.
"""


class ModuleBuilder(ABC):
    """Builds the values of one module."""

    builder: Builder
    """The current insertion point."""
    function: Builder
    """The end of the function ``main``; also while a subgraph is built."""

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self.specialized: list[str] = []
        """Names of the inputs whose example values are compiled in."""
        self.examples: dict[Tensor, tuple[str, Any]] = {}
        """Inputs of the model with their names and example values."""
        self.inputs_without_example: dict[Tensor, str] = {}
        """The other inputs of the model with their names."""
        self.steps: list[Value | int | None] = []
        """Iteration numbers of the enclosing loops, outermost first (None: the loop has no counter).

        Random numbers are drawn from them, so that every iteration draws different ones.
        """
        self.seed: Value | None = None
        """The input (i64 scalar) that seeds a run; present when a node draws without a seed of its own."""
        self.draws = 0
        self.dimensions: set[str] = set()
        """Names of the symbols in the inputs' shapes."""
        self.computed: dict[Expr, Builder] = {}
        """Sizes that the run computes, with the builders of the blocks that compute them."""
        self.bound: dict[tuple[Value, int, int | None], Expr] = {}
        """Symbols for elements of tensors that are sizes, by tensor, flat position and lower bound."""

    @abstractmethod
    def subgraph(
        self,
        graph: onnx.GraphProto,
        scope: Scope,
        builder: Builder | None,
        inputs: Sequence[Binding],
        steps: Sequence[Value | int | None] = (),
    ) -> list[Binding]:
        """Import a subgraph (``GraphProto``) and return its outputs.

        Its nodes are built with `builder` (None: at the current place). `steps` has the iteration's number if
        the subgraph is the body of a loop.
        """

    @contextmanager
    def building(self, builder: Builder) -> Iterator[Builder]:
        """Insert with another builder inside the ``with``."""
        saved, self.builder = self.builder, builder
        try:
            yield builder
        finally:
            self.builder = saved

    def specialize(self, x: Tensor) -> None:
        """Compile for the example value of an input, and have the run check the input; do nothing without an
        example.
        """
        name, array = self.examples.pop(x, ("", None))
        if array is None:
            return
        if array.dtype != x.dtype.numpy or array.ndim != x.rank:
            raise CompileError(
                f"the example of input '{name}' is {array.dtype}{list(array.shape)}, expected {x.type}"
            )
        value = x.value if x.type.is_static else self.function(g.AssumeShape(x.value, shape=array.shape))
        same = self.function(g.Eq(value, self.function(g.Constant(value=Constant(array)))))
        if array.ndim:
            same = self.function(g.ReduceAll(same, axes=tuple(range(array.ndim)), keepdims=False))
        text = np.array2string(array, threshold=8, separator=", ")
        message = (
            f"input '{name}' must be {text}, for which the model was compiled: compile it again for another"
        )
        self.function.insert(g.Check(same, message=message))
        x.become(Constant(array), self._make)
        self.specialized.append(name)

    def data_tensor(self, array: npt.ArrayLike, name: str = "") -> Tensor:
        """Return a tensor of constant data; the data is kept by reference."""
        data = Constant(array, name)
        return Tensor(data.type, data=data, make=self._make)

    def content_tensor(self, dtype: DType, content: Content) -> Tensor:
        """Return a tensor whose elements are known as symbolic integers."""
        return Tensor(TensorType(dtype, content.shape), content=content, make=self._make)

    def _make(self, tensor: Tensor) -> Value:
        if tensor.data is not None:
            return self.function(g.Constant(value=tensor.data))
        content = tensor.content
        assert content is not None
        if is_concrete(content):
            data = Constant(content.astype(tensor.dtype.numpy))
            return self.function(g.Constant(value=data))
        # A size that a subgraph computes is known only inside that subgraph.
        inside = [
            b for s, b in self.computed.items() if any(s in free_symbols(d) for d in content.reshape(-1))
        ]
        builder = next((b for b in inside if b is not self.function), self.function)
        value = builder(g.Symbolic(values=tuple(content.reshape(-1)), shape=content.shape))
        return value if tensor.dtype is i64 else builder(g.Cast(value, dtype=tensor.dtype))

    def new_symbol(self, hint: str, lower: int | None = 0, upper: Dim | None = None) -> Expr:
        """Return a symbol with a new name for a size that the run computes."""
        name = f"{re.sub('[^a-z0-9]', '_', hint.lower())}_{len(self.computed)}"
        while name in self.dimensions:
            name += "_"
        size = symbol(name, lower, upper)
        self.computed[size] = self.builder
        return size

    def known_size(self, count: Value, lower: int | None = 0) -> Dim | None:
        """Return a scalar as a size if it is a constant or an element that has a symbol already, else None.

        Equal sizes thus get equal expressions.
        """
        source, place = element_behind(count)
        if isinstance(source.defining_op, g.Constant):
            return int(source.defining_op.value.array.reshape(-1)[place])
        if isinstance(source.defining_op, g.Symbolic) and prove_le(
            lower or 0, source.defining_op.values[place]
        ):
            size: Dim = source.defining_op.values[place]
            return size
        known = self.bound.get((source, place, lower))
        return known if known is not None and self.computed[known] in (self.builder, self.function) else None

    def computed_size(self, count: Value, hint: str, lower: int | None = 0) -> Dim:
        """Return a scalar of any integer type as a size of at least `lower`."""
        known = self.known_size(count, lower)
        if known is not None:
            return known
        size = self.bound[*element_behind(count), lower] = self.new_symbol(hint, lower)
        wide = count if count.type.dtype is i64 else self.builder(g.Cast(count, dtype=i64))
        self.builder.insert(
            g.BindSize(self.builder(g.Reshape(wide, shape=())) if wide.type.rank else wide, symbol=size)
        )
        return size

    def emit(self, op: Operation) -> Value:
        """Insert an operator with one result and return the result.

        A small result of constant operands is computed at once (see `FOLD_LIMIT`).
        """
        folded = self._folded(op)
        return self.builder(op if folded is None else folded)

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operator and return its results."""
        return tuple(self.builder.insert(op).results)

    def _folded(self, op: Operation) -> g.Constant | None:
        """Return an operator's result as a constant if it and all operands are small constants.

        Quantized weights stay integers, which products of integers need.
        """
        if len(op.results) != 1 or not op.operands or isinstance(op, (g.Constant, g.Dequantize)):
            return None
        type = op.results[0].type
        if not type.is_static or type.max_size > FOLD_LIMIT:
            return None
        constants = {
            v: v.defining_op.value.array for v in op.operands if isinstance(v.defining_op, g.Constant)
        }
        if any(v not in constants for v in op.operands) or any(
            a.size > FOLD_LIMIT for a in constants.values()
        ):
            return None
        frame = Frame(op, {}, constants)
        frame.run(op)
        op.drop_operands()
        return g.Constant(value=Constant(frame.values[op.results[0]]))

    def tensor_of(self, result: Value | Tensor | TensorList | Absent) -> Tensor | TensorList | Absent:
        """Return an importer's result (a `Tensor`, a sequence, an absent optional, or an SSA value) as a
        binding.
        """
        if isinstance(result, (Tensor, TensorList, Absent)):
            return result
        op = result.defining_op
        return Tensor(result.type, value=result, data=op.value if isinstance(op, g.Constant) else None)


__all__ = ["ModuleBuilder"]

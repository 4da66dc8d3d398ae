"""Matrices whose elements the device does not tell to threads (`ir.matrix_atom.MatrixAtom.opaque`) as text.

A block program divides such a matrix among threads by layouts of our own. Its nests that touch the elements
become calls for whole matrices: see `analysis.matrices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ...analysis.index_maps import flatten_index
from ...analysis.matrices import Held, held_in, matrix_move, moves_matrices
from ...dialects import loop, scalar, simt
from ...errors import CompileError
from ...ir.core import Value
from ...ir.matrix_atom import MatrixAtom
from ...ir.symbolic import Dim
from ...ir.types import BufferType
from .index_text import Variable
from .memory_text import MemoryText


class MatrixText(MemoryText):
    """Prints what concerns matrices of opaque atoms."""

    def opaque_atoms(self) -> set[MatrixAtom]:
        """The opaque atoms of the kernel."""
        ops = self.kernel.walk()
        return {op.description for op in ops if isinstance(op, simt.Mma) and op.description.opaque}

    def declare_matrices(self, buffer: Value) -> bool:
        if (held := held_in(buffer)) is None:
            return False
        count = BufferType(buffer.type.dtype, held.between(buffer.type.shape)).size
        name = self.names[buffer] = self.fresh("matrix")
        self.emit(f"{self.own(_type_of(held))} {name}[{count}];")
        return True

    def multiply_matrices(self, op: simt.Mma) -> None:
        """Multiply whole matrices."""
        places = []
        for fragment in op.fragments:
            held = held_in(fragment.buffer)
            assert held is not None
            places.append(self._matrix(fragment.buffer, held.between(fragment.indices)))
        d, a, b = places
        self.emit(f"{d} = {self.own('tw_matrix_multiply_add')}({a}, {b}, {d});")

    def move_matrices(self, nest: loop.For) -> bool:
        """Print a thread nest that touches elements of opaque matrices; return whether it is one.

        Raises:
            CompileError: It does something that is not done with whole matrices.
        """
        if not moves_matrices(nest):
            return False
        move = matrix_move(nest, self.threads)
        if move is None:
            raise CompileError(f"{self.place} computes with single elements of matrices in registers")
        with self._loops(move.loops):
            matrix = self._matrix(move.buffer, move.matrix)
            if move.memory is None:
                assert move.value is not None and isinstance(move.value.defining_op, scalar.Constant)
                value = self.scalars.expression(move.value.defining_op, [])
                held = held_in(move.buffer)
                assert held is not None
                self.emit(f"{matrix} = {self.own(_type_of(held))}({value});")
            else:
                first = self.index.address(move.first, move.memory.type.size, {})
                verb, lines = "load" if move.loads else "store", "rows" if move.in_rows else "columns"
                function = self.own(f"tw_matrix_{verb}_{lines}")
                self.emit(f"{function}({matrix}, {self.names[move.memory]}, {first}, {move.distance});")
        return True

    def _matrix(self, buffer: Value, indices: Sequence[Dim]) -> str:
        held = held_in(buffer)
        assert held is not None
        shape = held.between(buffer.type.shape)
        size = BufferType(buffer.type.dtype, shape).size
        return f"{self.names[buffer]}[{self.index.address(flatten_index(indices, shape), size, {})}]"

    @contextmanager
    def _loops(self, loops: Sequence[loop.For]) -> Iterator[None]:
        with ExitStack() as stack:
            for f in loops:
                name = self.fresh("k")
                self.index.variables[f.iv.name] = Variable(name, 32)
                start = self.dialect.variable.format(type=self.dialect.types["i32"], name=name, value="0")
                self.emit(self.dialect.unroll)
                stack.enter_context(self.braces(f"for ({start} {name} < {f.extent}; {name}++)"))
            yield


def _type_of(held: Held) -> str:
    """The name of the type of a matrix."""
    return f"tw_{held.atom.name}_{held.operand}"


__all__ = ["MatrixText"]

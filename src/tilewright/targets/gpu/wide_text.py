"""Buffers whose elements a language can only read and write together as arrays of vectors (`Dialect.vector`):
every access to them is one of a loop over vector lanes, and begins at a multiple of a vector.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...dialects import loop, scalar
from ...ir import notes
from ...ir.core import Operation, Value
from ...ir.symbolic import Dim, prove_divisible
from .index_text import Variable
from .packed_text import PackedText
from .vector_access import VectorAccess, vector_accesses
from .writer import is_enclosed
from .written_out import is_written_out

LANES = 4
"""Elements of a vector."""
_PARTS = "xyzw"


class WideText(PackedText):
    """Prints accesses to arrays of vectors."""

    def may_share(self, a: Value, b: Value) -> bool:
        """Whether two buffers may be the same memory."""
        aliased = self.aliased()
        return a is b or (self.buffers.get(a) in aliased and self.buffers.get(b) in aliased)

    def find_wide(self, aligned: Collection[int], bindings: Sequence[int]) -> None:
        """Choose the buffers that are arrays of vectors.

        Args:
            aligned: The numbers of the kernel's buffers that begin at multiples of 16 bytes.
            bindings: The number of each buffer's parameter; those of one parameter have one type.
        """
        if not self.dialect.vector:
            return
        vectors = {op for op in self.kernel.walk() if isinstance(op, loop.For) for op in self._vectors_of(op)}
        shared = [op.result for op in self.kernel.walk() if isinstance(op, loop.Alloc) and _is_shared(op)]
        given = [buffer for buffer, number in self.buffers.items() if number in aligned]
        self.wide = {
            buffer
            for buffer in (*given, *shared)
            if self._has_vectors(buffer)
            and all(use in vectors for use in buffer.users)
            and any(True for _ in buffer.users)
        }
        kinds = list(zip(self.buffers, bindings, strict=True))
        narrow = {binding for buffer, binding in kinds if buffer not in self.wide}
        self.wide -= {buffer for buffer, binding in kinds if binding in narrow}

    def _has_vectors(self, buffer: Value) -> bool:
        """Whether the language has vectors of a buffer's elements, which are as large as in memory."""
        dtype = buffer.type.dtype
        storage = self.dialect.storage.get(dtype)
        is_half = storage is not None and storage.type == "f16"
        return is_half or (dtype.itemsize == LANES and dtype not in self.dialect.packed)

    def _vectors_of(self, f: loop.For) -> list[Operation]:
        """The accesses of a loop over lanes that are whole vectors."""
        if not is_written_out(f) or not isinstance(f.extent, int) or f.extent % LANES:
            return []
        found: list[VectorAccess] = [a for some in vector_accesses(f, self.may_share) for a in some]
        return [a.op for a in found if prove_divisible(a.first, LANES) and self._has_known_other(a.op)]

    def _has_known_other(self, op: loop.Load | loop.Store) -> bool:
        """Whether an access has no guard, or gives a constant where the guard does not hold."""
        if not op.guard:
            return True
        other = op.otherwise.defining_op if isinstance(op, loop.Load) and op.otherwise else None
        return isinstance(other, scalar.Constant)

    def wide_element(self, buffer: Value, index: Dim, dynamic: dict[str, Variable]) -> str:
        """The vector that begins at a flat index."""
        if buffer in self.buffers:
            index = index + self.offset(buffer)
        text = self.index.address(index // LANES, buffer.type.size, dynamic)
        return f"{self.names[buffer]}[{text[1:-1] if is_enclosed(text) else text}]"

    def lane(self, access: VectorAccess, k: int) -> str:
        """The element of an access in an iteration of its loop, which is written out."""
        name = self.arrays[access.op]
        if isinstance(access.op, loop.Load) and access.op.buffer in self.wide:
            return f"{name}_{k // LANES}.{_PARTS[k % LANES]}"
        return f"{name}[{k}]"

    def copy_wide(self, access: VectorAccess, count: int, dynamic: dict[str, Variable]) -> None:
        """Load or store the elements of an access."""
        op, name, dtype = access.op, self.arrays[access.op], access.op.buffer.type.dtype
        kind = self.dialect.vector.format(type=self.storage(dtype, "").type)
        parts = range(count // LANES)
        places = [self.wide_element(op.buffer, access.first + LANES * k, dynamic) for k in parts]
        if isinstance(op, loop.Store):
            for k, place in enumerate(places):
                values = ", ".join(f"{name}[{LANES * k + j}]" for j in range(LANES))
                self.emit(f"{place} = {kind}({values});")
            return
        condition = self.index.condition(op.guard, dynamic) if op.guard else "true"
        if condition == "true":
            for k, place in enumerate(places):
                self.emit(self.dialect.const.format(type=kind, name=f"{name}_{k}", value=place))
            return
        assert op.otherwise is not None and op.otherwise.defining_op is not None
        other = self.scalars.expression(op.otherwise.defining_op, [])
        value = f"{kind}({self.storage(dtype, '').store.format(other)})"
        for k in parts:
            self.variable(kind, f"{name}_{k}", value)
        with self.braces(f"if ({condition})"):
            for k, place in enumerate(places):
                self.emit(f"{name}_{k} = {place};")


def _is_shared(op: loop.Alloc) -> bool:
    size = op.buffer.size
    return (
        op.buffer.space == "shared"
        and isinstance(size, int)
        and size % LANES == 0
        and (notes.SWIZZLE.get(op) is None)
    )


__all__ = ["LANES", "WideText"]

"""Accesses to memory as text: buffers, elements, and copies of several elements at once."""

from __future__ import annotations

from collections.abc import Sequence

from ...analysis.index_maps import flatten_index
from ...dialects import loop, scalar, simt
from ...dialects.scalar import COMBINER_OP
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Value
from ...ir.symbolic import Dim, bounds, prove_divisible
from ...ir.types import BufferType, DType, boolean
from .index_text import Variable
from .matrix_access import MatrixLoad
from .packed_text import Part
from .vector_access import VectorAccess, vector_accesses, vector_bytes
from .wide_text import LANES, WideText
from .writer import identifier, is_enclosed

MOST_PRIVATE = 4096
"""The most elements of an array that is private to a thread."""


class MemoryText(WideText):
    """Prints allocations, loads, stores and copies."""

    def alloc(self, op: loop.Alloc) -> None:
        buffer: BufferType = op.buffer
        storage = self.storage(buffer.dtype, f"a {buffer.space} buffer of {self.place}")
        if op.result in self.wide:
            kind = self.dialect.vector.format(type=storage.type)
            size = buffer.size
            assert isinstance(size, int)
            self.names[op.result] = self.share(kind, size // LANES, LANES * buffer.dtype.itemsize)
            return
        if buffer.space == "shared":
            self.names[op.result] = self.share(storage.type, buffer.size, buffer.dtype.itemsize)
            if (width := notes.SWIZZLE.get(op)) is not None:
                self.swizzles[op.result] = swizzle_of(width, buffer.dtype.itemsize)
            return
        if self.declare_matrices(op.result):
            return
        size = buffer.size
        if buffer.space == "register":
            self.private.add(op.result)
            size = BufferType(buffer.dtype, buffer.shape[1:]).size
        most = bounds(size)[1]
        if most is None or most > MOST_PRIVATE:
            raise CompileError(f"{self.dialect.name} cannot hold {buffer} in a thread ({self.place})")
        name = self.names[op.result] = self.fresh("local" if buffer.space != "register" else "part")
        in_words = any(isinstance(user, simt.Mma) for user in op.result.users)
        form = self.dialect.vectors[2] if in_words and self.dialect.vectors[2] else self.dialect.array
        array = form.format(type=storage.type, name=name, size=max(most, 1))
        if op.result in self.combined and self.dialect.zeros:
            array = f"{array.removesuffix(';')}{self.dialect.zeros};"
        self.own_arrays[name] = array, storage.type
        self.emit(array)

    def declare_matrices(self, buffer: Value) -> bool:
        """Declare a buffer that consists of matrices; return whether it is one."""
        return False

    def share(self, kind: str, size: Dim, itemsize: int) -> str:
        """The name of a new shared buffer."""
        if not isinstance(size, int):
            raise CompileError(f"{self.place} has shared memory of unknown size {size}")
        name = f"shared{len(self.shared)}"
        if self.dialect.shared_at_top == "module":
            name = f"{identifier(self.kernel.sym_name)}_{name}"
        itemsize = max(itemsize, self.gpu.shared_element)
        # Every buffer begins at a multiple of 16 bytes.
        self.shared.append((name, kind, max(size, 1), -(-max(size, 1) * itemsize // 16) * 16))
        return name

    def element(self, buffer: Value, index: str) -> str:
        """The element of a buffer at a flat index, in memory's type."""
        number = self.buffers.get(buffer)
        if number is not None and self.dialect.offsets and not self.dialect.pointer:
            index = f"o{number} + {self.dialect.bound.format(value=index)}"
        else:
            index = self.dialect.bound.format(value=index[1:-1] if is_enclosed(index) else index)
        index = self.exchanged(buffer, index)
        return f"{self.names[buffer]}[{index}]"

    def exchanged(self, buffer: Value, index: str) -> str:
        """The place of the element at a flat index, in a buffer whose parts are exchanged."""
        numbers = self.swizzles.get(buffer)
        return index if numbers is None else f"{self.own('tw_swizzle')}({index}, {numbers})"

    def access(self, op: loop.Load | loop.Store | loop.Accumulate, dynamic: dict[str, Variable]) -> str:
        indices, shape = op.indices, op.buffer.type.shape
        if op.buffer in self.private:
            indices, shape = indices[1:], shape[1:]
        buffer = BufferType(op.buffer.type.dtype, shape)
        return self.indexed(op.buffer, flatten_index(indices, shape), buffer.size, dynamic)

    def indexed(self, buffer: Value, index: Dim, size: Dim, dynamic: dict[str, Variable]) -> str:
        """The element of a buffer of `size` elements at a flat index, in memory's type."""
        if not self.dialect.explicit or buffer not in self.buffers:
            return self.element(buffer, self.index.address(index, size, dynamic))
        text = self.index.address(index + self.offset(buffer), size, dynamic)
        return f"{self.names[buffer]}[{text[1:-1] if is_enclosed(text) else text}]"

    def dynamic(self, op: loop.Load | loop.Store | loop.Accumulate) -> dict[str, Variable]:
        bits = {"i64": 64, "u64": 64}
        return {
            f"v{k}": Variable(self.names[v], bits.get(self.scalars.register(v.type), 32))
            for k, v in enumerate(op.dynamic)
        }

    def loaded(self, dtype: DType, element: str | Part) -> str:
        """The register value of an element."""
        if isinstance(element, Part):
            return self.unpacked(dtype, element.bits())
        value = self.used(self.storage(dtype, "").load.format(element))
        return self.scalars.wrap(value, dtype) if dtype.is_sub_byte else value

    def stored(self, dtype: DType, value: str) -> str:
        """The element that holds a register value."""
        return self.used(self.storage(dtype, "").store.format(value))

    def touched(
        self, op: loop.Load | loop.Store | loop.Accumulate, dynamic: dict[str, Variable]
    ) -> str | Part:
        """The element that an access touches; emits its place in a word, if it is a part of one."""
        if op in self.staged:
            return self.staged[op]
        if self.is_packed(op.buffer):
            return self.part(op.buffer, *self.at(self.access(op, dynamic)))
        return self.access(op, dynamic)

    def load(self, op: loop.Load) -> None:
        dynamic = self.dynamic(op)
        dtype = op.result.type
        element = self.touched(op, dynamic)
        is_moved = self.is_moved(op)
        kind, value = self.type(dtype), self.loaded(dtype, element)
        if is_moved:
            assert isinstance(element, str)
            self.moved.add(op.result)
            kind, value = self.storage(dtype, "").type, element
        if not op.guard or op in self.staged:
            name = self.names[op.result] = self.fresh()
            self.emit(self.dialect.const.format(type=kind, name=name, value=value))
            return
        assert op.otherwise is not None
        name = self.names[op.result] = self.fresh()
        zero = self.dialect.cast.format(type=kind, value="0") if self.dialect.arrays else "0"
        self.variable(kind, name, zero if is_moved else self.names[op.otherwise])
        self.emit(f"if ({self.index.condition(op.guard, dynamic)}) {{ {name} = {value}; }}")

    def is_moved(self, op: loop.Load) -> bool:
        """Whether a load only copies elements of a type that registers do not have."""
        dtype = op.result.type
        if self.storage(dtype, "").load == "{}" or dtype is boolean:
            return False
        if op.guard:
            other = None if op.otherwise is None else op.otherwise.defining_op
            if not isinstance(other, scalar.Constant) or other.value != 0:
                return False
        return all(
            isinstance(user, loop.Store) and user.value is op.result and user.buffer.type.dtype is dtype
            for user in op.result.users
        )

    def store(self, op: loop.Store | loop.Accumulate) -> None:
        dynamic = self.dynamic(op)
        place = self.touched(op, dynamic)
        dtype = op.value.type
        value = self.names[op.value]
        if isinstance(place, Part):
            guard = f"if ({self.index.condition(op.guard, dynamic)})" if op.guard else ""
            with self.braces(guard):
                if isinstance(op, loop.Accumulate):
                    # The old value is read before a part of the word is cleared.
                    value = self.accumulated(op, self.let(dtype, self.loaded(dtype, place)), value)
                self.emit(place.replaced(self.dialect.word_store, self.packed(dtype, value)))
            return
        if isinstance(op, loop.Accumulate):
            value = self.accumulated(op, self.loaded(dtype, place), value)
        if self.is_packed(op.buffer):
            statement = f"{place} = {self.kept(dtype, value)};"
        else:
            statement = f"{place} = {value if op.value in self.moved else self.stored(dtype, value)};"
        if op.guard:
            statement = f"if ({self.index.condition(op.guard, dynamic)}) {{ {statement} }}"
        self.emit(statement)

    def accumulated(self, op: loop.Accumulate, old: str, value: str) -> str:
        """The combination of the old element and a value."""
        quiet = notes.IGNORE_NAN.get(op, False)
        return self.scalars.binary(COMBINER_OP[op.combiner], op.value.type, old, value, quiet)

    def staged_accesses(
        self, f: loop.For, only_found: bool = False
    ) -> tuple[list[VectorAccess], list[VectorAccess]]:
        """The loads and stores of a loop that are done for all lanes at once; declares their arrays, unless
        they are `only_found`.
        """

        def has_vectors(access: VectorAccess) -> bool:
            if access.op.buffer in self.wide:
                return True
            if not self.dialect.vectors[0]:
                return self.fills_words(access.op.buffer, f.extent) and not access.op.guard
            buffer, size = access.op.buffer, self.chunk(access.op.buffer, f.extent)
            if access.op.guard and self.otherwise(access.op) is None:
                return False
            if buffer.type.space == "shared":
                return size > 0 and bool(self.dialect.shared_vector) and self.is_aligned(access, size)
            return size > 0 and buffer in self.buffers

        if not self.dialect.vectors[0] and not self.dialect.packed:
            return [], []
        loads, stores = ([a for a in found if has_vectors(a)] for found in vector_accesses(f, self.may_share))
        if only_found:
            return loads, stores
        for access in (*loads, *stores):
            kind = self.storage(access.op.buffer.type.dtype, "").type
            name = self.arrays[access.op] = self.fresh("lanes")
            if access.op.buffer in self.wide and isinstance(access.op, loop.Load):
                continue
            form = self.dialect.vectors[2] or self.dialect.array
            array = form.format(type=kind, name=name, size=f.extent)
            self.own_arrays[name] = array, kind
            self.emit(array)
        return loads, stores

    def chunk(self, buffer: Value, count: Dim) -> int:
        """The bytes of the largest vectors that `count` elements of a buffer make; 0 if there are none."""
        return vector_bytes(self.gpu, buffer.type.dtype.itemsize, count)

    def asynchronous(self, f: loop.For) -> tuple[VectorAccess, VectorAccess] | None:
        """The load and the store of a loop over vector lanes that only copies elements, in vectors, and need
        not be done at once; None for another loop.
        """
        stored = [op for op in f.body.ops if isinstance(op, loop.Store) and notes.ASYNCHRONOUS.get(op)]
        if f.kind != loop.LoopKind.VECTORIZE or len(stored) != 1:
            return None
        loads, stores = self.staged_accesses(f, only_found=True)
        if len(loads) != 1 or len(stores) != 1 or any(isinstance(op, loop.For) for op in f.body.ops):
            return None
        (load,), (store,) = loads, stores
        source, target = load.op.buffer, store.op.buffer
        other = (
            load.op.otherwise.defining_op if isinstance(load.op, loop.Load) and load.op.otherwise else None
        )
        is_copy = (
            isinstance(store.op, loop.Store)
            and store.op.value in load.op.results
            and source in self.buffers
            and target.type.space == "shared"
            and source.type.dtype is target.type.dtype
            and (not load.op.guard or (isinstance(other, scalar.Constant) and other.value == 0))
        )
        return (load, store) if is_copy else None

    def copy_asynchronously(self, load: VectorAccess, store: VectorAccess, count: Dim) -> None:
        """Copy elements from a buffer to shared memory without waiting, if the address allows it; zeros in
        place of those behind a guard.
        """
        source = load.op.buffer
        size = self.chunk(source, count)
        assert isinstance(count, int)
        element = self.storage(source.type.dtype, "").type
        const = "" if source in self.changed else self.dialect.readonly
        origin, place = self.fresh("from"), self.fresh("to")
        for name, form, access in (
            (origin, self.dialect.vectors[0].format(const=const, type=element), load),
            (place, self.dialect.shared_vector.format(const="", type=element), store),
        ):
            address = self.index.address(access.first, access.op.buffer.type.size, self.dynamic(access.op))
            address = self.exchanged(access.op.buffer, address)
            self.emit(f"{form} {name} = {self.names[access.op.buffer]} + {address};")
        taken = str(size)
        if load.op.guard:
            inside = self.fresh("inside")
            condition = self.index.condition(load.op.guard, self.dynamic(load.op))
            self.emit(
                self.dialect.const.format(type=self.dialect.types["bool"], name=inside, value=condition)
            )
            taken = f"({inside} ? {size} : 0)"
        step = size // source.type.dtype.itemsize
        tested = self.names[source] if self.is_aligned(load, size) else origin
        number = self.dialect.address.format(pointer=tested)
        with self.braces(f"if (({number} & {size - 1}) == 0)"):
            for k in range(0, count, step):
                self.emit(
                    f"{self.own(f'tw_copy_async_{size}')}({place} + {k}, (void*)({origin} + {k}), {taken});"
                )
        with self.braces("else"):
            for k in range(count):
                value = f"{origin}[{k}]"
                self.emit(
                    f"{place}[{k}] = {f'{inside} ? {value} : ({element})0' if load.op.guard else value};"
                )

    def otherwise(self, op: loop.Load | loop.Store) -> str | None:
        """The element that a guarded load has where its guard does not hold, if it is known here."""
        other = op.otherwise.defining_op if isinstance(op, loop.Load) and op.otherwise is not None else None
        if not isinstance(other, scalar.Constant) or not self.dialect.inline_literals:
            return None
        if isinstance(op, loop.Load) and self.is_moved(op):
            return "0"
        return self.stored(other.result.type, self.scalars.expression(other, []))

    def is_aligned(self, access: VectorAccess, size: int) -> bool:
        """Whether an access begins a multiple of `size` bytes behind the beginning of its buffer."""
        itemsize = access.op.buffer.type.dtype.itemsize
        return prove_divisible(access.first * itemsize, size)

    def copy(self, access: VectorAccess, count: Dim) -> None:
        """Copy elements between a buffer and the array of an access, in vectors if the address allows it."""
        op, name = access.op, self.arrays[access.op]
        assert isinstance(count, int)
        reads = isinstance(op, loop.Load)
        if op.buffer in self.wide:
            self.copy_wide(access, count, self.dynamic(op))
            return
        if self.is_packed(op.buffer):
            element = self.indexed(op.buffer, access.first, op.buffer.type.size, self.dynamic(op))
            copy = self.load_words if reads else self.store_words
            copy(op.buffer, *self.at(element), name, count)
            return
        size = self.chunk(op.buffer, count)
        vector = f"tw_{size}"
        self.uses.add(vector)
        dynamic = self.dynamic(op)
        address = self.index.address(access.first, op.buffer.type.size, dynamic)
        is_shared = op.buffer.type.space == "shared"
        const = "" if is_shared or op.buffer in self.changed else self.dialect.readonly
        far_type, near_type, _ = self.dialect.vectors
        far_type = self.dialect.shared_vector if is_shared else far_type
        element = self.storage(op.buffer.type.dtype, "").type
        place = self.fresh("place")
        start = f"{self.names[op.buffer]} + {address}"
        far = f"(({far_type.format(const=const, type=vector)}){place})"
        near = f"(({near_type.format(type=vector)}){name})"

        def lines(here: str, there: str, number: int) -> None:
            for k in range(number):
                pair = (f"{here}[{k}]", f"{there}[{k}]")
                self.emit("{} = {};".format(*(pair if reads else pair[::-1])))

        def transfer() -> None:
            if op.buffer in self.swizzles:
                # Parts of 16 bytes that follow each other lie at places of their own.
                for k in range(count * op.buffer.type.dtype.itemsize // size):
                    each = size // op.buffer.type.dtype.itemsize
                    part = self.exchanged(op.buffer, f"({address} + {k * each})")
                    pointer = far_type.format(const=const, type=vector)
                    pair = (f"{near}[{k}]", f"(({pointer})({self.names[op.buffer]} + {part}))[0]")
                    self.emit("{} = {};".format(*(pair if reads else pair[::-1])))
                return
            self.emit(f"{far_type.format(const=const, type=element)} {place} = {start};")
            if is_shared:
                lines(near, far, count * op.buffer.type.dtype.itemsize // size)
                return
            # Buffers may begin at any element, and rows have any length, so the address is tested.
            tested = self.names[op.buffer] if self.is_aligned(access, size) else place
            number = self.dialect.address.format(pointer=tested)
            with self.braces(f"if (({number} & {size - 1}) == 0)"):
                lines(near, far, count * op.buffer.type.dtype.itemsize // size)
            with self.braces("else"):
                lines(name, place, count)

        if not op.guard:
            transfer()
            return
        other = self.otherwise(op)
        assert other is not None
        with self.braces(f"if ({self.index.condition(op.guard, dynamic)})"):
            transfer()
        with self.braces("else"):
            for k in range(count):
                self.emit(f"{name}[{k}] = {other};")

    def load_matrices(self, loads: Sequence[MatrixLoad]) -> None:
        """Call the functions that load parts of matrix instructions' factors, for all lanes of a warp."""
        for load in loads:
            function = self.own(f"tw_load_matrix_x{load.count}{'_trans' if load.transposed else ''}")
            row = self.index.address(load.row, load.source.type.size, {})
            words = f"({self.dialect.matrix_word})(&{self.element(load.target, str(load.first))})"
            self.emit(f"{function}({words}, &{self.element(load.source, row)});")


def swizzle_of(width: int, itemsize: int) -> str:
    """The arguments of ``tw_swizzle`` for lines of `width` bytes: how far an index is shifted to get the
    number of the line, a mask of the number, and how far the part of 16 bytes is from the lowest bit.
    """
    shift = itemsize.bit_length() - 1
    return f"{7 - shift}, {width // 16 - 1}, {4 - shift}"


__all__ = ["MemoryText"]

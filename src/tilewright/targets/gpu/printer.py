"""Block programs (see `dialects.simt`) as text in a language of the C family.

A thread of a block runs the text. Loops and conditions outside of thread nests are the same for all threads;
a thread nest becomes a condition on the thread's number, where it has fewer iterations than the block
threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...analysis.index_maps import flatten_index
from ...dialects import loop, scalar, simt
from ...dialects.scalar import COMBINER_OP
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Block, Operation, Value
from ...ir.symbolic import Dim, bounds, ceildiv, prove_divisible, smin
from ...ir.target_info import Gpu, TargetInfo
from ...ir.types import BufferType, DType, boolean
from .dialect import DeviceKernel, Dialect, Register, Storage
from .index_text import IndexText, Variable, fits
from .matrix_access import MatrixLoad, matrix_loads
from .prelude import callee, definitions
from .scalars import ScalarText
from .vector_access import VectorAccess, vector_accesses

MOST_PRIVATE = 4096
"""The most elements of an array that is private to a thread."""
ROW = 32768
"""Blocks in the first dimension of a grid whose first dimension has too low a limit."""

_AXES = (loop.LoopKind.BLOCK_X, loop.LoopKind.BLOCK_Y, loop.LoopKind.BLOCK_Z)


def print_kernel(kernel: loop.Kernel, dialect: Dialect, info: TargetInfo) -> DeviceKernel:
    """Print a finalized kernel, a block program, in a language.

    Parameters of the entry point, in order: the buffers, one number of 64 bits for each of the kernel's
    `dims`, and, where the language cannot add to an address on the host's side (`Dialect.offsets`), the
    number of elements before each buffer's first one. With `Dialect.params`, the numbers are elements of one
    more buffer.

    Raises:
        CompileError: The language lacks a type, a function or a statement; the message names it and the
        place.
    """
    return _Printer(kernel, dialect, info).run()


def module_text(kernels: Sequence[DeviceKernel], dialect: Dialect) -> str:
    """The text of a translation unit: kernels, and the functions of the prelude that they use.

    Raises:
        CompileError: The language lacks a function; or it takes one kernel in a text, and there are several.
    """
    if dialect.arrays and len(kernels) > 1:
        raise CompileError(f"a text in {dialect.name} has one kernel; it was given {len(kernels)}")
    uses = frozenset().union(*(k.uses for k in kernels))
    own = definitions(dialect, uses)
    features = [line for name, line in dialect.features.items() if name in uses]
    head = [line for line in (dialect.comment, *features, dialect.head) if line]
    return "\n".join([*head, *own, *(k.text for k in kernels)])


def threads_of(kernel: loop.Kernel) -> int:
    """Threads of a block: the largest extent of a thread nest."""
    extents = [f.extent for f in _loops(kernel.walk(), loop.LoopKind.THREAD_X)]
    return max((e for e in extents if isinstance(e, int)), default=1)


def _loops(ops: Iterable[Operation], *kinds: loop.LoopKind) -> list[loop.For]:
    """The loops of some kinds among operations."""
    return [op for op in ops if isinstance(op, loop.For) and op.kind in kinds]


def identifier(text: str) -> str:
    """`text` with an underscore for each character that a name must not have."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


class _Printer:
    thread = "thread_x"
    """The variable that holds the number of the thread."""

    def __init__(self, kernel: loop.Kernel, dialect: Dialect, info: TargetInfo) -> None:
        self.kernel, self.dialect, self.info = kernel, dialect, info
        self.gpu = info.gpu or Gpu()
        self.place = f"kernel '{kernel.sym_name}'"
        self.uses: set[str] = set()
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.names: dict[Value, str] = {}
        self.buffers: dict[Value, int] = {arg: k for k, arg in enumerate(kernel.body.args)}
        self.shared: list[tuple[str, str, int, int]] = []
        """Name, type, elements and bytes of the shared buffers."""
        self.changed = {op.buffer for op in kernel.walk() if isinstance(op, (loop.Store, loop.Accumulate))}
        self.combined = {op.buffer for op in kernel.walk() if isinstance(op, simt.AllReduce)}
        """Buffers that all threads read, also those that wrote nothing."""
        self.private: set[Value] = set()
        """Buffers in registers, whose first index is not printed."""
        self.threads = threads_of(kernel)
        self.index = IndexText(dialect, self.size, self.call)
        self.scalars = ScalarText(dialect, self.call, self.place)
        self.sizes: dict[str, int] = {}
        """Number of each of the kernel's dims that is used."""
        self.in_loop = False
        self.arrays: dict[Operation, str] = {}
        """Arrays of a thread through which accesses of a loop over vector lanes go."""
        self.moved: set[Value] = set()
        """Loaded values that are only stored again: their names are elements in memory's type."""
        self.staged: dict[Operation, str] = {}
        """Elements of these arrays in the current iteration."""

    def run(self) -> DeviceKernel:
        args = self.kernel.body.args
        written = tuple(arg in self.changed for arg in args)
        for arg, number in self.buffers.items():
            self.storage(arg.type.dtype, f"buffer {number} of {self.place}")
            self.names[arg] = f"b{number}"
        grid = self.grid()
        if _loops(self.kernel.walk(), loop.LoopKind.THREAD_X):
            self.define("thread number", self.dialect.thread, self.thread, 32)
        self.block(self.block_body())
        shared_bytes = sum(size for *_, size in self.shared)
        limit = self.dialect.static_shared
        dynamic = shared_bytes if limit is not None and shared_bytes > limit else 0
        entry = self.dialect.entry.format(name=identifier(self.kernel.sym_name))
        return DeviceKernel(
            name=self.kernel.sym_name,
            entry=entry,
            text=self.frame(entry, written, bool(dynamic)),
            grid=grid,
            threads=self.threads,
            shared_bytes=shared_bytes,
            dynamic_bytes=dynamic,
            buffers=len(args),
            written=written,
            dims=tuple(s.name for s in self.kernel.dims),
            uses=frozenset(self.uses),
        )

    # -- The kernel around its body --------------------------------------------------------------------------

    def block_body(self) -> Block:
        """The contents of the block loops, whose variables are bound."""
        block = self.kernel.body
        while inner := _loops(block.ops, *_AXES):
            if len(inner) > 1 or any(not op.terminator for op in block.ops if op is not inner[0]):
                raise CompileError(f"{self.place} has statements beside its loops over blocks")
            block = inner[0].body
        return block

    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Bind the block loops' variables; returns the grid.

        Dimensions that may exceed the limits of a launch are folded into the first one, and that one into
        rows.
        """
        loops = {f.kind: f for f in _loops(self.kernel.walk(), *_AXES)}
        extents: list[Dim] = [loops[axis].extent if axis in loops else 1 for axis in _AXES]
        limits, bits = self.gpu.grid_limits, 32
        within = [self._at_most(e, limit) for e, limit in zip(extents, limits, strict=True)]
        if all(within[1:]) and (within[0] or limits[0] >= 2**31 - 1):
            for axis, text in zip(_AXES, self.dialect.block, strict=True):
                if axis in loops:
                    self.define(loops[axis].iv.name, text, axis.replace(".", "_"), bits)
            return (extents[0], extents[1], extents[2])
        total = extents[0] * extents[1] * extents[2]
        number = self.dialect.block[0]
        grid: tuple[Dim, Dim, Dim] = (total, 1, 1)
        if limits[0] < 2**31 - 1 and not self._at_most(total, limits[0]):
            number = f"({number} + {self.dialect.block[1]} * {ROW})"
            grid = (smin(total, ROW), ceildiv(total, ROW), 1)
            self.define("block number", number, "block", bits)
            self.emit(f"if (block >= {self.index.text(total)[0]}) {{ return; }}")
        else:
            self.define("block number", number, "block", bits)
        rest = "block"
        for axis, extent in zip(_AXES, extents, strict=True):
            if axis not in loops:
                continue
            size, width = self.index.text(extent)
            size = size if width == 32 else self.dialect.cast_to("i32", size)
            last = axis == _AXES[2] or all(extents[k] == 1 for k in range(_AXES.index(axis) + 1, 3))
            value = rest if last else f"{rest} % {size}"
            self.define(loops[axis].iv.name, value, axis.replace(".", "_"), bits)
            rest = f"({rest} / {size})"
        return grid

    def _at_most(self, e: Dim, limit: int) -> bool:
        high = bounds(e)[1]
        return high is not None and high <= limit

    def define(self, symbol: str, value: str, name: str, bits: int) -> None:
        """Define the variable `name` of a symbol."""
        register: Register = "i64" if bits == 64 else "i32"
        self.emit(self.dialect.const.format(type=self.dialect.types[register], name=name, value=value))
        self.index.variables[symbol] = Variable(name, bits)

    def frame(self, entry: str, written: Sequence[bool], dynamic: bool) -> str:
        """The kernel's declarations and its body."""
        d = self.dialect
        aliased = self.aliased()
        lines: list[str] = []
        parameters: list[str] = []
        prologue: list[str] = []
        for arg, number in self.buffers.items():
            storage = self.storage(arg.type.dtype, "")
            form = {
                "type": storage.type,
                "name": f"b{number}" if d.arrays or not d.offsets else f"p{number}",
                "number": number,
                "const": "" if written[number] else d.readonly,
                "restrict": d.restrict if number not in aliased else "",
                "access": "read_write" if written[number] else "read",
            }
            (lines if d.arrays else parameters).append(d.buffer.format(**form))
            if d.pointer and d.offsets:
                offset = self.parameter(f"o{number}", "i64") if d.params else f"o{number}"
                pointer = d.pointer.format(**form)
                prologue.append(f"  {pointer}b{number} = p{number} + {offset};")
            elif d.offsets:
                offset = self.parameter(f"o{number}", "i32")
                value = d.const.format(type=d.types["i32"], name=f"o{number}", value=offset)
                prologue.append(f"  {value}")
        if d.params:
            count = len(self.buffers) + len(self.kernel.dims)
            declared = d.pushed[1] if count <= d.pushed[0] else d.params
            (lines if d.arrays else parameters).append(declared.format(number=len(self.buffers), count=count))
        else:
            parameters += [d.dim.format(name=f"n{k}") for k in range(len(self.kernel.dims))]
            if d.offsets:
                parameters += [d.dim.format(name=f"o{k}") for k in range(len(self.buffers))]
        for name, number in self.sizes.items():
            register: Register = "i64" if self.index.variables[name].bits == 64 else "i32"
            value = self.parameter(f"n{number}", register)
            text = self.index.variables[name].text
            prologue.append("  " + d.const.format(type=d.types[register], name=text, value=value))
        shared = self.shared_lines(dynamic)
        at_module = d.shared_at_top == "module"
        lines += [line.strip() for line in shared] if at_module else []
        parameters += d.extra_parameters
        lines.append(
            d.signature.format(threads=self.threads, entry=entry, parameters=", ".join(parameters)) + " {"
        )
        return "\n".join([*lines, *([] if at_module else shared), *prologue, *self.lines, "}"]) + "\n"

    def parameter(self, name: str, register: Register) -> str:
        """The text of a size (``n0``) or an offset (``o0``) in a register type."""
        d = self.dialect
        if not d.params:
            return d.cast_to(register, name)
        number = int(name[1:]) + (len(self.kernel.dims) if name[0] == "o" else 0)
        return (d.wide_param if register == "i64" else d.param).format(number=number)

    def shared_lines(self, dynamic: bool) -> list[str]:
        """The declarations of the shared buffers, largest elements first."""
        if not dynamic:
            return [
                "  " + self.dialect.shared.format(type=kind, name=name, size=size)
                for name, kind, size, _ in self.shared
            ]
        lines, offset = ["  " + self.dialect.shared_block], 0
        for name, kind, _, size in self.shared:
            lines.append(f"  {kind}* {name} = ({kind}*)(tw_memory + {offset});")
            offset += size
        return lines

    def aliased(self) -> frozenset[int]:
        """Numbers of the buffers that may share memory with another one."""
        pairs = notes.BUFFER_ALIASES.get(self.kernel) or ()
        first = len(self.buffers) - self.kernel.num_outputs
        return frozenset(n for output, source in pairs for n in (first + output, source))

    # -- Names -----------------------------------------------------------------------------------------------

    def call(self, name: str, register: Register | str) -> str:
        """The name of a function of the scalar dialect, which the kernel uses from now on."""
        function = callee(self.dialect, name, register)
        if function.startswith("tw_") and function not in self.uses:
            try:
                definitions(self.dialect, [function])
            except CompileError as error:
                raise CompileError(f"{error} ({self.place})") from None
            self.uses.add(function)
        return function

    def own(self, function: str) -> str:
        """A function of the language's prelude, which the kernel uses from now on."""
        try:
            definitions(self.dialect, [function])
        except CompileError:
            raise CompileError(f"{self.dialect.name} has no function {function} ({self.place})") from None
        self.uses.add(function)
        return function

    def size(self, name: str) -> Variable:
        """The variable of one of the kernel's dims."""
        for number, dim in enumerate(self.kernel.dims):
            if dim.name == name:
                bits = 32 if fits(dim) or not self.dialect.wide else 64
                self.sizes[name] = number
                self.index.variables[name] = Variable(f"n_{identifier(name)}", bits)
                return self.index.variables[name]
        raise CompileError(f"{self.place} uses the unknown size '{name}'")

    def storage(self, dtype: DType, what: str) -> Storage:
        storage = self.dialect.storage.get(dtype)
        if storage is None or (storage.feature.startswith("device ") and not self.has(storage.feature)):
            raise CompileError(f"{self.dialect.name} does not support {dtype.label} ({what})")
        self.uses |= {storage.feature} if storage.feature else set()
        return storage

    def has(self, feature: str) -> bool:
        """Whether the device has a feature that is an option of it."""
        return feature.removeprefix("device ") in self.info.features

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # -- Statements ------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """A block of statements after `head`, which is empty for a bare block."""
        self.emit(f"{head} {{".lstrip())
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self.emit("}")

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.statement(op)

    def statement(self, op: Operation) -> None:
        if isinstance(op, loop.For):
            self.for_loop(op)
        elif isinstance(op, loop.If):
            with self.braces(f"if ({self.index.condition(op.conditions)})"):
                self.block(op.body)
        elif isinstance(op, loop.Alloc):
            self.alloc(op)
        elif isinstance(op, loop.Load):
            self.load(op)
        elif isinstance(op, (loop.Store, loop.Accumulate)):
            self.store(op)
        elif isinstance(op, loop.Runs):
            self.runs(op)
        elif isinstance(op, simt.Barrier):
            self.emit(self.dialect.barrier)
        elif isinstance(op, simt.AllReduce):
            self.all_reduce(op)
        elif isinstance(op, simt.Mma):
            self.mma(op)
        elif isinstance(op, simt.CommitCopies):
            self.emit(f"{self.own('tw_copy_commit')}();")
        elif isinstance(op, simt.WaitCopies):
            self.emit(f"{self.own(f'tw_copy_wait_{op.pending}')}();")
        elif isinstance(op, scalar.ScalarOp):
            self.scalar(op)
        elif not op.terminator:
            raise CompileError(f"{self.dialect.name} cannot express '{op.name}' ({self.place})")

    def let(self, dtype: DType, value: str) -> str:
        """A new name for a value."""
        name = self.fresh()
        kind = self.type(dtype)
        self.emit(self.dialect.const.format(type=kind, name=name, value=value))
        return name

    def type(self, dtype: DType) -> str:
        """The type of a variable that holds a value."""
        self.uses.add(self.scalars.register(dtype))
        return self.scalars.type(dtype)

    def variable(self, kind: str, name: str, value: str) -> None:
        self.emit(self.dialect.variable.format(type=kind, name=name, value=value))

    def scalar(self, op: scalar.ScalarOp) -> None:
        if isinstance(op, scalar.Index):
            text = self.index.wide(op.expr)
        else:
            text = self.scalars.expression(op, [self.names[v] for v in op.operands])
        if isinstance(op, scalar.Constant) and self.dialect.inline_literals:
            self.names[op.result] = text
        else:
            self.names[op.result] = self.let(op.result.type, text)

    def for_loop(self, op: loop.For) -> None:
        if op.kind == loop.LoopKind.THREAD_X:
            self.thread_nest(op)
            return
        if "." in op.kind or op.kind == loop.LoopKind.PARALLEL:
            raise CompileError(f"{self.place} has a loop of kind '{op.kind}' where it cannot be")
        carried = []
        for init, arg, result in zip(op.inits, op.body.args, op.results, strict=True):
            name = self.names[arg] = self.names[result] = self.fresh("acc")
            carried.append(name)
            self.variable(self.type(arg.type), name, self.names[init])
        extent, bits = self.index.text(op.extent)
        if (pair := self.asynchronous(op)) is not None:
            self.copy_asynchronously(*pair, op.extent)
            return
        loads, stores = self.staged_accesses(op)
        for access in loads:
            self.copy(access, op.extent)
        if self.dialect.unroll and (op.kind == loop.LoopKind.UNROLL or loads or stores):
            self.emit(self.dialect.unroll)
        variable = self.fresh(f"{identifier(op.iv.name)}_")
        register: Register = "i64" if bits == 64 else "i32"
        start = self.dialect.variable.format(type=self.dialect.types[register], name=variable, value="0")
        self.index.variables[op.iv.name] = Variable(variable, bits)
        self.staged |= {a.op: f"{self.arrays[a.op]}[{variable}]" for a in (*loads, *stores)}
        outer, self.in_loop = self.in_loop, True
        with self.braces(f"for ({start} {variable} < {extent}; {variable}++)"):
            self.block(op.body)
            if carried:
                self.carry(carried, op.body.args, op.body.terminator.operands)
        self.in_loop = outer
        for access in stores:
            self.copy(access, op.extent)

    def carry(self, carried: Sequence[str], args: Sequence[Value], values: Sequence[Value]) -> None:
        """Give the carried variables their next values, which may be those of each other."""
        texts = [self.names[v] for v in values]
        for k, (text, arg) in enumerate(zip(texts, args, strict=True)):
            if text in carried[:k]:
                texts[k] = self.let(arg.type, text)
        # Copies are made before the first assignment.
        for name, text in zip(carried, texts, strict=True):
            if name != text:
                self.emit(f"{name} = {text};")

    def thread_nest(self, op: loop.For) -> None:
        assert isinstance(op.extent, int)
        self.index.variables[op.iv.name] = Variable(self.thread, 32)
        whole = op.extent == self.threads
        loads = matrix_loads(op) if whole and self.gpu.matrix_loads else []
        with self.braces("" if whole else f"if ({self.thread} < {op.extent})"):
            if loads:
                self.load_matrices(loads)
            else:
                self.block(op.body)

    def load_matrices(self, loads: Sequence[MatrixLoad]) -> None:
        """Call the functions that load parts of matrix instructions' factors, for all lanes of a warp."""
        for load in loads:
            function = self.own(f"tw_load_matrix_x{load.count}{'_trans' if load.transposed else ''}")
            row = self.index.address(load.row, load.source.type.size, {})
            words = f"({self.dialect.matrix_word})(&{self.element(load.target, str(load.first))})"
            self.emit(f"{function}({words}, &{self.element(load.source, row)});")

    def runs(self, op: loop.Runs) -> None:
        """A loop over the elements whose body runs at each element that differs from its successor, or has
        none.
        """
        kind = self.dialect.types["i64" if self.dialect.wide else "i32"]
        bits = 64 if self.dialect.wide else 32
        start, count, begin, i = (self.fresh(x) for x in ("start", "count", "begin", "i"))
        value, first = self.fresh("value"), self.fresh("first")
        wide = [self.index.wide(e) for e in op.range]
        for name, text in ((start, wide[0]), (count, wide[1])):
            self.emit(self.dialect.const.format(type=kind, name=name, value=text))
        self.variable(kind, begin, "0")
        head = self.dialect.variable.format(type=kind, name=i, value="0")
        outer, self.in_loop = self.in_loop, True
        with self.braces(f"for ({head} {i} < {count}; {i}++)"):
            here = self.element(op.index, f"({start} + {i})")
            self.emit(self.dialect.const.format(type=kind, name=value, value=here))
            following = self.element(op.index, f"({start} + {i} + 1)")
            with self.braces(f"if ({i} + 1 < {count})"):
                self.emit(f"if ({following} == {value}) {{ continue; }}")
            self.emit(self.dialect.const.format(type=kind, name=first, value=begin))
            self.emit(f"{begin} = {i} + 1;")
            for symbol, text in ((op.first, first), (op.length, f"({begin} - {first})"), (op.value, value)):
                self.index.variables[symbol.name] = Variable(text, bits)
            self.block(op.body)
        self.in_loop = outer

    # -- Memory ----------------------------------------------------------------------------------------------

    def alloc(self, op: loop.Alloc) -> None:
        buffer: BufferType = op.buffer
        storage = self.storage(buffer.dtype, f"a {buffer.space} buffer of {self.place}")
        if buffer.space == "shared":
            self.names[op.result] = self.share(storage.type, buffer.size, buffer.dtype.itemsize)
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
        self.emit(array)

    def share(self, kind: str, size: Dim, itemsize: int) -> str:
        """The name of a new shared buffer."""
        if not isinstance(size, int):
            raise CompileError(f"{self.place} has shared memory of unknown size {size}")
        name = f"shared{len(self.shared)}"
        if self.dialect.shared_at_top == "module":
            name = f"{identifier(self.kernel.sym_name)}_{name}"
        # Every buffer begins at a multiple of 16 bytes.
        self.shared.append((name, kind, max(size, 1), -(-max(size, 1) * itemsize // 16) * 16))
        return name

    def element(self, buffer: Value, index: str) -> str:
        """The element of a buffer at a flat index, in memory's type."""
        number = self.buffers.get(buffer)
        if number is not None and self.dialect.offsets and not self.dialect.pointer:
            index = f"o{number} + {self.dialect.bound.format(value=index)}"
        else:
            index = self.dialect.bound.format(value=index[1:-1] if _enclosed(index) else index)
        return f"{self.names[buffer]}[{index}]"

    def access(self, op: loop.Load | loop.Store | loop.Accumulate, dynamic: dict[str, Variable]) -> str:
        indices, shape = op.indices, op.buffer.type.shape
        if op.buffer in self.private:
            indices, shape = indices[1:], shape[1:]
        buffer = BufferType(op.buffer.type.dtype, shape)
        text = self.index.address(flatten_index(indices, shape), buffer.size, dynamic)
        return self.element(op.buffer, text)

    def dynamic(self, op: loop.Load | loop.Store | loop.Accumulate) -> dict[str, Variable]:
        bits = {"i64": 64, "u64": 64}
        return {
            f"v{k}": Variable(self.names[v], bits.get(self.scalars.register(v.type), 32))
            for k, v in enumerate(op.dynamic)
        }

    def loaded(self, dtype: DType, element: str) -> str:
        """The register value of an element."""
        value = self.storage(dtype, "").load.format(element)
        self.uses |= set(re.findall(r"\btw_\w+(?=\()", value))
        return self.scalars.wrap(value, dtype) if dtype.is_sub_byte else value

    def stored(self, dtype: DType, value: str) -> str:
        """The element that holds a register value."""
        element = self.storage(dtype, "").store.format(value)
        self.uses |= set(re.findall(r"\btw_\w+(?=\()", element))
        return element

    def load(self, op: loop.Load) -> None:
        dynamic = self.dynamic(op)
        dtype = op.result.type
        element = self.staged.get(op) or self.access(op, dynamic)
        is_moved = self.is_moved(op)
        kind, value = self.type(dtype), self.loaded(dtype, element)
        if is_moved:
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
        place = self.staged.get(op) or self.access(op, dynamic)
        dtype = op.value.type
        value = self.names[op.value]
        if isinstance(op, loop.Accumulate):
            old = self.loaded(dtype, place)
            quiet = notes.IGNORE_NAN.get(op, False)
            value = self.scalars.binary(COMBINER_OP[op.combiner], dtype, old, value, quiet)
        element = value if op.value in self.moved else self.stored(dtype, value)
        statement = f"{place} = {element};"
        if op.guard:
            statement = f"if ({self.index.condition(op.guard, dynamic)}) {{ {statement} }}"
        self.emit(statement)

    def staged_accesses(
        self, f: loop.For, only_found: bool = False
    ) -> tuple[list[VectorAccess], list[VectorAccess]]:
        """The loads and stores of a loop that are done for all lanes at once; declares their arrays, unless
        they are `only_found`.
        """
        aliased = self.aliased()

        def may_share(a: Value, b: Value) -> bool:
            return a is b or (self.buffers.get(a) in aliased and self.buffers.get(b) in aliased)

        def has_vectors(access: VectorAccess) -> bool:
            buffer, size = access.op.buffer, self.chunk(access.op.buffer, f.extent)
            if access.op.guard and self.otherwise(access.op) is None:
                return False
            if buffer.type.space == "shared":
                return size > 0 and bool(self.dialect.shared_vector) and self.is_aligned(access, size)
            return size > 0 and buffer in self.buffers

        if not self.dialect.vectors[0]:
            return [], []
        loads, stores = ([a for a in found if has_vectors(a)] for found in vector_accesses(f, may_share))
        if only_found:
            return loads, stores
        for access in (*loads, *stores):
            kind = self.storage(access.op.buffer.type.dtype, "").type
            name = self.arrays[access.op] = self.fresh("lanes")
            self.emit(self.dialect.vectors[2].format(type=kind, name=name, size=f.extent))
        return loads, stores

    def chunk(self, buffer: Value, count: Dim) -> int:
        """The bytes of the largest vectors that `count` elements are made of; 0 if there are none."""
        itemsize = buffer.type.dtype.itemsize
        assert isinstance(count, int)
        sizes = (n for n in (16, 8, 4) if n <= self.gpu.vector_bytes and n > itemsize)
        return next((n for n in sizes if count * itemsize % n == 0), 0)

    def asynchronous(self, f: loop.For) -> tuple[VectorAccess, VectorAccess] | None:
        """The load and the store of a loop over vector lanes that only copies elements, in vectors, and need not
        be done at once; None for another loop.
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
        source, target = load.op.buffer, store.op.buffer
        size = self.chunk(source, count)
        assert isinstance(count, int)
        element = self.storage(source.type.dtype, "").type
        const = "" if source in self.changed else self.dialect.readonly
        origin, place = self.fresh("from"), self.fresh("to")
        for name, form, access in (
            (origin, self.dialect.vectors[0].format(const=const, type=element), load),
            (place, self.dialect.shared_vector.format(const="", type=element), store),
        ):
            address = self.index.address(access.first, access.op.buffer.type.size, {})
            self.emit(f"{form} {name} = {self.names[access.op.buffer]} + {address};")
        taken = str(size)
        if load.op.guard:
            inside = self.fresh("inside")
            condition = self.index.condition(load.op.guard, {})
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
        if self.is_moved(op):
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
        size = self.chunk(op.buffer, count)
        vector = f"tw_{size}"
        self.uses.add(vector)
        address = self.index.address(access.first, op.buffer.type.size, {})
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
        with self.braces(f"if ({self.index.condition(op.guard, {})})"):
            transfer()
        with self.braces("else"):
            for k in range(count):
                self.emit(f"{name}[{k}] = {other};")

    # -- Collective statements -------------------------------------------------------------------------------

    def mma(self, op: simt.Mma) -> None:
        """Call the function of the atom on the thread's fragments; factors are passed as packed words."""
        atom = op.description
        if op.threads != self.threads:
            raise CompileError(f"{self.place}: {op.threads} of {self.threads} threads run {atom.name}")
        places = []
        for fragment in op.fragments:
            count = len(fragment.slots)
            indices, shape = fragment.indices[1:], fragment.buffer.type.shape[1:]
            if fragment.buffer not in self.private or indices[len(indices) - count :] != fragment.slots:
                raise CompileError(f"{self.place}: an operand of {atom.name} does not lie in registers")
            first = (*indices[: len(indices) - count], *(0 for _ in fragment.slots))
            flat = flatten_index(first, shape)
            text = self.index.address(flat, BufferType(fragment.buffer.type.dtype, shape).size, {})
            places.append(f"&{self.element(fragment.buffer, text)}")
        d, *factors = places
        if atom.left_type.bits <= 32:
            factors = [f"({self.dialect.matrix_word})({place})" for place in factors]
        self.emit(f"{self.own(f'tw_mma_{atom.name}')}({', '.join([d, *factors])});")

    def all_reduce(self, op: simt.AllReduce) -> None:
        """Combine by shuffles at distances within a warp, and through shared memory at larger ones.

        Two halves of the shared memory take turns, so that one barrier a distance suffices.
        """
        buffer: BufferType = op.buffer.type
        size = BufferType(buffer.dtype, buffer.shape[1:]).size
        if not isinstance(size, int):
            raise CompileError(f"{self.place} combines parts of unknown size {size}")
        combine = COMBINER_OP[op.combiner]
        dtype = buffer.dtype
        members = buffer.shape[0]
        assert isinstance(members, int)
        narrow = dtype is not boolean and dtype.bits <= self.dialect.shuffle_bits
        warp = self.gpu.warp if self.gpu.shuffles and self.dialect.shuffle and narrow else 1
        if members > warp and members % warp:
            warp = 1  # The last warp has fewer threads than a shuffle's mask names.
        k = self.fresh("k")
        element = f"{self.names[op.buffer]}[{k}]"
        start = self.dialect.variable.format(type=self.dialect.types["i32"], name=k, value="0")
        scratch, half, thread = "", 0, self.thread

        @contextmanager
        def elements() -> Iterator[None]:
            if size > 1 and self.dialect.unroll:
                self.emit(self.dialect.unroll)
            with self.braces(f"for ({start} {k} < {size}; {k}++)"):
                yield

        def combined(other: str) -> str:
            own = self.let(dtype, self.loaded(dtype, element))
            return f"{element} = {self.stored(dtype, self.scalars.binary(combine, dtype, own, other))};"

        active = "" if members == self.threads else f"if ({thread} < {members})"
        distance = 1
        while distance < min(op.count, warp):
            with self.braces(active), elements():
                own = self.let(dtype, self.loaded(dtype, element))
                mask = (1 << min(warp, members)) - 1
                other = self.dialect.shuffle.format(value=own, distance=distance, mask=f"0x{mask:x}")
                self.emit(combined(self.let(dtype, other)))
            distance *= 2
        while distance < op.count:
            if not scratch:
                storage = self.storage(dtype, "")
                scratch = self.share(storage.type, 2 * members * size, dtype.itemsize)
                rounds = (op.count // distance).bit_length() - 1
                if self.in_loop and rounds % 2:  # The last round of the previous iteration read this half.
                    self.emit(self.dialect.barrier)
            place = f"{half * members * size} + {k} * {members} + "
            with self.braces(active), elements():
                self.emit(f"{scratch}[{place}{thread}] = {element};")
            self.emit(self.dialect.barrier)
            with self.braces(active), elements():
                other = self.loaded(dtype, f"{scratch}[{place}({thread} ^ {distance})]")
                self.emit(combined(self.let(dtype, other)))
            distance, half = 2 * distance, 1 - half


def _enclosed(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return k == len(text) - 1
    return False


__all__ = ["identifier", "module_text", "print_kernel", "threads_of"]

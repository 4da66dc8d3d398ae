"""Block programs (see `dialects.simt`) as text in a language of the C family.

A thread of a block runs the text. Loops and conditions outside of thread nests are the same for all threads;
a thread nest becomes a condition on the thread's number, where it has fewer iterations than the block
threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

from ...analysis.index_maps import flatten_index
from ...dialects import loop, scalar, simt
from ...dialects.scalar import COMBINER_OP
from ...dialects.tensor import free_symbols_of
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Block, Operation, Value
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr, bounds, ceildiv, prove_le, smax, smin
from ...ir.target_info import TargetInfo
from ...ir.types import BufferType, DType, boolean, i32
from .dialect import DeviceKernel, Dialect, Register
from .index_text import Variable
from .matrix_access import matrix_loads
from .named_indices import NamedIndexText
from .opaque_matrices import MatrixText
from .prelude import definitions
from .vector_access import MOST_LANES, holds_lanes
from .writer import identifier, loops_of_kinds, threads_of
from .written_out import hands_on, has_barriers, is_written_out, with_variables

ROW = 32768
"""Blocks in the first dimension of a grid whose first dimension has too low a limit."""

LEAST_RANGE = 2**27 - 256
"""The bytes that a buffer may have on all devices; both Vulkan and WebGPU promise about as many."""

_AXES = (loop.LoopKind.BLOCK_X, loop.LoopKind.BLOCK_Y, loop.LoopKind.BLOCK_Z)


def print_kernel(
    kernel: loop.Kernel,
    dialect: Dialect,
    info: TargetInfo,
    bindings: Sequence[int] = (),
    aligned: Collection[int] = (),
) -> DeviceKernel:
    """Print a finalized kernel, a block program, in a language.

    Parameters of the entry point, in order: the buffers, one number of 64 bits for each of the kernel's
    `dims`, and, where the language cannot add to an address on the host's side (`Dialect.offsets`), the
    number of elements before each buffer's first one. With `Dialect.params`, the numbers are elements of one
    more buffer.

    Args:
        kernel: The kernel.
        dialect: The language.
        info: The target.
        bindings: The number of each buffer's parameter, in ascending order of their first buffers; buffers
            of one parameter have one type in memory. The language has `Dialect.offsets`. Empty: each buffer
            has its own.
        aligned: The numbers of the buffers that begin at multiples of 16 bytes in every launch.

    Raises:
        CompileError: The language lacks a type, a function or a statement; the message names it and the
        place.
    """
    return _Printer(kernel, dialect, info).run(bindings, aligned)


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


class _Printer(MatrixText):
    guard = ""
    """A condition, the same for all threads, under which the statements run that are printed. See
    `Dialect.certain_barriers`.
    """

    def run(self, bindings: Sequence[int], aligned: Collection[int]) -> DeviceKernel:
        args = self.kernel.body.args
        bindings = tuple(bindings) or tuple(range(len(args)))
        self.find_wide(aligned, bindings)
        self.hands_on = hands_on(self.kernel, self.may_share)
        changed = {binding for arg, binding in zip(args, bindings, strict=True) if arg in self.changed}
        written = tuple(binding in changed for binding in dict.fromkeys(bindings))
        self.changed |= {arg for arg, binding in zip(args, bindings, strict=True) if binding in changed}
        for (arg, number), binding in zip(self.buffers.items(), bindings, strict=True):
            self.storage(arg.type.dtype, f"buffer {number} of {self.place}")
            self.names[arg] = f"b{number if self.dialect.pointer else binding}"
        grid = self.grid()
        if loops_of_kinds(self.kernel.walk(), loop.LoopKind.THREAD_X):
            self.define("thread number", self.thread_number(), self.thread, 32)
        if self.dialect.explicit:
            for buffer, number in self.buffers.items():
                self.index.bind(self.offset(buffer).name, Variable(f"o{number}", 32))
        with self.scope(*self.index.variables, *(dim.name for dim in self.kernel.dims)):
            self.block(self.block_body())
        shared_bytes = sum(size for *_, size in self.shared)
        limit = self.dialect.static_shared
        dynamic = shared_bytes if limit is not None and (shared_bytes > limit or self.swizzles) else 0
        entry = self.dialect.entry.format(name=identifier(self.kernel.sym_name))
        return DeviceKernel(
            name=self.kernel.sym_name,
            entry=entry,
            text=self.frame(entry, bindings, written, bool(dynamic)),
            grid=grid,
            threads=self.threads,
            shared_bytes=shared_bytes,
            dynamic_bytes=dynamic,
            buffers=len(args),
            bindings=bindings,
            written=written,
            dims=tuple(s.name for s in self.kernel.dims),
            uses=frozenset(self.uses),
            matrix=any(isinstance(op, simt.Mma) for op in self.kernel.walk()),
            largest=self.largest(),
        )

    def thread_number(self) -> str:
        """The number of the thread. Where opaque atoms have matrices, warps are those of the device."""
        atoms = self.opaque_atoms()
        if not atoms:
            return self.dialect.thread
        self.uses.add("cooperative_matrix")
        (threads,) = {atom.threads for atom in atoms}
        return f"{self.own(f'tw_thread_of_{threads}')}()"

    def largest(self) -> Dim:
        """Bytes of the largest buffer; 0 if no device is too small for it."""
        most: Dim = 0
        for arg in self.kernel.body.args:
            size = arg.type.size * arg.type.dtype.itemsize
            most = most if self._at_most(size, LEAST_RANGE) else smax(most, size)
        return most

    # -- The kernel around its body --------------------------------------------------------------------------

    def block_body(self) -> Block:
        """The contents of the block loops, whose variables are bound."""
        block = self.kernel.body
        while inner := loops_of_kinds(block.ops, *_AXES):
            if len(inner) > 1 or any(not op.terminator for op in block.ops if op is not inner[0]):
                raise CompileError(f"{self.place} has statements beside its loops over blocks")
            block = inner[0].body
        return block

    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Bind the block loops' variables; returns the grid.

        Dimensions that may exceed the limits of a launch are folded into the first one, and that one into
        rows.
        """
        loops = {f.kind: f for f in loops_of_kinds(self.kernel.walk(), *_AXES)}
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

    def frame(self, entry: str, bindings: Sequence[int], written: Sequence[bool], dynamic: bool) -> str:
        """The kernel's declarations and its body."""
        d = self.dialect
        aliased = self.aliased()
        lines: list[str] = []
        parameters: list[str] = []
        prologue: list[str] = []
        for (arg, number), binding in zip(self.buffers.items(), bindings, strict=True):
            storage = self.dialect.packed.get(arg.type.dtype) or self.storage(arg.type.dtype, "")
            is_atomic = written[binding] and arg.type.dtype in self.dialect.packed
            kind = d.vector.format(type=storage.type) if arg in self.wide else storage.type
            form = {
                "type": self.dialect.words if is_atomic else kind,
                "name": f"b{binding}" if d.arrays or not d.offsets else f"p{binding}",
                "number": binding,
                "const": "" if written[binding] else d.readonly,
                "restrict": d.restrict if number not in aliased else "",
                "access": "read_write" if written[binding] else "read",
            }
            if binding not in bindings[:number]:
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
            (lines if d.arrays else parameters).append(declared.format(number=len(written), count=count))
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
        body = [x for line in self.lines for x in ([line] if isinstance(line, str) else line)]
        if d.explicit:
            body = with_variables(body, self.own_arrays, d.unset)
        return "\n".join([*lines, *([] if at_module else shared), *prologue, *body, "}"]) + "\n"

    def parameter(self, name: str, register: Register) -> str:
        """The text of a size (``n0``) or an offset (``o0``) in a register type."""
        d = self.dialect
        if not d.params:
            return d.cast_to(register, name)
        number = int(name[1:]) + (len(self.kernel.dims) if name[0] == "o" else 0)
        return (d.wide_param if register == "i64" else d.param).format(number=number)

    def shared_lines(self, dynamic: bool) -> list[str]:
        """The declarations of the shared buffers, first those whose parts are exchanged by their addresses,
        since the memory begins at a multiple of a group of their lines.
        """
        exchanged = {self.names[buffer] for buffer in self.swizzles}
        shared = sorted(self.shared, key=lambda entry: entry[0] not in exchanged)
        if not dynamic:
            return [
                "  " + self.dialect.shared.format(type=kind, name=name, size=size)
                for name, kind, size, _ in shared
            ]
        lines, offset = ["  " + self.dialect.shared_block], 0
        for name, kind, _, size in shared:
            lines.append(f"  {kind}* {name} = ({kind}*)(tw_memory + {offset});")
            offset += size
        return lines

    # -- Statements ------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.statement(op)

    def statement(self, op: Operation) -> None:
        if self.guard and not isinstance(op, (loop.Alloc, scalar.ScalarOp)) and not has_barriers(op):
            guard, self.guard = self.guard, ""
            with self.braces(f"if ({guard})"):
                self.statement(op)
            self.guard = guard
        elif isinstance(op, loop.For):
            self.for_loop(op)
        elif isinstance(op, loop.If):
            condition = self.index.condition(op.conditions)
            with nullcontext() if condition == "true" else self.where(condition, has_barriers(op)):
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
            self.barrier()
        elif isinstance(op, simt.AllReduce):
            self.all_reduce(op)
        elif isinstance(op, simt.Exchange):
            self.exchange_lanes(op)
        elif isinstance(op, simt.Argsort):
            self.argsort(op)
        elif isinstance(op, simt.Mma):
            self.mma(op)
        elif isinstance(op, simt.ShowToAtoms):
            self.emit(f"{self.own('tw_show_to_atoms')}();")
        elif isinstance(op, simt.BeginAtoms):
            self.hold(op.sums)
            self.emit(f"{self.own('tw_begin_atoms')}();")
        elif isinstance(op, simt.WaitAtoms):
            self.emit(f"{self.own('tw_wait_atoms')}();")
            self.hold(op.sums)
        elif isinstance(op, simt.CommitCopies):
            self.emit(f"{self.own('tw_copy_commit')}();")
        elif isinstance(op, simt.WaitCopies):
            self.emit(f"{self.own(f'tw_copy_wait_{op.pending}')}();")
        elif isinstance(op, scalar.ScalarOp):
            self.scalar(op)
        elif not op.terminator:
            raise CompileError(f"{self.dialect.name} cannot express '{op.name}' ({self.place})")

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
        if self.dialect.explicit and is_written_out(op):
            self.written_out(op)
            return
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
        if self.dialect.unroll and (op.kind == loop.LoopKind.UNROLL or loads or stores or holds_lanes(op)):
            self.emit(self.dialect.unroll)
        variable = self.fresh(f"{identifier(op.iv.name)}_")
        register: Register = "i64" if bits == 64 else "i32"
        start = self.dialect.variable.format(type=self.dialect.types[register], name=variable, value="0")
        self.index.variables[op.iv.name] = Variable(variable, bits)
        self.staged |= {a.op: f"{self.arrays[a.op]}[{variable}]" for a in (*loads, *stores)}
        outer, self.in_loop = self.in_loop, True
        certain = isinstance(op.extent, int) or (not self.guard and prove_le(1, op.extent))
        form = (register, variable, start, extent)
        with self.repeated(*form, certain and op.extent != 0, has_barriers(op)), self.scope(op.iv.name):
            self.block(op.body)
            if carried:
                with self.braces(f"if ({self.guard})") if self.guard else nullcontext():
                    self.carry(carried, op.body.args, op.body.terminator.operands)
        self.in_loop = outer
        for access in stores:
            self.copy(access, op.extent)

    def written_out(self, op: loop.For) -> None:
        """Print the iterations of a loop one after the other."""
        assert isinstance(op.extent, int) and isinstance(self.index, NamedIndexText)
        values = [self.names[v] for v in op.inits]
        loads, stores = self.staged_accesses(op)
        for access in loads:
            self.copy(access, op.extent)
        for k in range(op.extent):
            self.index.constants[op.iv.name] = k
            self.names |= dict(zip(op.body.args, values, strict=True))
            self.staged |= {a.op: self.lane(a, k) for a in (*loads, *stores)}
            self.block(op.body)
            values = [self.names[v] for v in op.body.terminator.operands] if values else []
        del self.index.constants[op.iv.name]
        self.names |= dict(zip(op.results, values, strict=True))
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
        self.index.bind(op.iv.name, Variable(self.thread, 32))
        if self.move_matrices(op):
            return
        whole = op.extent == self.threads
        loads = matrix_loads(op) if whole and self.gpu.matrix_loads else []
        with self.braces("" if whole else f"if ({self.thread} < {op.extent})"):
            if loads:
                self.load_matrices(loads)
            else:
                self.block(op.body)

    def runs(self, op: loop.Runs) -> None:
        """A loop over the elements whose body runs at each element that differs from its successor, or has
        none.
        """
        kind = self.dialect.types["i64" if self.dialect.wide else "i32"]
        bits = 64 if self.dialect.wide else 32
        start, count, begin, i = (self.fresh(x) for x in ("start", "count", "begin", "i"))
        value, first, ends = self.fresh("value"), self.fresh("first"), self.fresh("ends")
        wide = [self.index.wide(e) for e in op.range]
        for name, text in ((start, wide[0]), (count, wide[1])):
            self.emit(self.dialect.const.format(type=kind, name=name, value=text))
        self.variable(kind, begin, "0")
        head = self.dialect.variable.format(type=kind, name=i, value="0")
        outer, self.in_loop = self.in_loop, True
        with self.repeated("i64" if bits == 64 else "i32", i, head, count, False, has_barriers(op)):
            self.variable(kind, value, "0")
            self.variable(self.dialect.types["bool"], ends, "false")
            with self.braces(f"if ({self.guard})" if self.guard else ""):
                here, following = (self.element(op.index, f"({start} + {i}{x})") for x in ("", " + 1"))
                self.emit(f"{value} = {here};")
                self.emit(f"{ends} = {i} + 1 >= {count} || {following} != {value};")
            with self.where(ends, has_barriers(op)):
                self.emit(self.dialect.const.format(type=kind, name=first, value=begin))
                length = f"({i} + 1 - {first})"
                for symbol, text in ((op.first, first), (op.length, length), (op.value, value)):
                    self.index.variables[symbol.name] = Variable(text, bits)
                self.block(op.body)
            self.emit(f"if ({ends}) {{ {begin} = {i} + 1; }}")
        self.in_loop = outer

    @contextmanager
    def where(self, condition: str, barriers: bool) -> Iterator[None]:
        """Statements under a condition that is the same for all threads; `barriers` says whether they have
        some. See `Dialect.certain_barriers`.
        """
        if not (self.dialect.certain_barriers and barriers):
            with self.braces(f"if ({condition})"):
                yield
            return
        outer, name = self.guard, self.fresh("guard")
        both = f"({outer} && ({condition}))" if outer else condition
        self.emit(self.dialect.const.format(type=self.dialect.types["bool"], name=name, value=both))
        self.guard = name
        yield
        self.guard = outer

    @contextmanager
    def repeated(
        self, register: Register, name: str, start: str, count: str, certain: bool, barriers: bool
    ) -> Iterator[None]:
        """Statements for each value of a variable below a count, which is the same for all threads.

        Args:
            register: The type of the variable.
            name: The variable.
            start: The definition of the variable.
            count: The number of iterations.
            certain: Whether there is one in any case, also where `guard` does not hold.
            barriers: Whether the statements have barriers.
        """
        if not (self.dialect.certain_barriers and barriers):
            with self.braces(f"for ({start} {name} < {count}; {name}++)"):
                yield
            return
        with ExitStack() as stack:
            if not certain:
                most, kind = self.fresh("most"), self.dialect.types[register]
                guarded = f"{self.guard} && {count} > 1" if self.guard else f"{count} > 1"
                one = self.dialect.cast_to(register, "1")
                value = f"({guarded} ? {count} : {one})"
                self.emit(self.dialect.const.format(type=kind, name=most, value=value))
                stack.enter_context(self.where(f"{count} > 0", barriers))
                count = most
            with self.rounds(start, f"{name} < {count}", f"{name}++", barriers):
                yield

    @contextmanager
    def rounds(self, start: str, test: str, step: str, barriers: bool) -> Iterator[None]:
        """A loop whose first iteration is certain."""
        if not (self.dialect.certain_barriers and barriers):
            with self.braces(f"for ({start} {test}; {step})"):
                yield
            return
        self.emit(start)
        with self.braces("do", f" while ({test});"):
            yield
            self.emit(f"{step};")

    def barrier(self) -> None:
        """Let the threads of a block wait for each other."""
        self.emit(self.dialect.barrier + (self.dialect.global_barrier if self.hands_on else ""))

    # -- Collective statements -------------------------------------------------------------------------------

    def mma(self, op: simt.Mma) -> None:
        """Call the function of the atom on the thread's fragments; factors are passed as packed words."""
        atom = op.description
        if op.threads != self.threads:
            raise CompileError(f"{self.place}: {op.threads} of {self.threads} threads run {atom.name}")
        if atom.opaque:
            self.multiply_matrices(op)
            return
        places, name = [], atom.name
        for fragment in op.fragments:
            if fragment.buffer in self.swizzles:
                text, transposed = self.described(op, fragment)
                places.append(text)
                name += "_t" if transposed else "_n"
                continue
            count = len(fragment.slots)
            indices, shape = fragment.indices[1:], fragment.buffer.type.shape[1:]
            if fragment.buffer not in self.private or indices[len(indices) - count :] != fragment.slots:
                raise CompileError(f"{self.place}: an operand of {atom.name} does not lie in registers")
            first = (*indices[: len(indices) - count], *(0 for _ in fragment.slots))
            flat = flatten_index(first, shape)
            text = self.index.address(flat, BufferType(fragment.buffer.type.dtype, shape).size, {})
            places.append(f"&{self.element(fragment.buffer, text)}")
        d, *factors = places
        if atom.left_type.bits <= 32 and not atom.shared:
            factors = [f"({self.dialect.matrix_word})({place})" for place in factors]
        self.emit(f"{self.own(f'tw_mma_{name}')}({', '.join([d, *factors])});")

    def described(self, op: simt.Mma, fragment: simt.Fragment) -> tuple[str, bool]:
        """The description of a factor in shared memory, and whether its rows (columns) are neighbours there
        in place of its terms.
        """
        alloc = fragment.buffer.defining_op
        width = None if alloc is None else notes.SWIZZLE.get(alloc)
        assert isinstance(width, int)
        first: dict[Expr, Dim] = dict.fromkeys(fragment.slots, 0)
        self.index.variables[op.thread.name] = Variable(self.thread, 32)
        shape = fragment.buffer.type.shape
        flat = flatten_index([substitute(e, first) for e in fragment.indices], shape)
        text = self.index.address(flat, fragment.buffer.type.size, {})
        terms = {
            x for x, r in zip(fragment.slots[::-1], fragment.layout.slot_runs, strict=True) if r.axis == "k"
        }
        transposed = terms.isdisjoint(free_symbols_of(fragment.indices[-1]))
        panel = width * shape[-2] if transposed else 16
        mode = {128: 1, 64: 2, 32: 3}[width]
        place = f"&{self.names[fragment.buffer]}[{text}]"
        return f"{self.own('tw_describe')}({place}, {panel}, {8 * width}, {mode})", transposed

    def hold(self, buffer: Value) -> None:
        """Keep the compiler from moving accesses to a thread's part of a result across this place."""
        dtype, k = buffer.type.dtype, self.fresh("k")
        count = BufferType(dtype, buffer.type.shape[1:]).size
        start = self.dialect.variable.format(type=self.dialect.types["i32"], name=k, value="0")
        self.emit(self.dialect.unroll)
        with self.braces(f"for ({start} {k} < {count}; {k}++)"):
            self.emit(f"{self.own(f'tw_hold_{dtype.name}')}(&{self.names[buffer]}[{k}]);")

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
        joined = self.dialect.shuffle_threads or (self.gpu.warp if self.gpu.shuffles else 1)
        warp = joined if self.dialect.shuffle and narrow else 1
        if members > warp and members % warp:
            warp = 1  # The last warp has fewer threads than a shuffle's mask names.
        scratch, is_used, half, thread = "", False, 0, self.thread

        def elements() -> Iterator[tuple[str, str]]:
            """The numbers of the elements, and the elements."""
            if self.dialect.explicit and size <= MOST_LANES:
                yield from ((str(number), f"{self.names[op.buffer]}[{number}]") for number in range(size))
                return
            if size > 1 and self.dialect.unroll:
                self.emit(self.dialect.unroll)
            k = self.fresh("k")
            start = self.dialect.variable.format(type=self.dialect.types["i32"], name=k, value="0")
            with self.braces(f"for ({start} {k} < {size}; {k}++)"):
                yield k, f"{self.names[op.buffer]}[{k}]"

        def combined(element: str, other: str) -> str:
            own = self.let(dtype, self.loaded(dtype, element))
            return f"{element} = {self.stored(dtype, self.scalars.binary(combine, dtype, own, other))};"

        conditions = [self.guard, "" if members == self.threads else f"{thread} < {members}"]
        active = f"if ({' && '.join(filter(None, conditions))})" if any(conditions) else ""
        for distance in (n for n in op.steps if n < warp):
            with self.braces(active):
                for _, element in elements():
                    own = self.let(dtype, self.loaded(dtype, element))
                    mask = (1 << min(warp, members)) - 1
                    other = self.dialect.shuffle.format(value=own, distance=distance, mask=f"0x{mask:x}")
                    self.emit(combined(element, self.let(dtype, other)))
        apart = [n for n in op.steps if n >= warp]
        for distance in apart:
            if not scratch:
                storage = self.storage(dtype, "")
                rounds = len(apart)
                scratch, is_used = self.exchange(storage.type, 2 * members * size, dtype.itemsize)
                # The last round of the previous iteration, or of another reduction, may have read this half.
                if is_used or (self.in_loop and rounds % 2):
                    self.barrier()
            first = half * members * size
            with self.braces(active):
                for k, element in elements():
                    self.emit(f"{scratch}[{first} + {k} * {members} + {thread}] = {element};")
            self.barrier()
            with self.braces(active):
                for k, element in elements():
                    place = f"{scratch}[{first} + {k} * {members} + ({thread} ^ {distance})]"
                    self.emit(combined(element, self.let(dtype, self.loaded(dtype, place))))
            half = 1 - half
        if is_used and self.in_loop:  # The reduction that had the memory first comes again.
            self.barrier()

    def exchange(self, kind: str, count: int, itemsize: int) -> tuple[str, bool]:
        """Shared memory for a reduction, and whether another one has used it: a block without room for more
        has one for several.
        """
        taken = sum(size for *_, size in self.shared)
        if taken + count * max(itemsize, self.gpu.shared_element) > self.gpu.shared_bytes:
            for name, other, size in self.exchanges:
                if other == kind and size >= count:
                    return name, True
        name = self.share(kind, count, itemsize)
        self.exchanges.append((name, kind, count))
        return name, False

    def exchange_lanes(self, op: simt.Exchange) -> None:
        """Exchange elements by shuffles: a thread sends one element of each pair and keeps the other."""
        dtype: DType = op.target.type.dtype
        if not self.gpu.shuffles or not self.dialect.shuffle or dtype.bits > self.dialect.shuffle_bits:
            raise CompileError(
                f"{self.dialect.name} cannot exchange {dtype.label} by shuffles ({self.place})"
            )
        mask = f"0x{(1 << self.gpu.warp) - 1:x}"
        source, target = self.names[op.source], self.names[op.target]
        second = f"(({self.thread} & {op.distance}) != 0)"
        for k in (k for k in range(len(op.sources)) if not k & op.pair):
            low, high = k, k | op.pair
            a, b = (self.let(dtype, f"{source}[{op.sources[n]}]") for n in (low, high))
            sent = self.let(dtype, self.dialect.select.format(condition=second, a=a, b=b))
            got = self.let(dtype, self.dialect.shuffle.format(value=sent, distance=op.distance, mask=mask))
            for n, pair in ((low, (got, a)), (high, (b, got))):
                value = self.dialect.select.format(condition=second, a=pair[0], b=pair[1])
                self.emit(f"{target}[{n}] = {value};")

    def argsort(self, op: simt.Argsort) -> None:
        """Sort by a bitonic network: rounds of comparisons at distances that are powers of two."""
        dtype: DType = op.keys.type.dtype
        count = op.keys.type.size
        k, j, p, a, b = (self.fresh(x) for x in ("k", "j", "p", "a", "b"))
        d = self.dialect
        kind = d.types["i32"]

        def start(name: str, value: str) -> str:
            return d.variable.format(type=kind, name=name, value=value)

        def define(name: str, value: str) -> None:
            self.emit(d.const.format(type=kind, name=name, value=value))

        self.barrier()
        with (
            self.rounds(start(k, "2"), f"{k} <= {count}", f"{k} = {k} * 2", True),
            self.rounds(start(j, f"{k} / 2"), f"{j} > 0", f"{j} = {j} / 2", True),
        ):
            first = d.cast_to("i32", self.thread)
            inside = f"{self.guard} && " if self.guard else ""
            head = f"for ({start(p, first)} {inside}{p} < {count // 2}; {p} = {p} + {self.threads})"
            with self.braces(head):
                define(a, f"2 * {p} - ({p} & ({j} - 1))")
                define(b, f"{a} + {j}")
                keys = [self.element(op.keys, x) for x in (a, b)]
                places = [self.element(op.places, x) for x in (a, b)]
                x, y = (self.let(dtype, self.loaded(dtype, e)) for e in keys)
                u, v = (self.let(i32, self.loaded(i32, e)) for e in places)
                before = self.before(dtype, (y, v), (x, u), op.largest)
                with self.braces(f"if (({before}) == (({a} & {k}) == 0))"):
                    for element, value in zip(keys, (y, x), strict=True):
                        self.emit(f"{element} = {self.stored(dtype, value)};")
                    for element, value in zip(places, (v, u), strict=True):
                        self.emit(f"{element} = {value};")
            self.barrier()

    def before(self, dtype: DType, first: tuple[str, str], second: tuple[str, str], largest: bool) -> str:
        """Whether a pair of a key and a place comes before another in sorted order."""
        (x, u), (y, v) = first, second
        better = self.scalars.binary("gt" if largest else "lt", dtype, x, y)
        tie = f"({x} == {y})"
        if dtype.is_float:
            x_nan, y_nan = f"(!({x} == {x}))", f"(!({y} == {y}))"
            better = f"({better} || ({f'{x_nan} && !{y_nan}' if largest else f'{y_nan} && !{x_nan}'}))"
            tie = f"({tie} || ({x_nan} && {y_nan}))"
        return f"{better} || ({tie} && {u} < {v})"


__all__ = ["identifier", "module_text", "print_kernel", "threads_of"]

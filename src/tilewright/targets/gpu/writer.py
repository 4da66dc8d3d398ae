"""The state of a kernel that is being printed: lines, names, and the functions that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...dialects import loop, simt
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Operation, Value
from ...ir.symbolic import Expr, symbol
from ...ir.target_info import Gpu, TargetInfo
from ...ir.types import DType, i32
from .dialect import Dialect, Register, Storage
from .index_text import IndexText, Variable, fits
from .named_indices import NamedIndexText
from .prelude import callee, definitions
from .scalars import ScalarText


def threads_of(kernel: loop.Kernel) -> int:
    """Threads of a block: the largest extent of a thread nest."""
    extents = [f.extent for f in loops_of_kinds(kernel.walk(), loop.LoopKind.THREAD_X)]
    return max((e for e in extents if isinstance(e, int)), default=1)


def loops_of_kinds(ops: Iterable[Operation], *kinds: loop.LoopKind) -> list[loop.For]:
    """The loops of some kinds among operations."""
    return [op for op in ops if isinstance(op, loop.For) and op.kind in kinds]


def identifier(text: str) -> str:
    """`text` with an underscore for each character that a name must not have."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return k == len(text) - 1
    return False


class Writer:
    """Writes lines of a kernel in a language. The classes derived from it print statements."""

    thread = "thread_x"
    """The variable that holds the number of the thread."""

    def __init__(self, kernel: loop.Kernel, dialect: Dialect, info: TargetInfo) -> None:
        """Begin a kernel without lines."""
        self.kernel, self.dialect, self.info = kernel, dialect, info
        self.gpu = info.gpu or Gpu()
        self.place = f"kernel '{kernel.sym_name}'"
        self.uses: set[str] = set()
        self.lines: list[str | list[str]] = []
        """Lines, and lists of definitions that come later than what follows them."""
        self.depth = 1
        self.count = 0
        self.names: dict[Value, str] = {}
        self.buffers: dict[Value, int] = {arg: k for k, arg in enumerate(kernel.body.args)}
        self.shared: list[tuple[str, str, int, int]] = []
        """Name, type, elements and bytes of the shared buffers."""
        self.exchanges: list[tuple[str, str, int]] = []
        """Name, type and elements of those through which threads exchange values."""
        self.changed = {op.buffer for op in kernel.walk() if isinstance(op, (loop.Store, loop.Accumulate))}
        self.combined = {op.buffer for op in kernel.walk() if isinstance(op, simt.AllReduce)}
        """Buffers that all threads read, also those that wrote nothing."""
        self.swizzles: dict[Value, str] = {}
        """The arguments of ``tw_swizzle`` for buffers whose parts of 16 bytes are exchanged."""
        self.private: set[Value] = set()
        """Buffers in registers, whose first index is not printed."""
        self.threads = threads_of(kernel)
        kind = NamedIndexText if dialect.explicit else IndexText
        self.index = kind(dialect, self.size, self.call)
        self.scalars = ScalarText(dialect, self.call, self.place)
        self.sizes: dict[str, int] = {}
        """Number of each of the kernel's dims that is used."""
        self.in_loop = False
        self.arrays: dict[Operation, str] = {}
        """Arrays of a thread through which accesses of a loop over vector lanes go."""
        self.wide: set[Value] = set()
        """Buffers that are arrays of vectors."""
        self.own_arrays: dict[str, tuple[str, str]] = {}
        """The declarations of the thread's arrays by their names, and the types of the elements."""
        self.moved: set[Value] = set()
        """Loaded values that are only stored again: their names are elements in memory's type."""
        self.staged: dict[Operation, str] = {}
        """Elements of these arrays in the current iteration."""

    def aliased(self) -> frozenset[int]:
        """Numbers of the buffers that may share memory with another one."""
        pairs = notes.BUFFER_ALIASES.get(self.kernel) or ()
        first = len(self.buffers) - self.kernel.num_outputs
        return frozenset(n for output, source in pairs for n in (first + output, source))

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

    def offset(self, buffer: Value) -> Expr:
        """The element of the parameter of a buffer that is its first one, as a symbol."""
        return symbol(f"tw_o{self.buffers[buffer]}", 0, None, 4 if buffer in self.wide else 1)

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

    @contextmanager
    def scope(self, *symbols: str) -> Iterator[None]:
        """Statements of the kernel, or of a loop that defines the variables of `symbols`."""
        if not isinstance(self.index, NamedIndexText):
            yield
            return
        place: list[str] = []
        indent = "  " * self.depth
        self.lines.append(place)

        def define(text: str) -> str:
            name = self.fresh("at")
            value = text[1:-1] if is_enclosed(text) else text
            place.append(indent + self.dialect.const.format(type=self.type(i32), name=name, value=value))
            return name

        with self.index.scope(set(symbols), define):
            yield

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    @contextmanager
    def braces(self, head: str, end: str = "") -> Iterator[None]:
        """A block of statements after `head`, which is empty for a bare block, and before `end`."""
        self.emit(f"{head} {{".lstrip())
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self.emit("}" + end)

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


__all__ = ["Writer", "identifier", "is_enclosed", "loops_of_kinds", "threads_of"]

"""The host program as LLVM IR: the module that defines `tw_module`, as the runtime's `runtime.h` describes
it.

Input: the planned host functions, and the generated code of the kernels that they launch. Output: LLVM IR
text that refers to the kernels by name. All structs are literal types, so the target's data layout decides
the size of pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...artifact.sources import ABI_VERSION
from ...dialects import func, host, loop
from ...errors import CompileError
from ...ir import notes
from ...ir.core import Block, IRError, Module, Value
from ...ir.run_time_symbols import defined_inside, mentions
from ...ir.shape_solver import Check, Define, ShapeSolver
from ...ir.symbolic import Dim, Expr, bounds, free_symbols, is_symbol
from ...ir.types import BufferType, DType
from .emitter import Carried, Emitter
from .host_calls import HostCalls
from .index_expr import IndexCode
from .isa import Isa

_UNBOUNDED = (1 << 63) - 1
_FIXED, _CONFLICT, _BOUNDS, _MULTIPLE, _UNSOLVED = 1, 2, 3, 4, 5
_STATUS = {"program": 8, "index": 10, "division": 11}
"""Status codes of the C interface for failed checks."""
_ERROR = "{ i32, i32, i32, i32, i64, i64, i32, i32 }"
_TENSOR = "{ ptr, i32, i32, i32, i32, ptr }"
_SYMBOL = "{ ptr, i64, i64 }"
_STATE = "{ ptr, i32, i32, i32, i32, ptr, ptr, i64 }"
_FUNCTION = "{ ptr, i32, i32, i32, i32, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }"
_MODULE = "{ i32, i32, i32, i32, i32, i32, i64, ptr, ptr, ptr, ptr }"
_KINDS = {"int": 0, "uint": 1, "float": 2, "bool": 6}  # DLPack's type codes
_CODES = {
    "bf16": 4,
    "f8E3M4": 7,
    "f8E4M3": 8,
    "f8E4M3B11FNUZ": 9,
    "f8E4M3FN": 10,
    "f8E4M3FNUZ": 11,
    "f8E5M2": 12,
    "f8E5M2FNUZ": 13,
    "f8E8M0FNU": 14,
    "f6E2M3FN": 15,
    "f6E3M2FN": 16,
    "f4E2M1FN": 17,
}


def host_inputs(main: func.Func) -> list[tuple[str, BufferType]]:
    """Names and types of the inputs that callers of a host function pass."""
    return [(n, a.type) for n, a in _arguments(main) if n not in dict(main.states)]


def _arguments(main: func.Func) -> list[tuple[str, Value]]:
    """Inputs and states of a host function."""
    count = len(main.body.args) - len(main.result_names)
    return list(zip(main.arg_names[:count], main.body.args[:count], strict=True))


def host_outputs(main: func.Func) -> list[tuple[str, BufferType]]:
    """Names and types of a host function's outputs."""
    args = main.body.args[len(main.body.args) - len(main.result_names) :]
    return [(n, a.type) for n, a in zip(main.result_names, args, strict=True)]


def kernel_order(module: Module) -> list[str]:
    """The kernels launched by a module's host functions, variants among them, in order of first launch, which
    numbers them at run time.
    """
    launches = (
        op for function in func.entries(module) for op in function.walk() if isinstance(op, host.Launch)
    )
    return list(dict.fromkeys(name for op in launches for name in op.kernels))


def print_host(module: Module, calls: HostCalls, isa: Isa, weights_size: int) -> str:
    """The LLVM IR of the host functions.

    `calls` prints launches and copies; `weights_size` is the result of memory planning, in bytes.

    Raises:
        CompileError: a dimension of an output, or one that a kernel needs, cannot be derived from any input's
            shape.
        IRError: a function has no memory plan.
    """
    functions = func.entries(module)
    for function in functions:
        if not notes.ARENA_SIZE.present(function):
            raise IRError("memory has not been planned", function)
    return _Tables(module, functions, calls).text(isa, weights_size)


def _solver(main: func.Func) -> ShapeSolver:
    try:
        return ShapeSolver([(name, type_.shape) for name, type_ in host_inputs(main)])
    except ValueError as error:
        raise CompileError(str(error)) from error


class _Tables:
    """The module's constants and the tables that its functions share."""

    def __init__(self, module: Module, functions: Sequence[func.Func], calls: HostCalls) -> None:
        self.functions, self.calls = functions, calls
        self.kernels = {k.sym_name: k for k in module.functions(loop.Kernel)}
        self.order = kernel_order(module)
        self.states = func.shared_states(functions)
        self._lines: list[str] = []
        self._strings: dict[str, str] = {}
        self._shapes = 0

    def text(self, isa: Isa, weights_size: int) -> str:
        printers = [_Printer(self, function, number) for number, function in enumerate(self.functions)]
        bodies = [printer.text() for printer in printers]
        features = [f.lstrip("+") for f in isa.machine_features if not f.startswith("-")]
        names = [f"ptr {self.string(name)}" for name in self.order]
        blocks = max(notes.BUFFER_SLOTS.get(function, 0) for function in self.functions)
        counts = (ABI_VERSION, len(printers), len(self.order), blocks, len(self.states), 0)
        fields = [
            *(f"i32 {n}" for n in counts),
            f"i64 {weights_size}",
            f"ptr {self.array('functions', _FUNCTION, [printer.row() for printer in printers])}",
            f"ptr {self.array('states', _STATE, self._state_rows())}",
            f"ptr {self.array('kernel_names', 'ptr', names)}",
            f"ptr {self.string(','.join(features)) if features else 'null'}",
        ]
        declarations = self.calls.declarations(self)
        return "\n".join(
            [
                *self._lines,
                f"@tw_module = hidden constant {_MODULE} {{ {', '.join(fields)} }}, align 8",
                "",
                *declarations,
                "declare ptr @tw_block(ptr, i32, i64, i32)",
                "declare ptr @tw_late_output(ptr, i32, i64)",
                "declare i32 @tw_prepare_scratch(ptr, ptr)",
                "declare i32 @tw_raise(ptr, i32, ptr)",
                "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
                "declare i64 @llvm.smax.i64(i64, i64)",
                "declare i64 @llvm.smin.i64(i64, i64)",
                "",
                *bodies,
            ]
        )

    def string(self, text: str) -> str:
        if text not in self._strings:
            name = f"@tw.string{len(self._strings)}"
            data = text.encode() + b"\0"
            shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
            self._lines.append(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{shown}"')
            self._strings[text] = name
        return self._strings[text]

    def array(self, name: str, kind: str, items: Sequence[str]) -> str:
        if not items:
            return "null"
        self._lines.append(
            f"@tw.{name} = private constant [{len(items)} x {kind}] [{', '.join(items)}], align 8"
        )
        return f"@tw.{name}"

    def tensor(self, name: str, type_: BufferType, late: bool = False) -> str:
        code, bits = dlpack_type(type_.dtype)
        sizes = [f"i64 {d if isinstance(d, int) else -1}" for d in type_.shape]
        self._shapes += 1
        shape = self.array(f"shape{self._shapes}", "i64", sizes)
        return (
            f"{_TENSOR} {{ ptr {self.string(name)}, i32 {code}, i32 "
            f"{bits}, i32 {type_.rank}, i32 {int(late)}, ptr {shape} }}"
        )

    def _state_rows(self) -> list[str]:
        offsets = {
            name: offset
            for function in self.functions
            for (name, _), offset in zip(function.states, notes.STATE_OFFSETS.of(function), strict=True)
        }
        rows: list[str] = []
        for name, (type_, _) in self.states.items():
            assert isinstance(type_, BufferType)
            shape = self.array(f"state{len(rows)}", "i64", [f"i64 {d}" for d in type_.shape])
            tensor = self.tensor(name, type_)[len(_TENSOR) + 2 : -2]
            rows.append(f"{_STATE} {{ {tensor}, ptr {shape}, i64 {offsets[name]} }}")
        return rows


class _Printer:
    """Prints function number `number` of the module."""

    def __init__(self, tables: _Tables, main: func.Func, number: int) -> None:
        self.tables, self.main, self.number = tables, main, number
        self.calls, self.kernels, self.order = tables.calls, tables.kernels, tables.order
        launches = [op for op in main.walk() if isinstance(op, host.Launch)]
        self.launched = list(dict.fromkeys(name for op in launches for name in op.kernels))
        self.solver = _solver(main)
        self.solved = [step.symbol for step in self.solver.steps if isinstance(step, Define)]
        """The symbols in the order in which `solve` derives them."""
        self.computed = sorted(defined_inside(main), key=str)
        """The symbols that `main` itself writes to the table, after the derived ones."""
        self.symbols = [*self.solved, *self.computed]
        count = len(_arguments(main))
        self.late = {
            arg: number
            for number, arg in enumerate(main.body.args[count:])
            if mentions(arg.type.shape, self.computed)
        }
        """The outputs whose size is known only at the end of a run, with their numbers."""
        _check_known(main, self.symbols)

    def text(self) -> str:
        parts = [self._solve(), self._output_shapes(), self._arena_size(), self._scratch_size(), self._main()]
        return "\n".join(parts)

    def row(self) -> str:
        """The function's entry in the module's table."""
        tables, inputs, outputs = self.tables, host_inputs(self.main), host_outputs(self.main)
        marked = set(self.main.updates) if self.calls.marks_updates else set()
        sides = [
            [tables.tensor(n, t, n in changed or mentions(t.shape, self.computed)) for n, t in tensors]
            for tensors, changed in ((inputs, marked), (outputs, ()))
        ]
        bounded = [f"{_SYMBOL} {{ ptr {tables.string(s.name)}, {_limits(s)} }}" for s in self.symbols]
        fields = [
            f"ptr {tables.string(self.main.sym_name)}",
            *(f"i32 {n}" for n in (len(inputs), len(outputs), len(bounded), 0)),
            f"ptr {tables.array(f'inputs{self.number}', _TENSOR, sides[0])}",
            f"ptr {tables.array(f'outputs{self.number}', _TENSOR, sides[1])}",
            f"ptr {tables.array(f'symbols{self.number}', _SYMBOL, bounded)}",
            *(
                f"ptr {self._name(n)}"
                for n in ("solve", "output_shapes", "arena_size", "scratch_size", "main")
            ),
        ]
        return f"{_FUNCTION} {{ {', '.join(fields)} }}"

    def _name(self, function: str) -> str:
        return f"@tw.{function}{self.number}"

    # -- Functions over the symbols -------------------------------------------------------------------------

    def _symbol_values(
        self, emit: Emitter, pointer: str, used: Iterable[Dim], symbols: Sequence[Expr] | None = None
    ) -> IndexCode:
        """Load the symbols that occur in `used`; the result emits expressions over them."""
        needed = {s.name for e in used for s in free_symbols(e)}
        values = []
        for index, symbol in enumerate(self.symbols if symbols is None else symbols):
            if symbol.name in needed:
                values.append((symbol, emit.load("i64", emit.at(pointer, str(index), 8), 8)))
        code = IndexCode(emit)
        for symbol, value in values:
            code.bind(symbol, value)
        return code

    def _size_function(self, name: str, sizes: Sequence[Dim]) -> str:
        """A function that returns the largest of `sizes`."""
        emit = Emitter()
        index = self._symbol_values(emit, "%symbols", sizes)
        result = "0"
        for value in dict.fromkeys(index.value(size) for size in sizes):
            result = (
                value if result == "0" else emit.op(f"call i64 @llvm.smax.i64(i64 {result}, i64 {value})")
            )
        return _function(f"i64 {self._name(name)}(ptr %symbols)", emit, f"i64 {result}")

    def _arena_size(self) -> str:
        return self._size_function("arena_size", [notes.ARENA_SIZE.of(self.main)])

    def _scratch_size(self) -> str:
        return self._size_function("scratch_size", [self.calls.scratch(name) for name in self.launched])

    def _output_shapes(self) -> str:
        emit = Emitter()
        outputs = host_outputs(self.main)
        index = self._symbol_values(emit, "%symbols", [d for _, t in outputs for d in t.shape])
        for number, (_, type_) in enumerate(outputs):
            if type_.rank:
                shape = emit.op(f"load ptr, ptr {self._slot(emit, '%shapes', number)}")
                for k, dim in enumerate(type_.shape):
                    emit.line(f"store i64 {index.value(dim)}, ptr {emit.at(shape, str(k), 8)}, align 8")
        return _function(f"void {self._name('output_shapes')}(ptr %symbols, ptr %shapes)", emit, "void")

    @staticmethod
    def _slot(emit: Emitter, pointer: str, index: int) -> str:
        """The address of element `index` of an array of pointers."""
        return pointer if index == 0 else emit.op(f"getelementptr ptr, ptr {pointer}, i64 {index}")

    # -- solve ----------------------------------------------------------------------------------------------

    def _solve(self) -> str:
        emit = Emitter()
        index = IndexCode(emit)
        origin: dict[Expr, tuple[int, int]] = {}
        rows = [self._row(emit, k) for k in range(len(self.solver.inputs))]
        for step in self.solver.steps:
            size = emit.load("i64", emit.at(rows[step.input], str(step.dim), 8), 8)
            if isinstance(step, Check):
                self._check(emit, index, step, size, origin)
                continue
            symbol, number = step.symbol, self.symbols.index(step.symbol)
            value = self._solve_step(emit, index, step, size, number)
            low, high = bounds(symbol)
            wrong = [emit.op(f"icmp slt i64 {value}, {low}")] if low is not None else []
            if high is not None:
                wrong.append(emit.op(f"icmp sgt i64 {value}, {high}"))
            if wrong:
                outside = wrong[0] if len(wrong) == 1 else emit.op(f"or i1 {wrong[0]}, {wrong[1]}")
                self._fail(emit, outside, (_BOUNDS, step.input, step.dim, number, value, size, -1, 0))
            if symbol.multiple_of > 1:
                rest = emit.op(f"srem i64 {value}, {symbol.multiple_of}")
                kind = _MULTIPLE if step.expr is symbol else _UNSOLVED
                self._fail_unless_zero(
                    emit, rest, (kind, step.input, step.dim, number, symbol.multiple_of, size, -1, 0)
                )
            index.bind(symbol, value, here=True)
            origin[symbol] = (step.input, step.dim)
            emit.line(f"store i64 {value}, ptr {emit.at('%symbols', str(number), 8)}, align 8")
        for number, symbol in enumerate(self.computed, len(self.solved)):
            emit.line(f"store i64 {_allowed(symbol)}, ptr {emit.at('%symbols', str(number), 8)}, align 8")
        return _function(f"i32 {self._name('solve')}(ptr %shapes, ptr %symbols, ptr %error)", emit, "i32 0")

    def _row(self, emit: Emitter, index: int) -> str:
        if not self.solver.inputs[index][1]:
            return "null"
        return emit.op(f"load ptr, ptr {self._slot(emit, '%shapes', index)}")

    def _solve_step(self, emit: Emitter, index: IndexCode, step: Define, size: str, number: int) -> str:
        """The value of the step's symbol; fails if no whole number gives the size."""
        shifted = emit.sub(size, index.value(step.offset))
        if isinstance(step.coefficient, int) and step.coefficient == 1:
            return shifted
        factor = index.value(step.coefficient)
        unsolved = (_UNSOLVED, step.input, step.dim, number, 0, size, -1, 0)
        if not isinstance(step.coefficient, int):
            self._fail(emit, emit.op(f"icmp eq i64 {factor}, 0"), unsolved)
        self._fail_unless_zero(emit, emit.op(f"srem i64 {shifted}, {factor}"), unsolved)
        return emit.op(f"sdiv i64 {shifted}, {factor}")

    def _check(
        self, emit: Emitter, index: IndexCode, step: Check, size: str, origin: Mapping[Expr, tuple[int, int]]
    ) -> None:
        wanted = index.value(step.expr)
        differs = emit.op(f"icmp ne i64 {size}, {wanted}")
        if isinstance(step.expr, Expr) and is_symbol(step.expr):
            number = self.symbols.index(step.expr)
            self._fail(
                emit, differs, (_CONFLICT, step.input, step.dim, number, wanted, size, *origin[step.expr])
            )
        else:
            self._fail(emit, differs, (_FIXED, step.input, step.dim, -1, wanted, size, -1, 0))

    def _fail_unless_zero(self, emit: Emitter, value: str, error: tuple[object, ...]) -> None:
        self._fail(emit, emit.op(f"icmp ne i64 {value}, 0"), error)

    def _fail(self, emit: Emitter, condition: str, error: tuple[object, ...]) -> None:
        """Fill in the tw_shape_error and return 1 if `condition` holds."""
        name = emit.fresh("wrong")
        emit.line(f"br i1 {condition}, label %{name}, label %{name}.not")
        emit.label(name)
        for index, (kind, value) in enumerate(zip(_ERROR[2:-2].split(", "), error, strict=True)):
            field = emit.op(f"getelementptr {_ERROR}, ptr %error, i32 0, i32 {index}")
            emit.line(f"store {kind} {value}, ptr {field}")
        emit.line("ret i32 1")
        emit.label(f"{name}.not")

    # -- main -----------------------------------------------------------------------------------------------

    def _main(self) -> str:
        emit = Emitter()
        ops = list(self.main.walk())
        launches = [op for op in ops if isinstance(op, host.Launch)]
        used: list[Dim] = [
            op.offset for op in ops if isinstance(op, (host.Alloc, host.View)) and op.offset is not None
        ]
        used += [op.buffer.size for op in ops if isinstance(op, host.Alloc) and op.slot is not None]
        used += [
            v.type.size
            for op in ops
            if isinstance(op, host.View) and op.checked
            for v in (op.source, op.result)
        ]
        used += [op.source.type.size for op in ops if isinstance(op, host.Copy)]
        used += [op.step.upper for op in ops if isinstance(op, host.For)]
        used += [d for name in self.launched for d in (*self.calls.sizes(name), *self.kernels[name].dims)]
        used += [e for op in launches for guards, _ in op.variants for e in guards]
        index = self._symbol_values(emit, "%symbols", used, self.solved)
        most = max((len(op.buffers) for op in launches), default=0)
        buffers = emit.alloca(f"[{max(most, 1)} x ptr]", 16)
        program = _Program(
            self, emit, index, buffers, self._dims_arrays(emit, index), self._argument_places(emit)
        )
        program.block(self.main.body)
        signature = (
            "ptr %context, ptr %symbols, ptr %inputs, ptr %outputs, ptr %states, ptr %arena, ptr %weights"
        )
        return _function(f"i32 {self._name('main')}({signature})", emit, "i32 0")

    def _argument_places(self, emit: Emitter) -> dict[Value, str]:
        arguments, numbers = _arguments(self.main), {n: k for k, n in enumerate(self.tables.states)}
        states = {n for n, _ in self.main.states}
        groups: dict[str, list[tuple[int, Value]]] = {
            "%inputs": list(enumerate(a for n, a in arguments if n not in states)),
            "%states": [(numbers[n], a) for n, a in arguments if n in states],
            "%outputs": list(enumerate(self.main.body.args[len(arguments) :])),
        }
        return {
            arg: emit.op(f"load ptr, ptr {self._slot(emit, array, slot)}")
            for array, args in groups.items()
            for slot, arg in args
            if arg.has_uses
        }

    def _dims_arrays(self, emit: Emitter, index: IndexCode) -> dict[tuple[str, ...], str]:
        """Arrays of symbol values, by the symbols' names; kernels with equal needs share one array.

        Loops store the values of their steps themselves.
        """
        arrays: dict[tuple[str, ...], str] = {(): "null"}
        known = {s.name for s in self.solved}
        every = tuple(s.name for s in self.symbols)
        if every:
            arrays[every] = "%symbols"
        for name in self.launched:
            dims = self.kernels[name].dims
            key = tuple(s.name for s in dims)
            if key not in arrays:
                arrays[key] = emit.alloca(f"[{len(key)} x i64]", 16)
                for k, symbol in enumerate(dims):
                    if symbol.name in known:
                        emit.line(
                            f"store i64 {index.value(symbol)}, ptr {emit.at(arrays[key], str(k), 8)}, align 8"
                        )
        return arrays


class _Program:
    """Prints the operations of the host program, block by block."""

    def __init__(
        self,
        printer: _Printer,
        emit: Emitter,
        index: IndexCode,
        buffers: str,
        dims: dict[tuple[str, ...], str],
        places: dict[Value, str],
    ) -> None:
        self.printer, self.emit, self.index = printer, emit, index
        self.buffers, self.dims, self.places = buffers, dims, places

    def block(self, block: Block) -> None:
        emit, places = self.emit, self.places
        for op in block.ops:
            if isinstance(op, host.Constant):
                places[op.result] = emit.at("%weights", str(op.offset), 1)
            elif isinstance(op, host.Alloc) and op.slot is not None:
                size = self.index.value(op.buffer.size * op.buffer.dtype.itemsize)
                call = f"call ptr @tw_block(ptr %context, i32 {op.slot}, i64 {size}, i32 {int(op.keep)})"
                places[op.result] = self._present(emit.op(call))
            elif isinstance(op, host.Alloc):
                places[op.result] = emit.at("%arena", self.index.value(op.offset), 1)
            elif isinstance(op, host.View):
                if op.checked:
                    self._check_size(op)
                places[op.result] = emit.at(
                    places[op.source], self.index.value(op.offset), op.source.type.dtype.itemsize
                )
            elif isinstance(op, host.Copy):
                size = self.index.value(op.source.type.size * op.source.type.dtype.itemsize)
                if op.target in self.printer.late:
                    number = self.printer.late[op.target]
                    call = f"call ptr @tw_late_output(ptr %context, i32 {number}, i64 {size})"
                    places[op.target] = self._present(emit.op(call))
                self.printer.calls.copy(emit, places[op.target], places[op.source], size)
            elif isinstance(op, host.Launch):
                self._launch(op)
            elif isinstance(op, host.For):
                self._loop(op)
            elif isinstance(op, host.While):
                self._while(op)
            elif isinstance(op, host.If):
                self._branches(op)
            elif isinstance(op, host.Check):
                failed = emit.op(f"icmp eq i8 {self._read('i8', op.condition)}, 0")
                self._fail(failed, op.message, _STATUS[op.error])
            elif isinstance(op, host.BindSize):
                self._bind(op.symbol, self._read("i64", op.count), str(op.location.portable))
            elif not op.terminator:
                raise IRError("is not an operation of the host level", op)

    def _launch(self, op: host.Launch) -> None:
        emit, printer = self.emit, self.printer
        for number, value in enumerate(op.buffers):
            emit.line(f"store ptr {self.places[value]}, ptr {printer._slot(emit, self.buffers, number)}")
        chosen = self._kernel(op.kernel)
        for guards, name in reversed(op.variants):
            flag, _ = self.index.conditions(guards)
            variant = self._kernel(name)
            if flag is None:
                chosen = variant
                continue
            chosen = [
                (kind, a if a == b else emit.op(f"select i1 {flag}, {kind} {a}, {kind} {b}"))
                for (kind, a), (_, b) in zip(variant, chosen, strict=True)
            ]
        dims = self.dims[tuple(s.name for s in printer.kernels[op.kernel].dims)]
        printer.calls.launch(emit, chosen, self.buffers, dims)

    def _kernel(self, name: str) -> list[tuple[str, str]]:
        """Types and values of the arguments of a launch that depend on the kernel."""
        calls = self.printer.calls
        values = [self.index.value(d) for d in calls.sizes(name)]
        return calls.arguments(name, self.printer.order.index(name), values)

    def _read(self, kind: str, value: Value) -> str:
        """The integer in a buffer of one element."""
        return self.printer.calls.read(self, kind, self.places[value])

    def _store(self, symbol: Expr, value: str) -> None:
        """Store the value of a symbol that has just become known, for the kernels."""
        for names, array in self.dims.items():
            if symbol.name in names:
                place = self.emit.at(array, str(names.index(symbol.name)), 8)
                self.emit.line(f"store i64 {value}, ptr {place}, align 8")

    def _bind(self, symbol: Expr, value: str, where: str) -> None:
        """Bind a symbol to the value that the run has computed, which becomes a size."""
        emit, printer = self.emit, self.printer
        low, high = bounds(symbol)
        if low is not None:
            self._fail(
                emit.op(f"icmp slt i64 {value}, {low}"), f"a size computed at {where} is less than {low}"
            )
        if high is not None:
            self._fail(
                emit.op(f"icmp sgt i64 {value}, {high}"), f"a size computed at {where} is more than {high}"
            )
        self._define(symbol, value)
        if any(symbol in free_symbols(printer.calls.scratch(name)) for name in printer.launched):
            self.stop_if(emit.op("call i32 @tw_prepare_scratch(ptr %context, ptr %symbols)"))

    def _define(self, symbol: Expr, value: str) -> None:
        self.index.bind(symbol, value, here=True)
        table = self.emit.at("%symbols", str(self.printer.symbols.index(symbol)), 8)
        self.emit.line(f"store i64 {value}, ptr {table}, align 8")
        self._store(symbol, value)

    def _check_size(self, op: host.View) -> None:
        wanted, actual = (self.index.value(v.type.size) for v in (op.result, op.source))
        wrong = self.emit.op(f"icmp ne i64 {wanted}, {actual}")
        shape = ", ".join(map(str, op.result.type.shape))
        self._fail(
            wrong,
            f"the shape ({shape}) computed at {op.location.portable} has not as many elements as its tensor",
        )

    def _fail(self, condition: str, message: str, status: int = _STATUS["program"]) -> None:
        """End the run with a message if `condition` holds."""
        with self.emit.when(condition):
            text = self.printer.tables.string(message)
            self.stop_if(self.emit.op(f"call i32 @tw_raise(ptr %context, i32 {status}, ptr {text})"))

    def _present(self, pointer: str) -> str:
        """`pointer`, after a return for the case that it is null: the allocation has failed and reported an
        error.
        """
        missing = self.emit.op(f"icmp eq ptr {pointer}, null")
        self.stop_if(self.emit.op(f"zext i1 {missing} to i32"))
        return pointer

    def stop_if(self, status: str) -> None:
        """End the run if the status is not 0."""
        emit, name = self.emit, self.emit.fresh("stop")
        emit.line(f"br i1 {emit.op(f'icmp ne i32 {status}, 0')}, label %{name}, label %{name}.not")
        emit.label(name)
        emit.line(f"ret i32 {status}")
        emit.label(f"{name}.not")

    def _branches(self, op: host.If) -> None:
        emit = self.emit
        taken = emit.op(f"icmp ne i8 {self._read('i8', op.condition)}, 0")
        name = emit.fresh("branch")
        emit.line(f"br i1 {taken}, label %{name}.0, label %{name}.1")
        for number, region in enumerate(op.regions):
            emit.label(f"{name}.{number}")
            with self.index.level():
                self.block(region.block)
            emit.line(f"br label %{name}.end")
        emit.label(f"{name}.end")

    def _while(self, op: host.While) -> None:
        emit, places = self.emit, self.places
        limit = str(_UNBOUNDED) if op.limit is None else self._read("i64", op.limit)

        def body(step: str, carried: Carried) -> tuple[str, list[str]]:
            with self.index.level():
                self.index.bind(op.step, step)
                self._store(op.step, step)
                places.update({arg: place for arg, (_, place) in zip(op.body.args, carried, strict=True)})
                self.block(op.body)
                return places[op.body.terminator.operands[0]], [places[v] for v in op.handed_on]

        first: Carried = [("ptr", places[v]) for v in op.initial]
        count, last = emit.loop_while(
            places[op.condition], limit, first, body, lambda place: self.printer.calls.read(self, "i8", place)
        )
        places.update(zip(op.results, last, strict=True))
        self._define(op.count, count)

    def _loop(self, op: host.For) -> None:
        emit, places = self.emit, self.places

        def body(step: str, carried: Carried) -> list[str]:
            with self.index.level():
                self.index.bind(op.step, step)
                self._store(op.step, step)
                places.update({arg: place for arg, (_, place) in zip(op.body.args, carried, strict=True)})
                self.block(op.body)
                return [places[v] for v in op.body.terminator.operands]

        first: Carried = [("ptr", places[v]) for v in op.initial]
        last = emit.loop("0", self.index.value(op.step.upper + 1), "1", first, body)
        places.update(zip(op.results, last, strict=True))


def dlpack_type(dtype: DType) -> tuple[int, int]:
    """DLPack's type code and width in bits of an element type.

    An element of fewer than 8 bits is padded to a byte and lies in its low bits.
    """
    if dtype.name in _CODES:
        return _CODES[dtype.name], dtype.bits
    return _KINDS[dtype.kind], 8 if dtype.kind == "bool" else dtype.bits


def _allowed(symbol: Expr) -> int:
    """A valid value for a symbol that the run has yet to compute: sizes that mention it may divide by it."""
    low, high = bounds(symbol)
    return low if low is not None else min(0, high or 0)


def _limits(symbol: Expr) -> str:
    low, high = bounds(symbol)
    return f"i64 {0 if low is None else low}, i64 {_UNBOUNDED if high is None else high}"


def _function(signature: str, emit: Emitter, result: str) -> str:
    return f"define internal {signature} nounwind {{\n{emit.text(result)}}}\n"


def _check_known(main: func.Func, symbols: Sequence[Expr]) -> None:
    """Check that every size can be derived from the inputs' shapes."""
    known = {s.name for s in (*symbols, *defined_inside(main))}
    for name, type_ in host_outputs(main):
        unknown = {s.name for d in type_.shape for s in free_symbols(d)} - known
        if unknown:
            raise CompileError(
                f"output '{name}' has the shape ({', '.join(map(str, type_.shape))}), "
                f"but no input's shape determines {', '.join(sorted(unknown))}"
            )


__all__ = ["dlpack_type", "host_inputs", "host_outputs", "kernel_order", "print_host"]

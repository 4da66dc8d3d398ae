"""A target for Tilewright: each kernel becomes a C function, which Zig compiles for this machine."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.analysis.index_maps import flatten_index
from tilewright.analysis.loop_nest import enclosing_loops, reduce_variables
from tilewright.dialects import host, loop, scalar
from tilewright.dialects.func import entries
from tilewright.dialects.tensor import GroupKind
from tilewright.errors import CompileError, UnsupportedOperator
from tilewright.ir.core import Module, Operation, Value
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import Dim, FloorDiv, Min, Mod, Symbol, bounds
from tilewright.ir.target_info import TargetInfo
from tilewright.ir.types import DType, boolean, f32, i32, i64
from tilewright.lowering.pipeline import Lowered, LoweringOptions
from tilewright.runtime.model import CompiledModel
from tilewright.schedule import Schedule, ScheduleError
from tilewright.targets.base import Target

C_TYPES = {f32: "float", i32: "int32_t", i64: "int64_t", boolean: "_Bool"}
BINARY = dict(
    zip("add sub mul lt le gt ge eq ne and or".split(), "+ - * < <= > >= == != & |".split(), strict=True)
)
FUNCTIONS = {  # the result is NaN if an operand is NaN
    "neg": "-{}",
    "max": "{0} != {0} || {0} > {1} ? {0} : {1}",
    "min": "{0} != {0} || {0} < {1} ? {0} : {1}",
}
FLOAT_FUNCTIONS = {
    "div": "{} / {}",  # an integer division by zero would end the process
    "rsqrt": "1 / sqrtf({})",
    "sigmoid": "1 / (1 + expf(-{}))",
    "isnan": "{0} != {0}",
    "abs": "fabsf({})",
} | {name: name + "f({})" for name in "exp tanh sqrt log erf sin cos floor".split()}
HOST_OPERATIONS = host.Constant | host.Alloc | host.View | host.Copy | host.Launch
PRELUDE = """#include <math.h>
#include <stdint.h>
static int64_t floordiv(int64_t a, int64_t b) { return a / b - (a % b && (a < 0) != (b < 0)); }
static int64_t imin(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t imax(int64_t a, int64_t b) { return a > b ? a : b; }
"""


def producers_beside_consumers(s: Schedule, rows: int) -> None:
    """A schedule rule: compute each element of a producer right before the last block reads it."""
    *producers, last = s.blocks()
    loops = [f.iv.name for f in enclosing_loops(last) if f.iv not in reduce_variables(last)]
    for block in reversed(producers) if loops else ():
        with suppress(ScheduleError):  # a producer with other readers keeps its own loops
            s.compute_at(block.sym_name, loops[-1])


class Printer:
    """Writes one finalized kernel as a C function of its buffers and sizes."""

    def __init__(self, kernel: loop.Kernel) -> None:
        self.kernel, self.names, self.lines = kernel, dict[Value, str](), list[str]()

    def text(self) -> str:
        parameters = []
        for k, buffer in enumerate(self.kernel.body.args):
            self.names[buffer] = f"b{k}"
            parameters.append(f"{self.c_type(buffer.type.dtype)}* b{k}")
        parameters += [f"int64_t {self.variable(dim.name)}" for dim in self.kernel.dims]
        self.block(self.kernel)
        body = "\n".join(self.lines)
        return f"void kernel_{self.kernel.sym_name}({', '.join(parameters)}) {{\n{body}\n}}\n"

    def c_type(self, dtype: DType) -> str:
        if dtype not in C_TYPES:
            raise CompileError(f"target toy has no {dtype.label}")
        return C_TYPES[dtype]

    def variable(self, symbol: str) -> str:
        """The variable of a dimension or loop, whose name may be a word of C, such as ``double``."""
        return f"s_{symbol}"

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def block(self, parent: Operation) -> None:
        for op in parent.body.ops:
            self.statement(op)

    def statement(self, op: Operation) -> None:
        if isinstance(op, loop.For):
            for init, argument, result in zip(op.inits, op.body.args, op.results, strict=True):
                self.names[argument] = self.name(result)
                self.lines.append(f"{self.c_type(result.type)} {self.name(result)} = {self.name(init)};")
            i = self.variable(op.iv.name)
            self.lines.append(f"for (int64_t {i} = 0; {i} < {self.dim(op.extent)}; {i}++) {{")
            self.block(op)
            last = op.body.last
            if isinstance(last, loop.Yield):  # a new value may be the old value of another variable
                for result, value in zip(op.results, last.values, strict=True):
                    self.lines.append(
                        f"{self.c_type(result.type)} next_{self.name(result)} = {self.name(value)};"
                    )
                self.lines += [f"{self.name(result)} = next_{self.name(result)};" for result in op.results]
            self.lines.append("}")
        elif isinstance(op, loop.If):
            self.lines.append(f"if ({self.inside(op.conditions)}) {{")
            self.block(op)
            self.lines.append("}")
        elif isinstance(op, loop.Alloc):
            size = bounds(op.buffer.size)[1]
            if size is None:
                raise CompileError(f"target toy needs an upper bound for {op.buffer}")
            self.lines.append(f"static {self.c_type(op.buffer.dtype)} {self.name(op.result)}[{size}];")
        elif isinstance(op, loop.Load) and not op.dynamic:
            element = self.element(op)
            if op.guard:
                element = f"{self.inside(op.guard)} ? {element} : {self.name(op.otherwise)}"
            self.define(op, element)
        elif isinstance(op, loop.Store) and not op.dynamic:
            guard = f"if ({self.inside(op.guard)}) " if op.guard else ""
            self.lines.append(f"{guard}{self.element(op)} = {self.name(op.value)};")
        elif isinstance(op, scalar.ScalarOp):
            self.define(op, self.expression(op))
        elif not op.terminator:
            indices = " with data-dependent indices" if isinstance(op, (loop.Load, loop.Store)) else ""
            raise CompileError(f"target toy has no '{op.name}'{indices}")

    def inside(self, conditions: Sequence[Dim]) -> str:
        """Whether no expression is negative: the condition of a `loop.if` or of a guarded access."""
        return " && ".join(f"{self.dim(e)} >= 0" for e in conditions)

    def define(self, op: Operation, expression: str) -> None:
        self.lines.append(f"{self.c_type(op.result.type)} {self.name(op.result)} = {expression};")

    def element(self, op: loop.Load | loop.Store) -> str:
        return f"{self.name(op.buffer)}[{self.dim(flatten_index(op.indices, op.buffer.type.shape))}]"

    def expression(self, op: Operation) -> str:
        operands = [self.name(v) for v in op.operands]
        function = op.name.partition(".")[2]
        if isinstance(op, scalar.Constant):
            value = op.value
            if not op.dtype.is_float:
                return str(int(value))
            if math.isnan(value):
                return "NAN"
            return f"{'-' if value < 0 else ''}INFINITY" if math.isinf(value) else repr(float(value))
        if isinstance(op, scalar.Index):
            return self.dim(op.expr)
        if isinstance(op, scalar.Cast):
            (x,) = operands
            if op.x.type is f32 and op.dtype.is_integer:  # saturates; a NaN becomes 0
                low, high = (f"INT{op.dtype.bits}_{limit}" for limit in ("MIN", "MAX"))
                inside = f"{x} >= (float){high} ? {high} : ({self.c_type(op.dtype)}){x}"
                return f"{x} != {x} ? 0 : {x} <= (float){low} ? {low} : {inside}"
            return x
        if isinstance(op, scalar.Select):
            return f"{operands[0]} ? {operands[1]} : {operands[2]}"
        if function in BINARY:
            return f"{operands[0]} {BINARY[function]} {operands[1]}"
        if function in FUNCTIONS or (function in FLOAT_FUNCTIONS and op.operands[0].type is f32):
            return {**FUNCTIONS, **FLOAT_FUNCTIONS}[function].format(*operands)
        raise CompileError(f"target toy has no '{op.name}' for {op.operands[0].type}")

    def dim(self, e: Dim) -> str:
        """A size or index as a C expression: a sum of products of symbols, quotients, and limits."""
        if isinstance(e, int):
            return str(e)
        terms = []
        for factor, atoms in e.terms:
            parts = [str(factor)]
            for atom in atoms:
                if isinstance(atom, Symbol):
                    parts.append(self.variable(atom.name))
                    continue
                a, b = self.dim(atom.a), self.dim(atom.b)
                quotient = f"floordiv({a}, {b})"
                if isinstance(atom, (FloorDiv, Mod)):
                    parts.append(quotient if isinstance(atom, FloorDiv) else f"({a} - {b} * {quotient})")
                else:
                    parts.append(f"{'imin' if isinstance(atom, Min) else 'imax'}({a}, {b})")
            terms.append(" * ".join(parts))
        return f"({' + '.join(terms)})"


class ToyLibrary(CompiledModel):
    """A compiled model: the host program runs in Python and calls the C functions."""

    def __init__(self, module: Module, metadata: dict[str, Any], code: str) -> None:
        self.main, self.code = module.symbol("main"), code
        self._describe(metadata, "toy")
        self.folder = tempfile.TemporaryDirectory()
        source, library = Path(self.folder.name, "kernels.c"), Path(self.folder.name, "kernels.so")
        source.write_text(code)
        command = [sys.executable, "-m", "ziglang", "cc", "-O2", "-fwrapv", "-w", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", library, source, "-lm"], check=True)
        self.functions_in_c = ctypes.CDLL(str(library))

    def _execute(self, arrays: list[np.ndarray], out: Any) -> list[np.ndarray]:
        sizes = self.symbols_of([a.shape for a in arrays])
        if out is None:
            shapes = [[evaluate(d, sizes) for d in r.type.shape] for r in self.main.body.args[len(arrays) :]]
            out = [np.empty(shape, spec.dtype) for shape, spec in zip(shapes, self.outputs, strict=True)]
        places: dict[Value, np.ndarray] = dict(zip(self.main.body.args, [*arrays, *out], strict=True))
        for op in self.main.body.ops:
            if isinstance(op, host.Constant):
                places[op.result] = np.ascontiguousarray(op.value.array)
            elif isinstance(op, host.Alloc):
                places[op.result] = np.empty(
                    [evaluate(d, sizes) for d in op.buffer.shape], op.buffer.dtype.numpy
                )
            elif isinstance(op, host.View):
                start, shape = evaluate(op.offset, sizes), [evaluate(d, sizes) for d in op.result.type.shape]
                elements = places[op.source].reshape(-1).view(op.result.type.dtype.numpy)
                places[op.result] = elements[start : start + math.prod(shape)].reshape(shape)
            elif isinstance(op, host.Copy):
                places[op.target][...] = places[op.source].reshape(places[op.target].shape)
            elif isinstance(op, host.Launch):
                kernel = self.main.parent_op.symbol(op.kernel)
                pointers = [places[b].ctypes.data_as(ctypes.c_void_p) for b in op.buffers]
                dims = [ctypes.c_int64(sizes[dim.name]) for dim in kernel.dims]
                getattr(self.functions_in_c, f"kernel_{op.kernel}")(*pointers, *dims)
            elif not op.terminator:
                raise CompileError(f"target toy has no '{op.name}'")  # `ToyTarget.refusals` lists it earlier
        return list(out)

    def code_text(self, level: str) -> str | None:
        return self.code if level == "c" else None

    def close(self) -> None:
        self.folder.cleanup()


class ToyTarget(Target):
    """The target ``toy``."""

    name = "toy"
    code_levels = ("c",)
    has_checks = False
    info = TargetInfo(name="toy", vector_bits=0, thread_axes=())

    @property
    def lowering(self) -> LoweringOptions:
        rules = {GroupKind.ROWS: producers_beside_consumers, GroupKind.PLAIN: lambda s, rows: None}
        return LoweringOptions(panel=None, rules=rules, info=self.info, row_groups=False, in_place=False)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "features": []}

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        places: dict[str, list[str]] = {}
        for kernel in lowered.module.functions(loop.Kernel):
            try:
                Printer(kernel).text()
            except CompileError as error:
                what = str(error).removeprefix("target toy ")
                places.setdefault(what, []).append(str(lowered.kernels[kernel.sym_name].location))
        for function in entries(lowered.module):
            if function.sym_name != "main" or function.updates:
                places.setdefault("runs one function, 'main', without states", []).append(function.sym_name)
            for op in function.body.ops:
                if not isinstance(op, HOST_OPERATIONS) and not op.terminator:
                    places.setdefault(f"has no '{op.name}'", []).append(str(op.location))
        return [UnsupportedOperator(what, len(where), tuple(where)) for what, where in places.items()]

    def build(self, lowered: Lowered, plan: Any, metadata: dict[str, Any], *_: Any) -> ToyLibrary:
        code = "\n".join([PRELUDE, *(Printer(k).text() for k in lowered.module.functions(loop.Kernel))])
        return ToyLibrary(lowered.module, metadata, code)


def make(name: str) -> ToyTarget:
    """The entry point: the target for a name, which may have features behind a colon."""
    if name != "toy":
        raise CompileError(f"unknown target {name!r}: the target toy has no features to choose")
    return ToyTarget()

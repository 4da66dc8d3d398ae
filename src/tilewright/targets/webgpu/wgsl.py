"""A finalized loop kernel as a WGSL compute shader.

Every element occupies 32 bits in memory: float32 as itself, integers and booleans as i32 (i64 is narrowed;
indices and token ids of models fit). Binding k is the kernel's k-th buffer. The last binding holds the bits
of infinity, then the sizes (`dims`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...analysis.index_maps import flatten_index
from ...dialects import loop, scalar
from ...dialects.scalar import COMBINER_OP
from ...errors import CompileError
from ...ir.core import Operation, Value
from ...ir.symbolic import Binary, Dim, FloorDiv, Min, Mod, Symbol, bounds
from ...ir.types import DType, boolean, f32, u32, u64
from ..gpu.simple_rules import WORKGROUP

GROUPS_PER_ROW = 32768
"""Workgroups in the first dimension of a dispatch; the rest go to the second. WebGPU allows 65,535 in each
dimension.
"""


@dataclass(frozen=True)
class Shader:
    """A shader `text`, the number of workgroups (`groups`) to dispatch, and the number of buffers it
    binds.
    """

    name: str
    text: str
    groups: Dim
    buffers: int


_UNARY: dict[str, str | Callable[[str], str]] = {
    "neg": lambda x: f"-({x})",
    "not": lambda x: f"!({x})",
    "rsqrt": "inverseSqrt",
    "tanh": lambda x: f"tanh(clamp({x}, -20.0, 20.0))",
    "sigmoid": lambda x: f"(1.0 / (1.0 + exp(-({x}))))",
    "expm1": "tw_expm1",
    "log1p": "tw_log1p",
    "erf": "tw_erf",
    "isnan": "tw_isnan",
    "isinf": lambda x: f"(abs({x}) == inf())",
}
_SAME_NAME = (
    "abs sqrt floor ceil trunc round exp exp2 log log2 sin cos tan asin acos atan sinh cosh asinh acosh atanh"
)
_UNARY |= {name: name for name in _SAME_NAME.split()}

_BINARY: dict[str, str] = {
    "add": "({a} + {b})",
    "sub": "({a} - {b})",
    "mul": "({a} * {b})",
    "div": "({a} / {b})",
    "rem": "({a} % {b})",
    "atan2": "atan2({a}, {b})",
    "min": "min({a}, {b})",
    "max": "max({a}, {b})",
    "eq": "({a} == {b})",
    "ne": "({a} != {b})",
    "lt": "({a} < {b})",
    "le": "({a} <= {b})",
    "gt": "({a} > {b})",
    "ge": "({a} >= {b})",
    "shl": "({a} << u32({b}))",
    "shr": "({a} >> u32({b}))",
    "and": "({a} & {b})",
    "or": "({a} | {b})",
    "xor": "({a} ^ {b})",
}

_PRELUDE = """fn floordiv(a: i32, b: i32) -> i32 {
  let q = a / b;
  return select(q, q - 1, (a % b != 0) && ((a < 0) != (b < 0)));
}
fn floormod(a: i32, b: i32) -> i32 { return a - b * floordiv(a, b); }
fn inf() -> f32 { return bitcast<f32>(dims[0]); }
fn tw_isnan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn tw_expm1(x: f32) -> f32 {
  return select(exp(x) - 1.0, x * (1.0 + x * (0.5 + x * (0.16666667 + x * 0.041666668))), abs(x) < 0.05);
}
fn tw_log1p(x: f32) -> f32 {
  return select(log(1.0 + x), x * (1.0 - x * (0.5 - x * (0.33333334 - x * 0.25))), abs(x) < 0.03);
}
fn tw_pow(x: f32, y: f32) -> f32 {
  if (y == 0.0) { return 1.0; }
  let p = pow(abs(x), y);
  let odd = abs(y % 2.0) == 1.0;
  return select(p, -p, (x < 0.0) && odd);
}
fn tw_int_pow(a: i32, b: i32) -> i32 {
  if (b < 0) { return select(0, select(1, a, (b & 1) != 0), a == 1 || a == -1); }
  var result = 1;
  var power = a;
  for (var left = b; left != 0; left >>= 1u) {
    if ((left & 1) != 0) { result *= power; }
    power *= power;
  }
  return result;
}
// Abramowitz & Stegun 7.1.26 with the series near zero.
fn tw_erf(x: f32) -> f32 {
  let a = min(abs(x), 6.0);
  let t = 1.0 / (1.0 + 0.3275911 * a);
  let p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  let far = 1.0 - p * exp(-a * a);
  let near = a * (1.1283792 - a * a * (0.37612638 - a * a * (0.11283792 - a * a * 0.026866171)));
  return sign(x) * select(far, near, a < 0.3);
}
"""


def print_shader(kernel: loop.Kernel) -> Shader:
    """Return the WGSL of a kernel.

    Raises:
        CompileError: a dtype or construct that WGSL cannot express.
    """
    return _Printer(kernel).run()


def _type(dtype: DType, what: str) -> str:
    if dtype is f32:
        return "f32"
    if (dtype.is_integer and dtype not in (u32, u64)) or dtype is boolean:
        return "i32"
    raise CompileError(f"target webgpu does not support {dtype.label} ({what})")


def _register(dtype: DType) -> str:
    return "bool" if dtype is boolean else _type(dtype, "in a computation")


class _Printer:
    def __init__(self, kernel: loop.Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Value, str] = {}
        self.symbols: dict[str, str] = {s.name: f"dims[{k + 1}]" for k, s in enumerate(kernel.dims)}
        self.groups: Dim = 1
        self.threads = 1
        self.count = 0

    def run(self) -> Shader:
        args = self.kernel.body.args
        header = []
        outputs = len(args) - self.kernel.num_outputs
        for k, arg in enumerate(args):
            access = "read_write" if k >= outputs else "read"
            self.names[arg] = f"b{k}"
            element = _type(arg.type.dtype, f"buffer {k} of kernel '{self.kernel.sym_name}'")
            header.append(f"@group(0) @binding({k}) var<storage, {access}> b{k}: array<{element}>;")
        header.append(f"@group(0) @binding({len(args)}) var<storage, read> dims: array<i32>;")
        for op in self.kernel.body.ops:
            self.statement(op)
        main = [
            f"@compute @workgroup_size({self.threads})",
            "fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {",
            f"  let block_x = i32(group.x + group.y * {GROUPS_PER_ROW}u);",
            "  let thread_x = i32(local.x);",
            *self.lines,
            "}",
        ]
        text = "\n".join([*header, _PRELUDE, *main]) + "\n"
        return Shader(self.kernel.sym_name, text, self.groups, len(args))

    # -- Statements ----------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}_"

    def statement(self, op: Operation) -> None:
        if isinstance(op, loop.For):
            self.for_loop(op)
        elif isinstance(op, loop.If):
            self.emit("if (" + " && ".join(f"{self.dim(e)} >= 0" for e in op.conditions) + ") {")
            self.block(op)
            self.emit("}")
        elif isinstance(op, loop.Alloc):
            size = bounds(op.buffer.size)[1]
            if size is None or size > 1024:
                raise CompileError(
                    f"target webgpu cannot hold {op.buffer} in registers (kernel '{self.kernel.sym_name}')"
                )
            name = self.names[op.result] = self.fresh("local")
            self.emit(f"var {name}: array<{_type(op.buffer.dtype, 'local buffer')}, {size}>;")
        elif isinstance(op, loop.Load):
            self.load(op)
        elif isinstance(op, (loop.Store, loop.Accumulate)):
            self.store(op)
        elif isinstance(op, scalar.ScalarOp):
            value = self.names[op.result] = self.fresh()
            self.emit(f"let {value}: {_register(op.result.type)} = {self.scalar(op)};")
        elif not op.terminator:
            raise CompileError(f"target webgpu cannot express '{op.name}' (kernel '{self.kernel.sym_name}')")

    def block(self, op: Operation) -> None:
        self.depth += 1
        for child in op.body.ops:
            self.statement(child)
        self.depth -= 1

    def for_loop(self, op: loop.For) -> None:
        if op.kind == loop.LoopKind.BLOCK_X:
            self.symbols[op.iv.name] = "block_x"
            self.groups = op.extent
            self.emit(f"if (block_x < {self.dim(op.extent)}) {{")
            self.block(op)
            self.emit("}")
            return
        if op.kind == loop.LoopKind.THREAD_X:
            assert isinstance(op.extent, int)
            self.threads = op.extent
            self.symbols[op.iv.name] = "thread_x"
            self.block(op)
            return
        variable = self.fresh("i")
        self.symbols[op.iv.name] = variable
        carried = []
        for init, arg, result in zip(op.inits, op.body.args, op.results, strict=True):
            name = self.names[arg] = self.names[result] = self.fresh("acc")
            carried.append(name)
            self.emit(f"var {name}: {_register(arg.type)} = {self.names[init]};")
        self.emit(f"for (var {variable} = 0; {variable} < {self.dim(op.extent)}; {variable}++) {{")
        self.block(op)
        if carried:
            self.depth += 1
            nexts = [self.names[v] for v in op.body.terminator.operands]
            for name, value in zip(carried, nexts, strict=True):
                self.emit(f"{name} = {value};")
            self.depth -= 1
        self.emit("}")

    def address(self, op: loop.Load | loop.Store | loop.Accumulate, dynamic: dict[str, str]) -> str:
        return self.dim(flatten_index(op.indices, op.buffer.type.shape), dynamic)

    def guard(self, op: Operation, dynamic: dict[str, str]) -> str:
        return " && ".join(f"{self.dim(e, dynamic)} >= 0" for e in op.attributes["guard"])

    def load(self, op: loop.Load) -> None:
        dynamic = {f"v{k}": self.names[v] for k, v in enumerate(op.dynamic)}
        dtype = op.result.type
        element = f"{self.names[op.buffer]}[{self.address(op, dynamic)}]"
        if dtype is boolean:
            element = f"({element} != 0)"
        name = self.names[op.result] = self.fresh()
        if not op.guard:
            self.emit(f"let {name}: {_register(dtype)} = {element};")
            return
        assert op.otherwise is not None
        self.emit(f"var {name}: {_register(dtype)} = {self.names[op.otherwise]};")
        self.emit(f"if ({self.guard(op, dynamic)}) {{ {name} = {element}; }}")

    def store(self, op: loop.Store | loop.Accumulate) -> None:
        dynamic = {f"v{k}": self.names[v] for k, v in enumerate(op.dynamic)}
        place = f"{self.names[op.buffer]}[{self.address(op, dynamic)}]"
        dtype = op.value.type
        value = self.names[op.value]
        if isinstance(op, loop.Accumulate):
            old = f"({place} != 0)" if dtype is boolean else place
            value = _BINARY[COMBINER_OP[op.combiner]].format(a=old, b=value)
        if dtype is boolean:
            value = f"select(0, 1, {value})"
        statement = f"{place} = {value};"
        self.emit(f"if ({self.guard(op, dynamic)}) {{ {statement} }}" if op.guard else statement)

    # -- Expressions ---------------------------------------------------------------------------------------

    def dim(self, e: Dim, dynamic: dict[str, str] | None = None) -> str:
        if isinstance(e, int):
            return str(e)
        terms = []
        for c, atoms in e.terms:
            factors = [self.atom(a, dynamic or {}) for a in atoms]
            if c != 1 or not factors:
                factors.insert(0, str(c) if c >= 0 else f"({c})")
            terms.append(" * ".join(factors))
        return "(" + " + ".join(terms) + ")"

    def atom(self, atom: object, dynamic: dict[str, str]) -> str:
        if isinstance(atom, Symbol):
            variable = dynamic.get(atom.name) or self.symbols.get(atom.name)
            if variable is None:
                raise CompileError(f"kernel '{self.kernel.sym_name}' uses the unknown size '{atom.name}'")
            return variable
        assert isinstance(atom, Binary)
        a, b = self.dim(atom.a, dynamic), self.dim(atom.b, dynamic)
        if isinstance(atom, (FloorDiv, Mod)):
            low = bounds(atom.a)[0]
            positive = low is not None and low >= 0 and (bounds(atom.b)[0] or 0) > 0
            if positive:
                return f"({a} {'/' if isinstance(atom, FloorDiv) else '%'} {b})"
            return f"{'floordiv' if isinstance(atom, FloorDiv) else 'floormod'}({a}, {b})"
        return f"{'min' if isinstance(atom, Min) else 'max'}({a}, {b})"

    def literal(self, value: float, dtype: DType) -> str:
        if dtype is boolean:
            return "true" if value else "false"
        if dtype.is_integer:
            return f"i32({max(-(2**31) + 1, min(2**31 - 1, int(value)))})"
        number = float(value)
        if number != number:
            return "(inf() - inf())"
        if number in (float("inf"), float("-inf")):
            return "inf()" if number > 0 else "(-inf())"
        limit = 3.4028234e38
        return f"f32({max(-limit, min(limit, number))!r})"

    def scalar(self, op: Operation) -> str:
        if isinstance(op, scalar.Constant):
            return self.literal(op.value, op.dtype)
        if isinstance(op, scalar.Index):
            return self.dim(op.expr)
        if isinstance(op, scalar.Select):
            return f"select({self.names[op.b]}, {self.names[op.a]}, {self.names[op.condition]})"
        if isinstance(op, scalar.Cast):
            return self.cast(self.names[op.x], op.x.type, op.dtype)
        if isinstance(op, scalar.Bitcast):
            return f"bitcast<{_register(op.dtype)}>({self.names[op.x]})"
        function = op.name.partition(".")[2]
        if isinstance(op, scalar.Unary):
            form = _UNARY.get(function)
            x = self.names[op.x]
            if function == "not" and op.x.type is not boolean:
                return f"~({x})"
            if function == "sign":
                return f"select(sign({x}), {x}, tw_isnan({x}))" if op.x.type.is_float else f"sign({x})"
            if form is not None:
                return form(x) if callable(form) else f"{form}({x})"
        elif isinstance(op, scalar.Binary):
            a, b = self.names[op.a], self.names[op.b]
            if function in ("floordiv", "mod"):
                return self.floor_division(function, a, b, op.a.type)
            if function == "pow":
                power = f"{'tw_pow' if op.a.type.is_float else 'tw_int_pow'}({a}, {b})"
                return self.wrap(power, op.a.type)
            if function == "xor" and op.a.type is boolean:
                return f"({a} != {b})"
            if op.a.type is boolean and function in ("min", "max"):
                return f"({a} {'&&' if function == 'min' else '||'} {b})"
            if function in _BINARY:
                return _BINARY[function].format(a=a, b=b)
        raise CompileError(f"target webgpu does not support '{op.name}'")

    def floor_division(self, function: str, a: str, b: str, dtype: DType) -> str:
        if dtype.is_float:
            return f"floor({a} / {b})" if function == "floordiv" else f"({a} - {b} * floor({a} / {b}))"
        return f"{'floordiv' if function == 'floordiv' else 'floormod'}({a}, {b})"

    def cast(self, x: str, source: DType, target: DType) -> str:
        if target is boolean:
            return f"({x} != {'0.0' if source is f32 else '0'})" if source is not boolean else x
        if source is boolean:
            return f"select({self.literal(0, target)}, {self.literal(1, target)}, {x})"
        kind = _register(target)
        if kind == _register(source):
            return self.wrap(x, target)
        return self.wrap(f"{kind}({x})", target)

    def wrap(self, x: str, dtype: DType) -> str:
        """Wrap the value of a narrow integer type, held in 32 bits, to the type's width."""
        if not dtype.is_integer or dtype.bits >= 32:
            return x
        shift = 32 - dtype.bits
        return f"(({x} << {shift}u) >> {shift}u)" if dtype.is_signed else f"({x} & {2**dtype.bits - 1})"


__all__ = ["GROUPS_PER_ROW", "WORKGROUP", "Shader", "print_shader"]

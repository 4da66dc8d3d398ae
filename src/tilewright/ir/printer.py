"""Text of operations and modules: MLIR's generic syntax, or a shorter pretty form. `parser.parse` reads both.

**Generic form.** Standard MLIR, which other tools (mlir-opt, xDSL) read if they allow unregistered dialects.
Attributes and types that MLIR lacks are written in the unregistered dialect ``tw``:

- symbolic expressions ``#tw.expr<"batch*4 + 1">`` and the symbols that an operation binds,
  ``#tw.symbol<"i0", 0, "n - 1">`` (name, lower and inclusive upper bound, and if needed the divisor and the
  name used in this text);
- ``None`` is ``unit``; a named small constant is ``#tw.constant<"fc.bias", dense<...> : tensor<...>>``;
- operations whose dialect name also exists in MLIR get the prefix ``tw.``: ``"tw.func.func"``,
  ``"tw.tensor.compute"``;
- ``"tw.symbols"`` declares, before anything else, the symbols that no operation binds.

Large constants are references, ``dense_resource<key>``; their bytes follow the module on request.

**Pretty form.** The same structure in a shorter syntax: plain names, no operand types, no attributes with
default values, expressions and ranges written out::

    tw.symbols batch in 1..8
    func.func @main {arg_names = ["x"], result_names = ["y"]} (%x: tensor<?x4xf32, "batch, 4">) {
      %w = graph.constant {value = dense_resource<fc.weight>} : tensor<4x8xf32>
      %h = graph.matmul %x, %w : tensor<?x8xf32, "batch, 8">
      func.return %h
    }
    loop.for i in 0..batch - 1 {kind = "parallel"} { ... }
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .constant import Constant
from .core import Block, IRError, Module, Operation, Value, set_printer
from .location import UNKNOWN, Location
from .notes import is_note
from .substitution import substitute
from .symbolic import Dim, Expr, free_symbols, is_symbol, symbol
from .types import BufferType, DType, TensorType, Type, i2, i4, u2, u4

if TYPE_CHECKING:
    import numpy as np

MLIR_DIALECTS = frozenset(
    "acc affine amdgpu amx arith arm_neon arm_sme arm_sve async bufferization builtin cf complex dlti emitc "
    "func gpu index irdl linalg llvm math memref ml_program mpi nvgpu nvvm omp pdl pdl_interp ptr quant "
    "rocdl scf shape shard smt sparse_tensor spirv tensor tosa transform ub vcix vector wasmssa x86 "
    "x86vector xegpu xevm".split()
)
"""Dialects of MLIR itself. Operations in dialects of these names are printed with the prefix ``tw.``."""

_BARE = re.compile(r"[A-Za-z_][\w$.]*\Z", re.ASCII)
_VALUE_NAME = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
_UNSAFE = re.compile(r"[^\w.]", re.ASCII)
_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')
INDENT = "  "


def print_op(op: Operation, generic: bool = False, locations: bool = False, resources: bool = False) -> str:
    """`op` and everything inside it as text, in the pretty or the `generic` form.

    `locations` adds the source locations in the user's model; `resources` adds the contents of large
    constants. Without them `parse` needs the module's `constants`, see `resources_of`.

    Raises:
        IRError: an attribute is not a value of the IR (see `core`).
    """
    return _Printer(op, generic, locations).run(op, resources)


def resources_of(op: Operation) -> dict[str, Constant]:
    """The constants inside `op` that its text refers to by key, as `parse` takes them."""
    printer = _Printer(op, False, False)
    printer.run(op, False)
    return printer.resources


def attributes_text(op: Operation) -> str:
    """The attributes of `op` as the pretty form has them, ``axis = 1, keepdims = true``; notes and defaults
    are left out.

    Raises:
        IRError: an attribute is not a value of the IR (see `core`).
    """
    keys = [key for key in _ordered(op) if key != "operand_segments" and not is_note(key)]
    return ", ".join(_Printer(op, False, False).shown(op, keys))


class _Printer:
    def __init__(self, root: Operation, generic: bool, locations: bool) -> None:
        self.generic = generic
        self.locations = locations
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.counter = 0
        self.resources: dict[str, Constant] = {}
        self._keys: dict[int, str] = {}
        self.scope: dict[str, Expr] = {}
        symbols = _Symbols(root)
        self.free = symbols.free
        self.text_names = symbols.text_names()
        # Placeholders for symbols that are printed under another name than their own.
        self.aliases: dict[Expr, Dim] = {
            s: symbol(n, s.lower, s.upper, s.multiple_of) for s, n in self.text_names.items() if n != s.name
        }
        # A single operation is printed as a bare line (for debuggers); text that can be parsed on its own
        # declares its symbols.
        self.declare = isinstance(root, Module) or (bool(root.regions) and not root.operands)
        if self.declare:
            self.scope = {n: s for s, n in self.text_names.items() if n == s.name}

    def run(self, op: Operation, resources: bool) -> str:
        if not isinstance(op, Module) and self.declare:
            self._symbols("")
        self.op(op, "")
        if resources and self.resources:
            self._resource_table()
        return "\n".join(self.lines)

    # -- Operations ------------------------------------------------------------------------------------------

    def op(self, op: Operation, indent: str) -> None:
        outer = self.scope
        head = indent
        if op.results:
            head += ", ".join([self.define(r, op) for r in op.results]) + " = "
        (self._generic if self.generic else self._pretty)(op, head, indent)
        self.scope = outer

    def _generic(self, op: Operation, head: str, indent: str) -> None:
        name, dialect = op.name, op.name.partition(".")[0]
        if dialect in MLIR_DIALECTS and not isinstance(op, Module):
            name = f"tw.{name}"
        head += f'"{name}"(' + ", ".join([self.value(v) for v in op.operands]) + ")"
        outer = self.scope
        own, other = self._attributes(op)
        if own:
            head += " <{" + ", ".join(own) + "}>"
        if op.regions:
            head += " ("
            for k, region in enumerate(op.regions):
                self.lines.append(head + (", {" if k else "{"))
                for position, block in enumerate(region.blocks):
                    if block.args or position:
                        args = ", ".join([f"{self.define(a)}: {self.type(a.type)}" for a in block.args])
                        self.lines.append(f"{indent}^bb{position}({args}):")
                    self._body(op, block, indent)
                head = f"{indent}}}"
            head += ")"
        # Types of operands and results are written in the scope around the operation.
        self.scope = outer
        if other:
            head += " {" + ", ".join(other) + "}"
        results = ", ".join([self.type(r.type) for r in op.results])
        head += f" : ({', '.join([self.type(v.type) for v in op.operands])}) -> "
        head += results if len(op.results) == 1 else f"({results})"
        self.lines.append(head + self._location(op))

    def _pretty(self, op: Operation, head: str, indent: str) -> None:
        outer = self.scope
        head += op.name
        operands, attributes = op.operands, op.attributes
        if (name := attributes.get("sym_name")) is not None and isinstance(name, str):
            head += f" @{name}" if _BARE.match(name) else f" @{_quote(name)}"
        else:
            name = None
        binder = None
        if len(op.binds) == 1 and is_symbol(attributes.get(op.binds[0])):
            binder = op.binds[0]
            head += f" {self._bind(attributes[binder])}"
        if op._flexible > 1:
            head += " " + self._operand_groups(op) if operands else ""
        elif operands:
            head += " " + ", ".join([self.value(v) for v in operands])
        named = ("operand_segments", *(("sym_name",) if name is not None else ()), binder)
        if shown := self.shown(op, [key for key in _ordered(op) if key not in named]):
            head += " {" + ", ".join(shown) + "}"
        if op.results:
            inner, self.scope = self.scope, outer
            head += " : " + ", ".join([self.type(r.type) for r in op.results])
            self.scope = inner
        for k, region in enumerate(op.regions):
            head += ", " if k else " "
            for position, block in enumerate(region.blocks or (Block(),)):
                args = ", ".join([f"{self.define(a)}: {self.type(a.type)}" for a in block.args])
                if position:
                    self.lines.append(f"{indent}^bb{position}({args}):")
                else:
                    self.lines.append(head + (f"({args}) {{" if args else "{"))
                self._body(op, block, indent)
            head = f"{indent}}}"
        self.lines.append(head + self._location(op))

    def _body(self, op: Operation, block: Block, indent: str) -> None:
        inner = indent + INDENT
        if isinstance(op, Module):
            if self.declare:
                self._symbols(inner)
            for child in block.ops:
                # Functions and kernels do not see each other's values, so each has its own names.
                names, taken, counter = self.names, self.taken, self.counter
                self.names, self.taken, self.counter = {}, set(), 0
                self.op(child, inner)
                self.names, self.taken, self.counter = names, taken, counter
        else:
            for child in block.ops:
                self.op(child, inner)

    def _symbols(self, indent: str) -> None:
        """Declare the symbols that no operation binds."""
        if not self.free:
            return
        if self.generic:
            listed = ", ".join([self._generic_symbol(s, self.text_names[s]) for s in self.free])
            self.lines.append(f'{indent}"tw.symbols"() <{{symbols = [{listed}]}}> : () -> ()')
        else:
            listed = ", ".join([self._range(s, self.text_names[s]) for s in self.free])
            self.lines.append(f"{indent}tw.symbols {listed}")

    def _operand_groups(self, op: Operation) -> str:
        groups = []
        for position, (_, kind) in enumerate(op._operand_fields):
            group = op._group(position)
            if kind == "variadic":
                groups.append("[" + ", ".join([self.value(v) for v in group]) + "]")
            else:
                groups.append("none" if group is None else self.value(group))
        while groups[-1] in ("none", "[]"):
            groups.pop()
        return ", ".join(groups)

    # -- Values ----------------------------------------------------------------------------------------------

    def define(self, value: Value, op: Operation | None = None) -> str:
        hint = value.hint
        if not hint and op is not None and isinstance(constant := op.attributes.get("value"), Constant):
            hint = constant.name
        name = hint or ""
        if name and not _VALUE_NAME.match(name):
            name = _UNSAFE.sub("_", name)
            if not _VALUE_NAME.match(name):
                name = f"_{name}"
        if not name:
            name = str(self.counter)
            self.counter += 1
        elif name in self.taken:
            stem, n = name, 1
            while name in self.taken:
                name = f"{stem}_{n}"
                n += 1
        self.taken.add(name)
        text = self.names[value] = f"%{name}"
        return text

    def value(self, value: Value) -> str:
        known = self.names.get(value)
        # Values from outside the printed operation are named at their first use.
        return known if known is not None else self.define(value, value.defining_op)

    # -- Attributes ------------------------------------------------------------------------------------------

    def _attributes(self, op: Operation) -> tuple[list[str], list[str]]:
        """The operation's own attributes and the discardable ones, as ``name = value``. Enters the scope of
        the symbols that the operation binds.
        """
        own: list[str] = []
        other: list[str] = []
        if op.attributes:
            for key in _ordered(op):
                text = f"{_key(key)} = {self.attribute(op, key, op.attributes[key])}"
                (other if "." in key else own).append(text)
        return own, other

    def shown(self, op: Operation, keys: Iterable[str]) -> list[str]:
        """The attributes among `keys` that do not have their default, as ``name = value``."""
        defaults = op._attr_fields
        return [
            f"{_key(key)} = {self.attribute(op, key, op.attributes[key])}"
            for key in keys
            if not (key in defaults and _same(op.attributes[key], defaults[key]))
        ]

    def attribute(self, op: Operation, key: str, value: object) -> str:
        try:
            if key in op.binds:
                if isinstance(value, tuple):
                    return (
                        "["
                        + ", ".join([self._bind(v) if is_symbol(v) else self.data(v) for v in value])
                        + "]"
                    )
                if is_symbol(value):
                    return self._bind(value)
            return self.data(value)
        except TypeError as error:
            raise IRError(f"attribute '{key}': {error}", op) from None

    def _bind(self, s: Expr) -> str:
        text = self._generic_symbol(s, s.name) if self.generic else self._range(s, s.name)
        self.scope = {**self.scope, s.name: s}
        return text

    def _generic_symbol(self, s: Expr, name: str) -> str:
        parts = [_quote(s.name), "unit" if s.lower is None else str(s.lower)]
        upper = s.upper
        parts.append(
            "unit" if upper is None else str(upper) if isinstance(upper, int) else _quote(self.expr(upper))
        )
        if s.multiple_of != 1 or name != s.name:
            parts.append(str(s.multiple_of))
        if name != s.name:
            parts.append(_quote(name))
        return f"#tw.symbol<{', '.join(parts)}>"

    def _range(self, s: Expr, name: str) -> str:
        label = s.name if name == s.name else f"{name}: {s.name}"
        lower = "?" if s.lower is None else str(s.lower)
        upper = "?" if s.upper is None else self.expr(s.upper)
        return f"{label} in {lower}..{upper}" + (f" step {s.multiple_of}" if s.multiple_of != 1 else "")

    def expr(self, e: Dim) -> str:
        if isinstance(e, int):
            return str(e)
        if self.aliases:
            scope = self.scope
            mapping = {
                s: self.aliases[s]
                for s in free_symbols(e)
                if s in self.aliases and scope.get(s.name) is not s
            }
            if mapping:
                e = substitute(e, mapping)
        return str(e)

    def type(self, t: Type) -> str:
        if self.aliases and isinstance(t, (TensorType, BufferType)):
            scope = self.scope
            used = [s for d in t.shape if not isinstance(d, int) for s in free_symbols(d)]
            mapping = {s: self.aliases[s] for s in used if s in self.aliases and scope.get(s.name) is not s}
            if mapping:
                shape = [substitute(d, mapping) for d in t.shape]
                last = t.layout if isinstance(t, TensorType) else t.space
                return repr(type(t)(t.dtype, shape, last))  # type: ignore[arg-type]
        return repr(t)

    def data(self, value: Any) -> str:
        """Text of an attribute's value."""
        kind = type(value)
        if isinstance(value, str):
            return _quote(value)
        if kind is bool:
            return "true" if value else "false"
        if kind is int:
            return f"{value} : i{_int_bits(value)}" if self.generic else str(value)
        if kind is tuple or kind is list:
            return "[" + ", ".join([self.data(v) for v in value]) + "]"
        if value is None:
            return "unit" if self.generic else "none"
        if isinstance(value, Expr):
            return f"#tw.expr<{_quote(self.expr(value))}>" if self.generic else self.expr(value)
        if kind is float:
            return _generic_float(value) + " : f64" if self.generic else repr(value)
        if isinstance(value, DType) and not self.generic and value.name in self.scope:
            return f"!{value.name}"  # Otherwise it would be read as the symbol.
        if isinstance(value, Type):
            return self.type(value)
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, dict):
            if not all(isinstance(k, str) for k in value):
                raise TypeError("keys of a dict must be strings")
            return "{" + ", ".join([f"{_key(k)} = {self.data(v)}" for k, v in value.items()]) + "}"
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return self.data(value.item())  # a NumPy number
        raise TypeError(f"{value!r} of type {kind.__name__} is not an attribute value")

    def _constant(self, c: Constant) -> str:
        if (
            c.size <= Constant.SMALL
            or c.numpy_dtype.kind == "O"
            or (c.is_splat and c.numpy_dtype.kind != "V")
        ):
            text = f"dense<{_dense(c.array, c.is_splat)}> : {c.type}"
            return f"#tw.constant<{_quote(c.name)}, {text}>" if c.name else text
        key = self._keys.get(id(c.source))
        if key is None:
            stem = key = c.name or "constant"
            n = 1
            while key in self.resources:
                key = f"{stem}_{n}"
                n += 1
            self.resources[key] = c
            self._keys[id(c.source)] = key
        return f"dense_resource<{key if _BARE.match(key) else _quote(key)}> : {c.type}"

    def _resource_table(self) -> None:
        import numpy as np

        self.lines += ["{-#", "  dialect_resources: {", "    builtin: {"]
        last = len(self.resources) - 1
        for k, (key, c) in enumerate(self.resources.items()):
            # MLIR's blobs begin with their alignment, a little-endian 32-bit number.
            data = struct.pack("<I", c.numpy_dtype.itemsize) + np.ascontiguousarray(c.array).tobytes()
            comma = "," if k < last else ""
            self.lines.append(
                f'      {key if _BARE.match(key) else _quote(key)}: "0x{data.hex().upper()}"{comma}'
            )
        self.lines += ["    }", "  }", "#-}"]

    def _location(self, op: Operation) -> str:
        return f" loc({_location_text(op.location)})" if self.locations and op.location is not UNKNOWN else ""


class _Symbols:
    """The symbols that are used inside an operation and bound outside of it, ordered so that the symbols of a
    bound come first.
    """

    def __init__(self, root: Operation) -> None:
        self.free: dict[Expr, None] = {}
        self.bound: set[Expr] = set()
        self._types: dict[Type, frozenset[Expr]] = {}
        self._op(root, {})

    def text_names(self) -> dict[Expr, str]:
        """Printed names of the free symbols: their own names, unless another symbol has the same one."""
        others: dict[str, set[Expr]] = {}
        for s in self.bound:
            others.setdefault(s.name, set()).add(s)
        taken: set[str] = set()
        names: dict[Expr, str] = {}
        for s in self.free:
            name, n = s.name, 1
            while name in taken or others.get(name, set()) - ({s} if name == s.name else set()):
                name = f"{s.name}_{n}"
                n += 1
            taken.add(name)
            names[s] = name
        return names

    def _op(self, op: Operation, scope: dict[str, Expr]) -> None:
        for r in op.results:
            self._type(r.type, scope)
        binds = op.binds
        if binds:
            scope = dict(scope)
            for s in _bound_symbols(op):
                if s.upper is not None:
                    self._expr(s.upper, scope)
                scope[s.name] = s
                self.bound.add(s)
        for key, value in op.attributes.items():
            if key not in binds:
                self._data(value, scope)
        for region in op.regions:
            for block in region.blocks:
                for a in block.args:
                    self._type(a.type, scope)
                for child in block.ops:
                    self._op(child, scope)

    def _data(self, value: object, scope: dict[str, Expr]) -> None:
        kind = type(value)
        if kind is str or kind is int or kind is float or kind is bool or value is None:
            return
        if isinstance(value, Expr):
            self._expr(value, scope)
        elif isinstance(value, (tuple, list)):
            for v in value:
                self._data(v, scope)
        elif isinstance(value, dict):
            for v in value.values():
                self._data(v, scope)
        elif isinstance(value, Type):
            self._type(value, scope)

    def _type(self, t: Type, scope: dict[str, Expr]) -> None:
        used = self._types.get(t)
        if used is None:
            shape = t.shape if isinstance(t, (TensorType, BufferType)) else ()
            ordered = sorted(
                {s for d in shape if not isinstance(d, int) for s in free_symbols(d)}, key=lambda s: s.name
            )
            used = self._types[t] = frozenset(ordered)
        if used:
            self._use(used, scope)

    def _expr(self, e: Dim, scope: dict[str, Expr]) -> None:
        if not isinstance(e, int):
            self._use(free_symbols(e), scope)

    def _use(self, symbols: frozenset[Expr], scope: dict[str, Expr]) -> None:
        for s in symbols if len(symbols) == 1 else sorted(symbols, key=lambda s: (s.name, str(s.upper))):
            if scope.get(s.name) is not s and s not in self.free:
                if s.upper is not None and not isinstance(s.upper, int):
                    self._use(free_symbols(s.upper), {})
                self.free[s] = None


def _bound_symbols(op: Operation) -> Iterator[Expr]:
    for key in op.binds:
        value = op.attributes.get(key)
        for s in value if isinstance(value, tuple) else (value,):
            if is_symbol(s):
                yield s


def _ordered(op: Operation) -> list[str]:
    """Attribute names: what the operation binds first, then as declared, then annotations."""
    attributes = op.attributes
    if len(attributes) < 2:
        return list(attributes)
    first = [k for k in op.binds if k in attributes]
    declared = [k for k in op._attr_fields if k in attributes and k not in first]
    known = {*first, *declared}
    return first + declared + sorted([k for k in attributes if k not in known])


def _same(a: object, b: object) -> bool:
    """Whether an attribute equals its default, also in type (1, 1.0 and True are equal in Python)."""
    return (
        a is b
        or (isinstance(a, str) and isinstance(b, str) and a == b)
        or (type(a) is type(b) and isinstance(a, (int, float)) and a == b and str(a) == str(b))
        or (a == () and b == ())
    )


def _key(name: str) -> str:
    return name if _BARE.match(name) else _quote(name)


def _quote(text: str) -> str:
    if _ESCAPE.search(text):
        text = _ESCAPE.sub(lambda m: "\\" + m[0] if m[0] in '"\\' else f"\\{ord(m[0]):02X}", text)
    return f'"{text}"'


def _int_bits(value: int) -> int:
    return 64 if -(1 << 63) <= value < (1 << 63) else (value.bit_length() // 64 + 1) * 64


def _generic_float(value: float) -> str:
    if not math.isfinite(value):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    return text if "." in mantissa else f"{mantissa}.0{e}{exponent}"  # MLIR wants a point


def _dense(array: np.ndarray[Any, Any], splat: bool) -> str:
    if array.size == 0:
        return ""
    if splat:
        return _element(array.reshape(-1)[0] if array.ndim else array[()])
    if array.ndim == 0:
        return _element(array[()])

    def nested(part: Any) -> str:
        return (
            "["
            + ", ".join([_element(x) if isinstance(x, str) or not x.ndim else nested(x) for x in part])
            + "]"
        )

    return nested(array)


_INTEGERS = frozenset(d.label for d in (i2, i4, u2, u4))
"""Integer types that NumPy lacks."""


def _element(x: Any) -> str:
    if isinstance(x, str):
        return _quote(x)
    if x.dtype.kind == "b":
        return "true" if x else "false"
    if x.dtype.kind in "iu" or x.dtype.name in _INTEGERS:
        return str(int(x))
    value = float(x)
    if not math.isfinite(value):
        bits = int.from_bytes(x.tobytes(), "little")
        return f"0x{bits:0{2 * x.dtype.itemsize}X}"
    if x.dtype.itemsize == 4:
        short = float(str(x))  # 0.1 rather than 0.10000000149011612, where it reads back as the same float32
        value = short if x.dtype.type(short) == x else value
    return _generic_float(value)


def _location_text(location: Location) -> str:
    if location.fused:
        parts = (Location(location.name, location.file, location.line), *location.fused)
        return "fused[" + ", ".join([_location_text(p) for p in parts]) + "]"
    where = f"{_quote(location.file)}:{location.line}:0" if location.file else ""
    if location.name:
        return f"{_quote(location.name)}({where})" if where else _quote(location.name)
    return where or "unknown"


set_printer(print_op)

__all__ = ["MLIR_DIALECTS", "print_op", "resources_of"]

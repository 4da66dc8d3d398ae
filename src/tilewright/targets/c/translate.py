"""LLVM modules as C11 sources.

Each scalar of LLVM is a variable, and each lane of a vector; a compiler that has vectors joins the lanes
again. Each basic block is a label with a block of statements, and branches are ``goto``. Values that other
blocks use are declared at the beginning of the function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import InternalError
from . import expressions as ex
from .calls import call
from .ir_text import Block, Function, Global, Instruction, Operand, TextModule, Tokens, Type, read_module

_FLOAT_FLAGS = {"contract", "fast"}
_CONVERSIONS = frozenset(
    "zext sext trunc fpext fptrunc sitofp uitofp fptosi fptoui bitcast ptrtoint inttoptr".split()
)
_BINARY = frozenset(
    "add sub mul udiv sdiv urem srem and or xor shl lshr ashr fadd fsub fmul fdiv frem".split()
)
_INT1, _POINTER = Type("int", 1), Type("ptr")
_ATOM = re.compile(r"[A-Za-z_]\w*|UINT\d+_C\(\w+\)|-?[\d.]+f?")
"""An expression that may stand in any place: a variable or a constant."""


def to_c(text: str) -> str:
    """The C11 source of an LLVM module, which includes ``prelude.h``.

    Raises:
        InternalError: The text is not valid, or has something without a form in C.
    """
    return _Module(read_module(_checked(text))).text()


def _checked(text: str) -> str:
    """The module as LLVM prints it."""
    from ..llvm.toolchain import parsed

    return str(parsed(text))


def identifier(name: str) -> str:
    """The C name of a global symbol: ``@kernel_relu.body`` is ``kernel_relu_body``."""
    return re.sub(r"\W", "_", name.lstrip("@").strip('"'), flags=re.ASCII)


class _Module:
    def __init__(self, module: TextModule) -> None:
        self.module = module
        self.structs: dict[Type, str] = {}
        self.functions = {function.name: function for function in module.functions}

    def text(self) -> str:
        bodies = [_Body(self, f).text() for f in self.module.functions if f.blocks]
        globals_ = [self.constant(g) for g in self.module.globals if not g.name.startswith("@llvm.")]
        declared = [f"{self.head(f)};" for f in self.module.functions if not f.name.startswith("@llvm.")]
        structs = [self.definition(type_, name) for type_, name in self.structs.items()]
        return "\n".join(['#include "prelude.h"', "", *structs, *declared, *globals_, "", *bodies])

    # -- Types and constants --

    def struct(self, type_: Type) -> str:
        """The name of a structure's type; fields of structures are declared before it."""
        for part in type_.parts:
            if part.kind == "struct":
                self.struct(part)
        return self.structs.setdefault(type_, f"tw_struct{len(self.structs)}")

    def definition(self, type_: Type, name: str) -> str:
        """The definition of a structure."""
        fields = [f"  {self.declared(part, f'f{k}')};" for k, part in enumerate(type_.parts)]
        return "\n".join(["typedef struct {", *fields, f"}} {name};"])

    def declared(self, type_: Type, name: str) -> str:
        """A declaration of `name` in memory."""
        while type_.kind in ("array", "vector"):
            name, type_ = f"{name}[{max(type_.count, 1)}]", type_.parts[0]
        if type_.kind == "struct":
            return f"{self.struct(type_)} {name}"
        return f"{'const void*' if type_.kind == 'ptr' else ex.c_type(type_)} {name}"

    def constant(self, g: Global) -> str:
        static = "static " if g.is_private else ""
        align = f"_Alignas({g.align}) " if g.align > 8 else ""
        declared = self.declared(g.value.type, identifier(g.name))
        return f"{static}{align}const {declared} = {self.initializer(g.value)};".replace(
            "const const", "const"
        )

    def initializer(self, value: Operand) -> str:
        type_ = value.type
        if value.text[:2] == 'c"':
            return "{" + ", ".join(str(b) for b in _bytes(value.text[2:-1])) + "}"
        if type_.kind in ("array", "vector", "struct"):
            return "{" + (", ".join(map(self.initializer, value.parts)) or "0") + "}"
        if value.text[:1] == "@":
            return f"{'' if value.text in self.functions else '&'}{identifier(value.text)}"
        if type_.is_float:
            return ex.static_number(type_, value.text)
        return "0" if type_.kind == "ptr" else ex.constant(type_, value.text)

    # -- Functions --

    def result(self, type_: Type) -> str:
        """The C type of a function's result; lanes of a vector are in a structure."""
        if type_.kind == "vector":
            return self.struct(Type("struct", parts=(type_.element,) * type_.lanes))
        return "void" if type_.kind == "void" else ex.c_type(type_)

    def head(self, f: Function) -> str:
        names = [f"p{k}" for k in range(len(f.parameters))]
        parameters = [
            f"{ex.c_type(p.type.element)} {lane}"
            for p, name in zip(f.parameters, names, strict=True)
            for lane in lanes_of(name, p.type)
        ]
        static = "static " if f.is_internal else ""
        return f"{static}{self.result(f.result)} {identifier(f.name)}({', '.join(parameters) or 'void'})"


def lanes_of(name: str, type_: Type) -> list[str]:
    """The variables of a value: one for a scalar, one for each lane of a vector."""
    return [name] if type_.kind != "vector" else [f"{name}_{k}" for k in range(type_.lanes)]


def _bytes(text: str) -> bytes:
    """The bytes of a string constant, in which ``\\0A`` is a byte."""
    return re.sub(
        rb"\\([0-9A-Fa-f]{2}|\\)", lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 16)]), text.encode()
    )


class _Body:
    """Prints the body of a function."""

    def __init__(self, module: _Module, function: Function) -> None:
        self.module, self.function = module, function
        self.names: dict[str, list[str]] = {
            p.text: lanes_of(f"p{k}", p.type) for k, p in enumerate(function.parameters)
        }
        """The expressions of each value's lanes."""
        self.labels = {block.name: f"L{k}" for k, block in enumerate(function.blocks)}
        self.lines: list[str] = []
        self.declared: list[str] = []
        self.products: dict[str, tuple[list[str], list[str]]] = {}
        """The factors of products that a sum may take up, by their names."""
        self.phis = {
            block.name: [p for p in block.instructions if p.opcode == "phi"] for block in function.blocks
        }
        self.wide = self._used_elsewhere()

    def text(self) -> str:
        for block in self.function.blocks:
            for phi in self.phis[block.name]:
                self._declare_phi(phi)
        targets = self._targets()
        for block in self.function.blocks:
            if block.name in targets:
                self.lines.append(f"{self.labels[block.name]}: {{")
            else:
                self.lines.append("{")
            for at, instruction in enumerate(block.instructions):
                try:
                    self._instruction(block, instruction, at)
                except (InternalError, KeyError, ValueError, StopIteration) as error:
                    raise InternalError(
                        f"no C code for {instruction.tokens.line.strip()!r} of {self.function.name}: {error}"
                    ) from error
            self.lines.append("}")
        inner = "\n".join(f"  {line}" for line in (*self.declared, *self.lines))
        return f"{self.module.head(self.function)} {{\n{inner}\n}}\n"

    # -- Names --

    def _used_elsewhere(self) -> set[str]:
        """The values that blocks other than their own use."""
        home = {
            i.result: block.name for block in self.function.blocks for i in block.instructions if i.result
        }
        found = set()
        for block in self.function.blocks:
            for i in block.instructions:
                used = [(t, block.name) for t in i.tokens.items if t[:1] == "%"]
                if i.opcode == "phi":  # It is written in the blocks before it.
                    used = [(value.text, origin) for value, origin in self._incoming(i)[1]]
                found |= {name for name, where in used if home.get(name, where) != where}
        return found

    def _targets(self) -> set[str]:
        """The blocks to which a branch leads."""
        found = set()
        for block in self.function.blocks:
            last = block.instructions[-1]
            if last.opcode in ("br", "switch"):
                found |= {t[1:].strip('"') for t in last.tokens.items if t[1:].strip('"') in self.labels}
        return found

    def _new(self, result: str, type_: Type) -> list[str]:
        name = (
            f"{re.sub(r'[^A-Za-z0-9_]', '_', result[1:])}_" if "." in result or '"' in result else result[1:]
        )
        name = f"x{name}" if name[0].isdigit() else name
        if name in ("p",) or re.fullmatch(r"[pL]\d+", name) or name in _KEYWORDS:
            name = f"{name}_"
        self.names[result] = lanes_of(name, type_)
        return self.names[result]

    def define(self, result: str, type_: Type, values: Sequence[str]) -> None:
        """Give a value its expressions, one for each lane."""
        if result not in self.wide and all(map(_ATOM.fullmatch, values)):
            self.names[result] = list(values)
            return
        for name, value in zip(self._new(result, type_), values, strict=True):
            if result in self.wide:
                self.declared.append(f"{ex.c_type(type_.element)} {name};")
                self.lines.append(f"  {name} = {value};")
            else:
                self.lines.append(f"  {_constant_type(type_.element)} {name} = {value};")

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def lanes(self, operand: Operand) -> list[str]:
        """The expressions of an operand's lanes."""
        type_ = operand.type
        if operand.text[:1] == "%":
            return list(self.names[operand.text])
        if operand.text[:1] == "@":
            is_function = operand.text in self.module.functions
            return [f"(uint8_t*){'' if is_function else '&'}{identifier(operand.text)}"]
        if operand.parts:
            return [ex.constant(type_.element, part.text) for part in operand.parts]
        return [ex.constant(type_.element, operand.text)] * type_.lanes

    def lane(self, operand: Operand) -> str:
        (value,) = self.lanes(operand)
        return value

    # -- Instructions --

    def _instruction(self, block: Block, i: Instruction, at: int) -> None:
        tokens, opcode = i.tokens, i.opcode
        flags = tokens.skip(*ex.FLAGS) if opcode != "phi" else []
        if opcode in _BINARY:
            self._binary(block, i, set(flags), at)
        elif opcode in _CONVERSIONS:
            self._convert(i)
        elif opcode in ("br", "switch", "ret", "unreachable"):
            self._end(block, i)
        elif opcode == "phi":
            pass
        elif method := getattr(self, f"_{opcode}", None):
            method(i)
        else:
            raise InternalError(f"the instruction {opcode} is not known")

    def _binary(self, block: Block, i: Instruction, flags: set[str], at: int) -> None:
        a = i.tokens.operand()
        i.tokens.expect(",")
        b = i.tokens.value(a.type)
        type_ = a.type
        joins = flags & _FLOAT_FLAGS and type_.element.kind in ("float", "double")
        if i.opcode == "fadd" and joins:
            for product, other in ((a, b), (b, a)):
                if factors := self.products.pop(product.text, None):
                    name = f"TW_MULTIPLY_ADD_{ex.suffix(type_.element).upper()}"
                    rows = zip(*factors, self.lanes(other), strict=True)
                    self.define(i.result, type_, [f"{name}({p}, {q}, {r})" for p, q, r in rows])
                    return
        x, y = self.lanes(a), self.lanes(b)
        if i.opcode == "fmul" and joins and self._only_summed(block, i.result, at):
            self.products[i.result] = x, y
            return
        values = [ex.binary(i.opcode, type_.element, p, q) for p, q in zip(x, y, strict=True)]
        self.define(i.result, type_, values)

    def _only_summed(self, block: Block, name: str, at: int) -> bool:
        """Whether the next use of a product in its block, and the only one, is in a sum that may round
        once.
        """
        if name in self.wide:
            return False
        uses = [i for i in block.instructions[at + 1 :] if name in i.tokens.items]
        tokens = uses[0].tokens.items if uses else []
        incoming = any(name in phi.tokens.items for phis in self.phis.values() for phi in phis)
        return (
            len(uses) == 1
            and not incoming
            and uses[0].opcode == "fadd"
            and bool(_FLOAT_FLAGS & set(tokens))
            and tokens.count(name) == 1
            and not any(t in self.products for t in tokens)
        )

    def _fneg(self, i: Instruction) -> None:
        a = i.tokens.operand()
        kind = a.type.element
        if kind.kind in ("half", "bfloat"):
            values = [f"(uint16_t)({x} ^ 0x8000u)" for x in self.lanes(a)]
        else:
            values = [f"-{x}" for x in self.lanes(a)]
        self.define(i.result, a.type, values)

    def _freeze(self, i: Instruction) -> None:
        a = i.tokens.operand()
        self.define(i.result, a.type, self.lanes(a))

    def _convert(self, i: Instruction) -> None:
        a = i.tokens.operand()
        i.tokens.expect("to")
        to = i.tokens.type()
        if i.opcode == "bitcast" and (a.type.lanes, a.type.element.bits) != (to.lanes, to.element.bits):
            self.define(i.result, to, self._regrouped(a, to))
            return
        values = [ex.convert(i.opcode, a.type.element, x, to.element) for x in self.lanes(a)]
        self.define(i.result, to, values)

    def _regrouped(self, a: Operand, to: Type) -> list[str]:
        """The bits of a value as lanes of another number of bits."""
        source, goal = a.type.element, to.element
        whole, part = Type("int", source.bits), Type("int", goal.bits)
        bits = [ex.convert("bitcast", source, x, whole) if source.is_float else x for x in self.lanes(a)]
        if goal.bits < source.bits:
            count = source.bits // goal.bits
            pieces = [ex.masked(part, f"{x} >> {k * goal.bits}") for x in bits for k in range(count)]
        else:
            count = goal.bits // source.bits
            pieces = [
                ex.masked(
                    part,
                    " | ".join(
                        f"({ex.c_type(part)}){x} << {k * source.bits}"
                        for k, x in enumerate(bits[j : j + count])
                    ),
                )
                for j in range(0, len(bits), count)
            ]
        return [ex.convert("bitcast", part, x, goal) if goal.is_float else x for x in pieces]

    def _compare(self, i: Instruction) -> None:
        predicate = i.tokens.next()
        a = i.tokens.operand()
        i.tokens.expect(",")
        b = i.tokens.value(a.type)
        values = [
            ex.compare(predicate, a.type.element, x, y)
            for x, y in zip(self.lanes(a), self.lanes(b), strict=True)
        ]
        type_ = Type("vector", 1, a.type.lanes, (_INT1,)) if a.type.kind == "vector" else _INT1
        self.define(i.result, type_, values)

    _icmp = _fcmp = _compare

    def _select(self, i: Instruction) -> None:
        c, a, b = i.tokens.operands(3)
        conditions = self.lanes(c) * (a.type.lanes if c.type.kind != "vector" else 1)
        values = [
            f"{q} ? {x} : {y}" for q, x, y in zip(conditions, self.lanes(a), self.lanes(b), strict=True)
        ]
        self.define(i.result, a.type, values)

    # -- Vectors --

    def _extractelement(self, i: Instruction) -> None:
        a, index = i.tokens.operands(2)
        lanes = self.lanes(a)
        if index.text.isdigit():
            self.define(i.result, a.type.element, [lanes[int(index.text)]])
            return
        number = self.lane(index)
        value = lanes[-1]
        for k, lane in reversed(list(enumerate(lanes[:-1]))):
            value = f"{number} == {k} ? {lane} : {value}"
        self.define(i.result, a.type.element, [value])

    def _insertelement(self, i: Instruction) -> None:
        a, value, index = i.tokens.operands(3)
        lanes = list(self.lanes(a))
        if index.text.isdigit():
            lanes[int(index.text)] = self.lane(value)
        else:
            number, new = self.lane(index), self.lane(value)
            lanes = [f"{number} == {k} ? {new} : {lane}" for k, lane in enumerate(lanes)]
        self.define(i.result, a.type, lanes)

    def _shufflevector(self, i: Instruction) -> None:
        a, b, mask = i.tokens.operands(3)
        lanes = self.lanes(a) + self.lanes(b)
        order = [part.text for part in mask.parts] or [mask.text] * mask.type.lanes
        chosen = [lanes[int(k)] if k.isdigit() else lanes[0] for k in order]
        self.define(i.result, Type("vector", a.type.bits, len(order), (a.type.element,)), chosen)

    # -- Memory --

    def _alloca(self, i: Instruction) -> None:
        type_ = i.tokens.type()
        align = 8
        while i.tokens.take(","):
            if i.tokens.take("align"):
                align = max(align, int(i.tokens.next()))
        (name,) = self._new(i.result, _POINTER)
        memory = self.module.declared(type_, f"{name}_memory")
        self.declared.append(f"_Alignas({align}) {memory};".replace("const void*", "void*"))
        self.declared.append(f"uint8_t* const {name} = (uint8_t*)&{name}_memory;")

    def _getelementptr(self, i: Instruction) -> None:
        type_ = i.tokens.type()
        i.tokens.expect(",")
        pointer = i.tokens.operand()
        indices = []
        while i.tokens.take(","):
            indices.append(i.tokens.operand())
        if type_.kind == "struct":
            (field,) = indices[1:]
            offset = f"offsetof({self.module.struct(type_)}, f{field.text})"
            self.define(i.result, _POINTER, [f"{self.lane(pointer)} + {offset}"])
            return
        (index,) = indices
        stride = self._stride(type_)
        many = max(pointer.type.lanes, index.type.lanes)
        pointers, numbers = self.lanes(pointer), self.lanes(index)
        pointers *= many // len(pointers)
        numbers *= many // len(numbers)
        values = [f"{p} + {self._offset(index, n, stride)}" for p, n in zip(pointers, numbers, strict=True)]
        is_vector = "vector" in (pointer.type.kind, index.type.kind)
        self.define(i.result, Type("vector", 0, many, (_POINTER,)) if is_vector else _POINTER, values)

    def _stride(self, type_: Type) -> str:
        if type_.kind == "ptr":
            return "sizeof(void*)"
        if type_.kind == "array":
            return str(type_.count * ex.size_of(type_.parts[0]))
        if type_.kind == "vector":
            return str(type_.lanes * ex.size_of(type_.element))
        return str(ex.size_of(type_))

    @staticmethod
    def _offset(index: Operand, number: str, stride: str) -> str:
        """Bytes from an address to an element."""
        if index.text.lstrip("-").isdigit() and stride.isdigit():
            return str(int(index.text) * int(stride))
        value = f"(ptrdiff_t){ex.signed(index.type.element, number)}"
        return value if stride == "1" else f"{value} * (ptrdiff_t){stride}"

    def load(self, type_: Type, pointer: str) -> list[str]:
        """The lanes of a value in memory."""
        name = ex.suffix(type_.element)
        if type_.lanes == 1 and type_.kind != "vector":
            return [f"tw_load_{name}({pointer})"]
        return [f"tw_load_{name}({pointer} + {k * ex.size_of(type_.element)})" for k in range(type_.lanes)]

    def _load(self, i: Instruction) -> None:
        i.tokens.skip("volatile", "atomic")
        type_ = i.tokens.type()
        i.tokens.expect(",")
        self.define(i.result, type_, self.load(type_, self.lane(i.tokens.operand())))

    def _store(self, i: Instruction) -> None:
        i.tokens.skip("volatile", "atomic")
        value = i.tokens.operand()
        i.tokens.expect(",")
        pointer, name = self.lane(i.tokens.operand()), ex.suffix(value.type.element)
        for k, lane in enumerate(self.lanes(value)):
            place = f"{pointer} + {k * ex.size_of(value.type.element)}" if k else pointer
            self.emit(f"tw_store_{name}({place}, {lane});")

    # -- Control flow --

    def _call(self, i: Instruction) -> None:
        tokens: Tokens = i.tokens
        tokens.attributes()
        type_ = tokens.type()
        name = tokens.next()
        if name == "asm":
            raise InternalError("it has assembly of a processor")
        tokens.expect("(")
        arguments: list[Operand] = []
        while not tokens.take(")"):
            arguments.append(tokens.operand())
            tokens.take(",")
        if name.startswith("@llvm."):
            call(self, i.result, name.removeprefix("@llvm."), type_, arguments)
            return
        given = ", ".join(lane for a in arguments for lane in self.lanes(a))
        text = f"{identifier(name)}({given})"
        if not i.result:
            self.emit(f"{text};")
        elif type_.kind == "vector":
            whole = f"whole{len(self.lines)}"
            self.emit(f"const {self.module.result(type_)} {whole} = {text};")
            self.define(i.result, type_, [f"{whole}.f{k}" for k in range(type_.lanes)])
        else:
            self.define(i.result, type_, [text])

    def _declare_phi(self, phi: Instruction) -> None:
        type_, _ = self._incoming(phi)
        names = self._new(phi.result, type_)
        self.declared += [f"{ex.c_type(type_.element)} {name};" for name in names]

    @staticmethod
    def _incoming(phi: Instruction) -> tuple[Type, list[tuple[Operand, str]]]:
        tokens = Tokens(phi.tokens.line)
        tokens.at = tokens.items.index("phi") + 1
        tokens.skip(*ex.FLAGS)
        type_ = tokens.type()
        pairs = []
        while tokens.take("["):
            value = tokens.value(type_)
            tokens.expect(",")
            pairs.append((value, tokens.next()[1:].strip('"')))
            tokens.expect("]")
            tokens.take(",")
        return type_, pairs

    def _edge(self, block: Block, target: str) -> list[str]:
        """The statements of a branch from `block` to `target`."""
        moves: list[tuple[Type, str, str]] = []
        for phi in self.phis[target]:
            type_, pairs = self._incoming(phi)
            value = next(value for value, origin in pairs if origin == block.name)
            names = self.names[phi.result]
            moves += [(type_.element, n, v) for n, v in zip(names, self.lanes(value), strict=True) if n != v]
        written: set[str] = set()
        lines: list[str] = []
        before: list[str] = []
        for type_, name, source in moves:
            kept = f"{source}_before" if source in written else source  # overwritten by then
            if kept != source and (line := f"const {ex.c_type(type_)} {kept} = {source};") not in before:
                before.append(line)
            lines.append(f"{name} = {kept};")
            written.add(name)
        return [*before, *lines, f"goto {self.labels[target]};"]

    def _end(self, block: Block, i: Instruction) -> None:
        tokens = i.tokens
        if i.opcode == "unreachable":
            self.emit("abort();")
        elif i.opcode == "ret":
            if tokens.peek() == "void":
                self.emit("return;")
                return
            value = tokens.operand()
            lanes = ", ".join(self.lanes(value))
            if value.type.kind == "vector":
                self.emit(f"return ({self.module.result(value.type)}){{{lanes}}};")
            else:
                self.emit(f"return {lanes};")
        elif i.opcode == "switch":
            value = tokens.operand()
            tokens.expect(",")
            other = self._label(tokens)
            tokens.expect("[")
            self.emit(f"switch ({self.lane(value)}) {{")
            while not tokens.take("]"):
                case = tokens.operand()
                tokens.expect(",")
                self._case(block, f"case {self.lane(case)}", self._label(tokens))
            self._case(block, "default", other)
            self.emit("}")
        elif tokens.peek() == "label":
            for line in self._edge(block, self._label(tokens)):
                self.emit(line)
        else:
            condition = self.lane(tokens.operand())
            tokens.expect(",")
            yes = self._edge(block, self._label(tokens))
            tokens.expect(",")
            no = self._edge(block, self._label(tokens))
            self.emit(f"if ({condition}) {{ {' '.join(yes)} }}")
            for line in ["{", *no, "}"] if any(line.startswith("const") for line in no) else no:
                self.emit(line)

    def _case(self, block: Block, head: str, target: str) -> None:
        self.emit(f"  {head}: {{ {' '.join(self._edge(block, target))} }}")

    @staticmethod
    def _label(tokens: Tokens) -> str:
        tokens.expect("label")
        return tokens.next()[1:].strip('"')


_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int "
    "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
    "volatile while NULL abs floor".split()
)


def _constant_type(type_: Type) -> str:
    """The C type of a variable that is written once."""
    return f"{ex.c_type(type_)} const" if type_.kind == "ptr" else f"const {ex.c_type(type_)}"


__all__ = ["identifier", "lanes_of", "to_c"]

"""LLVM IR text, as LLVM prints it, read into types, values and instructions.

Only what the code generators of `targets.llvm` emit is known. LLVM's own printer gives every module the same
form: an instruction is a line, and a type stands before each value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import InternalError

_TOKEN = re.compile(
    r'c"(?:[^"\\]|\\.)*"|[%@]"[^"]*"|[%@][\w.$-]+|"[^"]*"|-?0x[KLMHR]?[0-9A-Fa-f]+|'
    r"-?\d+\.\d+(?:e[+-]?\d+)?|-?[\w.]+|[<>\[\]{}(),=*:!#]"
)
_FLOATS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


@dataclass(frozen=True)
class Type:
    """A type of LLVM: `kind` is ``int``, ``half``, ``bfloat``, ``float``, ``double``, ``ptr``, ``void``,
    ``vector``, ``array``, ``struct``, or ``label`` and ``metadata``, which have no values.
    """

    kind: str
    bits: int = 0
    count: int = 0
    parts: tuple[Type, ...] = ()
    """The element of a vector or an array, the fields of a structure."""

    @property
    def element(self) -> Type:
        return self.parts[0] if self.kind == "vector" else self

    @property
    def lanes(self) -> int:
        """Lanes of a vector, 1 for a scalar."""
        return self.count if self.kind == "vector" else 1

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOATS


@dataclass(frozen=True)
class Operand:
    """A value with its type: the name of a local (``%v1``) or global one (``@f``), or a constant's text. A
    constant vector, array or structure has `parts`.
    """

    type: Type
    text: str
    parts: tuple[Operand, ...] = ()


@dataclass
class Instruction:
    """An instruction: its result's name ("" for none), its opcode, and the tokens after that."""

    result: str
    opcode: str
    tokens: Tokens


@dataclass
class Block:
    """A basic block."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Function:
    """A function; one without blocks is declared only. `is_internal` ones are not visible outside."""

    name: str
    result: Type
    parameters: list[Operand]
    is_internal: bool
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Global:
    """A constant with its initial value; `is_private` ones are not visible outside the module."""

    name: str
    value: Operand
    is_private: bool
    align: int


@dataclass
class TextModule:
    """A module, in the order of its text."""

    globals: list[Global]
    functions: list[Function]


class Tokens:
    """A cursor over the tokens of a line."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.items = _TOKEN.findall(line)
        self.at = 0

    def __iter__(self) -> Iterator[str]:
        while self.at < len(self.items):
            yield self.next()

    def peek(self) -> str:
        return self.items[self.at] if self.at < len(self.items) else ""

    def next(self) -> str:
        """The next token. Raises InternalError: there is none."""
        if self.at >= len(self.items):
            raise InternalError(f"LLVM IR ends early: {self.line.strip()}")
        self.at += 1
        return str(self.items[self.at - 1])

    def take(self, token: str) -> bool:
        """Whether the next token is `token`, which is then passed."""
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise InternalError(
                f"LLVM IR has {self.peek()!r} where {token!r} was expected: {self.line.strip()}"
            )

    def skip(self, *words: str) -> list[str]:
        """Pass all of `words` that come next, in any order; returns them."""
        passed = []
        while self.peek() in words:
            passed.append(self.next())
        return passed

    def type(self) -> Type:
        token = self.next()
        if token in _FLOATS:
            return Type(token, _FLOATS[token])
        if re.fullmatch(r"i\d+", token):
            return Type("int", int(token[1:]))
        if token in ("ptr", "void", "label", "metadata"):
            return Type(token)
        if token in ("<", "["):
            count = int(self.next())
            self.expect("x")
            element = self.type()
            self.expect(">" if token == "<" else "]")
            return Type("vector" if token == "<" else "array", element.bits, count, (element,))
        if token == "{":
            fields: list[Type] = []
            while not self.take("}"):
                fields.append(self.type())
                self.take(",")
            return Type("struct", parts=tuple(fields))
        raise InternalError(f"LLVM IR has the unknown type {token!r}: {self.line.strip()}")

    def value(self, type_: Type) -> Operand:
        """The value that comes next, of a type that is known."""
        token = self.next()
        if token == "splat":
            self.expect("(")
            one = self.operand()
            self.expect(")")
            return Operand(type_, "", (one,) * type_.count)
        if token in ("<", "[", "{"):
            parts: list[Operand] = []
            end = {"<": ">", "[": "]", "{": "}"}[token]
            while not self.take(end):
                parts.append(self.operand())
                self.take(",")
            return Operand(type_, "", tuple(parts))
        return Operand(type_, token)

    def operand(self) -> Operand:
        """A type, attributes of a parameter, and a value."""
        type_ = self.type()
        self.attributes()
        return self.value(type_)

    def operands(self, count: int) -> list[Operand]:
        """That many operands, with commas between them."""
        found = [self.operand()]
        while len(found) < count:
            self.expect(",")
            found.append(self.operand())
        return found

    def attributes(self) -> None:
        """Pass the attributes of a parameter or a result."""
        while True:
            token = self.peek()
            if token in _ATTRIBUTES:
                self.next()
            elif token == "align":
                self.next()
                self.next()
            elif token in _ATTRIBUTES_WITH_ARGUMENT:
                self.next()
                self.parenthesis()
            else:
                return

    def parenthesis(self) -> None:
        """Pass an argument in parentheses."""
        self.expect("(")
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self.next(), 0)


_ATTRIBUTES = frozenset(
    "noundef nocapture readonly writeonly readnone noalias nonnull signext zeroext inreg returned immarg "
    "nofree nocallback".split()
)
_ATTRIBUTES_WITH_ARGUMENT = frozenset(("captures", "dereferenceable", "range", "nofpclass", "initializes"))
_LINKAGES = ("private", "internal", "hidden", "dso_local", "unnamed_addr", "local_unnamed_addr", "fastcc")
_DEFINITION = re.compile(r"^(define|declare) ")
_LABEL = re.compile(r'^("[^"]*"|[\w.$-]+):')


def read_module(text: str) -> TextModule:
    """Read a module that LLVM has printed.

    Raises:
        InternalError: The text has something that is not known; the message shows the line.
    """
    module = TextModule([], [])
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("@"):
            module.globals.append(_global(line))
        elif _DEFINITION.match(line):
            function = _signature(line)
            module.functions.append(function)
            if line.startswith("define"):
                _body(function, lines)
    return module


def _global(line: str) -> Global:
    tokens = Tokens(line)
    name = tokens.next()
    tokens.expect("=")
    words = tokens.skip(*_LINKAGES, "constant", "global")
    type_ = tokens.type()
    value = tokens.value(type_)
    align = 1
    while tokens.take(","):
        if tokens.take("align"):
            align = int(tokens.next())
        else:
            tokens.next()
    return Global(name, value, "private" in words or "internal" in words, align)


def _signature(line: str) -> Function:
    tokens = Tokens(line)
    tokens.next()
    words = tokens.skip(*_LINKAGES)
    tokens.attributes()
    result = tokens.type()
    name = tokens.next()
    tokens.expect("(")
    parameters: list[Operand] = []
    while not tokens.take(")"):
        type_ = tokens.type()
        tokens.attributes()
        parameters.append(
            Operand(type_, tokens.next() if tokens.peek()[:1] == "%" else f"%{len(parameters)}")
        )
        tokens.take(",")
    return Function(name, result, parameters, "internal" in words or "private" in words)


def _body(function: Function, lines: Iterator[str]) -> None:
    for line in lines:
        line = line.partition("; preds")[0].rstrip()
        if line == "}":
            return
        if not line:
            continue
        if label := _LABEL.match(line):
            function.blocks.append(Block(label[1].strip('"')))
            continue
        if line.endswith("["):  # a switch, whose cases have lines of their own
            for case in lines:
                line += f" {case.strip()}"
                if case.strip() == "]":
                    break
        tokens = Tokens(line)
        result = ""
        if tokens.peek()[:1] == "%":
            result = tokens.next()
            tokens.expect("=")
        tokens.skip("tail", "musttail", "notail")
        if not function.blocks:
            function.blocks.append(Block("entry"))
        function.blocks[-1].instructions.append(Instruction(result, tokens.next(), tokens))
    raise InternalError(f"LLVM IR ends within the function {function.name}")


__all__ = [
    "Block",
    "Function",
    "Global",
    "Instruction",
    "Operand",
    "TextModule",
    "Tokens",
    "Type",
    "read_module",
]

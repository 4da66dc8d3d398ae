"""Reader of the textual form below operations: tokens, symbols, attributes, expressions, types, constants.

The results are interned types and symbols, and plain Python values, from which `parser` builds operations.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from . import symbolic_text
from .constant import Constant
from .core import IRError, Operation, Value
from .location import UNKNOWN, Location
from .symbolic import Dim, Expr, smax, smin, symbol
from .types import BufferType, DType, TensorType, Type, token

_TOKEN = re.compile(
    r"""
      "(?:[^"\\\n]|\\.)*"                                # string
    | tensor<[^"<>]*(?:"[^"\n]*"\s*)?>                   # types are one token: equal ones are read once
    | !tw\.buffer<[^<>]*>
    | %[\w$.-]+ | @[\w$.-]+ | \^\w+ | [!#][A-Za-z_][\w$.]*
    | 0x[0-9A-Fa-f]+
    | \d+\.(?!\.)\d*(?:[eE][-+]?\d+)? | \d+[eE][-+]?\d+ | \d+
    | (?u:[^\W\d][\w$.]*)                                 # symbols may have any letters
    | -> | \.\. | // | \S
    """,
    re.VERBOSE | re.ASCII,
)
_COMMENT = re.compile(r"^[ \t]*//[^\n]*", re.MULTILINE)
_RESOURCES = re.compile(r"^[ \t]*\{-#", re.MULTILINE)
_TENSOR = re.compile(r'tensor<\s*((?:(?:\d+|\?)x)*)(\w+)\s*(?:,\s*"([^"]*)"\s*)?>\Z', re.ASCII)
_BUFFER = re.compile(r'!tw\.buffer<\s*"([^"]*)"\s*,\s*"([^"]*)"\s*,\s*"([^"]*)"\s*>\Z', re.ASCII)
_NUMBER_TYPE = re.compile(r"(?:[us]?i|b?f)\d+\Z|index\Z")
_UNESCAPE = re.compile(rb'\\([0-9A-Fa-f]{2}|["\\nt])')


class ParseError(IRError):
    """The text is not a valid module; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.line, self.column = line, column
        super().__init__(f"line {line}, column {column}: {message}")


class Reader:
    """A position in the tokens of a text, with the symbols that are known at that position."""

    def __init__(self, text: str, constants: Mapping[str, Constant]) -> None:
        self.source = text
        self.constants = dict(constants)
        self.made: dict[str, Constant] = {}
        self.hexadecimal: dict[str, str] = {}
        if "//" in text:
            text = _COMMENT.sub(lambda m: " " * len(m[0]), text)
        self.text = text
        if "{-#" in text and (table := _RESOURCES.search(text)):
            self._read_resources(text[table.start() :], table.start())
            self.text = text = text[: table.start()]
        self.tokens: list[str] = _TOKEN.findall(text)
        self.tokens += ["", "", ""]  # Padding for the largest lookahead.
        self.at = 0
        self.generic = False
        self.values: dict[str, Value] = {}
        self.defined: list[str] = []
        self.scope: dict[str, Expr] = {}
        self.binding = False
        # Caches of types and expressions by their text, valid in the current scope.
        self.types: dict[str, Type] = {}
        self.static_types: dict[str, Type] = {}
        self.exprs: dict[str, Dim] = {}
        self.classes: dict[str, type[Operation]] = {}

    # -- Tokens and errors -----------------------------------------------------------------------------------

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        position = len(self.text.rstrip())
        for k, match in enumerate(_TOKEN.finditer(self.text)):
            if k == at:
                position = match.start()
                break
        self.fail_at(message, position)

    def fail_at(self, message: str, position: int) -> NoReturn:
        line = self.source.count("\n", 0, position) + 1
        column = position - (self.source.rfind("\n", 0, position) + 1) + 1
        raise ParseError(message, line, column)

    def next_token(self) -> str:
        return f"'{self.tokens[self.at]}'" if self.tokens[self.at] else "the end of the text"

    def expect(self, wanted: str, what: str = "") -> None:
        if self.tokens[self.at] != wanted:
            self.fail(f"expected '{wanted}'{' ' + what if what else ''}, found {self.next_token()}")
        self.at += 1

    def accept(self, wanted: str) -> bool:
        if self.tokens[self.at] == wanted:
            self.at += 1
            return True
        return False

    def next(self) -> str:
        t = self.tokens[self.at]
        self.at += 1
        return t

    # -- Scopes of symbols -----------------------------------------------------------------------------------

    def _enter(self, scope: dict[str, Expr]) -> None:
        """Enter another scope, in which texts of types and expressions may have another meaning."""
        self.scope = scope
        self.types, self.exprs = {}, {}

    def _symbols(self) -> None:
        """Read ``tw.symbols``, which declares names of symbols for the rest of the text."""
        self.binding = True
        if self.generic:
            self.expect("(")
            self.expect(")")
            self.expect("<")
            self.expect("{")
            self.expect("symbols")
            self.expect("=")
            self.data()
            for t in ("}", ">", ":", "(", ")", "->", "(", ")"):
                self.expect(t)
        else:
            self._declaration()
            while self.accept(","):
                self._declaration()
        self.binding = False

    def _declare(
        self, name: str, lower: int | None, upper: Dim | None, multiple: int, alias: str, at: int
    ) -> Expr:
        try:
            s = symbol(name, lower, upper, multiple)
        except ValueError as error:
            self.fail(str(error), at)
        if self.binding:
            self._enter({**self.scope, alias or name: s})
        return s

    def _declaration(self) -> Expr:
        """``name in lower..upper step n``, perhaps after ``alias:``."""
        at = self.at
        saved, self.binding = self.binding, True
        alias = ""
        name = self.next()
        if self.accept(":"):
            alias, name = name, self.next()
        self.expect("in", f"after the symbol '{name}'")
        lower: int | None = None
        if not self.accept("?"):
            lower = self._plain_int()
        self.expect("..", "in a range")
        upper = None if self.accept("?") else self.expression()
        multiple = self._plain_int() if self.accept("step") else 1
        s = self._declare(name, lower, upper, multiple, alias, at)
        self.binding = saved
        return s

    def _plain_int(self) -> int:
        sign = -1 if self.accept("-") else 1
        t = self.tokens[self.at]
        if not t.isdigit():
            self.fail(f"expected an integer, found {self.next_token()}")
        self.at += 1
        return sign * int(t)

    # -- Attributes ------------------------------------------------------------------------------------------

    def _is_attribute(self) -> bool:
        """Whether the brace here opens attributes (``{name = value``) rather than a region."""
        t = self.tokens[self.at + 1]
        return (t[:1].isalpha() or t[:1] in '_"') and self.tokens[self.at + 2] in ("=", ",", "}")

    def _attributes(self, cls: type[Operation], attributes: dict[str, Any]) -> None:
        self.expect("{")
        tokens = self.tokens
        if self.accept("}"):
            return
        binds = cls.binds
        while True:
            at = self.at
            key = self._attribute_name()
            if key in attributes:
                self.fail(f"attribute '{key}' is given twice", at)
            if tokens[self.at] == "=":
                self.at += 1
                self.binding = key in binds
                attributes[key] = self.data()
                self.binding = False
            else:
                attributes[key] = None  # MLIR's short form of a unit attribute
            if not self.accept(","):
                self.expect("}", "or ',' after an attribute")
                return

    def _attribute_name(self) -> str:
        t = self.tokens[self.at]
        if t[:1] == '"':
            self.at += 1
            return self.string(t)
        if not (t[:1].isalpha() or t[:1] == "_"):
            self.fail(f"expected an attribute's name, found {self.next_token()}")
        self.at += 1
        return t

    def data(self) -> Any:
        """An attribute's value."""
        t = self.tokens[self.at]
        c = t[:1]
        if c == '"':
            self.at += 1
            return self.string(t)
        if c == "[":
            return self._tuple()
        if c == "#":
            return self._dialect_attribute()
        if c == "{":
            return self._dict()
        if c == "!" or t.startswith("tensor<"):
            return self.type()
        if c.isdigit() or c == "-":
            return self._number()
        if t in ("true", "false"):
            self.at += 1
            return t == "true"
        if t in ("none", "unit"):
            self.at += 1
            return None
        if t in ("inf", "nan"):
            self.at += 1
            return float(t)
        if t in ("dense", "dense_resource"):
            return self._constant("")
        if c.isalpha() or c == "_" or c == "(":
            if self.tokens[self.at + 1] == "in":
                return self._declaration()
            if self.generic or (t not in self.scope and t in DType._by_name):
                return self.type()
            return self.expression()
        return self.fail(f"expected an attribute's value, found {self.next_token()}")

    def _tuple(self) -> tuple[Any, ...]:
        self.at += 1
        if self.accept("]"):
            return ()
        items = [self.data()]
        while self.accept(","):
            items.append(self.data())
        self.expect("]", "or ',' in a list")
        return tuple(items)

    def _dict(self) -> dict[str, Any]:
        self.at += 1
        entries: dict[str, Any] = {}
        while not self.accept("}"):
            key = self._attribute_name()
            entries[key] = self.data() if self.accept("=") else None
            if self.tokens[self.at] != "}":
                self.expect(",", "or '}' in a dict")
        return entries

    def _number(self) -> Any:
        """A number with its type (generic), or a number or an expression that begins with one (pretty)."""
        tokens = self.tokens
        start = self.at
        negative = tokens[start] == "-"
        t = tokens[start + negative]
        value: Any
        if t[:2] == "0x":
            self.at += negative + 1
            self.expect(":", "after a hexadecimal float")
            self.expect("f64", "(hexadecimal floats are written as f64)")
            return float(struct.unpack("<d", int(t, 16).to_bytes(8, "little"))[0])
        if not t.isdigit() and (t[:1].isdigit() or t in ("inf", "nan")):
            value = float(t)
            self.at += negative + 1
            value = -value if negative else value
        elif self.generic:
            value = self._plain_int()
        else:
            value = self.expression()
        if (
            tokens[self.at] == ":"
            and isinstance(value, (int, float))
            and _NUMBER_TYPE.match(tokens[self.at + 1])
        ):
            given = tokens[self.at + 1]
            self.at += 2
            if given == "i1":
                return bool(value)
            if given[:1] in ("f", "b"):
                return float(value)
        return value

    def _dialect_attribute(self) -> Any:
        at = self.at
        name = self.next()
        self.expect("<", f"after {name}")
        value: Any
        if name == "#tw.expr":
            text = self.string(self.next())
            value = self.exprs.get(text)
            if value is None:
                value = self.exprs[text] = self._expression_of(text, at + 2)
        elif name == "#tw.symbol":
            value = self._generic_symbol(at)
        elif name == "#tw.constant":
            label = self.string(self.next())
            self.expect(",")
            value = self._constant(label)
        else:
            self.fail(f"unknown attribute {name}; known: #tw.expr, #tw.symbol, #tw.constant", at)
        self.expect(">", f"after {name}")
        return value

    def _generic_symbol(self, at: int) -> Expr:
        name = self.string(self.next())
        self.expect(",")
        lower = None if self.accept("unit") else self._plain_int()
        self.expect(",")
        upper: Dim | None
        t = self.tokens[self.at]
        if t[:1] == '"':
            upper = self._expression_of(self.string(t), self.at)
            self.at += 1
        else:
            upper = None if self.accept("unit") else self._plain_int()
        multiple = self._plain_int() if self.accept(",") else 1
        alias = self.string(self.next()) if self.accept(",") else ""
        return self._declare(name, lower, upper, multiple, alias, at)

    def _expression_of(self, text: str, at: int) -> Dim:
        try:
            return symbolic_text.parse(text, self.scope)
        except ValueError as error:
            self.fail(str(error), at)

    # -- Expressions of the pretty form ----------------------------------------------------------------------

    def expression(self) -> Dim:
        start = self.at
        try:
            return self._sum()
        except ZeroDivisionError as error:
            self.fail(str(error), start)

    def _sum(self) -> Dim:
        total = self._product()
        while (t := self.tokens[self.at]) in ("+", "-"):
            self.at += 1
            term = self._product()
            total = total + term if t == "+" else total - term
        return total

    def _product(self) -> Dim:
        total = self._factor()
        while (t := self.tokens[self.at]) in ("*", "//", "%"):
            self.at += 1
            factor = self._factor()
            total = total * factor if t == "*" else total // factor if t == "//" else total % factor
        return total

    def _factor(self) -> Dim:
        t = self.tokens[self.at]
        if t.isdigit():
            self.at += 1
            return int(t)
        if t in self.scope:
            self.at += 1
            return self.scope[t]
        if t == "-":
            self.at += 1
            return -self._factor()
        if t == "(":
            self.at += 1
            value = self._sum()
            self.expect(")", "in an expression")
            return value
        if t in ("min", "max"):
            self.at += 1
            self.expect("(", f"after {t}")
            value = self._sum()
            while self.accept(","):
                other = self._sum()
                value = smin(value, other) if t == "min" else smax(value, other)
            self.expect(")", f"after {t}")
            return value
        known = ", ".join(sorted(self.scope)) or "none"
        if t[:1].isalpha() or t[:1] == "_":
            self.fail(f"unknown symbol '{t}' (known: {known})")
        return self.fail(f"expected an expression, found {self.next_token()}")

    # -- Types -----------------------------------------------------------------------------------------------

    def type(self) -> Type:
        t = self.tokens[self.at]
        cached = self.static_types.get(t) or self.types.get(t)
        if cached is None:
            cached = self._read_type(t)
            # A type without expressions means the same in every scope.
            (self.types if '"' in t else self.static_types)[t] = cached
        self.at += 1
        return cached

    def _read_type(self, t: str) -> Type:
        if t.startswith("tensor<"):
            return self._tensor_type(t)
        if t.startswith("!tw.buffer<"):
            match = _BUFFER.match(t)
            if match is None:
                self.fail(f'expected \'!tw.buffer<"f32", "n, 4", "global">\', found {t}')
            return BufferType(self._dtype(match[1]), self._shape(match[2]), match[3])
        if t == "!tw.token":
            return token
        return self._dtype(t[1:] if t[:1] == "!" else t)

    def _dtype(self, name: str) -> DType:
        dtype = DType._by_name.get(name)
        if dtype is None:
            self.fail(
                f"expected a type, found {name!r}"
                + (f" (element types: {', '.join(DType._by_name)})" if name else "")
            )
        return dtype

    def _tensor_type(self, t: str) -> TensorType:
        match = _TENSOR.match(t)
        if match is None:
            self.fail(f'expected a tensor type such as tensor<4x?xf32, "4, n">, found {t}')
        dims, dtype, encoding = match[1].split("x")[:-1], self._dtype(match[2]), match[3]
        layout = None
        shape: tuple[Dim, ...] | None = None
        for part in (encoding or "").split(";"):
            words = part.split()
            if words[:1] == ["layout"]:
                layout = tuple(int(w) for w in words[1:])
            elif words:
                shape = self._shape(part)
        if shape is None:
            if "?" in dims:
                self.fail(f'{t} does not say what its dynamic dimensions are: write tensor<?x4xf32, "n, 4">')
            shape = tuple(int(d) for d in dims)
        elif [str(d) if isinstance(d, int) else "?" for d in shape] != dims:
            self.fail(f'the dimensions {"x".join(dims)} and "{encoding}" differ')
        try:
            return TensorType(dtype, shape, layout)
        except ValueError as error:
            self.fail(str(error))

    def _shape(self, text: str) -> tuple[Dim, ...]:
        return tuple([self._dim(part.strip()) for part in _split(text)]) if text.strip() else ()

    def _dim(self, text: str) -> Dim:
        if text.isdigit():
            return int(text)
        cached = self.exprs.get(text)
        if cached is None:
            cached = self.exprs[text] = self._expression_of(text, self.at)
        return cached

    def _type_list(self) -> list[Type]:
        self.expect("(", "before a list of types")
        types: list[Type] = []
        if self.accept(")"):
            return types
        types.append(self.type())
        while self.accept(","):
            types.append(self.type())
        self.expect(")", "after a list of types")
        return types

    # -- Constants and locations -----------------------------------------------------------------------------

    def _constant(self, name: str) -> Constant:
        at = self.at
        kind = self.next()
        self.expect("<", f"after {kind}")
        if kind == "dense_resource":
            t = self.next()
            key = self.string(t) if t[:1] == '"' else t
            self.expect(">")
            self.expect(":")
            return self._resource(key, self.type(), at)
        if kind != "dense":
            self.fail(f"expected 'dense' or 'dense_resource', found {kind!r}", at)
        elements: Any = None if self.tokens[self.at] == ">" else self._elements()
        self.expect(">", "after the elements")
        self.expect(":", "before the constant's type")
        tensor = self.type()
        if not isinstance(tensor, TensorType) or not tensor.is_static:
            self.fail(f"a constant needs a static tensor type, not {tensor}", at)
        return self._dense(elements, tensor, name, at)

    def _elements(self) -> Any:
        if self.accept("["):
            if self.accept("]"):
                return []
            items = [self._elements()]
            while self.accept(","):
                items.append(self._elements())
            self.expect("]", "after elements")
            return items
        negative = self.accept("-")
        t = self.tokens[self.at]
        if t in ("true", "false"):
            value: Any = t == "true"
        elif t[:2] == "0x":
            value = _Bits(int(t, 16))
        elif t.isdigit():
            value = -int(t) if negative else int(t)
        elif t[:1].isdigit():
            value = -float(t) if negative else float(t)
        else:
            self.fail(f"expected an element of a constant, found {self.next_token()}")
        self.at += 1
        return value

    def _dense(self, elements: Any, tensor: TensorType, name: str, at: int) -> Constant:
        import numpy as np

        dtype = tensor.dtype.numpy
        shape = [int(d) for d in tensor.shape]  # type: ignore[arg-type] # static, by the caller

        def element(x: Any) -> Any:
            if isinstance(x, _Bits):
                return np.frombuffer(x.value.to_bytes(dtype.itemsize, "little"), dtype)[0]
            return np.array(x, dtype)

        if elements is None:
            return Constant(np.zeros(shape, dtype), name)
        try:
            if not isinstance(elements, list):
                array = np.broadcast_to(element(elements), shape)
            else:
                flat: list[Any] = []

                def gather(items: Any, depth: int) -> None:
                    if depth == tensor.rank:
                        flat.append(element(items))
                        return
                    if not isinstance(items, list) or len(items) != shape[depth]:
                        raise ValueError(f"the elements do not fill {tensor}")
                    for x in items:
                        gather(x, depth + 1)

                gather(elements, 0)
                array = np.array(flat, dtype).reshape(shape)
        except (ValueError, OverflowError, TypeError) as error:
            self.fail(f"not a constant of type {tensor}: {error}", at)
        return Constant(array, name)

    def _resource(self, key: str, tensor: Type, at: int) -> Constant:
        if key in self.constants:
            constant = self.constants[key]
            if constant.type is not tensor:
                self.fail(f"the constant '{key}' is {constant.type}, not {tensor}", at)
            return constant
        if key in self.made:
            return self.made[key]
        if key not in self.hexadecimal:
            self.fail(
                f"the contents of the constant '{key}' are not in this text: print with resources=True, "
                "or give parse the constants (printer.resources_of)",
                at,
            )
        import numpy as np

        if not isinstance(tensor, TensorType) or not tensor.is_static:
            self.fail(f"a constant needs a static tensor type, not {tensor}", at)
        data = bytes.fromhex(self.hexadecimal[key])[4:]  # after the alignment
        dtype = tensor.dtype.numpy
        needed = math.prod(cast(tuple[int, ...], tensor.shape)) * dtype.itemsize
        if len(data) != needed:
            self.fail(f"the resource '{key}' has {len(data)} bytes, {tensor} needs {needed}", at)
        made = self.made[key] = Constant(np.frombuffer(data, dtype).reshape(tensor.shape), key)
        return made

    def _read_resources(self, table: str, offset: int) -> None:
        entries = re.compile(r'("(?:[^"\\\n]|\\.)*"|[\w$.]+)\s*:\s*"0x([0-9A-Fa-f]*)"')
        blobs = {}
        for match in entries.finditer(table):
            if len(match[2]) < 8 or len(match[2]) % 2:
                self.fail_at(
                    f"the resource {match[1]} is not a hexadecimal blob with an alignment",
                    offset + match.start(),
                )
            blobs[self.string(match[1]) if match[1][:1] == '"' else match[1]] = match[2]
        self.hexadecimal = blobs

    def location(self) -> Location:
        t = self.next()
        if t == "unknown":
            return UNKNOWN
        if t == "fused":
            self.expect("[")
            parts = [self.location()]
            while self.accept(","):
                parts.append(self.location())
            self.expect("]")
            first = parts[0]
            return Location(first.name, first.file, first.line, tuple(parts[1:]))
        text = self.string(t)
        if self.accept(":"):
            line = self._plain_int()
            self.expect(":")
            self._plain_int()
            return Location(file=text, line=line)
        if self.accept("("):
            inner = self.location()
            self.expect(")")
            return Location(text, inner.file, inner.line)
        return Location(text)

    def string(self, t: str) -> str:
        if t[:1] != '"':
            self.fail(
                f"expected a string, found {t!r}" if t else "expected a string, found the end of the text",
                self.at - 1,
            )
        text = t[1:-1]
        if "\\" not in text:
            return text

        def plain(m: re.Match[bytes]) -> bytes:
            c = m[1]
            if len(c) == 2:
                return bytes([int(c, 16)])
            return {b"n": b"\n", b"t": b"\t"}.get(c, c)

        return _UNESCAPE.sub(plain, text.encode()).decode()


class _Bits:
    """The bit pattern of a float that has no decimal text."""

    def __init__(self, value: int) -> None:
        self.value = value


def _split(text: str) -> list[str]:
    """The parts between commas outside of parentheses."""
    if "(" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[start:k])
            start = k + 1
    return [*parts, text[start:]]


__all__ = ["ParseError", "Reader"]

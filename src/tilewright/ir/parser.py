"""Parser of the text that `printer.print_op` writes, in the generic and the pretty form, which may be mixed.

The result is a `Module` (or one operation) with the same operations, interned types and interned symbols as
the printed one. Dialects are imported when their operations occur. Only syntax is checked: run
`verifier.verify` on untrusted text.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .constant import Constant
from .core import _MISSING, Block, Module, Operation, Region, Value, registered_operations
from .reader import ParseError, Reader
from .types import Type

_SYMBOLS_OP = "tw.symbols"


def parse(text: str, constants: Mapping[str, Constant] | None = None) -> Module:
    """The module written in `text`.

    `constants` holds the large constants by key (see `printer.resources_of`) when the text does not carry
    their bytes.

    Raises:
        ParseError: naming the line, the column, and what was expected there.
    """
    parser = _Parser(text, constants or {})
    op = parser.top()
    if not isinstance(op, Module):
        parser.at = 0
        parser.fail(f"expected a module, found '{op.name}' (use parse_op for a single operation)")
    return op


def parse_op(text: str, constants: Mapping[str, Constant] | None = None) -> Operation:
    """The single operation (a function, a kernel, a module) written in `text`.

    Raises:
        ParseError: naming the line, the column, and what was expected there.
    """
    return _Parser(text, constants or {}).top()


class _Parser(Reader):
    # -- Structure -------------------------------------------------------------------------------------------

    def top(self) -> Operation:
        ops: list[Operation] = []
        while self.tokens[self.at]:
            start = self.at
            op = self.operation()
            if op is not None:
                if ops:
                    self.fail("expected the end of the text after one top-level operation", start)
                ops.append(op)
        if not ops:
            self.fail("expected an operation, found the end of the text")
        return ops[0]

    def operation(self) -> Operation | None:
        """One operation; None for a declaration of symbols."""
        tokens = self.tokens
        start = self.at
        names: list[str] = []
        while tokens[self.at][:1] == "%":
            names.append(self.next())
            if tokens[self.at] == ":":
                self.fail("numbered result groups ('%x:2') are not supported: name each result")
            if not self.accept(","):
                self.expect("=", "after the results")
                break
        outer = self.scope
        saved = self.types, self.exprs
        name_at = self.at
        text = self.next()
        generic = text[:1] == '"'
        if not generic and not (text[:1].isalpha() or text[:1] == "_"):
            self.fail(
                f"expected an operation, found {text!r}"
                if text
                else "expected an operation or '}', found the end of the text",
                name_at,
            )
        name = self.string(text) if generic else text
        before, self.generic = self.generic, generic
        if name == _SYMBOLS_OP:
            self._symbols()
            self.generic = before
            return None
        cls = self.classes.get(name) or self._class(name, name_at)
        op = (self._generic if generic else self._pretty)(cls, names, start)
        self.generic = before
        if self.scope is not outer:
            self.scope = outer
            self.types, self.exprs = saved
        if tokens[self.at] == "loc":
            self.at += 1
            self.expect("(")
            op.location = self.location()
            self.expect(")")
        return op

    def _class(self, name: str, at: int) -> type[Operation]:
        plain = name[3:] if name.startswith("tw.") and name.count(".") > 1 else name
        dialect, dot, _ = plain.partition(".")
        registry = registered_operations()
        cls = registry.get(plain)
        if cls is None and dot and dialect.isidentifier():
            try:
                importlib.import_module(f"..dialects.{dialect}", __package__)
            except ModuleNotFoundError as error:
                if not (error.name or "").endswith(f"dialects.{dialect}"):
                    raise
            cls = registry.get(plain)
        if cls is None:
            known = sorted(n for n in registry if n.partition(".")[0] == dialect)
            if not dot:
                hint = "an operation's name is 'dialect.operation'"
            elif known:
                hint = f"operations of dialect '{dialect}': {', '.join(known)}"
            else:
                dialects = ", ".join(sorted({n.partition(".")[0] for n in registry}))
                hint = (
                    f"no dialect '{dialect}' is known (loaded: {dialects}); "
                    "import the module that defines it first"
                )
            self.fail(f"unknown operation '{plain}'; {hint}", at)
        self.classes[name] = cls
        return cls

    def _generic(self, cls: type[Operation], names: list[str], start: int) -> Operation:
        tokens = self.tokens
        outer = self.scope
        self.expect("(", "before the operands")
        operands: list[Value] = []
        operand_at = self.at
        if tokens[self.at] != ")":
            operands.append(self.value())
            while self.accept(","):
                operands.append(self.value())
        self.expect(")", "after the operands")
        attributes: dict[str, Any] = {}
        if tokens[self.at] == "<":
            self.at += 1
            self._attributes(cls, attributes)
            self.expect(">", "after the properties")
        regions: list[Region] = []
        if tokens[self.at] == "(":
            self.at += 1
            regions.append(self._region(None))
            while self.accept(","):
                regions.append(self._region(None))
            self.expect(")", "after the regions")
        if tokens[self.at] == "{":
            self._attributes(cls, attributes)
        inner = self.scope
        if inner is not outer:
            self._enter(outer)
        self.expect(":", "before the operation's type")
        types_at = self.at
        given = self._type_list()
        self.expect("->", "between the types of operands and results")
        results = self._type_list() if tokens[self.at] == "(" else [self.type()]
        if [v.type for v in operands] != given:
            if len(given) != len(operands):
                self.fail(f"expected {len(operands)} operand types, found {len(given)}", types_at)
            k = next(k for k, (v, t) in enumerate(zip(operands, given, strict=True)) if v.type is not t)
            self.fail(f"operand {k} has type {operands[k].type}, here {given[k]} is said", types_at)
        return self._finish(cls, names, operands, operand_at, results, attributes, regions, start)

    def _pretty(self, cls: type[Operation], names: list[str], start: int) -> Operation:
        tokens = self.tokens
        outer = self.scope
        attributes: dict[str, Any] = {}
        if tokens[self.at][:1] == "@":
            attributes["sym_name"] = self._symbol_name()
        if tokens[self.at + 1] == "in":
            if len(cls.binds) != 1:
                self.fail(f"'{cls.name}' binds no single symbol, so none can be declared here")
            attributes[cls.binds[0]] = self._declaration()
        operands: list[Value] = []
        operand_at = self.at
        segments: list[int] = []
        while not self._starts_results() and (tokens[self.at][:1] == "%" or tokens[self.at] in ("[", "none")):
            size = len(operands)
            if self.accept("["):
                if not self.accept("]"):
                    operands.append(self.value())
                    while self.accept(","):
                        operands.append(self.value())
                    self.expect("]", "after a group of operands")
            elif not self.accept("none"):
                operands.append(self.value())
            segments.append(len(operands) - size)
            if not self.accept(","):
                break
        if cls._flexible > 1:
            missing = len(cls._operand_fields) - len(segments)
            if missing < 0:
                self.fail(
                    f"'{cls.name}' takes {len(cls._operand_fields)} operands, found {len(segments)}",
                    operand_at,
                )
            attributes["operand_segments"] = (*segments, *(0,) * missing)
        elif len(segments) != len(operands):
            self.fail(f"'{cls.name}' takes its operands without brackets or 'none'", operand_at)
        if tokens[self.at] == "{" and self._is_attribute():
            self._attributes(cls, attributes)
        results: list[Type] = []
        inner = self.scope
        if tokens[self.at] == ":":
            self.at += 1
            if inner is not outer:
                kept = self.types, self.exprs
                self._enter(outer)
            results.append(self.type())
            while self.accept(","):
                results.append(self.type())
            if inner is not outer:
                self.scope = inner
                self.types, self.exprs = kept
        regions: list[Region] = []
        while tokens[self.at] in ("{", "(") or (tokens[self.at] == "," and regions):
            self.accept(",")
            block = None
            if tokens[self.at] == "(":
                block = Block()
                self._mark()
                self._block_args(block)
            regions.append(self._region(block))
        return self._finish(cls, names, operands, operand_at, results, attributes, regions, start)

    def _finish(
        self,
        cls: type[Operation],
        names: list[str],
        operands: list[Value],
        operand_at: int,
        results: list[Type],
        attributes: dict[str, Any],
        regions: list[Region],
        start: int,
    ) -> Operation:
        fields = cls._operand_fields
        if len(operands) != len(fields):
            wanted = ", ".join(n for n, _ in fields) or "none"
            if not cls._flexible:
                self.fail(
                    f"'{cls.name}' takes {len(fields)} operands ({wanted}), found {len(operands)}", operand_at
                )
        if cls._flexible > 1:
            segments = attributes.get("operand_segments")
            if (
                not isinstance(segments, tuple)
                or len(segments) != len(fields)
                or not all(type(n) is int and n >= 0 for n in segments)
                or sum(segments) != len(operands)
            ):
                self.fail(
                    f"'{cls.name}' needs operand_segments, one per operand, that add up to {len(operands)}",
                    start,
                )
            for (field, kind), n in zip(fields, segments, strict=True):
                if (kind == "one" and n != 1) or (kind == "optional" and n > 1):
                    self.fail(
                        f"'{cls.name}' takes {'one' if kind == 'one' else 'at most one'} operand '{field}', "
                        f"found {n}",
                        operand_at,
                    )
        elif cls._flexible == 1:
            extra = len(operands) - len(fields) + 1
            kind = next(k for _, k in fields if k != "one")
            if extra < 0 or (kind == "optional" and extra > 1):
                self.fail(
                    f"'{cls.name}' takes operands {', '.join(n for n, _ in fields)}, found {len(operands)}",
                    operand_at,
                )
        known = cls._attr_fields
        for key, default in known.items():
            if key not in attributes:
                if default is _MISSING:
                    self.fail(f"'{cls.name}' needs attribute '{key}'", start)
                attributes[key] = default
        if len(attributes) > len(known):
            for key in attributes:
                if key not in known and key != "operand_segments" and "." not in key:
                    self.fail(
                        f"'{cls.name}' has no attribute '{key}'; known: {', '.join(known) or 'none'}", start
                    )
        if cls.num_regions != len(regions):
            if regions or cls.num_regions > 1:
                self.fail(f"'{cls.name}' has {cls.num_regions} regions, found {len(regions)}", start)
            regions = [Region() for _ in range(cls.num_regions)]
        if len(names) != len(results):
            self.fail(f"'{cls.name}' has {len(results)} result types for {len(names)} result names", start)
        op = cls.assemble(operands, results, attributes, regions)
        for name, result in zip(names, op.results, strict=True):
            self.define(name, result, start)
        return op

    def _starts_results(self) -> bool:
        """Whether the next tokens are the operation's results (``%a, %b =``) rather than operands."""
        at = self.at
        while self.tokens[at][:1] == "%":
            if self.tokens[at + 1] != ",":
                return self.tokens[at + 1] == "="
            at += 2
        return False

    def _mark(self) -> None:
        self.defined.append("")

    def _release(self) -> None:
        while name := self.defined.pop():
            del self.values[name]

    def _region(self, first: Block | None) -> Region:
        """A region in braces. `first` is its entry block if its arguments have been read already."""
        if first is None:
            self._mark()
            first = Block()
        region = Region((first,))
        block = first
        self.expect("{", "before a region")
        tokens = self.tokens
        while tokens[self.at] != "}":
            if tokens[self.at][:1] == "^":
                if block.first is not None or block.args:
                    block = region.add_block(Block())
                self.at += 1
                if tokens[self.at] == "(":
                    self._block_args(block)
                self.expect(":", "after the block's label")
                continue
            op = self.operation()
            if op is not None:
                block.append(op)
        self.at += 1
        self._release()
        return region

    def _block_args(self, block: Block) -> None:
        self.expect("(")
        while not self.accept(")"):
            at = self.at
            name = self.next()
            if name[:1] != "%":
                self.fail(f"expected a block argument '%name: type', found {name!r}", at)
            self.expect(":", "after the argument's name")
            self.define(name, block.add_arg(self.type()), at)
            if self.tokens[self.at] != ")":
                self.expect(",", "or ')' after a block argument")

    def define(self, name: str, value: Value, at: int) -> None:
        if name in self.values:
            self.fail(f"{name} is already defined", at)
        self.values[name] = value
        self.defined.append(name)
        if not name[1].isdigit():
            value.hint = name[1:]

    def value(self) -> Value:
        name = self.tokens[self.at]
        known = self.values.get(name)
        if known is None:
            if name[:1] == "%" and len(name) > 1:
                self.fail(f"unknown value {name}: it is not defined before this use")
            self.fail(f"expected a value such as %x, found {self.next_token()}")
        self.at += 1
        return known

    def _symbol_name(self) -> str:
        name = self.next()
        if name == "@":
            return self.string(self.next())
        return name[1:]


__all__ = ["ParseError", "parse", "parse_op"]

"""The IR core: values, operations, blocks, regions, modules.

Operations are mutable SSA with use lists; attributes are plain immutable Python values (`int`, `float`,
`bool`, `str`, tuples, dicts, `Type`, symbolic `Expr`, `Constant`). An operation class declares its operands,
attributes and regions as annotations, in order:

    @operation
    class Softmax(GraphOp):
        name = "graph.softmax"
        x: Operand
        axis: Attr = -1

and is built as ``Softmax(x, axis=1)``; ``op.x`` is the operand value, ``op.axis`` the attribute.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast

from .constant import Constant
from .location import UNKNOWN, Location
from .types import Type

__all__ = [
    "Attr",
    "Block",
    "BlockArgument",
    "Constant",
    "Effect",
    "IRError",
    "Location",
    "Module",
    "OpResult",
    "Operand",
    "Operation",
    "OptionalOperand",
    "Region",
    "UNKNOWN",
    "Value",
    "VariadicOperand",
    "operation",
    "registered_operations",
    "set_printer",
]


class IRError(Exception):
    """A broken module: names the operation, the rule it broke, and where in the user's model it came from.

    Args:
        message: The rule, as the end of a sentence whose subject is the operation.
        op: The operation; its name and location become part of the message.
    """

    def __init__(self, message: str, op: Operation | None = None) -> None:
        self.op = op
        if op is not None:
            message = f"'{op.name}': {message}"
            if op.location is not UNKNOWN:
                message += f" (at {op.location})"
        super().__init__(message)


class Effect(enum.Flag):
    """The side effects of an operation besides its results. Every operation declares them."""

    PURE = 0
    READ = enum.auto()
    WRITE = enum.auto()
    ALLOCATE = enum.auto()
    CONTROL = enum.auto()  # terminators and symbols: never dead


class Value:
    """An SSA value: has a `type` and knows its uses; `hint` is a name for the printed text."""

    __slots__ = ("_uses", "hint", "type")

    def __init__(self, type: Type, hint: str | None = None) -> None:
        self.type: Any = type
        self.hint = hint
        self._uses: dict[tuple[Operation, int], None] = {}

    @property
    def uses(self) -> Iterable[tuple[Operation, int]]:
        """Pairs (operation, operand index), in order of creation."""
        return self._uses.keys()

    @property
    def users(self) -> list[Operation]:
        """Distinct operations that use this value."""
        return list(dict.fromkeys(op for op, _ in self._uses))

    @property
    def has_uses(self) -> bool:
        """Whether any operation reads the value."""
        return bool(self._uses)

    @property
    def has_one_use(self) -> bool:
        """Whether exactly one operand reads the value."""
        return len(self._uses) == 1

    @property
    def defining_op(self) -> Operation | None:
        """The operation that produces the value; None for a block argument."""
        return None

    def replace_by(self, other: Value) -> None:
        """Make every use of this value a use of `other`."""
        if other is self:
            return
        for op, index in list(self._uses):
            op.set_operand(index, other)
        if other.hint is None:
            other.hint = self.hint


class OpResult(Value):
    """A value that an operation produces: result number `index`, of a `type`, of the operation `op`."""

    __slots__ = ("index", "op")

    def __init__(self, type: Type, op: Operation, index: int) -> None:
        super().__init__(type)
        self.op = op
        self.index = index

    @property
    def defining_op(self) -> Operation:
        """The operation that produces the value."""
        return self.op


class BlockArgument(Value):
    """A value that a block receives when it is entered: argument number `index`, of a `type`; `hint` is a
    name for the printed text.
    """

    __slots__ = ("block", "index")

    def __init__(self, type: Type, block: Block, index: int, hint: str | None = None) -> None:
        super().__init__(type, hint)
        self.block = block
        self.index = index


# Annotations that declare an operation's parts.
Operand = Value
OptionalOperand = Value | None
VariadicOperand = tuple[Value, ...]
Attr = Any

_ANNOTATIONS = {
    "Operand": "one",
    "OptionalOperand": "optional",
    "VariadicOperand": "variadic",
    "Attr": "attribute",
}


def _annotation_kind(annotation: object) -> str | None:
    """The kind of part that an annotation declares. The annotation is a name if the defining module postpones
    annotations, else the object itself.
    """
    if isinstance(annotation, str):
        return _ANNOTATIONS.get(annotation.rpartition(".")[2])
    if annotation is Operand:
        return "one"
    if annotation is Attr:
        return "attribute"
    # Unions and tuples are made anew by every subscription, so these two are compared by value.
    if annotation == OptionalOperand:
        return "optional"
    return "variadic" if annotation == VariadicOperand else None


_MISSING = object()
_registry: dict[str, type[Operation]] = {}
_text_of: Callable[[Operation], str] = lambda op: f"<{op.name}>"  # noqa: E731 - replaced by `set_printer`
OpT = TypeVar("OpT", bound="type[Operation]")
OperationT = TypeVar("OperationT", bound="Operation")


def operation(cls: OpT) -> OpT:
    """Register an operation class. Its dialect is the part of the name before the first dot.

    Raises:
        TypeError: No name, or a name without a dialect, no declared effects, or the name is taken by another
            class.
    """
    if not cls.name:
        raise TypeError(f"{cls.__name__} has no 'name'")
    if "." not in cls.name.strip("."):
        raise TypeError(f"{cls.__name__}: name = {cls.name!r} has no dialect; write 'dialect.operation'")
    if getattr(cls, "effects", None) is None:
        raise TypeError(f"{cls.name}: declare 'effects' (Effect.PURE if it only computes its results)")
    taken = _registry.get(cls.name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(
            f"operation {cls.name!r} is already defined by {taken.__module__}.{taken.__qualname__}"
        )
    _registry[cls.name] = cls
    return cls


def registered_operations() -> dict[str, type[Operation]]:
    """All registered operation classes by name."""
    return _registry


def set_printer(printer: Callable[[Operation], str]) -> None:
    """Let ``repr(op)`` be ``printer(op)``. `ir.printer` sets its own."""
    global _text_of
    _text_of = printer


class Operation:
    """One operation. Subclasses declare operands, attributes and the number of regions; see the module's
    docstring.

    Args:
        *operands: One for each declared operand: a value, None for an absent optional one, a sequence for a
            variadic one.
        result_types: The types of the results; None: `infer_types` computes them.
        location: The place in the user's model.
        regions: The regions; None: empty ones, as many as declared.
        **attributes: The attributes by name. A name with a dot may have any value and is not declared.

    Raises:
        IRError: An operand or attribute is missing or unknown, or `infer_types` refuses them.
    """

    __slots__ = ("_next", "_operands", "_prev", "attributes", "location", "parent", "regions", "results")

    name: ClassVar[str] = ""
    effects: ClassVar[Effect] = None  # type: ignore[assignment]
    terminator: ClassVar[bool] = False
    num_regions: ClassVar[int] = 0
    binds: ClassVar[
        tuple[str, ...]
    ] = ()  # attributes that hold the symbols this operation defines for its regions
    defines: ClassVar[tuple[str, ...]] = ()  # attributes that hold symbols it defines for operations after it
    _operand_fields: ClassVar[tuple[tuple[str, str], ...]] = ()  # (name, "one" | "optional" | "variadic")
    _attr_fields: ClassVar[dict[str, Any]] = {}
    _flexible: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        operands = list(cls._operand_fields)
        attrs = dict(cls._attr_fields)
        for field, annotation in cls.__dict__.get("__annotations__", {}).items():
            kind = _annotation_kind(annotation)
            if kind == "attribute":
                attrs[field] = cls.__dict__.get(field, _MISSING)
                setattr(cls, field, _attribute_property(field))
            elif kind is not None:
                index = len(operands)
                operands.append((field, kind))
                setattr(cls, field, _operand_property(index, field))
        cls._operand_fields = tuple(operands)
        cls._attr_fields = attrs
        cls._flexible = sum(kind != "one" for _, kind in operands)

    def __init__(
        self,
        *operands: Any,
        result_types: Sequence[Type] | None = None,
        location: Location | None = None,
        regions: Sequence[Region] | None = None,
        **attributes: Any,
    ) -> None:
        cls = type(self)
        self.parent: Block | None = None
        self._prev: Operation | None = None
        self._next: Operation | None = None
        self.location: Location = location if location is not None else UNKNOWN
        flat: tuple[Any, ...] = operands
        if cls._flexible:
            flat, segments = cls._flatten(operands)
            if cls._flexible > 1:
                attributes["operand_segments"] = segments
        elif len(operands) != len(cls._operand_fields):
            wanted = ", ".join(n for n, _ in cls._operand_fields)
            raise IRError(f"takes {len(cls._operand_fields)} operands ({wanted}), got {len(operands)}", self)
        if cls._attr_fields:
            for field, default in cls._attr_fields.items():
                if field not in attributes:
                    if default is _MISSING:
                        raise IRError(f"attribute '{field}' is missing", self)
                    attributes[field] = default
            if len(attributes) > len(cls._attr_fields) + (cls._flexible > 1):
                self._check_attribute_names(attributes)
        elif attributes:
            self._check_attribute_names(attributes)
        self.attributes: dict[str, Any] = attributes
        self._operands: list[Value] = list(flat)
        for index, value in enumerate(flat):
            value._uses[(self, index)] = None
        self.regions: list[Region] = []
        for region in regions if regions is not None else [Region() for _ in range(cls.num_regions)]:
            self.add_region(region)
        if result_types is None:
            try:
                result_types = self.infer_types()
            except BaseException:
                self.drop_operands()
                raise
            if isinstance(result_types, Type):
                self.drop_operands()
                raise IRError(f"infer_types returns a type; return a tuple of types: ({result_types},)", self)
        self.results: list[OpResult] = [OpResult(t, self, i) for i, t in enumerate(result_types)]

    def _check_attribute_names(self, attributes: dict[str, Any]) -> None:
        known = type(self)._attr_fields
        for field in attributes:
            # Dotted names are discardable annotations that any pass may attach.
            if field not in known and field != "operand_segments" and "." not in field:
                raise IRError(f"has no attribute '{field}'; known: {', '.join(known) or 'none'}", self)

    @classmethod
    def _flatten(cls, operands: tuple[Any, ...]) -> tuple[tuple[Value, ...], tuple[int, ...]]:
        """Operands given one per declared field (None for an absent one, a sequence for a variadic one)."""
        if len(operands) > len(cls._operand_fields):
            raise IRError(
                f"'{cls.name}' takes at most {len(cls._operand_fields)} operands, got {len(operands)}"
            )
        flat: list[Value] = []
        segments = []
        for position, (field, kind) in enumerate(cls._operand_fields):
            given = operands[position] if position < len(operands) else None
            if given is None:
                if kind == "one":
                    raise IRError(f"'{cls.name}' needs operand '{field}'")
                group: Sequence[Value] = ()
            elif kind == "variadic":
                group = tuple(given)
            else:
                group = (given,)
            segments.append(len(group))
            flat.extend(group)
        return tuple(flat), tuple(segments)

    # -- Hooks of operation classes --------------------------------------------------------------------------

    def infer_types(self) -> Sequence[Type]:
        """Types of the results from operands and attributes.

        Raises:
            IRError: The class does not define it, so a constructor call gives the types; or, in a class that
                does, operands or attributes do not fit.
        """
        raise IRError("result types must be given", self)

    def verify(self) -> None:
        """Check this operation alone; raise `IRError` naming the broken rule."""

    # -- Operands and results --------------------------------------------------------------------------------

    @property
    def operands(self) -> Sequence[Value]:
        """The values that the operation reads, in order."""
        return self._operands

    @property
    def result(self) -> OpResult:
        """The only result.

        Raises:
            IRError: The operation has none or several.
        """
        if len(self.results) != 1:
            raise IRError(f"has {len(self.results)} results, not one", self)
        return self.results[0]

    def set_operand(self, index: int, value: Value) -> None:
        """Replace the operand number `index` by `value`, and update the uses of both values."""
        old = self._operands[index]
        old._uses.pop((self, index), None)
        self._operands[index] = value
        value._uses[(self, index)] = None

    def drop_operands(self) -> None:
        """Remove all operands and their uses, before the operation is erased."""
        for index, value in enumerate(getattr(self, "_operands", ())):
            value._uses.pop((self, index), None)
        self._operands = []

    def set_operands(self, values: Iterable[Value], segments: tuple[int, ...] | None = None) -> None:
        """Replace all operands by `values`; `segments` gives the sizes of the groups if several are optional
        or variadic.
        """
        self.drop_operands()
        self._operands = list(values)
        for index, value in enumerate(self._operands):
            value._uses[(self, index)] = None
        if segments is not None:
            self.attributes["operand_segments"] = segments

    def _group(self, position: int) -> Any:
        """The operand(s) of a declared field, by position."""
        fields = self._operand_fields
        if not self._flexible:
            return self._operands[position]
        kind = fields[position][1]
        if self._flexible > 1:
            segments = self.attributes["operand_segments"]
            start = sum(segments[:position])
            group = self._operands[start : start + segments[position]]
        else:
            extra = len(self._operands) - (len(fields) - 1)
            start, size = 0, 1
            for i, (_, k) in enumerate(fields[: position + 1]):
                size = 1 if k == "one" else extra
                if i < position:
                    start += size
            group = self._operands[start : start + size]
        if kind == "variadic":
            return tuple(group)
        return group[0] if group else None

    # -- Structure -------------------------------------------------------------------------------------------

    def add_region(self, region: Region) -> None:
        """Append a region to the operation."""
        region.parent = self
        self.regions.append(region)

    @property
    def region(self) -> Region:
        """The only region of the operation."""
        return self.regions[0]

    @property
    def body(self) -> Block:
        """The entry block of the first region."""
        return self.regions[0].block

    @property
    def parent_op(self) -> Operation | None:
        """The operation whose region contains this one, or None."""
        block = self.parent
        return block.parent.parent if block is not None and block.parent is not None else None

    @property
    def next(self) -> Operation | None:
        """The following operation of the block, or None."""
        return self._next

    @property
    def previous(self) -> Operation | None:
        """The preceding operation of the block, or None."""
        return self._prev

    def walk(self) -> Iterator[Operation]:
        """This operation and all inside it, pre-order. The current operation may be removed or replaced while
        walking.
        """
        yield self
        for region in self.regions:
            for block in region.blocks:
                for op in block.ops:
                    if op.regions:
                        yield from op.walk()
                    else:
                        yield op

    def detach(self) -> Operation:
        """Take this operation out of its block; it keeps its operands."""
        block = self.parent
        if block is not None:
            block._unlink(self)
        return self

    def erase(self) -> None:
        """Remove this operation for good.

        Raises:
            IRError: A result is still used.
        """
        for result in self.results:
            if result._uses:
                user = next(iter(result._uses))[0]
                raise IRError(f"cannot be erased: its result is used by '{user.name}'", self)
        self.detach()
        self.drop_all()

    def drop_all(self) -> None:
        """Drop the operands of this operation and of all inside it (before discarding a whole subtree)."""
        self.drop_operands()
        for region in self.regions:
            for block in region.blocks:
                for op in block.ops:
                    op.drop_all()

    def replace_by(self, values: Value | Sequence[Value]) -> None:
        """Replace the results by `values` and erase this operation.

        Raises:
            IRError: There are more or fewer values than results.
        """
        if isinstance(values, Value):
            values = (values,)
        if len(values) != len(self.results):
            raise IRError(f"has {len(self.results)} results but {len(values)} replacements", self)
        for result, value in zip(self.results, values, strict=True):
            result.replace_by(value)
        self.erase()

    @classmethod
    def assemble(
        cls: type[OperationT],
        operands: Sequence[Value],
        result_types: Sequence[Type],
        attributes: dict[str, Any],
        regions: Sequence[Region] = (),
        location: Location = UNKNOWN,
    ) -> OperationT:
        """An operation of exactly these parts: `operands` flat, `result_types`, `attributes`, `regions`,
        `location`. Nothing is filled in, inferred or checked (see `verify`).
        """
        self = object.__new__(cls)
        self.parent = self._prev = self._next = None
        self.location = location
        self.attributes = attributes
        self._operands = list(operands)
        for index, value in enumerate(operands):
            value._uses[(self, index)] = None
        self.results = [OpResult(t, self, i) for i, t in enumerate(result_types)]
        self.regions = []
        for region in regions:
            self.add_region(region)
        return self

    def clone(self, mapping: dict[Value, Value] | None = None) -> Operation:
        """A deep copy; operands found in `mapping` are replaced, and results and block arguments are added to
        it.
        """
        mapping = {} if mapping is None else mapping
        copy = object.__new__(type(self))
        copy.parent = copy._prev = copy._next = None
        copy.location = self.location
        copy.attributes = dict(self.attributes)
        copy._operands = [mapping.get(v, v) for v in self._operands]
        for index, value in enumerate(copy._operands):
            value._uses[(copy, index)] = None
        copy.results = []
        for i, r in enumerate(self.results):
            result = OpResult(r.type, copy, i)
            result.hint = r.hint
            mapping[r] = result
            copy.results.append(result)
        copy.regions = []
        for region in self.regions:
            copy.add_region(region.clone(mapping))
        return copy

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        try:
            return _text_of(self)
        except Exception:  # a half-built operation must still be printable in a debugger
            return f"<{self.name}>"


def _operand_property(position: int, field: str) -> Any:
    def get(self: Operation) -> Any:
        return self._group(position)

    return property(get, doc=f"Operand '{field}'.")


def _attribute_property(field: str) -> Any:
    def get(self: Operation) -> Any:
        return self.attributes[field]

    def set_(self: Operation, value: object) -> None:
        self.attributes[field] = value

    return property(get, set_, doc=f"Attribute '{field}'.")


class Block:
    """A list of operations with typed arguments.

    Args:
        arg_types: The types of the arguments.
        hints: Names of the arguments for the printed text.
    """

    __slots__ = ("_first", "_last", "_length", "args", "parent")

    def __init__(self, arg_types: Iterable[Type] = (), hints: Sequence[str | None] = ()) -> None:
        self.parent: Region | None = None
        self.args: list[BlockArgument] = []
        self._first: Operation | None = None
        self._last: Operation | None = None
        self._length = 0
        for i, t in enumerate(arg_types):
            self.add_arg(t, hints[i] if i < len(hints) else None)

    def add_arg(self, type: Type, hint: str | None = None, index: int | None = None) -> BlockArgument:
        """A new argument of a type, the last or the one of number `index`; `hint` is a name for the printed
        text.
        """
        arg = BlockArgument(type, self, len(self.args), hint)
        self.args.insert(len(self.args) if index is None else index, arg)
        for i, a in enumerate(self.args):
            a.index = i
        return arg

    def erase_arg(self, arg: BlockArgument) -> None:
        """Remove the argument `arg`, which must have no uses.

        Raises:
            IRError: It has uses.
        """
        if arg._uses:
            raise IRError("a used block argument cannot be erased")
        self.args.remove(arg)
        for i, a in enumerate(self.args):
            a.index = i

    @property
    def ops(self) -> Iterator[Operation]:
        """The operations in order; the current one may be removed while iterating."""
        op = self._first
        while op is not None:
            following = op._next
            yield op
            op = following

    @property
    def first(self) -> Operation | None:
        """The first operation, or None for an empty block."""
        return self._first

    @property
    def last(self) -> Operation | None:
        """The last operation, or None for an empty block."""
        return self._last

    def between(self, before: Operation | None, end: Operation | None) -> list[Operation]:
        """The operations after `before` (None: from the first) and in front of `end` (None: to the last)."""
        found: list[Operation] = []
        op = self._first if before is None else before._next
        while op is not None and op is not end:
            found.append(op)
            op = op._next
        return found

    @property
    def terminator(self) -> Operation:
        """The last operation, which ends the block.

        Raises:
            IRError: The block is empty, or its last operation ends no block.
        """
        if self._last is None or not self._last.terminator:
            raise IRError("block has no terminator")
        return self._last

    def __len__(self) -> int:
        return self._length

    @property
    def parent_op(self) -> Operation | None:
        """The operation whose region contains this block, or None."""
        return self.parent.parent if self.parent is not None else None

    def append(self, op: OperationT) -> OperationT:
        """Insert `op` at the end and return it."""
        return self.insert_before(None, op)

    def insert_before(self, anchor: Operation | None, op: OperationT) -> OperationT:
        """Insert `op` before `anchor` (at the end when None)."""
        if op is anchor:
            return op
        if op.parent is not None:
            op.detach()
        self._length += 1
        op.parent = self
        prev = self._last if anchor is None else anchor._prev
        op._prev, op._next = prev, anchor
        if prev is None:
            self._first = op
        else:
            prev._next = op
        if anchor is None:
            self._last = op
        else:
            anchor._prev = op
        return op

    def insert_after(self, anchor: Operation, op: OperationT) -> OperationT:
        """Insert `op` after `anchor`, an operation of this block, and return it."""
        if op is anchor:
            return op
        return self.insert_before(anchor._next, op)

    def _unlink(self, op: Operation) -> None:
        self._length -= 1
        if op._prev is None:
            self._first = op._next
        else:
            op._prev._next = op._next
        if op._next is None:
            self._last = op._prev
        else:
            op._next._prev = op._prev
        op.parent = op._prev = op._next = None


class Region:
    """A list of blocks owned by an operation; all our regions have one block."""

    __slots__ = ("blocks", "parent")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self.parent: Operation | None = None
        self.blocks: list[Block] = []
        for block in blocks:
            self.add_block(block)

    def add_block(self, block: Block) -> Block:
        """Append a block to the region."""
        block.parent = self
        self.blocks.append(block)
        return block

    @property
    def block(self) -> Block:
        """The entry block (made on first use)."""
        if not self.blocks:
            self.add_block(Block())
        return self.blocks[0]

    def clone(self, mapping: dict[Value, Value]) -> Region:
        """A copy of the region, with values replaced as the mapping says."""
        copy = Region()
        for block in self.blocks:
            new = copy.add_block(Block())
            for arg in block.args:
                mapping[arg] = new.add_arg(arg.type, arg.hint)
            for op in block.ops:
                new.append(op.clone(mapping))
        return copy


@operation
class Module(Operation):
    """The top of the IR: a symbol table of functions and kernels."""

    name = "builtin.module"
    effects = Effect.CONTROL
    num_regions = 1

    def infer_types(self) -> Sequence[Type]:
        return ()

    def symbol(self, name: str) -> Operation:
        """The function or kernel called `name`.

        Raises:
            KeyError: There is none.
        """
        for op in self.body.ops:
            if op.attributes.get("sym_name") == name:
                return op
        raise KeyError(f"the module has no function or kernel {name!r}")

    def functions(self, kind: type[OperationT] | None = None) -> list[OperationT]:
        """Top-level operations, those of the class `kind` if given."""
        return [cast(OperationT, op) for op in self.body.ops if kind is None or isinstance(op, kind)]

    def clone(self, mapping: dict[Value, Value] | None = None) -> Module:
        return cast(Module, super().clone(mapping))

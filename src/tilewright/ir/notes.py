"""Notes: typed, discardable attributes that passes attach to operations for later passes.

A note never changes what an operation computes: common-subexpression elimination ignores it, and a pass may
drop it. Its key has a prefix and a dot ("tw.origin"), as MLIR's discardable attributes have. Every note of
the compiler is declared once, here; the verifier refuses an undeclared key with the prefix "tw.", a value of
another type, and an operation that the note is not declared for.

    notes.ORIGIN.set(op, "softmax")
    notes.ORIGIN.get(op)            # "softmax"; None without the note
    notes.copy(op, rebuilt)         # the notes that survive when a pass rebuilds an operation

A package outside the compiler declares its notes the same way, under a prefix of its own::

    FRAGMENT = notes.Note("acme.fragment", notes.is_int, "int", on=("loop.block",))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeGuard, TypeVar, overload

from .core import IRError, Operation
from .symbolic import Dim, Expr

T = TypeVar("T")
D = TypeVar("D")

_declared: dict[str, Note[Any]] = {}
_prefixes: set[str] = set()


class Note(Generic[T]):
    """One declared key of a discardable attribute.

    `accepts` checks a value; `type_name` is its type as error texts and tables show it; `on` names the
    operations that may carry the note; `kept` says whether a pass that rebuilds an operation copies the note
    to the new one (`copy`).

    Raises:
        ValueError: The key has no prefix, or another note has it.
    """

    def __init__(
        self,
        key: str,
        accepts: Callable[[Any], TypeGuard[T]],
        type_name: str,
        *,
        on: tuple[str, ...],
        kept: bool = False,
    ) -> None:
        prefix, dot, _ = key.partition(".")
        if not (prefix and dot):
            raise ValueError(f"the key of a note needs a prefix and a dot, as in 'tw.origin', not {key!r}")
        if key in _declared:
            raise ValueError(f"the note {key!r} is already declared")
        self.key, self.accepts, self.type_name, self.on, self.kept = key, accepts, type_name, on, kept
        _declared[key] = self
        _prefixes.add(prefix)

    @overload
    def get(self, op: Operation) -> T | None: ...

    @overload
    def get(self, op: Operation, default: D) -> T | D: ...

    def get(self, op: Operation, default: D | None = None) -> T | D | None:
        """The note's value on `op`; `default` where `op` does not carry it."""
        value: T | D | None = op.attributes.get(self.key, default)
        return value

    def of(self, op: Operation) -> T:
        """The note's value on `op`.

        Raises:
            IRError: `op` does not carry the note.
        """
        if self.key not in op.attributes:
            raise IRError(f"carries no note '{self.key}'", op)
        value: T = op.attributes[self.key]
        return value

    def set(self, op: Operation, value: T) -> None:
        """Attach the note to `op`, in place of an earlier value."""
        op.attributes[self.key] = value

    def present(self, op: Operation) -> bool:
        """Whether `op` carries the note."""
        return self.key in op.attributes

    def remove(self, op: Operation) -> None:
        """Take the note off `op`, if it carries it."""
        op.attributes.pop(self.key, None)

    def __repr__(self) -> str:
        return f"Note({self.key!r}, {self.type_name})"


def declared() -> Mapping[str, Note[Any]]:
    """All declared notes by key, those of outside packages included."""
    return MappingProxyType(_declared)


def is_note(key: str) -> bool:
    """Whether an attribute's key is a note's: it has a dot, which no declared attribute of an operation
    has.
    """
    return "." in key


def notes_of(op: Operation) -> Iterator[tuple[str, Any]]:
    """Keys and values of the notes that `op` carries."""
    return ((key, value) for key, value in op.attributes.items() if is_note(key))


def copy(source: Operation, target: Operation, *, without: Iterable[Note[Any]] = ()) -> None:
    """Copy to `target`, which stands for a rebuilt `source`, the notes declared as kept; not those in
    `without`.

    Undeclared notes (of a foreign prefix) are copied.
    """
    left_out = {note.key for note in without}
    for key, value in notes_of(source):
        note = _declared.get(key)
        if key not in left_out and (note is None or note.kept):
            target.attributes[key] = value


def verify_note(op: Operation, key: str, value: object) -> None:
    """Check one note of an operation against its declaration. A prefix under which nothing is declared is
    foreign and not checked.

    Raises:
        IRError: The key is not declared though its prefix is, the value has another type, or `op` may not
            carry the note.
    """
    note = _declared.get(key)
    if note is None:
        prefix = key.partition(".")[0]
        if prefix in _prefixes:
            known = ", ".join(sorted(k for k in _declared if k.startswith(f"{prefix}.")))
            raise IRError(f"carries the undeclared note '{key}'; declared: {known}", op)
    elif not note.accepts(value):
        raise IRError(f"the note '{key}' is {value!r}, not a value of type {note.type_name}", op)
    elif op.name not in note.on:
        raise IRError(f"cannot carry the note '{key}', which is for {', '.join(note.on)}", op)


# -- Types of values -----------------------------------------------------------------------------------------


def is_flag(value: object) -> TypeGuard[bool]:
    """Whether a value is True or False."""
    return isinstance(value, bool)


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an integer that is no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_str(value: object) -> TypeGuard[str]:
    """Whether a value is a string."""
    return isinstance(value, str)


def is_dim(value: object) -> TypeGuard[Dim]:
    """Whether a value is an integer or a symbolic expression."""
    return is_int(value) or isinstance(value, Expr)


def is_names(value: object) -> TypeGuard[tuple[str, ...]]:
    """Whether a value is a tuple of strings."""
    return isinstance(value, tuple) and all(map(is_str, value))


def is_ints(value: object) -> TypeGuard[tuple[int, ...]]:
    """Whether a value is a tuple of integers."""
    return isinstance(value, tuple) and all(map(is_int, value))


def is_pairs(value: object) -> TypeGuard[tuple[tuple[int, int], ...]]:
    """Whether a value is a tuple of pairs of integers."""
    return isinstance(value, tuple) and all(is_ints(pair) and len(pair) == 2 for pair in value)


def is_roles(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is the tuple form of `analysis.axis_roles.Roles`."""
    return (
        isinstance(value, tuple)
        and len(value) == 10
        and all(map(is_ints, value[:4]))
        and is_int(value[4])
        and is_flag(value[5])
        and is_int(value[6])
        and (value[7] is None or is_weight_form(value[7][2]))
        and is_flag(value[8])
        and is_flag(value[9])
    )


def is_weight_form(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is the tuple form of `dialects.weight_form.WeightForm`."""
    return (
        isinstance(value, tuple)
        and len(value) == 5
        and is_int(value[0])
        and is_str(value[1])
        and is_ints(value[2])
        and (value[3] is None or isinstance(value[3], tuple))
        and isinstance(value[4], tuple)
    )


# -- Notes on graph and tensor operations --------------------------------------------------------------------

_COMPUTED = ("tensor.compute", "tensor.scatter", "tensor.argsort", "kernel.run", "loop.block")

BACKWARD = Note("tw.backward", is_flag, "bool", on=("graph.identity",))
"""A gradient that a backward pass, recorded behind it, begins with. Written when one is recorded, read by
`rematerialize`.
"""

LAYOUT_FIXED = Note("tw.layout_fixed", is_flag, "bool", on=("graph.transpose",))
"""A transpose that `choose_layout` does not move. With one spatial dimension, to channels-last and back are
the same permutation, and without the note the pass would move one transpose around an operator for ever.
Written and read by `choose_layout`.
"""

ORIGIN = Note("tw.origin", is_str, "str", on=_COMPUTED, kept=True)
"""Name of the graph operator that a computation comes from ("softmax"), or of the pass that inserted it
("pack", "narrow"). Written by `lower_to_tensor` and such passes; read to name kernels, loops and report
lines.
"""

QUANTIZED = Note("tw.quantized", is_weight_form, "WeightForm as a tuple", on=_COMPUTED, kept=True)
"""A computation that multiplies rows with quantized weights of this form (`graph.scaled_matmul`,
`graph.dequantized_matmul`). Its reads are, in order: the left operand, the quantized weights, the left
operand's scales (integer operands only), the weights' parts (`weight_form.PARTS`); an optional read that
chooses each row's matrix is extra. Written by these operators' lowering; fusion leaves the computation as it
is; `pack_quantized` reads it.
"""

CONTRACTION = Note("tw.contraction", is_roles, "Roles as a tuple", on=_COMPUTED, kept=True)
"""The roles of a contraction's axes (batch, m, n, k, ...), see `analysis.axis_roles.Roles`, which reads and
writes the tuple. Written by `pack_operands` and `pack_quantized` on computations that `tensorize` can map to
a matrix micro-kernel; read by grouping and schedules.
"""

TRANSFORMED = Note("tw.transformed", is_flag, "bool", on=_COMPUTED, kept=True)
"""A product of transformed tiles of an image, whose result another computation transforms back. Written by
the lowering of `graph.winograd_conv`, read by fusion, grouping and schedules: the three are one kernel.
"""

FACTORS = Note("tw.factors", is_str, "str", on=("graph.einsum", *_COMPUTED), kept=True)
"""The name of a type of 16 bits to which the factors of a product may be rounded: the operator that it is a
part of rounds its result to that type, and does not say how exact its intermediate values are; or "f32": the
factors are not rounded where the user asked for a lower precision. Written by the decomposition of attention
and by spectrograms, read by `round_factors` and `lower_precision`.
"""

CONCAT_AXIS = Note("tw.concat_axis", is_int, "int", on=_COMPUTED, kept=True)
"""The axis of a computation along which a `tensor.concat` places its result. It is not collapsed with the
axis before it. Written by `split_concat`, adjusted by `collapse_axes`, read by `form_groups`.
"""

BOX_AXES = Note("tw.box_axes", is_ints, "tuple of int", on=_COMPUTED, kept=True)
"""The axes of a computation that begin a dimension of the box (`places.ConcatBox`) in which nested
concatenations place its result. They are not collapsed with the axis before them. Written by `split_borders`,
adjusted by `collapse_axes`.
"""

ROW_AXES = Note("tw.row_axes", is_int, "int", on=("tensor.group",))
"""How many leading axes all members of a group of kind "rows" share. Written by `form_groups`, adjusted by
`collapse_axes`, read by the choice of a schedule rule and by `in_place`.
"""

OVERWRITES = Note("tw.overwrites", is_pairs, "tuple[tuple[int, int], ...]", on=("tensor.group",))
"""Pairs of a result of a group and the operand in whose memory it is written, which it is but for some
elements: by a scatter, or by a kernel of the user's that changes an input. Written by `in_place` and
`copy_changed`, read by bufferization and kernel construction.
"""

UPDATED_IN_PLACE = Note("tw.updated_in_place", is_names, "tuple[str, ...]", on=("func.func",))
"""The arguments of a function, by name, whose new value is written to the memory of the old one. Written and
read by `in_place`.
"""

CARRIED_IN_PLACE = Note("tw.carried_in_place", is_ints, "tuple[int, ...]", on=("tensor.scan", "tensor.while"))
"""The carried values of a loop, by number, whose new value is written to the memory of the old one. Written
by `in_place`, read by bufferization.
"""

# -- Notes on loops and scalar operations --------------------------------------------------------------------

BUFFER_ALIASES = Note("tw.buffer_aliases", is_pairs, "tuple[tuple[int, int], ...]", on=("loop.kernel",))
"""Pairs (output number, input number) of a kernel's buffers that may be the same memory. Written by
`groups_to_kernels`; memory planning places such pairs together, code generation does not declare them
`noalias`.
"""

GRAIN = Note("tw.grain", is_dim, "Dim", on=("loop.kernel",))
"""How many iterations of a kernel's parallel loop make a task worth a thread, over the kernel's dims. A
larger value uses fewer threads for small inputs. Written by schedule rules, read by code generation.
"""

SEQUENTIAL = Note("tw.sequential", is_flag, "bool", on=("loop.for",))
"""A loop whose iterations pass values on in memory: its order is fixed and it is never parallel. Written when
a recurrence is lowered, read by schedules.
"""

STAGES = Note("tw.stages", is_int, "int", on=("loop.for",))
"""The number of iterations, with the current one, whose tiles in shared memory exist at the same time: copies
run so many minus one ahead. Written by the primitive `pipeline`, read at the end of a schedule.
"""

ASYNCHRONOUS = Note("tw.asynchronous", is_flag, "bool", on=("loop.store",))
"""A store of an element that was just loaded, which need not be done before the next `simt.wait_copies` for
it. Written at the end of a schedule, read by code generation.
"""

SWIZZLE = Note("tw.swizzle", is_int, "int", on=("loop.alloc",))
"""The bytes of a line of a tile in shared memory whose parts are exchanged, see `schedule.shared_atoms`.
Written at the end of a schedule, read by code generation.
"""

INITIALIZED = Note("tw.initialized", is_flag, "bool", on=("loop.block",))
"""A block whose reduction starts from a value that another block stores, so that it adds no initialization of
its own. Written by the schedule primitives that split off the initialization, read by schedules and by the
interpreter.
"""

KEEPS_CONTENTS = Note("tw.keeps_contents", is_flag, "bool", on=("loop.block",))
"""A block that changes some elements of a buffer whose other elements stay as they are (a scatter): its
accumulations start from what the buffer holds and are never initialized. Written when a scatter is lowered,
read by schedules and by the interpreter.
"""

IGNORE_NAN = Note("tw.ignore_nan", is_flag, "bool", on=("scalar.max", "scalar.min", "loop.accumulate"))
"""A maximum or minimum that need not propagate a NaN operand, since the consumer of its result reads the same
NaN elsewhere. Written by the online-softmax primitive, read by code generation.
"""

RELAXED_ACCURACY = Note("tw.relaxed_accuracy", is_flag, "bool", on=("scalar.exp",))
"""A function whose result is only used rounded to 16 bits, or summed with such numbers: 12 correct bits
suffice. Written by the schedule primitive `relax_accuracy`, read by code generation.
"""

# -- Notes of planned host functions -------------------------------------------------------------------------

ARENA_SIZE = Note("tw.arena_size", is_dim, "Dim", on=("func.func",))
"""Bytes of a planned host function's arena, over the function's shape symbols. Written by memory planning,
read by the host code generators and the interpreter.
"""

STATE_OFFSETS = Note("tw.state_offsets", is_ints, "tuple[int, ...]", on=("func.func",))
"""Byte offsets, in the block of weights, of the initial values of a planned host function's states; -1 stands
for zeros. Written by memory planning, read by the host code generators.
"""

BUFFER_SLOTS = Note("tw.buffer_slots", is_int, "int", on=("func.func",))
"""How many blocks of memory the runtime keeps for a planned host function's buffers of run-time size
(`host.alloc` refers to one by `slot`). Written by memory planning, read by the host code generators.
"""

"""The types of an ONNX graph's inputs: declared shapes, names of dynamic dimensions, and the user's
`dims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from ...ir.types import TensorType
from ..dims import (
    DimsArgument,
    DimTable,
    DimText,
    check_dims_argument,
    describe_inputs,
    identifier,
    parse_dim,
    symbol_name,
    undetermined,
)
from .model import dtype_of

if TYPE_CHECKING:
    import onnx

Places = list[tuple[str, int | tuple[int, ...] | None]]


def examples_by_name(
    entries: Sequence[Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the examples of inputs by name.

    Raises:
        CompileError: there are more examples than inputs, one names no input, or one is given twice.
    """
    names = [entry.name for entry in entries]
    known = f"its inputs are {', '.join(names) or 'none'}"
    values = list(args or ())
    if len(values) > len(names):
        raise CompileError(f"{len(values)} example inputs are given, the model has {len(names)}; {known}")
    for name in kwargs:
        if name not in names:
            raise CompileError(f"the model has no input '{name}'; {known}")
        if name in names[: len(values)]:
            raise CompileError(f"the example of '{name}' is given twice, by position and by name")
    return {**dict(zip(names, values, strict=False)), **kwargs}


def single_inputs(entries: Sequence[Any], examples: Mapping[str, Any]) -> tuple[list[Any], list[Any], Places]:
    """Split the inputs into single tensors.

    Returns the declaration and the example of every tensor, and for every input of the model the numbers of
    its tensors (one number for a tensor, a tuple for a sequence, None for an absent optional).

    A sequence is as long as its example; an optional input is present if its example is. A ``dim_param`` that
    has several sizes among the tensors of a sequence is ignored: each tensor then has the sizes of its
    example.

    Raises:
        CompileError: a sequence or optional input has no example, or an input is not made of tensors.
    """
    singles: list[Any] = []
    values: list[Any] = []
    places: list[tuple[str, int | tuple[int, ...] | None]] = []
    for entry in entries:
        has_example = entry.name in examples
        example = examples.get(entry.name)
        type_, kind = entry.type, entry.type.WhichOneof("value")
        if kind == "optional_type":
            type_ = type_.optional_type.elem_type
            kind = type_.WhichOneof("value")
            if not has_example:
                raise CompileError(
                    f"input '{entry.name}' is optional: give examples of all inputs, None where it is absent"
                )
            if example is None:
                places.append((entry.name, None))
                continue
        if kind == "sequence_type" and type_.sequence_type.elem_type.WhichOneof("value") == "tensor_type":
            if not isinstance(example, (list, tuple)):
                raise CompileError(
                    f"input '{entry.name}' is a sequence: give an example, a list of the length that all "
                    "calls have"
                )
            places.append((entry.name, tuple(range(len(singles), len(singles) + len(example)))))
            ambiguous = _ambiguous(type_.sequence_type.elem_type.tensor_type.shape, example)
            for j, item in enumerate(example):
                singles.append(
                    _single(f"{entry.name}_{j}", type_.sequence_type.elem_type, np.asarray(item), ambiguous)
                )
                values.append(np.asarray(item))
        elif kind == "tensor_type":
            places.append((entry.name, len(singles)))
            singles.append(entry if type_ is entry.type else _single(entry.name, type_, None, set()))
            values.append(example)
        else:
            raise CompileError(
                f"input '{entry.name}' is neither a tensor nor a sequence of tensors ({kind or 'no type'})"
            )
    return singles, values, places


def _ambiguous(shape: onnx.TensorShapeProto, items: Sequence[Any]) -> set[str]:
    """Return the names of dimensions that have several sizes among the tensors of a sequence."""
    sizes: dict[str, set[int]] = {}
    for item in items:
        for dim, size in zip(shape.dim, np.shape(item), strict=False):
            sizes.setdefault(dim.dim_param, set()).add(size)
    return {name for name, sizes_of_name in sizes.items() if len(sizes_of_name) > 1}


def _single(name: str, type_: onnx.TypeProto, item: Any, ambiguous: set[str]) -> Any:
    """Declare a tensor of a sequence, or an optional one, as an input of its own."""
    import onnx

    entry = onnx.ValueInfoProto(name=name)
    entry.type.CopyFrom(type_)
    tensor = entry.type.tensor_type
    if item is not None:
        if not tensor.HasField("shape"):
            tensor.shape.SetInParent()
            for size in item.shape:
                tensor.shape.dim.add().dim_value = size
        for dim, size in zip(tensor.shape.dim, item.shape, strict=True):
            if dim.dim_param in ambiguous:
                dim.dim_value = size
    return entry


def input_types(
    entries: Sequence[Any], dims: DimsArgument | None, examples: Sequence[Any] | None = None
) -> list[tuple[str, TensorType]]:
    """Return the names and types of inputs that are tensors.

    A ``dim_param`` becomes a symbol of the same or a similar name, at all inputs. One that reads as a formula
    of dimensions that other inputs have becomes that formula. An unnamed dynamic dimension becomes
    ``<input>_<axis>``. An entry of `dims` for a ``dim_param`` at one input holds at all inputs. A dimension
    that is 0 in an example may be 0.

    Raises:
        CompileError: an input has no shape, or `dims` do not fit; the message lists the inputs.
    """
    declared: list[tuple[str, Any, list[int | str]]] = []
    for entry in entries:
        where = f"input '{entry.name}'"
        tensor = entry.type.tensor_type
        if not tensor.HasField("shape"):
            raise CompileError(
                f"{where} has no shape, not even a number of dimensions; "
                "run onnx.shape_inference or export it again"
            )
        shape: list[int | str] = [
            d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim
        ]
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise CompileError(f"{where} has a negative dimension: {shape}")
        if any(entry.name == name for name, _, _ in declared):
            raise CompileError(f"two inputs are called '{entry.name}'; names must be unique")
        declared.append((entry.name, dtype_of(tensor.elem_type, where), shape))
    listing = [(name, [d if d != "" else "?" for d in shape]) for name, _, shape in declared]
    user_dims = check_dims_argument(dims, listing)

    by_param: dict[str, tuple[DimText, str]] = {}
    table = DimTable()
    texts: dict[tuple[str, int], DimText] = {}
    for name, _, shape in declared:
        for axis, text in user_dims.get(name, {}).items():
            where = f"dims[{name!r}][{axis}]"
            dim = parse_dim(text, where)
            old = shape[axis]
            if isinstance(old, int):
                if dim.expression != str(old):
                    raise CompileError(
                        f"{where} is {text!r}, but the model fixes that dimension to {old}; "
                        f"inputs: {describe_inputs(listing)}"
                    )
                continue
            table.add(dim, where)
            texts[name, axis] = dim
            if old:
                known = by_param.setdefault(old, (dim, where))
                if known[0].expression != dim.expression:
                    raise CompileError(
                        f"{where} is {text!r}, but {known[1]} says '{known[0].expression}' "
                        f"and the model calls both '{old}'; "
                        f"inputs: {describe_inputs(listing)}"
                    )
    free = [
        d
        for name, _, shape in declared
        for axis, d in enumerate(shape)
        if isinstance(d, str) and (name, axis) not in texts
    ]
    by_name = _named({d for d in free if d} - set(by_param), [*texts.values()])
    result = []
    for (name, dtype, shape), example in zip(declared, examples or [None] * len(declared), strict=True):
        sizes: list[int | DimText] = []
        empty = [k for k, size in enumerate(np.shape(example)) if size == 0]
        for axis, old in enumerate(shape):
            if isinstance(old, int):
                sizes.append(old)
                continue
            unnamed = identifier(f"{name}_{axis}", f"d{axis}")
            dim = (
                texts.get((name, axis))
                or (by_param[old][0] if old in by_param else by_name.get(old))
                or DimText(unnamed, None, None, (unnamed,))
            )
            low = 0 if axis in empty and (dim.expression,) == dim.names else None
            table.add(DimText(dim.expression, low, None, dim.names), name)
            sizes.append(dim)
        result.append((name, dtype, sizes))
    table.check()
    return [
        (name, TensorType(dtype, tuple(d if isinstance(d, int) else table.resolve(d) for d in sizes)))
        for name, dtype, sizes in result
    ]


def _named(params: set[str], user_dims: Sequence[DimText]) -> dict[str, DimText]:
    """Return the meaning of every ``dim_param``.

    It is a formula if it reads as one of names that the other names or the user's dims determine, else a
    symbol of a similar name.
    """
    meanings: dict[str, DimText] = {}
    for param in sorted(params):
        with suppress(CompileError):
            dim = parse_dim(param, param)
            if dim.names and (dim.low, dim.high) == (None, None):
                meanings[param] = dim
    left = undetermined([*meanings.values(), *user_dims])
    meanings = {param: dim for param, dim in meanings.items() if not left.intersection(dim.names)}
    taken = {name for dim in (*meanings.values(), *user_dims) for name in dim.names}
    for param in sorted(params - set(meanings)):
        name = base = symbol_name(identifier(param, "d"))
        count = 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        meanings[param] = DimText(name, None, None, (name,))
    return meanings

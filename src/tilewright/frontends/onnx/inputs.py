"""The inputs of an ONNX graph as tensor types: declared shapes, names of dynamic dimensions, and the user's `dims`."""

from __future__ import annotations

import re
from typing import Any

from ...errors import CompileError
from ...ir.types import TensorType
from ..dims import DimsArgument, DimTable, DimText, check_dims_argument, describe_inputs, parse_dim
from .model import dtype_of


def input_types(proto: Any, dims: DimsArgument | None, initialized: set[str]) -> list[tuple[str, TensorType]]:
    """Names and types of the inputs of a ``GraphProto`` that are not initializers.

    A ``dim_param`` becomes a symbol of its name, the same everywhere; an unnamed dynamic dimension becomes ``<input>_<axis>``. What
    `dims` says about a ``dim_param`` at one input holds for it at all inputs.

    Raises:
        CompileError: inputs that are no tensors or have no shape; `dims` that do not fit, listing the inputs.
    """
    declared: list[tuple[str, Any, list[int | str]]] = []
    for entry in proto.input:
        if entry.name in initialized:
            continue
        where = f"input '{entry.name}'"
        if entry.type.WhichOneof("value") != "tensor_type":
            raise CompileError(
                f"{where} is not a tensor ({entry.type.WhichOneof('value') or 'no type'}); only tensors can be inputs"
            )
        tensor = entry.type.tensor_type
        if not tensor.HasField("shape"):
            raise CompileError(
                f"{where} has no shape, not even a number of dimensions; run onnx.shape_inference or export it again"
            )
        shape: list[int | str] = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
        declared.append((entry.name, dtype_of(tensor.elem_type, where), shape))
    listing = [(name, [d if d != "" else "?" for d in shape]) for name, _, shape in declared]
    given = check_dims_argument(dims, listing)

    by_param: dict[str, tuple[DimText, str]] = {}
    table = DimTable()
    texts: dict[tuple[str, int], DimText] = {}
    for name, _, shape in declared:
        for axis, text in given.get(name, {}).items():
            where = f"dims[{name!r}][{axis}]"
            dim = parse_dim(text, where)
            old = shape[axis]
            if isinstance(old, int):
                if dim.expression != str(old):
                    raise CompileError(
                        f"{where} is {text!r}, but the model fixes that dimension to {old}; inputs: {describe_inputs(listing)}"
                    )
                continue
            table.add(dim, where)
            texts[name, axis] = dim
            if old:
                known = by_param.setdefault(old, (dim, where))
                if known[0].expression != dim.expression:
                    raise CompileError(
                        f"{where} is {text!r}, but {known[1]} says '{known[0].expression}' and the model calls both '{old}'; "
                        f"inputs: {describe_inputs(listing)}"
                    )
    result = []
    for name, dtype, shape in declared:
        sizes: list[int | DimText] = []
        for axis, old in enumerate(shape):
            if isinstance(old, int):
                sizes.append(old)
                continue
            dim = texts.get((name, axis)) or (by_param[old][0] if old in by_param else _default(name, axis, old))
            table.add(DimText(dim.expression, None, None, dim.names), name)
            sizes.append(dim)
        result.append((name, dtype, sizes))
    return [
        (name, TensorType(dtype, tuple(d if isinstance(d, int) else table.resolve(d) for d in sizes)))
        for name, dtype, sizes in result
    ]


def _default(name: str, axis: int, param: str) -> DimText:
    """The dimension that a ``dim_param`` stands for: an expression where it reads as one, else a symbol of a similar name."""
    if param:
        try:
            return parse_dim(param, name)
        except CompileError:
            pass
    text = re.sub(r"\W+", "_", param or f"{name}_{axis}").strip("_") or f"d{axis}"
    text = f"d_{text}" if text[0].isdigit() else text
    return DimText(text, None, None, (text,))

"""C functions whose parameters are those of a model: sizes, and the elements of inputs and outputs.

They are defined in the header, over the functions that every library has, and are also what Swift and the
wrapper for Android call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..artifact.c_interface import (
    comment,
    description,
    formula,
    identifier,
    output_name,
    size_parameters,
    tensor_parameters,
)
from ..runtime.tensors import DTYPES, dtype_named
from .templates import FOLDER, filled


def call_name(name: str, function: str) -> str:
    """The typed C function for a function of the model `name`."""
    return f"{name}_call" if function == "main" else f"{name}_call_{identifier(function)}"


def element_code(tensor: Mapping[str, Any]) -> tuple[int, int]:
    """DLPack's type code and bits of a tensor's elements."""
    return DTYPES[dtype_named(tensor["dtype"])]


def element_bytes(tensor: Mapping[str, Any]) -> int:
    """The bytes of one element."""
    return max(element_code(tensor)[1] // 8, 1)


def signature(name: str, function: str, entry: Mapping[str, Any]) -> str:
    """The declaration of the typed function."""
    parameters = ["tw_context* context", *size_parameters(entry), *tensor_parameters(entry)]
    return f"int {call_name(name, function)}({', '.join(parameters)})"


def typed_functions(name: str, functions: Mapping[str, Any]) -> str:
    """The definitions of all typed functions of a model."""
    text = (FOLDER / "c" / "tensor.h").read_text()
    parts = [filled(text, {"name": name}).rstrip("\n")]
    parts += [_function(name, k, *item) for k, item in enumerate(functions.items())]
    return "\n\n".join(parts)


def _function(name: str, number: int, function: str, entry: Mapping[str, Any]) -> str:
    inputs, outputs = entry["inputs"], entry["outputs"]
    end = f"Returns TW_OK, or a status after which {name}_last_error() says why."
    lines = [comment([f"Runs the function {function}.", *description(entry), end])]
    lines.append(f"static inline {signature(name, function, entry)} {{")
    labels = [identifier(t["name"]) for t in inputs], [output_name(entry, t["name"]) for t in outputs]
    arrays = []
    for role, tensors, names in zip(("in", "out"), (inputs, outputs), labels, strict=True):
        items = []
        for k, (tensor, label) in enumerate(zip(tensors, names, strict=True)):
            shape, rank = "0", len(tensor["shape"])
            if rank and not tensor.get("late"):
                shape = f"tw_{role}{k}"
                sizes = ", ".join(formula(size) for size in tensor["shape"])
                lines.append(f"  int64_t {shape}[] = {{{sizes}}};")
            data = "0" if tensor.get("late") else label
            code, bits = element_code(tensor)
            items.append(f"{name}_tensor({data}, {shape}, {rank}, {code}, {bits})")
        arrays.append(items)
    for role, items in zip(("inputs", "outputs"), arrays, strict=True):
        lines.append(f"  DLTensor tw_{role}[{max(len(items), 1)}];")
        lines += [f"  tw_{role}[{k}] = {item};" for k, item in enumerate(items)]
    call = f"{name}_function_run(context, {number}, tw_inputs, {len(inputs)}, tw_outputs, {len(outputs)})"
    lines.append(f"  int tw_status_ = {call};")
    for k, (tensor, label) in enumerate(zip(outputs, labels[1], strict=True)):
        if tensor.get("late"):
            lines.append(f"  *{label} = tw_outputs[{k}];")
    return "\n".join([*lines, "  return tw_status_;", "}"])


__all__ = ["call_name", "element_bytes", "element_code", "signature", "typed_functions"]

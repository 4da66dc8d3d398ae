"""A model's functions in C: names, types, parameters and formulas of sizes, from its metadata.

An entry is the metadata of one function: ``inputs``, ``outputs``, ``symbols`` and ``solver``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tilewright.errors import ArtifactError

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""The C type of an element; others lie in bytes."""

RESERVED = frozenset(
    "int float double char long short for if do while return const static void context arena scratch states "
    "symbols inputs outputs shapes default switch case register "
    "class new delete this template typename namespace operator private public protected virtual friend "
    "using try catch throw bool true false auto extern inline struct union enum signed unsigned volatile "
    "goto break continue else sizeof typedef and or not xor explicit export mutable".split()
)
"""Words of C and C++, and names of the generated sources."""


def functions_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a model's functions by name, in the order of their numbers."""
    return dict(metadata.get("functions") or {"main": metadata})


def identifier(name: str, reserved: Collection[str] = RESERVED) -> str:
    """A name as an identifier that is not a word of the language."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{text}_" if text[:1].isdigit() or not text or text in reserved else text


def output_name(entry: Mapping[str, Any], name: str, reserved: Collection[str] = RESERVED) -> str:
    """The parameter of an output, apart from an input of the same name."""
    text = identifier(name, reserved)
    return f"{text}_out" if any(identifier(t["name"], reserved) == text for t in entry["inputs"]) else text


def c_type(tensor: Mapping[str, Any]) -> str:
    """The C type of a tensor's elements."""
    return C_TYPES.get(tensor["dtype"], "uint8_t")


def shape_text(tensor: Mapping[str, Any]) -> str:
    """``float32 [batch, 8]``."""
    return f"{tensor['dtype']} [{', '.join(map(str, tensor['shape']))}]"


def sizes(entry: Mapping[str, Any]) -> list[str]:
    """The symbols of a function's sizes, in the order of its inputs."""
    return list(dict.fromkeys(step["symbol"] for step in entry["solver"] if "symbol" in step))


def size_parameters(entry: Mapping[str, Any]) -> list[str]:
    """The parameters of a function for its sizes."""
    return [f"int64_t {identifier(symbol)}" for symbol in sizes(entry)]


def tensor_parameters(entry: Mapping[str, Any]) -> list[str]:
    """The parameters of a function for the elements of its inputs and outputs; a tensor for an output whose
    size depends on data.
    """
    parameters = []
    for tensor in entry["inputs"]:
        constant = "" if tensor.get("updated") else "const "
        parameters.append(f"{constant}{c_type(tensor)}* {identifier(tensor['name'])}")
    for tensor in entry["outputs"]:
        kind = "DLTensor" if tensor.get("late") else c_type(tensor)
        parameters.append(f"{kind}* {output_name(entry, tensor['name'])}")
    return parameters


def description(entry: Mapping[str, Any]) -> list[str]:
    """A line for each parameter of a function."""
    lines = []
    for symbol in sizes(entry):
        low, high = entry["symbols"][symbol]
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        lines.append(f"{identifier(symbol)}: a size {limits}.")
    for tensor in entry["inputs"]:
        written = " and written" if tensor.get("updated") else ""
        lines.append(f"{identifier(tensor['name'])}: {shape_text(tensor)}, read{written}.")
    for tensor in entry["outputs"]:
        place = ", in memory of the context until its next run" if tensor.get("late") else ""
        lines.append(f"{output_name(entry, tensor['name'])}: {shape_text(tensor)}, written{place}.")
    return lines


def comment(lines: Sequence[str]) -> str:
    """Lines as a comment in C."""
    return "/* " + "\n * ".join(lines) + " */"


def formula(size: int | str) -> str:
    """A size in C. Sizes are not negative, so C's division is that of the formula.

    Raises:
        ArtifactError: The formula has an operation that is not known.
    """
    if isinstance(size, int):
        return str(size)
    return _formula(ast.parse(size, mode="eval").body, size)


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"
}  # fmt: skip


def _formula(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=int(number)):
            return str(number)
        case ast.Name(id=name):
            return identifier(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return f"({_formula(left, text)} {_OPERATORS[type(op)]} {_formula(right, text)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_formula(operand, text)}"
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *rest]):
            value = _formula(first, text)
            for other in rest:
                b = _formula(other, text)
                value = f"({value} {'<' if name == 'min' else '>'} {b} ? {value} : {b})"
            return value
    raise ArtifactError(f"the size {text!r} cannot be written in C")


__all__ = [
    "C_TYPES",
    "RESERVED",
    "c_type",
    "comment",
    "description",
    "formula",
    "functions_of",
    "identifier",
    "output_name",
    "shape_text",
    "size_parameters",
    "sizes",
    "tensor_parameters",
]

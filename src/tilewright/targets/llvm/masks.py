"""Masked memory accesses and tests of masks lane by lane, for LLVM's backend for Hexagon.

A predicate register of Hexagon has 8 bits: 4 for each lane of a mask of two lanes, 2 for each of four. LLVM
takes the masks of loads, stores, gathers, scatters and reductions apart by a bitcast to an integer with one
bit for each lane. Its backend for Hexagon (LLVM 22) computes the bitcast as a copy of the register, so the
second of two lanes is read from a bit of the first. It extracts single lanes correctly.
"""

from __future__ import annotations

import re

from .emitter import Emitter

_NAME = re.compile(r"@llvm\.(masked\.(?:load|store|gather|scatter)|vector\.reduce\.or)\.v(\d+)(\w+)[\w.]*")
_ALIGN = re.compile(r"align (\d+)")
_TYPES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}


def expanded(text: str) -> str:
    """The module `text` with calls of inlined functions in place of masked loads, stores, gathers and
    scatters, and of tests whether a mask has a lane: each accesses, or tests, one lane after another.
    """
    functions: dict[str, str] = {}

    def replaced(line: str) -> str:
        found = _NAME.search(line)
        if found is None or (found[1].startswith("vector") and found[3] != "i1"):
            return line
        if line.startswith("declare"):
            return ""
        align = _ALIGN.search(line, found.end())
        size = int(align[1]) if align else 1
        name = f"@tw.{found[1]}.v{found[2]}{found[3]}.{size}"
        functions[name] = _definition(name, found[1].split(".")[-1], int(found[2]), found[3], size)
        return line.replace(found[0], name)

    lines = [replaced(line) for line in text.split("\n")]
    return "\n".join([*lines, *functions.values()])


def _definition(name: str, action: str, lanes: int, element: str, align: int) -> str:
    """``define internal TYPE @NAME(...)``, with the parameters of the intrinsic that it replaces."""
    e, scalar = Emitter(), _TYPES.get(element, element)
    vector, mask = f"<{lanes} x {scalar}>", f"<{lanes} x i1>"
    pointers = f"<{lanes} x ptr>" if action in ("gather", "scatter") else "ptr"

    def address(base: str, lane: int) -> str:
        if pointers == "ptr" or base != "%p":
            return e.op(f"getelementptr {scalar}, ptr {base}, i32 {lane}")
        return e.op(f"extractelement {pointers} %p, i32 {lane}")

    def has(lane: int) -> str:
        return e.op(f"extractelement {mask} %mask, i32 {lane}")

    if action == "or":
        kind, parameters, result = "i1", f"{mask} %mask", has(0)
        for lane in range(1, lanes):
            result = e.op(f"or i1 {result}, {has(lane)}")
    elif action in ("load", "gather"):
        kind, parameters = vector, f"{pointers} %p, {mask} %mask, {vector} %else"
        result, other = "poison", e.alloca(vector, 8)
        e.line(f"store {vector} %else, ptr {other}, align 8")
        for lane in range(lanes):
            where = e.op(f"select i1 {has(lane)}, ptr {address('%p', lane)}, ptr {address(other, lane)}")
            value = e.load(scalar, where, align)
            result = e.op(f"insertelement {vector} {result}, {scalar} {value}, i32 {lane}")
    else:
        kind, parameters, result = "void", f"{vector} %value, {pointers} %p, {mask} %mask", ""
        for lane in range(lanes):
            with e.when(has(lane)):
                value = e.op(f"extractelement {vector} %value, i32 {lane}")
                e.line(f"store {scalar} {value}, ptr {address('%p', lane)}, align {align}")
    body = e.text(f"{kind} {result}".strip())
    return f"define internal {kind} {name}({parameters}) alwaysinline nounwind {{\n{body}}}\n"


__all__ = ["expanded"]

"""The functions of HIP's prelude for matrix instructions: clang's built-in functions.

Source: LLVM's list of built-in functions for the AMDGPU backend, ``BuiltinsAMDGPU.def``.
"""

from __future__ import annotations

from ....ir.matrix_atom import MFMA, MFMA_CDNA2, MFMA_CDNA3, WMMA, FragmentLayout, MatrixAtom
from ....ir.types import DType, bf16, f16, f32, f64, i8, i32, u8

_ELEMENTS: dict[DType, tuple[str, str]] = {
    f32: ("float", "f32"),
    f64: ("double", "f64"),
    i32: ("int", "i32"),
    bf16: ("short", "u32"),
    f16: ("_Float16", "u32"),
    i8: ("int", "u32"),
    u8: ("int", "u32"),
}
"""The elements of the vectors that the functions take, and the type of a register in our prelude."""
_SUFFIXES = {
    **{(depth, bf16): "bf16_1k" for depth in (8, 16)},
    **{(depth, f16): "f16" for depth in (8, 16)},
    **{(depth, f32): "f32" for depth in (2, 4)},
    (4, f64): "f64",
}
_OLD_BYTES, _NEW_BYTES = "i8", "_i8"


def _vector(layout: FragmentLayout, dtype: DType) -> tuple[str, int]:
    """The type and number of the elements of an operand."""
    count = 1 << len(layout.slots)
    if dtype.bits == 8:  # bytes are packed into an int, a long or a vector of ints
        return ("long", 1) if count == 8 else ("int", count // 4)
    return _ELEMENTS[dtype][0], count


def _call(atom: MatrixAtom) -> str:
    """The call of the built-in function on x, y and z."""
    factor, result = atom.left_type, atom.result_type.name
    shape = f"{atom.rows}x{atom.columns}x{atom.depth}"
    if atom.name in WMMA:
        if factor.bits == 8:
            signed = "true" if factor is i8 else "false"
            return f"__builtin_amdgcn_wmma_{result}_{shape}_iu8_w32({signed}, x, {signed}, y, z, false)"
        return f"__builtin_amdgcn_wmma_{result}_{shape}_{factor.name}_w32(x, y, z)"
    if factor is i8:
        suffix = _OLD_BYTES if atom.name in MFMA_CDNA2 else _NEW_BYTES
    else:
        suffix = _SUFFIXES[atom.depth, factor]
    return f"__builtin_amdgcn_mfma_{result}_{shape}{suffix}(x, y, z, 0, 0, 0)"


def _head(atom: MatrixAtom) -> str:
    word = "f64" if atom.left_type is f64 else "u32"
    return f"FN void tw_mma_{atom.name}({_ELEMENTS[atom.result_type][1]}* d, {word}* a, {word}* b) {{"


def _instruction(atom: MatrixAtom) -> str:
    """The definition for the device."""
    lines = [_head(atom)]
    operands = (("x", atom.left, atom.left_type), ("z", atom.result, atom.result_type))
    for name, layout, dtype in operands:
        element, count = _vector(layout, dtype)
        vector = f" __attribute__((ext_vector_type({count})))" if count > 1 else ""
        lines.append(f"  typedef {element} type_{name}{vector};")
    lines += ["  type_x x, y;", "  type_z z;"]
    lines += [
        f"  __builtin_memcpy(&{local}, {given}, sizeof {local});"
        for local, given in (("x", "a"), ("y", "b"), ("z", "d"))
    ]
    lines += [f"  z = {_call(atom)};", "  __builtin_memcpy(d, &z, sizeof z);", "}", ""]
    return "\n".join(lines)


_ATOMS = (*MFMA.values(), *MFMA_CDNA2.values(), *MFMA_CDNA3.values(), *WMMA.values())
INSTRUCTIONS = {f"tw_mma_{atom.name}": _instruction(atom) for atom in _ATOMS}
"""The definitions for the device."""
CALLS = {f"tw_mma_{atom.name}": f"{_head(atom)}\n  tw_sim_mma_{atom.name}(d, a, b);\n}}\n" for atom in _ATOMS}
"""The definitions for the simulator."""

__all__ = ["CALLS", "INSTRUCTIONS"]

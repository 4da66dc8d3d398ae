"""The functions of Metal's prelude for matrix instructions.

Source: "Metal Shading Language Specification", section "SIMD-Group Matrix Data Types". The elements of a
thread are reached by ``thread_elements()``, in the order that MLX's kernels rely on.
"""

from __future__ import annotations

from ....ir.matrix_atom import SIMDGROUP, MatrixAtom
from ....ir.types import f32

_TYPES = {"f32": "float", "f16": "half", "bf16": "bfloat"}


def _definition(atom: MatrixAtom) -> str:
    name = _TYPES[atom.left_type.name]
    lines = [
        f"static inline void tw_mma_{atom.name}(thread float* d, thread uint* a, thread uint* b) {{",
        f"  simdgroup_matrix<{name}, 8, 8> x, y;",
        "  simdgroup_matrix<float, 8, 8> z;",
    ]
    for local, words in (("x", "a"), ("y", "b")):
        for k in (0, 1):
            if atom.left_type is f32:
                value = f"as_type<float>({words}[{k}])"
            else:
                value = f"as_type<{name}>((ushort)({words}[0]{' >> 16' if k else ''}))"
            lines.append(f"  {local}.thread_elements()[{k}] = {value};")
    lines += [f"  z.thread_elements()[{k}] = d[{k}];" for k in (0, 1)]
    lines.append("  simdgroup_multiply_accumulate(z, x, y, z);")
    lines += [f"  d[{k}] = z.thread_elements()[{k}];" for k in (0, 1)]
    return "\n".join([*lines, "}", ""])


MATRIX = {f"tw_mma_{atom.name}": _definition(atom) for atom in SIMDGROUP.values()}
"""The definitions by name."""

__all__ = ["MATRIX"]

"""The names of GLSL's prelude for matrix instructions: cooperative matrices.

Source: the specification of the extension ``GL_KHR_cooperative_matrix``. Only threads of a subgroup that all
run have a matrix together. So a thread's number is that of its subgroup, and its own in there; the runtime
asks for subgroups of the size that the constant ``subgroup_threads`` tells.
"""

from __future__ import annotations

from ....ir.matrix_atom import COOPERATIVE, MatrixAtom
from ....ir.types import f16, f32, i8, i32

FEATURE = "cooperative_matrix"
"""The feature of the language."""
EXTENSIONS = "\n".join(
    f"#extension GL_KHR_{name} : require"
    for name in ("cooperative_matrix", "memory_scope_semantics", "shader_subgroup_basic")
)

_TYPES = {f16: "float16_t", f32: "float", i8: "int8_t", i32: "int"}


def _types(atom: MatrixAtom) -> dict[str, str]:
    operands = {
        "a": (atom.left_type, atom.rows, atom.depth, "A"),
        "b": (atom.right_type, atom.depth, atom.columns, "B"),
        "d": (atom.result_type, atom.rows, atom.columns, "Accumulator"),
    }
    texts = {}
    for letter, (dtype, rows, columns, use) in operands.items():
        name = f"tw_{atom.name}_{letter}"
        form = f"{_TYPES[dtype]}, gl_ScopeSubgroup, {rows}, {columns}, gl_MatrixUse{use}"
        texts[name] = f"#define {name} coopmat<{form}>\n"
    return texts


def _moves() -> dict[str, str]:
    texts = {}
    for verb in ("load", "store"):
        for lines, layout in (("rows", "RowMajor"), ("columns", "ColumnMajor")):
            name = f"tw_matrix_{verb}_{lines}"
            texts[name] = (
                f"#define {name}(matrix, memory, first, distance) coopMat{verb.capitalize()}(matrix, memory, "
                f"uint(first), uint(distance), gl_CooperativeMatrixLayout{layout})\n"
            )
    return texts


def _threads(count: int) -> str:
    return (
        f"layout(constant_id = 0) const int subgroup_threads = {count};\n"
        f"FN i32 tw_thread_of_{count}() {{\n"
        "  return int(gl_SubgroupID) * subgroup_threads + int(gl_SubgroupInvocationID);\n}\n"
    )


MATRIX = {
    **{name: text for atom in COOPERATIVE.values() for name, text in _types(atom).items()},
    **_moves(),
    "tw_matrix_multiply_add": "#define tw_matrix_multiply_add(a, b, d) coopMatMulAdd(a, b, d)\n",
    **{f"tw_thread_of_{n}": _threads(n) for n in (8, 32)},
}
"""The definitions by name."""

__all__ = ["EXTENSIONS", "FEATURE", "MATRIX"]

"""Cooperative matrices for devices without them: other definitions of the names in GLSL's prelude, so that
the same kernels run on Mesa's lavapipe of any version.

A matrix is an array of each thread, in the layouts by which the interpreter divides it: element ``slot *
threads + lane``, counted row by row. Terms are added one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from tilewright.ir.matrix_atom import COOPERATIVE, MatrixAtom
from tilewright.targets.gpu.dialects.glsl import GLSL
from tilewright.targets.gpu.dialects.glsl_matrix import FEATURE, MATRIX
from tilewright.targets.vulkan.target import VulkanTarget

MOST_WARPS = 8

_COMMON = """
float value_of(uint16_t x) { return unpackHalf2x16(uint(x)).x; }
int value_of(int8_t x) { return int(x); }
float value_of(float x) { return x; }
int value_of(int x) { return x; }
#define EMULATED_PLACE(matrix, slot) (slot * WARP + int(gl_LocalInvocationID.x) % WARP)
#define tw_matrix_load_rows(matrix, memory, first, distance) \\
  [[dont_unroll]] for (int s = 0; s < matrix.e.length(); s++) { int p = EMULATED_PLACE(matrix, s); \\
    matrix.e[s] = value_of(memory[(first) + p / columns_of(matrix) * (distance) + p % columns_of(matrix)]); }
#define tw_matrix_load_columns(matrix, memory, first, distance) \\
  [[dont_unroll]] for (int s = 0; s < matrix.e.length(); s++) { int p = EMULATED_PLACE(matrix, s); \\
    matrix.e[s] = value_of(memory[(first) + p / columns_of(matrix) + p % columns_of(matrix) * (distance)]); }
#define tw_matrix_store_rows(matrix, memory, first, distance) \\
  [[dont_unroll]] for (int s = 0; s < matrix.e.length(); s++) { int p = EMULATED_PLACE(matrix, s); \\
    memory[(first) + p / columns_of(matrix) * (distance) + p % columns_of(matrix)] = matrix.e[s]; }
#define tw_matrix_store_columns(matrix, memory, first, distance) \\
  [[dont_unroll]] for (int s = 0; s < matrix.e.length(); s++) { int p = EMULATED_PLACE(matrix, s); \\
    memory[(first) + p / columns_of(matrix) + p % columns_of(matrix) * (distance)] = matrix.e[s]; }
"""


def _definition(atom: MatrixAtom) -> str:
    kind = atom.result_type.name.replace("f32", "float").replace("i32", "int")
    m, n, k, threads = atom.rows, atom.columns, atom.depth, atom.threads
    name = f"tw_{atom.name}"
    lines = [f"#define WARP {threads}"]
    for letter, rows, columns in (("a", m, k), ("b", k, n), ("d", m, n)):
        slots = rows * columns // threads
        lines += [
            f"struct {name}_{letter} {{ {kind} e[{slots}]; }};",
            f"int columns_of({name}_{letter} x) {{ return {columns}; }}",
        ]
    lines += [
        _COMMON,
        f"shared {kind} emulated_a[{MOST_WARPS * m * k}], emulated_b[{MOST_WARPS * k * n}];",
        f"{name}_d filled({kind} x) {{",
        f"  {name}_d d;",
        "  [[dont_unroll]] for (int s = 0; s < d.e.length(); s++) d.e[s] = x;",
        "  return d;\n}",
        f"#define {name}_d(x) filled(x)",
        f"{name}_d tw_matrix_multiply_add({name}_a a, {name}_b b, {name}_d d) {{",
        "  int thread = int(gl_LocalInvocationID.x);",
        f"  int lane = thread % {threads}, warp = thread / {threads};",
        "  memoryBarrierShared(); barrier();",
        "  [[dont_unroll]] for (int s = 0; s < a.e.length(); s++)",
        f"    emulated_a[warp * {m * k} + s * {threads} + lane] = a.e[s];",
        "  [[dont_unroll]] for (int s = 0; s < b.e.length(); s++)",
        f"    emulated_b[warp * {k * n} + s * {threads} + lane] = b.e[s];",
        "  memoryBarrierShared(); barrier();",
        "  [[dont_unroll]] for (int s = 0; s < d.e.length(); s++) {",
        f"    int row = (s * {threads} + lane) / {n}, column = (s * {threads} + lane) % {n};",
        f"    [[dont_unroll]] for (int k = 0; k < {k}; k++)",
        f"      d.e[s] += emulated_a[warp * {m * k} + row * {k} + k]"
        f" * emulated_b[warp * {k * n} + k * {n} + column];",
        "  }\n  return d;\n}",
        f"int tw_thread_of_{threads}() {{ return int(gl_LocalInvocationID.x); }}",
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def emulated(name: str) -> Iterator[None]:
    """Kernels that are compiled in this context have emulated matrices of the atom `name`, and no others."""
    atom = COOPERATIVE[name]
    # One definition has all names, since they need each other.
    prelude = {**GLSL.prelude, **dict.fromkeys(MATRIX, "\n")}
    prelude[f"tw_{atom.name}_a"] = _definition(atom)
    # Mesa compiles unrolled emulations for minutes.
    dialect = replace(GLSL, prelude=prelude, features={FEATURE: ""}, unroll="[[dont_unroll]]")
    with patch.object(VulkanTarget, "dialect", dialect):
        yield

"""The functions of CUDA's prelude for matrix instructions.

Source: the section "Warp Level Matrix Multiply-Accumulate Instructions" of the PTX ISA.
"""

from __future__ import annotations

from ....ir.matrix_atom import MMA_SYNC, FragmentLayout, MatrixAtom
from ....ir.types import DType, f32, f64, i32

_LETTERS = {"bfloat16": "bf16", "float16": "f16", "int8": "s8", "uint8": "u8"}
_REGISTERS: dict[DType, tuple[str, str]] = {f32: ("f32", "f"), i32: ("i32", "r"), f64: ("f64", "d")}
"""The type of a register of the result, and its letter in a constraint."""


def _words(layout: FragmentLayout, dtype: DType) -> int:
    """The registers that hold a thread's part of a factor."""
    return max(1, (1 << len(layout.slots)) * dtype.bits // max(32, dtype.bits))


def _instruction(atom: MatrixAtom) -> str:
    """The definition as inline PTX."""
    kind, letter = _REGISTERS[atom.result_type]
    word, word_letter = ("f64", "d") if atom.left_type is f64 else ("u32", "r")
    counts = (
        1 << len(atom.result.slots),
        _words(atom.left, atom.left_type),
        _words(atom.right, atom.right_type),
    )
    types = [atom.rounds_to or _LETTERS.get(t.label, t.name) for t in (atom.left_type, atom.right_type)]
    result = "s32" if atom.result_type is i32 else atom.result_type.name
    shape = f"m{atom.rows}n{atom.columns}k{atom.depth}"
    numbers = iter(range(sum(counts)))
    groups = ["{" + ", ".join(f"%{next(numbers)}" for _ in range(n)) + "}" for n in counts]
    operation = f"mma.sync.aligned.{shape}.row.col.{result}.{types[0]}.{types[1]}.{result}"
    lines = [f"FN void tw_mma_{atom.name}({kind}* d, {word}* a, {word}* b) {{"]
    given = f"tw_round_{atom.rounds_to}" if atom.rounds_to else ""
    outputs = ", ".join(f'"+{letter}"(d[{k}])' for k in range(counts[0]))
    inputs = ", ".join(
        f'"{word_letter}"({given}({name}[{k}]))'
        for name, count in (("a", counts[1]), ("b", counts[2]))
        for k in range(count)
    )
    lines.append(
        f'  asm("{operation} {groups[0]}, {groups[1]}, {groups[2]}, {groups[0]};" : {outputs} : {inputs});'
    )
    return "\n".join([*lines, "}", ""])


def _call(atom: MatrixAtom) -> str:
    """The definition for the simulator."""
    kind, _ = _REGISTERS[atom.result_type]
    word = "f64" if atom.left_type is f64 else "u32"
    lines, passed = [f"FN void tw_mma_{atom.name}({kind}* d, {word}* a, {word}* b) {{"], ["a", "b"]
    if atom.rounds_to:
        for k, (layout, dtype) in enumerate(((atom.left, atom.left_type), (atom.right, atom.right_type))):
            name, count = passed[k], _words(layout, dtype)
            values = ", ".join(f"tw_round_{atom.rounds_to}({name}[{n}])" for n in range(count))
            lines.append(f"  unsigned int rounded_{name}[{count}] = {{{values}}};")
            passed[k] = f"rounded_{name}"
    lines.append(f"  tw_sim_mma_{atom.name}(d, {', '.join(passed)});")
    return "\n".join([*lines, "}", ""])


ROUND_TF32 = """FN u32 tw_round_tf32(u32 x) {
  return x + select((x & 0x7f800000u) == 0x7f800000u, 0u, 0x1000u);
}
"""
"""Instructions leave out the low bits of factors: this rounds finite numbers to the nearest, ties away from
zero.
"""


def _loads() -> tuple[dict[str, str], dict[str, str]]:
    """The definitions of loads of 1, 2 and 4 matrices of 8 rows of 16 bytes, as inline PTX and for the
    simulator.
    """
    instructions, calls = {}, {}
    for count in (1, 2, 4):
        for suffix, mode in (("", ""), ("_trans", ".trans")):
            name = f"load_matrix_x{count}{suffix}"
            head = f"FN void tw_{name}(u32* d, void* row) {{\n"
            words = ", ".join(f"%{k}" for k in range(count))
            outputs = ", ".join(f'"=r"(d[{k}])' for k in range(count))
            operation = f"ldmatrix.sync.aligned.m8n8.x{count}{mode}.shared.b16"
            instructions[f"tw_{name}"] = (
                f"{head}  u32 place = (u32)__cvta_generic_to_shared(row);\n"
                f'  asm volatile("{operation} {{{words}}}, [%{count}];" : {outputs} : "r"(place));\n}}\n'
            )
            calls[f"tw_{name}"] = f"{head}  tw_sim_ldmatrix_x{count}{suffix}(d, row);\n}}\n"
    return instructions, calls


def _copies() -> tuple[dict[str, str], dict[str, str]]:
    """The definitions of asynchronous copies of 4, 8 and 16 bytes, of which only the first `taken` ones are
    read, and of the statements that wait for them.
    """
    instructions = {
        "tw_copy_commit": 'FN void tw_copy_commit() {\n  asm volatile("cp.async.commit_group;");\n}\n'
    }
    calls = {"tw_copy_commit": "FN void tw_copy_commit() {\n  tw_cp_async_commit();\n}\n"}
    for size, cache in ((4, "ca"), (8, "ca"), (16, "cg")):
        head = f"FN void tw_copy_async_{size}(void* to, void* from, i32 taken) {{\n"
        instructions[f"tw_copy_async_{size}"] = (
            f"{head}  u32 place = (u32)__cvta_generic_to_shared(to);\n"
            f'  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;" : : '
            f'"r"(place), "l"(from), "r"(taken));\n}}\n'
        )
        calls[f"tw_copy_async_{size}"] = f"{head}  tw_cp_async(to, from, {size}, taken);\n}}\n"
    for pending in range(8):
        head = f"FN void tw_copy_wait_{pending}() {{\n"
        wait = f'asm volatile("cp.async.wait_group {pending};" : : : "memory");'
        instructions[f"tw_copy_wait_{pending}"] = f"{head}  {wait}\n}}\n"
        calls[f"tw_copy_wait_{pending}"] = f"{head}  tw_cp_async_wait({pending});\n}}\n"
    return instructions, calls


_COPIES, _COPY_CALLS = _copies()
_LOADS, _LOAD_CALLS = _loads()
INSTRUCTIONS = _COPIES | _LOADS | {f"tw_mma_{atom.name}": _instruction(atom) for atom in MMA_SYNC.values()}
"""The definitions that NVRTC compiles."""
CALLS = (
    {"tw_round_tf32": ROUND_TF32}
    | _COPY_CALLS
    | _LOAD_CALLS
    | {f"tw_mma_{atom.name}": _call(atom) for atom in MMA_SYNC.values()}
)
"""The definitions for other compilers, the simulator's."""

__all__ = ["CALLS", "INSTRUCTIONS", "ROUND_TF32"]

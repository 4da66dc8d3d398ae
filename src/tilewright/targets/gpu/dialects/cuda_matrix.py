"""The functions of CUDA's prelude for matrix instructions.

Source: the sections "Warp Level Matrix Multiply-Accumulate Instructions" and "Asynchronous Warpgroup Level
Matrix Multiply-Accumulate Instructions" of the PTX ISA.
"""

from __future__ import annotations

from ....ir.matrix_atom import MMA_SYNC, WGMMA, FragmentLayout, MatrixAtom
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


def _warpgroups() -> tuple[dict[str, str], dict[str, str]]:
    """The definitions of the instructions of warpgroups, whose factors are described matrices in shared
    memory with neighbouring terms (``_n``) or rows and columns (``_t``), and of what orders them.
    """
    instructions = {
        "tw_show_to_atoms": _statement("tw_show_to_atoms", "fence.proxy.async;"),
        "tw_begin_atoms": _statement("tw_begin_atoms", "wgmma.fence.sync.aligned;"),
        "tw_wait_atoms": _statement(
            "tw_wait_atoms", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
        ),
    }
    calls = {
        "tw_show_to_atoms": "FN void tw_show_to_atoms() {\n  tw_sim_fence_async();\n}\n",
        "tw_begin_atoms": "FN void tw_begin_atoms() {\n  tw_sim_wgmma_fence();\n}\n",
        "tw_wait_atoms": "FN void tw_wait_atoms() {\n  tw_sim_wgmma_commit();\n  tw_sim_wgmma_wait(0);\n}\n",
    }
    for dtype in (f32, i32):
        kind, letter = _REGISTERS[dtype]
        name = f"tw_hold_{dtype.name}"
        instructions[name] = (
            f'FN void {name}({kind}* x) {{\n  asm volatile("" : "+{letter}"(*x) : : "memory");\n}}\n'
        )
        calls[name] = f"FN void {name}({kind}* x) {{}}\n"
    for atom in WGMMA.values():
        kind, letter = _REGISTERS[atom.result_type]
        factor = atom.rounds_to or _LETTERS.get(atom.left_type.label, atom.left_type.name)
        result = "s32" if atom.result_type is i32 else atom.result_type.name
        has_scales = atom.result_type is not i32
        count = 1 << len(atom.result.slots)
        registers = ", ".join(f"%{k}" for k in range(count))
        outputs = ", ".join(f'"+{letter}"(d[{k}])' for k in range(count))
        turns = atom.left_type.itemsize == 2
        for way in ("nn", "nt", "tn", "tt") if turns else ("nn",):
            turned = [int(x == "t") for x in way]
            name = f"tw_mma_{atom.name}_{way[0]}_{way[1]}"
            head = f"FN void {name}({kind}* d, u64 a, u64 b) {{\n"
            scales = ", 1, 1" if has_scales else ""
            if turns:
                scales += f", {turned[0]}, {turned[1]}"
            shape = f"m{atom.rows}n{atom.columns}k{atom.depth}"
            instructions[name] = (
                f'{head}  asm volatile("{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, 1, 0;\\n'
                f"wgmma.mma_async.sync.aligned.{shape}.{result}.{factor}.{factor} "
                f'{{{registers}}}, %{count}, %{count + 1}, adds{scales};\\n}}"'
                f' : {outputs} : "l"(a), "l"(b));\n}}\n'
            )
            short = atom.rounds_to or atom.left_type.name
            flags = f", 1, 1, 1, {turned[0]}, {turned[1]}" if turns else ""
            calls[name] = (
                f"{head}  tw_sim_wgmma_{atom.result_type.name}_{short}<{atom.columns}>(d, a, b{flags});\n}}\n"
            )
    return instructions, calls


def _statement(name: str, *lines: str) -> str:
    body = "".join(f'  asm volatile("{line}" : : : "memory");\n' for line in lines)
    return f"FN void {name}() {{\n{body}}}\n"


DESCRIBE = """FN u64 tw_describe(void* first, u32 panel, u32 lines, u32 mode) {
  u32 place = (u32)__cvta_generic_to_shared(first);
  return (u64)((place & 0x3ffffu) >> 4) | (u64)(panel >> 4) << 16 | (u64)(lines >> 4) << 32 | (u64)mode << 62;
}
"""
"""The description of a matrix in shared memory: the address of its first element, the bytes from one panel to
the next and from eight lines to the next ones, and the bytes of a line as a number.
"""
SWIZZLE = """FN i32 tw_swizzle(i32 index, i32 line, i32 mask, i32 part) {
  return index ^ (((index >> line) & mask) << part);
}
"""
"""The place of an element in memory where parts of 16 bytes are exchanged by the number of their line."""

_COPIES, _COPY_CALLS = _copies()
_GROUPS, _GROUP_CALLS = _warpgroups()
_LOADS, _LOAD_CALLS = _loads()
INSTRUCTIONS = (
    _COPIES | _LOADS | _GROUPS | {f"tw_mma_{atom.name}": _instruction(atom) for atom in MMA_SYNC.values()}
)
"""The definitions that NVRTC compiles."""
CALLS = (
    {"tw_round_tf32": ROUND_TF32, "tw_describe": DESCRIBE, "tw_swizzle": SWIZZLE}
    | _GROUP_CALLS
    | _COPY_CALLS
    | _LOAD_CALLS
    | {f"tw_mma_{atom.name}": _call(atom) for atom in MMA_SYNC.values()}
)
"""The definitions for other compilers, the simulator's."""

__all__ = ["CALLS", "INSTRUCTIONS", "ROUND_TF32"]

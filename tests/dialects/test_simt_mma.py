"""Matrix instructions, as the interpreter runs them by the layouts of their atoms."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dialects import loop, simt
from tilewright.ir.builder import Builder
from tilewright.ir.core import IRError, Module
from tilewright.ir.interpreter import Frame
from tilewright.ir.matrix_atom import ATOMS, MMA_SYNC, FragmentLayout, MatrixAtom
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.types import BufferType, DType, bf16, f32

WARPS = 2


def fragments(atom: MatrixAtom) -> dict[str, list[tuple[int, int]]]:
    """The element of each operand in each thread and slot, by the formulas of the PTX ISA: rows and columns
    of d, rows and terms of a, columns and terms of b.
    """
    packed = max(1, 32 // atom.left_type.bits)
    found: dict[str, list[tuple[int, int]]] = {"d": [], "a": [], "b": []}
    for lane in range(32):
        group, place = lane // 4, lane % 4
        for i in range(atom.rows * atom.columns // 32):
            found["d"].append((group + 8 * (i // 2), 2 * place + i % 2))
        for i in range(atom.rows * atom.depth // 32):
            register = i // packed
            row = group + 8 * (register % 2) if atom.rows == 16 else group
            half = register // 2 if atom.rows == 16 else register
            found["a"].append((row, packed * (place + 4 * half) + i % packed))
        for i in range(atom.columns * atom.depth // 32):
            found["b"].append((group, packed * (place + 4 * (i // packed)) + i % packed))
    return found


def program(atom: MatrixAtom) -> loop.Kernel:
    """A kernel whose parameters are the operands' fragments."""
    kernel = loop.Kernel(sym_name="multiply", num_outputs=1)
    threads = WARPS * atom.threads
    values = {
        name: kernel.body.add_arg(BufferType(dtype, (threads, *slots(layout))))
        for name, dtype, layout in (
            ("a", atom.left_type, atom.left),
            ("b", atom.right_type, atom.right),
            ("d", atom.result_type, atom.result),
        )
    }
    Builder(kernel.body).insert(simt.mma(values["d"], values["a"], values["b"], atom.name, threads))
    return kernel


def slots(layout: FragmentLayout) -> list[int]:
    return [r.extent for r in reversed(layout.slot_runs)]


def random(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return rng.normal(size=shape).astype(dtype.numpy)
    low = -100 if dtype.is_signed else 0
    return rng.integers(low, 100, shape).astype(dtype.numpy)


@pytest.mark.parametrize("name", MMA_SYNC)
def test_atoms_multiply_the_matrices_of_their_fragments(name: str) -> None:
    atom = ATOMS[name]
    a = random(atom.left_type, (WARPS, atom.rows, atom.depth), 0)
    b = random(atom.right_type, (WARPS, atom.columns, atom.depth), 1)
    d = random(atom.result_type, (WARPS, atom.rows, atom.columns), 2)
    places = fragments(atom)
    kernel = program(atom)
    arrays = {}
    for (key, matrix), arg in zip((("a", a), ("b", b), ("d", d)), kernel.body.args, strict=True):
        rows, columns = np.array(places[key]).T
        arrays[key] = matrix[:, rows, columns].reshape(arg.type.shape)
    Frame(Module(), {}, {}).run_block(kernel.body, [arrays["a"], arrays["b"], arrays["d"]])
    wide = np.float64 if atom.result_type.is_float else np.int64
    wanted = d.astype(wide) + a.astype(wide) @ b.astype(wide).transpose(0, 2, 1)
    rows, columns = np.array(places["d"]).T
    result = arrays["d"].reshape(WARPS, -1)
    np.testing.assert_allclose(result, wanted[:, rows, columns], rtol=1e-5, atol=1e-5)


def test_programs_with_atoms_print_and_parse() -> None:
    module = Module()
    module.body.append(program(ATOMS["m16n8k16_f32_bf16"]))
    text = print_op(module)
    assert "simt.mma" in text
    assert print_op(parse(text)) == text


def test_operands_must_fit_the_atom() -> None:
    def error(change: dict[str, object], match: str) -> None:
        kernel = program(ATOMS["m16n8k16_f32_bf16"])
        op = kernel.body.first
        assert isinstance(op, simt.Mma)
        op.attributes.update(change)
        with pytest.raises(IRError, match=match):
            op.verify()

    error({"atom": "none"}, "unknown atom")
    error({"atom": "m16n8k16_f32_f16"}, "has elements of bfloat16")
    error({"d_slots": ()}, "has slots")
    error({"d_indices": (0,)}, "1 indices")


def test_touched_elements_are_those_of_all_threads() -> None:
    op = program(ATOMS["m16n8k16_f32_bf16"]).body.first
    assert isinstance(op, simt.Mma)
    d, a, b = op.touched()
    assert [x.writes for x in (d, a, b)] == [True, False, False]
    assert len(d.points) == 3 and len(a.points) == 4 and len(b.points) == 3


def test_layouts_are_checked() -> None:
    result = FragmentLayout.of("n1 n2 m0 m1 m2", "n0 m3")
    factor = FragmentLayout.of("k1 k2 m0 m1 m2", "k0 m3 k3")
    twice = FragmentLayout.of("k1 k2 n0 n1 n2", "k0 k0")
    few = FragmentLayout.of("k1 k2 n0 n1", "n2 k0 k3")
    for right, match in ((twice, "are not those of axes nk"), (few, "4 bits for 32 threads")):
        with pytest.raises(ValueError, match=match):
            MatrixAtom("wrong", 16, 8, 16, bf16, bf16, f32, 32, factor, right, result)


def test_threads_get_more_neighbours_by_an_exchange_of_one_bit() -> None:
    mma = ATOMS["m16n8k16_f32_bf16"].result.widened("n")
    assert mma == FragmentLayout.of("n3 n2 m0 m1 m2", "n0 n1 m3") and mma.extent("n") == 16
    wgmma = ATOMS["wgmma_m64n64k16_f32_bf16"].result.widened("n")
    assert wgmma == FragmentLayout.of("n3 n2 m0 m1 m2 m4 m5", "n0 n1 m3 n4 n5")
    assert ATOMS["m16n8k16_f32_bf16"].result.widened("m") is None
    assert ATOMS["wmma_f32_16x16x16_f16_w32"].result.widened("n") is None


def test_copies_in_several_threads_are_a_run_without_an_axis() -> None:
    layout = FragmentLayout.of("m0 m1 - m2", "k0 k1")
    assert [(r.axis, r.place, r.extent) for r in layout.lane_runs] == [("m", 0, 4), ("", 2, 2), ("m", 3, 2)]
    assert layout.pieces("m") == [4, 2] and layout.extent("m") == 8
    lanes = np.arange(16)
    rows = layout.element("m", lanes, 0)
    np.testing.assert_array_equal(rows, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7])

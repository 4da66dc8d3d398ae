"""Attention by matrix instructions: the layouts of all devices in the interpreter, the text for NVIDIA in the
simulator's checked mode, and machine code.

Weights are rounded to the 16-bit type of the queries, and results are, which the tolerances allow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import SMALL, Program, count, spaces
from tests.targets.gpu.test_rule_of_chains import PROGRAMS, attention, causal

import tilewright as tw
from tilewright.dialects import loop, simt
from tilewright.ir.matrix_atom import MFMA, MMA_SYNC, SIMDGROUP, WMMA
from tilewright.ir.target_info import Gpu
from tilewright.schedule.kernel_schedule import pin
from tilewright.targets.cuda import toolchain

BF16 = ml_dtypes.bfloat16
NVIDIA = replace(SMALL, atoms=tuple(MMA_SYNC.values()), async_copies=True)
DEVICES: dict[str, tuple[Gpu, str]] = {
    "mma.sync": (NVIDIA, "registers"),
    "mfma": (replace(SMALL, atoms=tuple(MFMA.values()), warp=64), "registers"),
    "wmma": (replace(SMALL, atoms=tuple(WMMA.values())), "shared"),
    "simdgroup": (replace(SMALL, atoms=tuple(SIMDGROUP.values())), "registers"),
}
"""Devices, and where the exponentials lie between the two products: RDNA3's factors are in both halves of a
warp, its results in one.
"""


def half(inputs: Any) -> list[Any]:
    """Inputs with their numbers of 32 bits rounded to 16."""
    return [x.astype(BF16) if x.dtype == np.float32 else x for x in inputs]


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(BF16) for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_of_all_devices(device: str) -> None:
    """Rows, columns and elements of a head that are no multiples of an atom's sizes."""
    gpu, place = DEVICES[device]
    inputs = drawn(0, (1, 1, 21, 20), (1, 1, 21, 20), (1, 1, 21, 24))
    program = Program(causal, inputs, gpu=gpu, schedules=[pin("attention*", columns=16, rows=32)])
    program.check(*inputs, rtol=2e-2, atol=2e-2)
    (kernel,) = program.kernels
    assert count(kernel, simt.Mma) == 2
    assert count(kernel, simt.AllReduce) == 2
    shared = spaces(kernel).count("shared")
    assert shared == (3 if place == "registers" else 4)  # queries, keys, values


def test_only_tiles_of_the_data_are_shared() -> None:
    (kernel,) = Program(
        causal, drawn(0, *[(1, 1, 256, 128)] * 3), gpu=replace(NVIDIA, shared_bytes=100 << 10)
    ).kernels
    shared = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc) and op.buffer.space == "shared"]
    assert sorted(len(b.shape) for b in shared) == [2, 3, 3]  # queries once, keys and values in two stages
    assert all(b.dtype.bits == 16 for b in shared)
    assert count(kernel, simt.Barrier) == 2


def test_weights_are_rounded_for_matrix_instructions_only() -> None:
    inputs = drawn(0, *[(1, 1, 9, 16)] * 3)
    for gpu, types in ((SMALL, {"bf16", "f32"}), (NVIDIA, {"bf16"})):
        program = Program(attention, inputs, gpu=gpu)
        assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]
        (kernel,) = program.kernels
        shared = {
            op.buffer.dtype.name
            for op in kernel.walk()
            if isinstance(op, loop.Alloc) and op.buffer.space == "shared"
        }
        assert shared == types


@pytest.mark.parametrize(
    "name", ["boolean mask", "grouped queries", "tiles of grouped queries", "sinks", "epilogue"]
)
def test_programs_in_the_simulator(name: str) -> None:
    function, given = PROGRAMS[name]
    inputs = half(given)
    library = tw.compile(function, tuple(inputs), target="cuda:sm_80")
    assert "tw_mma_m16n8k16_f32_bf16(" in library.ir("cuda")
    (wanted,) = Program(function, inputs).wanted(*inputs)
    found = np.asarray(library.simulated(checked=True)(*inputs)).astype(np.float32)
    np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=3e-2, atol=2e-2)


def test_lengths_at_run_time() -> None:
    inputs = [x.astype(np.float16) for x in drawn(0, *[(1, 2, 9, 16)] * 3)]
    library = tw.compile(causal, tuple(inputs), target="cuda:sm_80", dims={n: {2: "n"} for n in "qkv"})
    assert "tw_mma_m16n8k16_f32_f16(" in library.ir("cuda")
    run = library.simulated(checked=True)
    for n in (1, 70):
        x = [a.astype(np.float16) for a in drawn(n, *[(1, 2, n, 16)] * 3)]
        wide = [a.astype(np.float64) for a in x]
        scores = wide[0] @ wide[1].swapaxes(2, 3) / 4
        scores = np.where(np.tri(n, n, dtype=bool), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
        wanted = (e / np.maximum(e.sum(-1, keepdims=True), 1e-30)) @ wide[2]
        np.testing.assert_allclose(np.asarray(run(*x)).astype(np.float64), wanted, atol=5e-3)


@pytest.mark.skipif(toolchain.missing() is not None, reason="NVIDIA's compilers are not installed")
def test_machine_code() -> None:
    """The kernel has matrix instructions, asynchronous copies and no spills."""
    inputs = drawn(0, *[(1, 2, 128, 64)] * 3)
    text = tw.compile(attention, tuple(inputs), target="cuda:sm_80").ir("sass")
    assert "HMMA.16816.F32.BF16" in text
    assert "LDGSTS" in text and "LDSM" in text
    assert "STL" not in text

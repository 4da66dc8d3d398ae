"""Attention by cooperative matrices: in the interpreter, in SPIR-V, and on a device with emulated matrices.

Weights are rounded to float16, as are results, which the tolerances allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.devices import need
from tests.targets.gpu.simulated import SMALL, Program
from tests.targets.gpu.test_rule_of_chains import PROGRAMS, attention, causal
from tests.targets.vulkan.emulated_matrices import emulated
from tests.targets.vulkan.test_cooperative_matrices import compiles_matrices

import tilewright as tw
from tilewright.analysis.matrices import held_in, matrix_move, moves_matrices
from tilewright.dialects import loop, simt
from tilewright.ir.target_info import Gpu
from tilewright.runtime.model import CompiledModel
from tilewright.schedule.kernel_schedule import pin
from tilewright.targets.gpu.writer import threads_of
from tilewright.targets.vulkan.devices import DEVICES

__all__ = ["compiles_matrices"]

ATOMS = {
    "vulkan:cooperative_matrix": "cooperative_16x16x16_f16",
    "vulkan:lavapipe": "cooperative_8x8x8_f16",
}
"""Targets, and their matrices of float16."""
CLOSE = {"rtol": 1e-2, "atol": 2e-3}


def small(target: str) -> Gpu:
    """The target's device with so few multiprocessors that small kernels fill it."""
    return replace(DEVICES[target], multiprocessors=SMALL.multiprocessors)


def half(name: str) -> tuple[Callable[..., Any], list[Any]]:
    """A program and its inputs, with their numbers of 32 bits rounded to 16."""
    function, given = PROGRAMS[name]
    return function, [x.astype(np.float16) if x.dtype == np.float32 else x for x in given]


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float16) for shape in shapes]


def softmax_of_scores(q: Any, k: Any, v: Any, *, hides_later: bool) -> Any:
    """Attention in float64, independent of the compiler's definitions."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if hides_later:
        scores = np.where(np.tri(q.shape[2], k.shape[2], dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ATOMS)
def test_the_interpreter_runs_the_same_loops(target: str, name: str) -> None:
    function, inputs = half(name)
    program = Program(function, inputs, gpu=small(target))
    assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]
    (kernel,) = program.kernels
    products = [op for op in kernel.walk() if isinstance(op, simt.Mma)]
    assert [op.description.name for op in products] == [ATOMS[target]] * 2
    nests = [f for f in kernel.walk() if isinstance(f, loop.For) and f.kind == "thread.x"]
    moves = [matrix_move(f, threads_of(kernel)) for f in nests if moves_matrices(f)]
    assert None not in moves
    operands = sorted(held_in(m.buffer).operand for m in moves)  # type: ignore[union-attr]
    assert operands == ["a", "a", "b", "b", "d", "d", "d", "d"]
    program.check(*inputs, **CLOSE)


def test_queries_and_weighted_values_stay_in_registers() -> None:
    (kernel,) = Program(causal, drawn(0, *[(1, 8, 512, 64)] * 3), gpu=DEVICES["vulkan:nvidia"]).kernels
    (tiles,) = [op for op in kernel.walk() if isinstance(op, loop.For) and "roll" in op.iv.name]
    threads = threads_of(kernel)
    nests = [f for f in tiles.walk() if isinstance(f, loop.For) and f.kind == "thread.x"]
    moves = [m for f in nests if moves_matrices(f) and (m := matrix_move(f, threads)) is not None]
    from_memory = [held_in(m.buffer) for m in moves if m.loads and m.memory is not None]
    assert sorted(held.operand for held in from_memory if held) == [
        "a",
        "b",
        "b",
    ]  # exponentials, keys, values
    rows = 32
    kept = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc) and op not in set(tiles.walk())]
    assert [b.shape for b in kept if b.size == rows * 64 and b.dtype.bits == 32] == [(threads, 16)]
    assert sum(b.space == "shared" for b in kept) == 1  # queries, on their way to registers


def test_heads_that_do_not_fit_use_ordinary_instructions() -> None:
    inputs = drawn(0, *[(1, 1, 20, 256)] * 3)
    program = Program(attention, inputs, gpu=small("vulkan:nvidia"))
    assert [info.kind for info in program.lowered.kernels.values()] == ["chain"]
    (kernel,) = program.kernels
    assert not any(isinstance(op, simt.Mma) for op in kernel.walk())


@pytest.mark.parametrize(("rows", "columns", "warps"), [(16, 32, 1), (32, 16, 2), (32, 32, 4)])
def test_knobs(rows: int, columns: int, warps: int) -> None:
    inputs = drawn(0, *[(1, 1, 37, 32)] * 3)
    choices = pin("attention*", rows=rows, columns=columns, warps=warps)
    program = Program(causal, inputs, gpu=small("vulkan:cooperative_matrix"), schedules=[choices])
    (kernel,) = program.kernels
    assert threads_of(kernel) == 32 * warps
    program.check(*inputs, **CLOSE)


@pytest.mark.usefixtures("compiles_matrices")
@pytest.mark.parametrize("target", ["vulkan:cooperative_matrix", "vulkan:nvidia", "vulkan:lavapipe"])
def test_spirv_has_the_instructions(target: str) -> None:
    text = tw.compile(causal, tuple(drawn(0, *[(1, 2, 64, 64)] * 3)), target=target, cache=False).ir("spirv")
    assert text.count("OpCooperativeMatrixMulAddKHR") == 2
    assert text.count("OpCooperativeMatrixLoadKHR") == 4 and text.count("OpCooperativeMatrixStoreKHR") == 2


def compiled(function: Callable[..., Any], inputs: Any, target: str, **options: Any) -> CompiledModel:
    library = tw.compile(function, tuple(inputs), target=target, cache=False, **options)
    assert library.ir("glsl").count("= tw_matrix_multiply_add(") == 2
    return library


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ATOMS)
def test_kernels_run_with_emulated_matrices(target: str, name: str) -> None:
    need("vulkan")
    function, inputs = half(name)
    (wanted,) = Program(function, inputs).wanted(*inputs)
    with emulated(ATOMS[target]):
        found = np.asarray(compiled(function, inputs, target)(*inputs))
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), **CLOSE)


def test_lengths_at_run_time() -> None:
    need("vulkan")
    target = "vulkan:cooperative_matrix"
    with emulated(ATOMS[target]):
        library = compiled(causal, drawn(0, *[(1, 2, 9, 24)] * 3), target, dims={n: {2: "n"} for n in "qkv"})
        for n in (1, 16, 70):
            inputs = drawn(n, *[(1, 2, n, 24)] * 3)
            found = np.asarray(library(*inputs)).astype(np.float64)
            np.testing.assert_allclose(found, softmax_of_scores(*inputs, hides_later=True), **CLOSE)


@pytest.mark.parametrize(("size", "values"), [(64, 64), (128, 128), (40, 80)])
def test_heads_of_models(size: int, values: int) -> None:
    need("vulkan")
    inputs = drawn(size, (1, 2, 70, size), (1, 2, 90, size), (1, 2, 90, values))
    with emulated(ATOMS["vulkan:cooperative_matrix"]):
        found = np.asarray(compiled(attention, inputs, "vulkan:cooperative_matrix")(*inputs))
    wanted = softmax_of_scores(*inputs, hides_later=False)
    np.testing.assert_allclose(found.astype(np.float64), wanted, **CLOSE)

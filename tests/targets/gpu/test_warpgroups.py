"""Products by instructions of warpgroups (wgmma): bit for bit as the instruction is defined, in the checked
simulator, in the interpreter, and in machine code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.simulator import matrix_reference as reference
from tests.runtime.simulator.matrix_reference import BF16, F16, F32, TF32, Format
from tests.targets.gpu.simulated import SMALL, Program

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import loop, simt
from tilewright.ir.matrix_atom import WGMMA
from tilewright.runtime.model import CompiledModel
from tilewright.targets.cuda import toolchain

FORMATS: dict[str, tuple[Any, Format]] = {"bf16": (ml_dtypes.bfloat16, BF16), "f16": (np.float16, F16)}
GROUPS = replace(
    SMALL, shared_atoms=tuple(WGMMA.values()), max_threads=256, shared_bytes=1 << 17, async_copies=True
)


def normal(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def compiled(function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> CompiledModel:
    """The library for a device with warpgroups; it must use their instructions."""
    library = tw.compile(function, inputs, target="cuda:sm_90", **options)
    assert "tw_mma_wgmma_" in library.ir("cuda")
    return library


def check(library: CompiledModel, wanted: np.ndarray, *inputs: np.ndarray) -> None:
    """Compare a run in the simulator's checked mode, to the rounding of a result of 16 bits."""
    found = np.asarray(library.simulated(checked=True)(*inputs)).astype(np.float64)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=1e-2)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "transposed"), [("bf16", "nn"), ("f16", "nt"), ("f16", "tn"), ("bf16", "tt")]
)
def test_results_have_the_bits_of_the_instruction(name: str, transposed: str) -> None:
    """Float32 inputs are rounded while they are copied, so that results are the sums themselves."""
    dtype, form = FORMATS[name]
    x, y = normal(np.float32, 70, 72), normal(np.float32, 72, 66, seed=1)
    left, right = (t == "t" for t in transposed)
    library = compiled(
        lambda x, y: (x.T if left else x) @ (y.T if right else y),
        *(inputs := (x.T.copy() if left else x, y.T.copy() if right else y)),
        precision=name,
    )
    assert len(library.kernels) == 1
    found = np.asarray(library.simulated(checked=True)(*inputs))
    a, b = (np.zeros(shape, dtype) for shape in ((70, 80), (80, 66)))
    a[:, :72], b[:72] = x.astype(dtype), y.astype(dtype)
    sums = np.zeros((70, 66), np.uint32)
    for k in range(0, 80, 16):
        sums = reference.tensor_core(
            a[:, k : k + 16].view(np.uint16), b[k : k + 16].view(np.uint16), sums, form, F32, 90
        )
    np.testing.assert_array_equal(found.view(np.uint32), sums.astype(np.uint32))


def test_bytes_whose_terms_are_neighbours() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((70, 100), (65, 100)))
    library = compiled(lambda x, y: x.astype(np.int32) @ y.T.astype(np.int32), x, y)
    found = library.simulated(checked=True)(x, y)
    np.testing.assert_array_equal(found, x.astype(np.int32) @ y.T.astype(np.int32))


def test_float32_has_the_bits_of_the_instruction_where_tf32_is_asked_for() -> None:
    """The low bits of factors do not count."""
    x, y = normal(np.float32, 70, 40), normal(np.float32, 66, 40, seed=1)
    library = compiled(lambda x, y: x @ y.T, x, y, precision="tf32")
    assert "_f32_tf32_n_n(" in library.ir("cuda")
    found = np.asarray(library.simulated(checked=True)(x, y))
    sums = np.zeros((70, 66), np.uint32)
    for k in range(0, 40, 8):
        part = slice(k, k + 8)
        a, b = np.ascontiguousarray(x[:, part]), np.ascontiguousarray(y[:, part].T)
        sums = reference.tensor_core(a.view(np.uint32), b.view(np.uint32), sums, TF32, F32, 90)
    np.testing.assert_array_equal(found.view(np.uint32), sums.astype(np.uint32))


def test_other_bytes_use_instructions_of_warps() -> None:
    x = np.ones((64, 64), np.int8)
    text = tw.compile(lambda x: x.astype(np.int32) @ x.astype(np.int32), (x,), target="cuda:sm_90").ir("cuda")
    assert "tw_mma_m16n8k32_i32_i8" in text and "wgmma" not in text


def test_small_products_use_instructions_of_warps() -> None:
    x = normal(ml_dtypes.bfloat16, 32, 64)
    text = tw.compile(lambda x: x @ x.T, (x,), target="cuda:sm_90").ir("cuda")
    assert "tw_mma_m16n8k16" in text and "wgmma" not in text


@pytest.mark.parametrize("shape", [(65, 40, 70), (64, 8, 64), (130, 333, 65)])
def test_ragged_edges(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, y = normal(ml_dtypes.bfloat16, m, k), normal(ml_dtypes.bfloat16, k, n, seed=1)
    check(compiled(lambda x, y: tnp.maximum(x @ y, 0), x, y), np.maximum(wide(x) @ wide(y), 0), x, y)


def test_batches_and_activations_of_factors() -> None:
    x, y = normal(np.float16, 2, 64, 72), normal(np.float16, 2, 72, 64, seed=1)
    library = compiled(lambda x, y: tnp.matmul(tnp.maximum(x, 0), y), x, y)
    assert len(library.kernels) == 1
    check(library, np.maximum(wide(x), 0) @ wide(y), x, y)


@pytest.mark.parametrize("transposed", [False, True])
def test_dequantized_weights(transposed: bool) -> None:
    """A thread computes 16 numbers at once, which are two parts of a line."""
    x, scale = normal(np.float16, 64, 64), normal(np.float32, 64, seed=1)
    q = np.random.default_rng(2).integers(-128, 128, (64, 64)).astype(np.int8)

    def function(x: Any, q: Any, s: Any) -> Any:
        weight = (q.astype(np.float32) * s).astype(np.float16)
        return x @ (weight.T if transposed else weight)

    library = compiled(function, x, q, scale)
    assert len(library.kernels) == 1
    weight = wide((q.astype(np.float32) * scale).astype(np.float16))
    check(library, wide(x) @ (weight.T if transposed else weight), x, q, scale)


def test_sizes_that_are_known_at_run_time() -> None:
    weight = normal(ml_dtypes.bfloat16, 72, 130, seed=1)
    library = compiled(
        lambda x: x @ tw.Tensor(weight), normal(ml_dtypes.bfloat16, 5, 72), dims={"x": {0: "rows"}}
    )
    for rows in (1, 130):
        x = normal(ml_dtypes.bfloat16, rows, 72, seed=rows)
        check(library, wide(x) @ wide(weight), x)


@pytest.mark.parametrize(
    "choices",
    [
        {"rows_of_tile": 128, "warps_of_rows": 2, "parts_of_step": 2},
        {"rows_of_tile": 128, "columns_of_tile": 128, "warps_of_columns": 2, "stages": 1},
        {"rows_of_tile": 64, "columns_of_tile": 128, "warps_of_columns": 1, "parts_of_step": 8, "stages": 2},
        {"rows_of_tile": 64, "columns_of_tile": 64, "parts_of_step": 1, "stages": 5},
    ],
)
def test_tiles_and_warpgroups_are_choices(choices: dict[str, int]) -> None:
    x, y = normal(np.float16, 130, 140), normal(np.float16, 140, 136, seed=1)
    library = compiled(lambda x, y: x @ y, x, y, schedules=[tw.pin("matmul", **choices)])
    assert all(c.value == choices[c.name] for c in library.kernels["matmul"].choices if c.name in choices)
    check(library, wide(x) @ wide(y), x, y)


def test_the_interpreter_runs_the_same_loops() -> None:
    inputs = normal(np.float16, 66, 40), normal(np.float16, 40, 68, seed=1)
    program = Program(tnp.matmul, inputs, gpu=GROUPS)
    (kernel,) = program.kernels
    atoms = [op for op in kernel.walk() if isinstance(op, simt.Mma)]
    assert atoms and all(op.description.shared for op in atoms)
    tiles = [op.buffer for op in kernel.walk() if isinstance(op, loop.Alloc) and op.buffer.space == "shared"]
    assert all(tile.shape[-1] == 64 for tile in tiles) and len(tiles) == 2
    program.check(*inputs, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(toolchain.missing() is not None, reason="NVIDIA's compilers are not installed")
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_machine_code(columns: int) -> None:
    x = np.zeros((4096, 4096), ml_dtypes.bfloat16)
    pinned = tw.pin("matmul", columns_of_tile=columns) if columns == 256 else None
    y = np.zeros((4096, columns if columns == 64 else 4096), ml_dtypes.bfloat16)
    library = compiled(lambda x, y: x @ y, x, y, schedules=[pinned] if pinned else [])
    text = library.ir("sass")
    assert "HGMMA" in text and "LDGSTS.E.BYPASS.128" in text
    assert not re.search(r"\b(LDL|STL)\b", text)
    assert "ptx" not in {image.kind for image in toolchain.device_code(library.ir("cuda"), ["sm_90"]).images}


@pytest.mark.skipif(toolchain.missing() is not None, reason="NVIDIA's compilers are not installed")
@pytest.mark.parametrize(("name", "instruction"), [("int8", "IGMMA"), ("float32", "HGMMA.*TF32")])
def test_machine_code_of_neighbouring_terms(name: str, instruction: str) -> None:
    x = np.zeros((4096, 4096), name)
    kind = {"int8": np.int32}.get(name, np.float32)
    library = compiled(
        lambda x: x.astype(kind) @ x.T.astype(kind), x, precision="tf32" if name == "float32" else None
    )
    text = library.ir("sass")
    assert re.search(instruction, text) and not re.search(r"\b(LDL|STL)\b", text)

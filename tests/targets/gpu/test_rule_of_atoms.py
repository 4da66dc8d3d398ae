"""Contractions by matrix instructions: the interpreter, the simulator in checked mode, and machine code.

Factors are rounded to their 16-bit type, and products are summed in float32. Results are compared with a
product in float64 of the rounded factors; a result of 16 bits is rounded once, which the tolerances allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.targets.gpu.simulated import SMALL, Program

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.dialects import loop, simt
from tilewright.errors import CompileError
from tilewright.ir.matrix_atom import MMA_SYNC
from tilewright.runtime.model import CompiledModel
from tilewright.targets.cuda import toolchain
from tilewright.targets.gpu.rules import atoms
from tilewright.targets.gpu.rules.atoms import split_by_layout

BF16 = ml_dtypes.bfloat16
TOLERANCE = {np.dtype(BF16): 1e-2, np.dtype(np.float16): 2e-3, np.dtype(np.float64): 1e-13}
WITH_ATOMS = replace(SMALL, atoms=tuple(MMA_SYNC.values()))


def normal(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def compiled(function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> CompiledModel:
    """The library for CUDA; it must use a matrix instruction."""
    library = tw.compile(function, inputs, target="cuda:sm_80", **options)
    assert "tw_mma_" in library.ir("cuda")
    return library


def check(library: CompiledModel, wanted: np.ndarray, *inputs: np.ndarray) -> None:
    """Run a library in the simulator's checked mode."""
    result = np.asarray(library.simulated(checked=True)(*inputs))
    tolerance = TOLERANCE.get(result.dtype, 0)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(result.astype(np.float64) / scale, wanted / scale, rtol=0, atol=tolerance)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def test_scheduled_products_equal_their_definition() -> None:
    program = Program(
        lambda x, y: tnp.maximum(tnp.matmul(x, y), 0),
        (normal(BF16, 20, 35), normal(BF16, 35, 18)),
        gpu=WITH_ATOMS,
    )
    program.check(normal(BF16, 20, 35, seed=1), normal(BF16, 35, 18, seed=2), rtol=1e-2, atol=1e-2)
    (kernel,) = program.kernels
    ops = list(kernel.walk())
    assert any(isinstance(op, simt.Mma) for op in ops)
    # The result and the parts of both factors lie in registers, the tiles in shared memory.
    spaces = sorted(op.buffer.space for op in ops if isinstance(op, loop.Alloc))
    assert spaces == ["register"] * 3 + ["shared"] * 2
    assert sum(isinstance(op, simt.Barrier) for op in ops) == 2


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float64])
def test_products_with_ragged_edges(dtype: Any) -> None:
    x, y = normal(dtype, 70, 41), normal(dtype, 41, 45, seed=1)
    library = compiled(lambda x, y: tnp.maximum(x @ y, 0), x, y)
    check(library, np.maximum(wide(x) @ wide(y), 0), x, y)


@pytest.mark.parametrize(("terms", "columns", "size"), [(36, 44, 8), (34, 46, 4), (40, 45, 16)])
def test_lines_that_are_no_multiple_of_16_bytes(terms: int, columns: int, size: int) -> None:
    x, y = normal(BF16, 20, terms), normal(BF16, terms, columns, seed=1)
    library = compiled(lambda x, y: x @ y, x, y)
    assert f"tw_copy_async_{size}(" in library.ir("cuda")
    check(library, wide(x) @ wide(y), x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_bytes_are_exact(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    low = -128 if dtype is np.int8 else 0
    x, y = (rng.integers(low, low + 256, shape).astype(dtype) for shape in ((33, 70), (70, 40)))
    library = compiled(lambda x, y: x.astype(np.int32) @ y.astype(np.int32), x, y)
    check(library, wide(x) @ wide(y), x, y)


@pytest.mark.parametrize("transposed", ["none", "left", "right", "both"])
def test_batched_products_of_transposed_factors(transposed: str) -> None:
    left, right = transposed in ("left", "both"), transposed in ("right", "both")
    x = normal(BF16, 2, 24, 40) if left else normal(BF16, 2, 40, 24)
    y = normal(BF16, 2, 40, 24, seed=1) if right else normal(BF16, 2, 24, 40, seed=1)

    def product(x: Any, y: Any) -> Any:
        a = tnp.swapaxes(x, 1, 2) if left else x
        return tnp.matmul(a, tnp.swapaxes(y, 1, 2) if right else y)

    a, b = wide(x).swapaxes(1, 2) if left else wide(x), wide(y).swapaxes(1, 2) if right else wide(y)
    check(compiled(product, x, y), a @ b, x, y)


def test_sizes_that_are_known_at_run_time() -> None:
    weight = normal(BF16, 24, 50, seed=1)
    library = compiled(
        lambda x: tnp.tanh(x @ tw.Tensor(weight)), normal(BF16, 5, 24), dims={"x": {0: "rows"}}
    )
    for rows in (1, 16, 67, 130):
        x = normal(BF16, rows, 24, seed=rows)
        check(library, np.tanh(wide(x) @ wide(weight)), x)


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_are_implicit_products(channels_last: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = torch.nn.Conv2d(8, 20, 3, stride=2, padding=1).to(torch.bfloat16, memory_format=form).eval()
    x = torch.randn(2, 8, 9, 11, dtype=torch.bfloat16).to(memory_format=form)
    with torch.no_grad():
        wanted = torch.relu(model.double()(x.double())).numpy()
        library = compiled(torch.nn.Sequential(model.to(torch.bfloat16), torch.nn.ReLU()), x)
    result = library.simulated(checked=True)(x).double().detach().numpy()
    np.testing.assert_allclose(result, wanted, atol=1e-2 * np.abs(wanted).max())


def test_ordinary_instructions_are_a_choice() -> None:
    x, y = normal(BF16, 32, 32), normal(BF16, 32, 32, seed=1)
    library = tw.compile(
        lambda x, y: x @ y, (x, y), target="cuda:sm_80", schedules=[tw.pin("matmul", atom="none")]
    )
    assert "tw_mma_" not in library.ir("cuda")
    check(library, wide(x) @ wide(y), x, y)


def test_float32_is_not_rounded_unasked() -> None:
    x = normal(np.float32, 32, 32)
    assert "tw_mma_" not in tw.compile(lambda x: x @ x, (x,), target="cuda:sm_80").ir("cuda")


@pytest.mark.parametrize("transposed", [False, True])
def test_float32_is_rounded_to_tf32_where_asked_for(transposed: bool) -> None:
    x, y = normal(np.float32, 40, 37), normal(np.float32, 37, 24, seed=1)
    other = np.ascontiguousarray(y.T) if transposed else y
    library = compiled(lambda x, y: x @ (y.T if transposed else y), x, other, precision="tf32")
    assert library.metadata["target"]["rounds_to"] == ["tf32"]
    result = np.asarray(library.simulated(checked=True)(x, other))
    # The instruction rounds factors to 10 bits behind the point, to the nearest number, ties away from zero.
    exact = np.sum([_tf32(x)[:, k, None] * _tf32(y)[None, k] for k in range(37)], 0)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
    assert np.abs(result - wide(x) @ wide(y)).max() > 1e-4


def _tf32(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def test_other_targets_refuse_tf32() -> None:
    x = normal(np.float32, 8, 8)
    with pytest.raises(CompileError, match="does not compute in tf32"):
        tw.compile(lambda x: x @ x, (x,), target="cpu", precision="tf32")


@pytest.mark.parametrize(
    "choices",
    [
        {"rows_of_tile": 16, "columns_of_tile": 32, "warps_of_columns": 4},
        {"rows_of_tile": 64, "columns_of_tile": 16, "warps_of_rows": 4, "warps_of_columns": 1},
        {"rows_of_tile": 32, "columns_of_tile": 64, "parts_of_step": 1},
    ],
)
def test_tiles_and_warps_are_choices(choices: dict[str, int]) -> None:
    x, y = normal(BF16, 50, 40), normal(BF16, 40, 60, seed=1)
    library = compiled(lambda x, y: x @ y, x, y, schedules=[tw.pin("matmul", **choices)])
    assert all(c.value == choices[c.name] for c in library.kernels["matmul"].choices if c.name in choices)
    check(library, wide(x) @ wide(y), x, y)


@pytest.mark.skipif(toolchain.missing() is not None, reason="NVIDIA's compilers are not installed")
@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [
        (BF16, "HMMA.16816.F32.BF16"),
        (np.float16, "HMMA.16816.F32"),
        (np.int8, "IMMA.16832.S8.S8"),
        (np.float64, "DMMA.884"),
    ],
)
def test_machine_code_has_matrix_instructions_and_no_spills(dtype: Any, instruction: str) -> None:
    x = np.zeros((256, 256), dtype)
    result = np.int32 if dtype is np.int8 else dtype
    library = compiled(lambda x, y: x.astype(result) @ y.astype(result), x, x)
    text = library.ir("sass")
    assert instruction in text
    assert not re.search(r"\b(LDL|STL)\b", text)
    # Tiles come in 16 bytes at a time, asynchronously; parts of 16-bit factors leave them as matrices.
    assert "LDGSTS.E.BYPASS.128" in text
    if x.itemsize == 2:
        assert "LDSM.16.M88.4" in text and "LDSM.16.MT88.4" in text and "LDS.U16" not in text


def test_nests_of_another_form_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that gives threads other elements of the result than the atom gets no wrong kernel."""

    def turned(*args: Any) -> tuple[list[str], list[str]]:
        lanes, slots = split_by_layout(*args)
        return lanes[::-1], slots

    monkeypatch.setattr(atoms, "split_by_layout", turned)
    x, y = normal(BF16, 32, 32), normal(BF16, 32, 32, seed=1)
    library = tw.compile(lambda x, y: x @ y, (x, y), target="cuda:sm_80", cache=False)
    assert "tw_mma_" not in library.ir("cuda")
    check(library, wide(x) @ wide(y), x, y)

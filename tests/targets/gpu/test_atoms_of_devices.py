"""Products by matrix instructions of AMD's and Apple's GPUs: checked simulation, and AMD's machine code.

Results are compared with a product in float64 of the same factors; those of 16 bits are rounded once.
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
from tilewright.dialects import simt
from tilewright.ir.matrix_atom import ATOMS, MFMA, SIMDGROUP, WMMA
from tilewright.ir.types import bf16, f32
from tilewright.runtime.model import CompiledModel
from tilewright.targets.hip import toolchain

BF16 = ml_dtypes.bfloat16
TOLERANCE = {np.dtype(BF16): 4e-3, np.dtype(np.float16): 5e-4, np.dtype(np.float32): 1e-6}
OTHERS = (*MFMA.values(), *WMMA.values(), *SIMDGROUP.values())
ROWS, DEPTH, COLUMNS = 70, 41, 45


def factors(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (ROWS, DEPTH), (DEPTH, COLUMNS)
    if np.dtype(dtype).itemsize == 1:
        limits = np.iinfo(dtype)
        x, y = (rng.integers(limits.min, limits.max, s, dtype, endpoint=True) for s in shapes)
    else:
        x, y = (rng.normal(size=s).astype(dtype) for s in shapes)
    return x, y


def product(dtype: Any) -> Callable[[Any, Any], Any]:
    """The product with an epilogue."""
    if np.dtype(dtype).itemsize == 1:
        return lambda x, y: tnp.maximum(x.astype(np.int32) @ y.astype(np.int32), -5)
    return lambda x, y: tnp.maximum(x @ y, 0)


def check(library: CompiledModel, dtype: Any, checked: bool = True) -> None:
    x, y = factors(dtype)
    result = np.asarray(library.simulated(checked=checked)(x, y))
    low = -5 if np.dtype(dtype).itemsize == 1 else 0
    wanted = np.maximum(x.astype(np.float64) @ y.astype(np.float64), low)
    tolerance = TOLERANCE.get(np.dtype(dtype), 1e-15)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(result.astype(np.float64) / scale, wanted / scale, rtol=0, atol=tolerance)


CASES = [
    ("hip:gfx90a", BF16, "mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16bf16_1k"),
    ("hip:gfx90a", np.int8, "mfma_i32_16x16x16_i8", "v_mfma_i32_16x16x16i8"),
    ("hip:gfx942", np.float16, "mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_f16"),
    ("hip:gfx942", np.float32, "mfma_f32_16x16x4_f32", "v_mfma_f32_16x16x4_f32"),
    ("hip:gfx942", np.float64, "mfma_f64_16x16x4_f64", "v_mfma_f64_16x16x4_f64"),
    ("hip:gfx942", np.int8, "mfma_i32_16x16x32_i8", "v_mfma_i32_16x16x32_i8"),
    ("hip:gfx942", BF16, "mfma_f32_32x32x8_bf16", "v_mfma_f32_32x32x8_bf16"),
    ("hip:gfx942", np.float32, "mfma_f32_32x32x2_f32", "v_mfma_f32_32x32x2_f32"),
    ("hip:gfx942", np.int8, "mfma_i32_32x32x16_i8", "v_mfma_i32_32x32x16_i8"),
    ("hip:gfx1100", BF16, "wmma_f32_16x16x16_bf16_w32", "v_wmma_f32_16x16x16_bf16"),
    ("hip:gfx1100", np.float16, "wmma_f32_16x16x16_f16_w32", "v_wmma_f32_16x16x16_f16"),
    ("hip:gfx1100", np.uint8, "wmma_i32_16x16x16_u8_w32", "v_wmma_i32_16x16x16_iu8"),
    ("metal", BF16, "simdgroup_8x8_bf16", ""),
    ("metal", np.float16, "simdgroup_8x8_f16", ""),
    ("metal", np.float32, "simdgroup_8x8_f32", ""),
]


@pytest.mark.parametrize(("target", "dtype", "atom", "instruction"), CASES)
def test_products(target: str, dtype: Any, atom: str, instruction: str) -> None:
    pins = [tw.pin("*", atom=atom)]
    library = tw.compile(product(dtype), factors(dtype), target=target, schedules=pins)
    assert f"tw_mma_{atom}(" in library.ir(target.partition(":")[0])
    check(library, dtype)
    if instruction and toolchain.missing() is None:
        text = library.ir("amdgcn")
        assert re.search(rf"\b{instruction}\b", text)
        assert re.search(r"private_segment_fixed_size: 0\b", text)


@pytest.mark.parametrize("target", ["hip:gfx90a", "hip:gfx942", "hip:gfx1100", "metal"])
def test_atoms_are_the_default(target: str) -> None:
    library = tw.compile(product(BF16), factors(BF16), target=target)
    assert "tw_mma_" in library.ir(target.partition(":")[0])


@pytest.mark.parametrize("name", [a.name for a in OTHERS if a.left_type in (bf16, f32)])
def test_scheduled_products_equal_their_definition(name: str) -> None:
    """The interpreter runs the block program with the atom."""
    atom = ATOMS[name]
    dtype = BF16 if atom.left_type is bf16 else np.float32
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(37, 35)).astype(dtype), rng.normal(size=(35, 33)).astype(dtype)
    program = Program(
        lambda x, y: tnp.maximum(tnp.matmul(x, y), 0),
        (x, y),
        gpu=replace(SMALL, warp=atom.threads, atoms=(atom,)),
    )
    assert any(isinstance(op, simt.Mma) for kernel in program.kernels for op in kernel.walk())
    program.check(x[::-1].copy(), y, rtol=1e-2, atol=1e-2)


def test_code_for_several_devices_uses_what_all_have() -> None:
    library = tw.compile(product(BF16), factors(BF16), target="hip")
    assert "tw_mma_mfma_f32_16x16x16_bf16(" in library.ir("hip")
    check(library, BF16, checked=False)
    assert "tw_mma_" not in tw.compile(product(np.int8), factors(np.int8), target="hip").ir("hip")


def test_simulated_devices_differ_as_the_hardware_does() -> None:
    """Where CDNA2 takes subnormal numbers for zeros, CDNA3 does not."""
    x = np.full((16, 16), 2.0**-130, BF16)
    y = np.full((16, 16), 64, BF16)
    results = {}
    for target in ("hip:gfx90a", "hip:gfx942"):
        library = tw.compile(lambda x, y: x @ y, (x, y), target=target)
        results[target] = np.asarray(library.simulated()(x, y)).astype(np.float64)
    assert not results["hip:gfx90a"].any()
    assert (results["hip:gfx942"] == 2.0**-120).all()

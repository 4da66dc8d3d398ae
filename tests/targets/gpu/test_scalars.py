"""Every scalar operation on every dtype in each language, executed, against the NumPy functions."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dialects import scalar
from tilewright.ir.types import DType, f32, i2, i4, i8, i16, i64, u2, u4, u8, u16

from .programs import DEVICES, check_module, device, elementwise, interpreted_operation
from .scalar_cases import CASES, SIZE, assert_near, tolerance, values


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("language", DEVICES)
def test_operations_compute_what_numpy_does(language: str, kind: str) -> None:
    programs = []
    there = device(language)
    for number, (name, operands, result, compute) in enumerate(CASES[kind]()):
        if i64 in (result, *operands) and not there.dialect.wide:
            continue  # 64-bit integers are narrowed.
        kernel = elementwise(operands, result, compute, SIZE, name)
        arrays = [values(t, 2 * number + k, name.partition("_")[0]) for k, t in enumerate(operands)]
        programs.append((kernel, [*arrays, np.zeros(SIZE, result.numpy)]))
    failures = []
    for (kernel, arrays), results in check_module(language, programs):
        wanted = interpreted_operation(kernel, arrays[:-1])
        name = kernel.sym_name
        try:
            assert_near(results[-1], wanted, tolerance(name, DType.of(wanted), there), name)
        except AssertionError as error:
            failures.append(str(error)[:300])
    assert not failures, "\n".join([f"{len(failures)} failures", *failures])


@pytest.mark.parametrize("language", DEVICES)
def test_all_narrow_integers_as_floats(language: str) -> None:
    """Every value of each integer type of up to 16 bits is exact in float32, and zero is positive."""
    programs = []
    for dtype in (i2, u2, i4, u4, i8, u8, i16, u16):
        low, high = dtype.limits
        numbers = np.arange(low, high + 1).astype(dtype.numpy)
        kernel = elementwise(
            [dtype], f32, lambda b, x: b(scalar.Cast(x, dtype=f32)), len(numbers), f"of_{dtype.name}"
        )
        programs.append((kernel, [numbers, np.zeros(len(numbers), np.float32)]))
    for (_, arrays), results in check_module(language, programs):
        wanted = arrays[0].astype(np.int32).astype(np.float32)
        np.testing.assert_array_equal(results[-1].view(np.int32), wanted.view(np.int32))

"""Floats of 8, 6 and 4 bits and integers of 4 and 2 bits in kernels: all codes, and many numbers, are
converted as by `ml_dtypes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects.scalar import cast_array
from tilewright.ir.core import IRError
from tilewright.ir.types import (
    FLOAT6,
    FLOAT8,
    DType,
    bf16,
    boolean,
    f4,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i32,
    i64,
    u2,
    u4,
    u8,
)
from tilewright.targets.cpu.isa import X86_64_V4
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel import print_kernel
from tilewright.targets.llvm.toolchain import assembly

from .jit import ISAS, WIDE
from .kernels import run_kernel
from .test_conversions import kernel_of

FLOATS = pytest.mark.parametrize("dtype", [*FLOAT8, *FLOAT6, f4], ids=str)
INTEGERS = pytest.mark.parametrize("dtype", [i4, u4, i2, u2], ids=str)


def codes(dtype: DType) -> np.ndarray[Any, Any]:
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


def numbers() -> np.ndarray[Any, Any]:
    """Return float32 numbers at, between and next to the midpoints of numbers of few bits, for every exponent
    and sign.
    """
    high = np.arange(1 << 13, dtype=np.uint32)[:, None] << 19
    low = np.asarray([0, 1, 0x3FFFF, 0x40000, 0x40001, 0x7FFFF], np.uint32)
    return (high | low).reshape(-1).view(np.float32)


@FLOATS
@ISAS
def test_every_code_is_read_and_kept(isa: Isa, dtype: DType) -> None:
    x = codes(dtype)
    kernel = kernel_of(dtype, x.shape, lambda v: v.cast(f32), lambda v: v, lambda v: v.cast(f16))
    wide, kept, half = run_kernel(kernel, isa, [x], {})[0]
    want = x.astype(np.float32)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(wide[is_number].view(np.uint32), want[is_number].view(np.uint32))
    assert np.isnan(wide[~is_number]).all()
    np.testing.assert_array_equal(kept[is_number].view(np.uint8), x[is_number].view(np.uint8))
    np.testing.assert_array_equal(half, cast_array(x, f16))


@FLOATS
@ISAS
def test_rounding_is_that_of_ml_dtypes(isa: Isa, dtype: DType) -> None:
    x = numbers()
    (got,), _ = run_kernel(kernel_of(f32, x.shape, lambda v: v.cast(dtype)), isa, [x], {})
    with np.errstate(all="ignore"):
        want = x.astype(dtype.numpy)
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(got[is_number].view(np.uint8), want[is_number].view(np.uint8))
    if dtype.bits < 8:  # The type has no NaN, which `ml_dtypes` converts to zero.
        assert (got[~is_number].astype(np.float32) == 0).all()
    else:
        assert np.isnan(got[~is_number].astype(np.float32)).all()


@pytest.mark.parametrize("source", [f64, f16, bf16, i32, u8], ids=str)
@FLOATS
def test_other_types_go_by_way_of_float32(source: DType, dtype: DType) -> None:
    x = np.arange(1, 250).astype(source.numpy)
    (got,), _ = run_kernel(kernel_of(source, x.shape, lambda v: v.cast(dtype)), WIDE, [x], {})
    np.testing.assert_array_equal(got.view(np.uint8), cast_array(x, dtype).view(np.uint8))


@FLOATS
def test_vectors_are_converted_whole(dtype: DType) -> None:
    code = print_kernel(
        kernel_of(dtype, (4096,), lambda v: (v.cast(f32) * 3.0).cast(dtype)), X86_64_V4, "kernel"
    )
    text = assembly("\n".join([*code.helpers.values(), code.text]), X86_64_V4)
    assert "zmm" in text and "call" not in text and "pextr" not in text and "pinsr" not in text


@INTEGERS
@ISAS
def test_integers_of_few_bits(isa: Isa, dtype: DType) -> None:
    """The bits above an element's own bits in its byte are ignored."""
    x = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    targets = (f32, dtype, i64, u8, u4, i2, boolean)
    kernel = kernel_of(dtype, x.shape, *(lambda v, t=t: v.cast(t) for t in targets))
    for target, got in zip(targets, run_kernel(kernel, isa, [x], {})[0], strict=True):
        np.testing.assert_array_equal(got, cast_array(x, target), err_msg=str(target))


@pytest.mark.parametrize("source", [i64, u8, i8, f32, f64, bf16], ids=str)
@INTEGERS
@ISAS
def test_integers_wrap_around_and_floats_saturate(isa: Isa, dtype: DType, source: DType) -> None:
    x = np.arange(-100 if source.is_signed else 0, 128).astype(source.numpy)
    (got,), _ = run_kernel(kernel_of(source, x.shape, lambda v: v.cast(dtype)), isa, [x], {})
    low, high = dtype.limits
    whole = x.astype(np.int64)
    want = np.clip(whole, low, high) if source.is_float else (whole - low) % (high - low + 1) + low
    np.testing.assert_array_equal(got.astype(np.int64), want)


def test_integers_of_few_bits_are_not_calculated_with() -> None:
    with pytest.raises(IRError, match="does not support arithmetic on int4"):
        kernel_of(i4, (8,), lambda v: v + v)

"""float16 and bfloat16 in memory: every value is kept, rounding is to nearest even, and the code stays
vectorized.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import loop
from tilewright.dialects.scalar import cast_array
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tilewright.targets.cpu.isa import X86_64_V3, X86_64_V4
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel import print_kernel
from tilewright.targets.llvm.toolchain import assembly

from .jit import ISAS, WIDE, has_instructions
from .kernels import make_group, run_kernel, scheduled
from .test_kernel import last_vectorized

BF16 = replace(WIDE, name="bf16", bf16=True, half=True)
V4_BF16 = replace(X86_64_V4, features=(*X86_64_V4.features, "+avx512bf16"), bf16=True)


def kernel_of(source: DType, shape: tuple[int, ...], *bodies: Any) -> loop.Kernel:
    group = make_group(
        [TensorType(source, shape)], lambda t, a: [t.compute(shape, lambda i, f=f: f(a[i])) for f in bodies]
    )
    return scheduled(group, last_vectorized)


def all_of(dtype: DType) -> np.ndarray[Any, Any]:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("isa", [WIDE, BF16], ids=lambda isa: isa.name)
def test_what_only_chooses_keeps_every_bit(isa: Isa, dtype: DType) -> None:
    """Copies, also by way of float32, and negation keep every bit: subnormal numbers are not rounded
    again.
    """
    x = all_of(dtype)
    kernel = kernel_of(
        dtype, x.shape, lambda v: v, lambda v: v.cast(f32).cast(dtype), lambda v: -v.cast(f32).cast(dtype)
    )
    copied, cast, negated = (y.view(np.uint16) for y in run_kernel(kernel, isa, [x], {})[0])
    numbers = ~np.isnan(x)  # LLVM may turn a signaling NaN into a quiet one.
    np.testing.assert_array_equal(copied[numbers], x.view(np.uint16)[numbers])
    np.testing.assert_array_equal(cast[numbers], x.view(np.uint16)[numbers])
    np.testing.assert_array_equal(negated[numbers], x.view(np.uint16)[numbers] ^ 0x8000)
    assert np.isnan(copied.view(dtype.numpy)[~numbers]).all()


def roundings() -> np.ndarray[Any, Any]:
    """Return float32 numbers at, between and next to the midpoints of neighbouring bfloat16 numbers, for
    every exponent and sign.
    """
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    low = np.asarray([0, 1, 0x1FFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high | low).reshape(-1).view(np.float32)


@pytest.mark.parametrize("isa", [WIDE, BF16], ids=lambda isa: isa.name)
def test_rounding_to_bfloat16(isa: Isa) -> None:
    x = roundings()
    (got,), _ = run_kernel(kernel_of(f32, x.shape, lambda v: v.cast(bf16)), isa, [x], {})
    with np.errstate(all="ignore"):
        want = x.astype(bf16.numpy)
    if isa.bf16 and has_instructions("avx512bf16"):  # The instruction treats subnormal numbers as zero.
        want = np.where(
            np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x).astype(bf16.numpy), want
        )
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(got[numbers].view(np.uint16), want[numbers].view(np.uint16))
    assert np.isnan(got[~numbers].astype(np.float32)).all()


@ISAS
def test_a_rounded_value_is_rounded_once(isa: Isa) -> None:
    """A ``relu`` between two casts keeps rounded values, so that no second rounding is needed."""
    kernel = kernel_of(f32, (64,), lambda v: v.cast(bf16).cast(f32).apply("max", 0.0).cast(bf16))
    text = print_kernel(kernel, isa, "kernel").text
    assert (
        text.count("32767")
        == print_kernel(kernel_of(f32, (64,), lambda v: v.cast(bf16)), isa, "kernel").text.count("32767")
        > 0
    )
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    np.testing.assert_array_equal(run_kernel(kernel, isa, [x], {})[0][0], np.maximum(x, 0).astype(bf16.numpy))


@pytest.mark.parametrize("dtype,isa,instruction", [
    (bf16, V4_BF16, "vcvtneps2bf16"), (bf16, X86_64_V4, "vpmovdw"), (bf16, X86_64_V3, "vpackusdw"),
    (f16, X86_64_V4, "vcvtps2ph"), (f16, X86_64_V3, "vcvtps2ph"),
], ids=str)  # fmt: skip
def test_vectors_are_converted_whole(dtype: DType, isa: Isa, instruction: str) -> None:
    code = print_kernel(kernel_of(dtype, (4096,), lambda v: (v.cast(f32) * 3.0).cast(dtype)), isa, "kernel")
    text = assembly("\n".join([*code.helpers.values(), code.text]), isa)
    assert instruction in text
    assert "call" not in text
    assert "pextr" not in text and "pinsr" not in text


@pytest.mark.parametrize("source", [f32, f64, f16, bf16], ids=str)
@ISAS
def test_floats_to_integers_saturate(isa: Isa, source: DType) -> None:
    """Conversions round toward zero, give the end of the range for numbers beyond it, and give 0 for NaN. The
    numbers are at and around both ends of every integer type.
    """
    ends = [e for b in (8, 16, 32, 64) for e in (-(2.0 ** (b - 1)), 2.0 ** (b - 1), 2.0**b, 0.0)]
    near = [
        y for e in ends for x in (e, e - 1, e + 1, e - 0.5, e + 0.5) for y in (x, np.nextafter(x, -np.inf))
    ]
    with np.errstate(over="ignore"):
        x = np.asarray([*near, np.nan, np.inf, -np.inf, -0.0, 2.9, -2.9] * 2, np.float64).astype(source.numpy)
    for target in (i8, u8, i16, u16, i32, u32, i64, u64):
        (found,), _ = run_kernel(kernel_of(source, x.shape, lambda v, t=target: v.cast(t)), isa, [x], {})
        np.testing.assert_array_equal(found, cast_array(x, target), err_msg=str(target))


@pytest.mark.parametrize("target", [i8, u8, i16, i32, u32, i64], ids=str)
def test_floats_to_integers_in_vectors(target: DType) -> None:
    """The conversions are vectorized, which LLVM's own saturating conversion is not."""
    code = print_kernel(kernel_of(f32, (4096,), lambda v: v.cast(target)), X86_64_V4, "kernel")
    text = assembly(code.text + "".join(code.helpers.values()), X86_64_V4)
    assert "zmm" in text and "vcvttss2" not in text

"""Cases of products with quantized weights, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.ir.types import DType, bf16, f16, f32, i4, i8, i16, i64, u4, u8

from .harness import Case, F, integers, normal, positive

SIZES = ({"b": 2, "s": 3}, {"b": 1, "s": 1})


def _weights(qvalues: Any, scales: Any) -> Any:
    grouped = qvalues.astype(np.float64).reshape(*scales.shape, -1) * scales[..., None].astype(np.float64)
    return grouped.reshape(qvalues.shape)


def _rounded(x: Any, groups: int, qvalues: DType, largest: int | None, row: Any = None) -> Any:
    """`x` with each group rounded to multiples of its scale: its largest magnitude over 127, or, with 4-bit
    weights, that of its row divided by as large a power of two as the group allows (`largest` is the largest
    magnitude of a value, `row` that of each row, None: of its part in x). One group may be a part of a row.
    """
    largest = largest or (8 if qvalues is i4 else 15)
    parts = x.reshape(*x.shape[:-1], groups, -1)
    top = scale = np.abs(parts).max(-1, keepdims=True) if row is None or groups > 1 else row[..., None]
    if qvalues.bits == 4:
        scale = np.broadcast_to(top.max(-2, keepdims=True) if row is None else row[..., None], top.shape)
        for _ in range(31 - (parts.shape[-1] * 127 * largest).bit_length()):
            scale = np.where(2 * top <= scale, scale / 2, scale)
    steps = np.rint(parts * (np.float32(127) / np.where(scale == 0, np.float32(1), scale)))
    return (steps.astype(np.float64) * scale / 127).reshape(x.shape)


TABLE = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


def _nearest(weights: Any, factors: DType) -> Any:
    return weights.astype(np.float32).astype(bf16.numpy).astype(np.float64) if factors is bf16 else weights


def _half_empty(rng: Any, shape: Any) -> Any:
    """Normally distributed numbers, of which the first half of each row is zero, so that a group has a scale
    of 0.
    """
    x = normal(rng, shape)
    x[..., : shape[-1] // 2] = 0
    return x


def _powers(rng: Any, shape: Any) -> Any:
    """Powers of two with exponents from 0 to 15."""
    return 2.0 ** rng.integers(0, 16, shape)


def _left(x: Any, groups: int, factors: DType, qvalues: DType, largest: int | None = None) -> Any:
    if factors is i8:
        return _rounded(x.astype(np.float32), groups, qvalues, largest)
    return x.astype(np.float32).astype(factors.numpy).astype(np.float64)


def _right(qvalues: Any, scales: Any, factors: DType) -> Any:
    return _nearest(_weights(qvalues, scales), factors)


CASES = [
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64, dtype=x, fill=fill),
                F(5, 64, dtype=qvalues, fill=integers(-8, 8)),
                F(5, groups, dtype=scales, fill=positive),
            ),
            lambda b, d, x, qvalues, scales, factors=factors: b(
                graph.QuantizedMatMul(x, qvalues, scales, factors=factors)
            ),
            lambda d, x, qvalues, scales, factors=factors, qtype=qvalues: (
                _left(x, scales.shape[1], factors, qtype) @ _right(qvalues, scales, factors).T
            ),
            SIZES,
            tolerance=2e-2 if x is f16 else 1e-5,
            note=f"{x.name} {qvalues.name} {groups} groups {scales.name} in {factors.name}",
        )
        for x, fill, qvalues, groups, scales, factors in (
            (f32, normal, i4, 2, f16, i8),
            (f32, _half_empty, i4, 2, f32, i8),
            (f32, normal, i8, 1, f32, i8),
            (f16, normal, i4, 4, f16, i8),
            (f32, normal, i4, 2, f16, f32),
            (f32, normal, i4, 2, f16, bf16),
        )
    ),
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64),
                F(5, 64, dtype=qvalues, fill=integers(low, low + (1 << bits))),
                F(5, 2, dtype=f16, fill=positive),
            ),
            lambda b, d, x, q, scales, bits=bits: b(graph.QuantizedMatMul(x, q, scales, bits=bits)),
            lambda d, x, q, scales, packed=packed: _left(x, 2, i8, packed) @ _right(q, scales, i8).T,
            SIZES,
            note=f"{bits} bits in {qvalues.name}",
        )
        for qvalues, packed, low, bits in ((i8, i4, -4, 3), (u8, u4, 0, 4))
    ),
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64),
                F(5, 64, dtype=qvalues, fill=integers(-8, 8)),
                F(5, groups, dtype=f16, fill=positive),
                F("b", "s", 1, fill=lambda rng, shape: rng.uniform(6, 9, shape)),  # more than of x
            ),
            lambda b, d, x, q, scales, row: b(
                graph.QuantizedMatMul(x, q, scales, None, None, None, None, row)
            ),
            lambda d, x, q, scales, row, qvalues=qvalues: (
                _rounded(x, scales.shape[1], qvalues, None, row) @ _right(q, scales, i8).T
            ),
            SIZES,
            note=f"some columns of longer rows of {qvalues.name}",
        )
        for qvalues, groups in ((i4, 2), (i8, 1))
    ),
    *(
        Case(
            "QuantizedMatMul",
            (
                F("s", 64),
                F(3, 5, 64, dtype=i4, fill=integers(-8, 8)),
                F(3, 5, 2, dtype=f16, fill=positive),
                F("s", dtype=i64, fill=integers(0, 3)),
            ),
            lambda b, d, *x, factors=factors: b(graph.QuantizedMatMul(*x, factors=factors)),
            lambda d, x, qvalues, scales, index, factors=factors: np.einsum(
                "sk,snk->sn", _left(x, 2, factors, i4), _right(qvalues, scales, factors)[index]
            ),
            SIZES,
            note=f"chosen, in {factors.name}",
        )
        for factors in (i8, bf16, f32)
    ),
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64),
                F(5, 64, dtype=u4, fill=integers(0, 16)),
                F(5, 4, dtype=u8, fill=integers(0, 64)),
                F(5, 2, dtype=f16, fill=positive),
                F(5, 4, dtype=u8, fill=integers(0, 64)),
                F(5, count, dtype=f16, fill=positive),
            ),
            lambda b, d, x, q, scales, units, minimums, more, factors=factors: b(
                graph.QuantizedMatMul(x, q, scales, None, units, minimums, more, factors=factors)
            ),
            # If units of scales and of minimums cover the same groups, those share a scale of x.
            lambda d, x, q, scales, units, minimums, more, factors=factors, count=count: (
                _left(x, 2 if count == 2 else 4, factors, i8)
                @ _nearest(
                    _weights(q, scales * np.repeat(units.astype(np.float64), 2, 1))
                    - np.repeat(minimums * np.repeat(more.astype(np.float64), 4 // count, 1), 16, 1),
                    factors,
                ).T
            ),
            SIZES,
            tolerance=1e-4,
            note=f"units and {count} units of minimums in {factors.name}",
        )
        for factors, count in ((i8, 1), (i8, 2), (bf16, 1), (f32, 1))
    ),
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64),
                F(5, 64, dtype=u4, fill=integers(0, 16)),
                F(5, 2, fill=positive),
                F(5, 2, dtype=u8, fill=integers(0, 16)),
            ),
            lambda b, d, x, q, scales, zeros, factors=factors: b(
                graph.QuantizedMatMul(x, q, scales, None, None, zeros, factors=factors, table=TABLE)
            ),
            lambda d, x, q, scales, zeros, factors=factors: (
                _left(x, 2, factors, u4, 12)
                @ _nearest(
                    _weights(np.array(TABLE)[q.astype(int)] - np.repeat(zeros, 32, 1), scales), factors
                ).T
            ),
            SIZES,
            tolerance=1e-4,
            note=f"a table and zero points in {factors.name}",
        )
        for factors in (i8, bf16, f32)
    ),
    Case(
        "DequantizedMatMul",
        (
            F("b", "s", 2, 32, dtype=bf16),
            F(5, 64, dtype=i4, fill=integers(-8, 8)),
            F(5, 2, dtype=f16, fill=positive),
        ),
        lambda b, d, *x: b(graph.DequantizedMatMul(*x)),
        lambda d, x, qvalues, scales: (
            x.astype(np.float64).reshape(*x.shape[:2], 64) @ _right(qvalues, scales, bf16).T
        ),
        SIZES,
    ),
    Case(
        "ScaledMatMul",
        (
            F("b", "s", 2, 32, dtype=i8, fill=integers(-127, 128)),
            F("b", "s", 2, fill=_powers),
            F(5, 64, dtype=i4, fill=integers(-8, 8)),
            F(5, 2, dtype=f32, fill=positive),
        ),
        lambda b, d, *x: b(graph.ScaledMatMul(*x)),
        lambda d, x, x_scales, qvalues, scales: (
            (x.astype(np.float64) * x_scales[..., None]).reshape(*x.shape[:2], 64)
            @ _weights(qvalues, scales).T
        ),
        SIZES,
        tolerance=1e-4,
    ),
    *(
        Case(
            "Quantize",
            (F("b", "s", 5, dtype=x), F(*shape, fill=positive), *([F(dtype=q, fill=integers(0, 9))] * zero)),
            lambda b, d, *operands, q=q: b(graph.Quantize(*operands, dtype=q)),
            lambda d, x, scale, zero=0, q=q: np.clip(
                np.rint(x.astype(np.float32) / scale) + np.float32(zero), *q.limits
            ).astype(q.numpy),
            SIZES,
        )
        for x, q, shape, zero in ((f32, u8, (), True), (f32, i8, (5,), False), (f16, i16, (), True))
    ),
    *(
        Case(
            "Dequantize",
            (
                F("b", "s", 5, dtype=q, fill=integers(0, 99)),
                F(*shape, fill=positive),
                *([F(dtype=q, fill=integers(0, 9))] * zero),
            ),
            lambda b, d, *operands: b(graph.Dequantize(*operands)),
            lambda d, x, scale, zero=0: (x.astype(np.float64) - np.float64(zero)) * scale,
            SIZES,
        )
        for q, shape, zero in ((u8, (), True), (i8, (5,), False), (i16, (), True))
    ),
]

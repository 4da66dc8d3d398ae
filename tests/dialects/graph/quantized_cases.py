"""Cases of products with weights of few bits, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.ir.types import f16, f32, i4, i8

from .harness import Case, F, integers, normal, positive

SIZES = ({"b": 2, "s": 3}, {"b": 1, "s": 1})


def _weights(codes: Any, scales: Any) -> Any:
    grouped = codes.astype(np.float64).reshape(*scales.shape, -1) * scales[..., None].astype(np.float64)
    return grouped.reshape(codes.shape)


def _rounded(x: Any, groups: int) -> Any:
    """Each group of x as multiples of its largest number divided by 127."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    top = np.abs(parts).max(-1, keepdims=True)
    steps = np.rint(parts * (np.float32(127) / np.where(top == 0, np.float32(1), top)))
    return (steps.astype(np.float64) * top / 127).reshape(x.shape)


def _half_empty(rng: Any, shape: Any) -> Any:
    """Numbers, and a group of zeros."""
    x = normal(rng, shape)
    x[..., : shape[-1] // 2] = 0
    return x


CASES = [
    *(
        Case(
            "QuantizedMatMul",
            (
                F("b", "s", 64, dtype=x, fill=fill),
                F(5, 64, dtype=codes, fill=integers(-8, 8)),
                F(5, groups, dtype=scales, fill=positive),
            ),
            lambda b, d, x, codes, scales, exact=exact: b(graph.QuantizedMatMul(x, codes, scales, exact=exact)),
            lambda d, x, codes, scales, exact=exact: (
                (x.astype(np.float64) if exact else _rounded(x.astype(np.float32), scales.shape[1]))
                @ _weights(codes, scales).T
            ),
            SIZES,
            tolerance=2e-2 if x is f16 else 1e-5,
            note=f"{x.name} {codes.name} {groups} groups {scales.name}{' exact' if exact else ''}",
        )
        for x, fill, codes, groups, scales, exact in (
            (f32, normal, i4, 2, f16, False),
            (f32, _half_empty, i4, 2, f32, False),
            (f32, normal, i8, 1, f32, False),
            (f16, normal, i4, 4, f16, False),
            (f32, normal, i4, 2, f16, True),
        )
    ),
    Case(
        "ScaledMatMul",
        (
            F("b", "s", 2, 32, dtype=i8, fill=integers(-127, 128)),
            F("b", "s", 2, fill=positive),
            F(5, 64, dtype=i4, fill=integers(-8, 8)),
            F(5, 2, dtype=f16, fill=positive),
        ),
        lambda b, d, *x: b(graph.ScaledMatMul(*x)),
        lambda d, x, x_scales, codes, scales: (
            (x.astype(np.float64) * x_scales[..., None]).reshape(*x.shape[:2], 64) @ _weights(codes, scales).T
        ),
        SIZES,
        tolerance=1e-4,
    ),
]

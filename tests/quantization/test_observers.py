"""Observers and parameters, compared with their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir.types import i8, i16, u8
from tilewright.quantization.observers import Statistics, observer_of
from tilewright.quantization.parameters import activation_parameters, quantized_weight


def seen(*batches: Any) -> Statistics:
    statistics = Statistics()
    for x in batches:
        statistics.add(x, -1)
    for x in batches:
        statistics.add_counts(x)
    return statistics


def with_outlier(low: float = -1.0) -> Any:
    x = np.random.default_rng(0).uniform(low, 1, (100, 100)).astype(np.float32)
    x[0, 0] = 20
    return x


def test_statistics_of_several_batches() -> None:
    a, b = np.array([[1.0, -2.0], [3.0, 0.0]], np.float32), np.array([[5.0, 1.0]], np.float32)
    one = seen(a, b)
    assert (one.low, one.high) == (-2, 5) and one.counts.sum() == 6
    assert np.allclose(one.channel_mean, [3, -1 / 3]) and np.allclose(one.channel_peak, [5, 2])
    assert observer_of("minmax", 100)(one) == (-2, 5)


def test_percentile_cuts_off_both_ends() -> None:
    x = np.linspace(-1, 1, 10001, dtype=np.float32)[None]
    low, high = observer_of("percentile", 90)(seen(x))
    assert abs(low + 0.9) < 2e-3 and abs(high - 0.9) < 2e-3
    low, high = observer_of("percentile", 90)(seen(np.abs(x)))
    assert low == 0 and abs(high - 0.9) < 2e-3


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("name", ["entropy", "percentile"])
def test_outliers_are_clipped(name: str, low: float) -> None:
    found = observer_of(name, 99.9)(seen(with_outlier(low)))
    assert found[1] < 6


def test_least_squares_has_less_error_than_the_whole_range() -> None:
    x = with_outlier()
    errors = []
    for name in ("minmax", "mse"):
        p = activation_parameters(*observer_of(name, 100)(seen(x)), "int8", symmetric=False)
        errors.append(float(((p.rounded(x) - x) ** 2).mean()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("low", "high", "precision", "symmetric", "dtype", "zero"),
    [
        (0.5, 4.0, "int8", False, u8, 0),
        (-1.0, 3.0, "int8", False, u8, 64),
        (-4.0, -1.0, "int8", False, u8, 255),
        (-1.0, 3.0, "int8", True, i8, 0),
        (0.0, 3.0, "int8", True, u8, 0),
        (-1.0, 3.0, "int16", False, i16, 0),
        (0.0, 0.0, "int8", False, u8, 0),
    ],
)
def test_activation_parameters(
    low: float, high: float, precision: str, symmetric: bool, dtype: Any, zero: int
) -> None:
    p = activation_parameters(low, high, precision, symmetric)
    assert p.dtype is dtype and p.zero == zero and p.rounded(np.zeros(1))[0] == 0
    least, most = p.range
    assert least <= min(low, 0) + p.scale / 2 and most >= max(high, 0) - p.scale / 2


def test_weights() -> None:
    w = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    w[:, 0] *= 100
    w[:, 5] = 0
    q, scale = quantized_weight(w, -1, "minmax")
    assert q.dtype == np.int8 and scale.shape == (1, 6) and (np.abs(q[:, :5]).max(0) == 127).all()
    assert (np.abs(q * scale - w) <= scale * 0.501).all()
    one, single = quantized_weight(w, None, "minmax")
    assert single.shape == () and abs(float(np.abs(one * single - w).max())) <= single * 0.501
    best, chosen = quantized_weight(w, -1, "mse")
    assert (((best * chosen - w) ** 2).sum(0) <= ((q * scale - w) ** 2).sum(0) + 1e-9).all()

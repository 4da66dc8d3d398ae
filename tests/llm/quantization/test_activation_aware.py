"""Activation-aware scaling reduces the error of outputs where few channels have large activations."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import WeightsError
from tilewright.llm.quantization import ActivationStatistics, dequantize, find_scaling, quantize, scheme_of


def problem(loud: int = 6) -> tuple[np.ndarray, list[np.ndarray]]:
    r = np.random.default_rng(0)
    spread = np.ones(128)
    spread[r.choice(128, loud, replace=False)] = 30
    x = (r.standard_normal((512, 128)) * spread).astype(np.float32)
    return x, [(r.standard_normal((96, 128)) * 0.05).astype(np.float32) for _ in range(2)]


def statistics_of(x: np.ndarray, pieces: int = 4) -> ActivationStatistics:
    statistics = ActivationStatistics(x.shape[-1])
    for piece in np.split(x, pieces):
        statistics.update(piece)
    return statistics


def test_statistics_do_not_depend_on_how_they_come() -> None:
    x, _ = problem()
    whole, pieces = statistics_of(x, 1), statistics_of(x.reshape(8, 64, 128), 4)
    assert np.allclose(whole.mean_absolute, np.abs(x).mean(0)) and np.allclose(
        whole.mean_square, np.square(x).mean(0)
    )
    assert np.allclose(whole.mean_absolute, pieces.mean_absolute) and np.allclose(
        whole.mean_square, pieces.mean_square
    )


@pytest.mark.parametrize("name", ["int4_g128", "int4_g32_asym", "int3_g64"])
def test_the_outputs_error_falls(name: str) -> None:
    x, matrices = problem()
    scheme = scheme_of(name)
    scaling = find_scaling(matrices, statistics_of(x), scheme)
    assert scaling.exponent > 0 and scaling.error < scaling.error_without
    for w in matrices:
        plain = np.square(x @ (dequantize(quantize(w, scheme)) - w).T).mean()
        kept = quantize(w * scaling.scales, scheme, scaling.importance)
        scaled = np.square((x / scaling.scales) @ dequantize(kept).T - x @ w.T).mean()
        assert scaled < 0.7 * plain


def test_even_activations_are_left_alone_or_improved() -> None:
    x, matrices = problem(loud=0)
    scaling = find_scaling(matrices, statistics_of(x), scheme_of("int4_g32"))
    assert scaling.error <= scaling.error_without
    assert (scaling.exponent == 0) == bool((scaling.scales == 1).all())


def test_silent_channels_do_no_harm() -> None:
    x, matrices = problem()
    x[:, 5] = 0
    scaling = find_scaling(matrices, statistics_of(x), scheme_of("int4_g32"))
    assert np.isfinite(scaling.scales).all() and (scaling.scales > 0).all()


def test_what_does_not_fit_is_refused() -> None:
    x, matrices = problem()
    with pytest.raises(WeightsError, match="128 channels do not fit"):
        find_scaling([matrices[0][:, :64]], statistics_of(x), scheme_of("int4_g32"))
    with pytest.raises(WeightsError, match="needs a quantized scheme"):
        find_scaling(matrices, statistics_of(x), scheme_of("bf16"))

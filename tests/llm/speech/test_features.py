"""Spectrograms are those of `transformers`, eagerly and compiled with products of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")

import tilewright as tw  # noqa: E402
from tilewright.llm.speech.features import HOP, hops, log_mel, mel_filters, normalized  # noqa: E402


def recording(seconds: float) -> np.ndarray:
    """Tones of falling loudness and a little noise: quiet bands beside loud ones."""
    t = np.arange(int(16000 * seconds)) / 16000
    noise = np.random.default_rng(0).standard_normal(len(t)) * 1e-4
    tones = sum(10.0**-k * np.sin(2 * np.pi * f * t) for k, f in enumerate((300, 900, 2200, 5000)))
    return (0.5 * tones * (t % 1 < 0.7) + noise).astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
def test_filters(mels: int) -> None:
    theirs = transformers.WhisperFeatureExtractor(feature_size=mels).mel_filters
    np.testing.assert_allclose(mel_filters(mels), theirs, atol=1e-7)


@pytest.mark.parametrize("seconds", [0.5, 3.01, 5.0])
def test_like_transformers(seconds: float) -> None:
    """A recording shorter than a window is filled up with silence, a longer one is not cut."""
    extractor = transformers.WhisperFeatureExtractor(chunk_length=3)
    samples = recording(seconds)
    library = tw.compile(
        lambda x: log_mel(x, 80), (np.zeros((9, HOP), np.float32),), dims={"x": {0: "hops<=600"}},
        precision="bf16",
    )  # fmt: skip
    found = normalized(library(hops(samples, 300)))
    expected = extractor(samples, sampling_rate=16000, truncation=False, return_tensors="np")
    np.testing.assert_allclose(found, expected.input_features[0].T, atol=2e-3)
    eager = normalized(log_mel(tw.Tensor(hops(samples, 300)), 80).numpy())
    np.testing.assert_allclose(eager, expected.input_features[0].T, atol=2e-3)

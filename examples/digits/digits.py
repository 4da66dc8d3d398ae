"""Train a classifier of scikit-learn's handwritten digits, in Python or, with examples/train.c, in C.

    python examples/digits/digits.py --epochs 20                # trains, prints losses and the accuracy
    python examples/digits/digits.py --write .                  # writes what examples/train.c needs
    python examples/digits/digits.py --write . --target aarch64-linux

The 1797 images have 8 x 8 pixels. The last 297 are for the test.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

BATCH = 32
TRAINED = 1500


class Classifier(tw.nn.Module):
    """Two hidden layers: pixels (n, 64) to scores (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = tw.nn.Linear(64, 128), tw.nn.Linear(128, 64)
        self.last = tw.nn.Linear(64, 10)

    def forward(self, pixels: tw.Tensor) -> tw.Tensor:
        x = tw.nn.functional.relu(self.first(pixels))
        return self.last(tw.nn.functional.relu(self.second(x)))


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pixels float32 (1797, 64) between 0 and 1, and labels i64 (1797), in a random order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.data[order] / 16).astype(np.float32)
    return pixels, digits.target[order].astype(np.int64)


def compile_step(target: str = "cpu") -> tw.TrainStep:
    """The training step for batches of `BATCH` images."""
    tw.nn.seed(0)
    pixels, labels = data()
    example = (pixels[:BATCH], labels[:BATCH])
    loss, rule = tw.nn.functional.cross_entropy, tw.optim.SGD(lr=0.02, momentum=0.9)
    return tw.train_step(Classifier(), loss, rule, example, target=target)


def write(folder: Path, target: str = "cpu", name: str = "digits.so") -> Path:
    """Write the library, and the data as train.c reads them; return the library's path."""
    pixels, labels = data()
    count = TRAINED // BATCH * BATCH
    parts = [np.array([count], np.int64), pixels[:count], labels[:count]]
    (folder / "digits.bin").write_bytes(b"".join(p.tobytes() for p in parts))
    return compile_step(target).save(folder / name)


def train(epochs: int) -> float:
    """Train and print; return the share of the test's images that are classified rightly."""
    pixels, labels = data()
    step = compile_step()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(TRAINED)[: TRAINED // BATCH * BATCH]
        losses = [float(step(pixels[k], labels[k])) for k in order.reshape(-1, BATCH)]
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
    test = np.arange(TRAINED, len(labels) // BATCH * BATCH)[-9 * BATCH :].reshape(-1, BATCH)
    right = [(step.predict(pixels[k]).argmax(1) == labels[k]).mean() for k in test]
    print(f"{np.mean(right):.1%} of {test.size} test images are right")
    return float(np.mean(right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--write", type=Path, help="a folder for digits.so, digits.bin and tilewright.h")
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    if options.write is not None:
        print(write(options.write, options.target))
    else:
        train(options.epochs)


if __name__ == "__main__":
    main()

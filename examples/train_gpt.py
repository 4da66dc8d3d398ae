"""Train a small language model of bytes on the source of Python's standard library, from nothing.

    python examples/train_gpt.py --steps 300 --log runs/gpt
    tensorboard --logdir runs

The model is a transformer with 4 layers (0.8 million parameters). The compiled training step contains the
forward pass, the backward pass and AdamW. After training, the model writes some text.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import textwrap
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn, optim
from tilewright.training import Log

LENGTH, BATCH, WIDTH, HEADS, LAYERS = 128, 8, 128, 4, 4


class Block(nn.Module):
    """A layer of a transformer: attention and a network of two products, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiHeadAttention(WIDTH, HEADS)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: tw.Tensor) -> tw.Tensor:
        x = x + self.attention(self.attention_norm(x), causal=True)
        return x + self.narrow(nn.functional.gelu(self.wide(self.network_norm(x))))


class Gpt(nn.Module):
    """Bytes, integers (batch, LENGTH), to scores of the next byte (batch, LENGTH, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, text: tw.Tensor) -> tw.Tensor:
        x = (self.bytes(text) + self.places.weight) * 0.1
        for block in self.blocks:
            x = block(x)
        return self.bytes.attend(self.norm(x)) * 0.1


def loss(scores: tw.Tensor, following: tw.Tensor) -> tw.Tensor:
    """The mean of the negated log-probabilities of the following bytes, in nats."""
    logarithms = nn.functional.log_softmax(scores)
    return -tw.numpy.take_along_axis(logarithms, following[..., None], -1).mean()


def batches(seed: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Random pieces of the text, and the same pieces one byte later: int64 (BATCH, LENGTH) each."""
    sources = "".join(map(inspect.getsource, (argparse, inspect, json, shutil, textwrap)))
    text = np.frombuffer(sources.encode(), np.uint8).astype(np.int64)
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(text) - LENGTH - 1, BATCH)
        places = starts[:, None] + np.arange(LENGTH)
        yield text[places], text[places + 1]


def compile_step(steps: int) -> tw.TrainStep:
    """The training step, whose learning rate rises in 20 steps and falls in the others."""
    nn.seed(0)
    rising = optim.lr_scheduler.LinearLR(3e-3, 0.05, total_iters=20)
    falling = optim.lr_scheduler.CosineAnnealingLR(3e-3, max(steps - 20, 1), eta_min=3e-4)
    rate = optim.lr_scheduler.SequentialLR([rising, falling], [20])
    return tw.train_step(Gpt(), loss, optim.AdamW(lr=rate), next(batches(0)), clip=1.0)


def train(steps: int, folder: str | None = None) -> tuple[list[float], tw.TrainStep]:
    """Train, and write losses to a folder for TensorBoard; return the losses and the step."""
    step = compile_step(steps)
    with Log(folder, step, total=steps) as log:
        losses = [float(log(step(*batch))) for batch in islice(batches(1), steps)]
    return losses, step


def written(step: tw.TrainStep, prompt: str, count: int) -> str:
    """The prompt and `count` further bytes, each the most likely one."""
    text = list(prompt.encode())
    for _ in range(count):
        window = np.zeros((BATCH, LENGTH), np.int64)
        known = text[-LENGTH:]
        window[0, : len(known)] = known
        text.append(int(step.predict(window)[0, len(known) - 1].argmax()))
    return bytes(text).decode(errors="replace")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log", help="a folder for TensorBoard")
    options = parser.parse_args()
    print(written(train(options.steps, options.log)[1], "def copy(self, ", 200))

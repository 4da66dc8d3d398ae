"""Fine-tune all-MiniLM-L6-v2 to tell to which module of the standard library a sentence of documentation
belongs.

    python examples/minilm_classify.py --epochs 3

The model and its published weights are those of minilm_search.py. A layer of scores is added; it and the
layers of the encoder are trained, the embeddings are constants of the compiled step.
"""

from __future__ import annotations

import argparse
import decimal
import inspect
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import nn

sys.path.insert(0, str(Path(__file__).parent))
from minilm_search import Embedder, pretrained, tokenize

MODULES = (decimal, logging, math, os)
LENGTH, BATCH = 24, 16


class Classifier(nn.Module):
    """Sentences as tokens and mask, i64 (batch, LENGTH), to scores of the modules (batch, 4)."""

    def __init__(self, encoder: Embedder) -> None:
        super().__init__()
        self.encoder, self.scores = encoder, nn.Linear(384, len(MODULES))

    def forward(self, tokens: tw.Tensor, mask: tw.Tensor) -> tw.Tensor:
        return self.scores(self.encoder(tokens, mask) * 8.0)


def sentences() -> tuple[list[str], np.ndarray[Any, Any]]:
    """The first sentences of the modules' docstrings in a random order, and the numbers of their modules."""
    found: dict[str, int] = {}
    for number, module in enumerate(MODULES):
        owners = [module, *(m for _, m in inspect.getmembers(module, inspect.isclass))]
        for owner in owners:
            for name, member in inspect.getmembers(owner, callable):
                text = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
                if not name.startswith("_") and 20 < len(text) < 200:
                    found.setdefault(text, number)
    order = np.random.default_rng(0).permutation(len(found))
    texts, labels = list(found), np.array(list(found.values()))
    return [texts[k] for k in order], labels[order]


def padded(texts: list[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tokens and mask of texts, cut or padded to `LENGTH`."""
    tokens, mask = (x[:, :LENGTH] for x in tokenize(texts))
    missing = ((0, 0), (0, LENGTH - tokens.shape[1]))
    return np.pad(tokens, missing), np.pad(mask, missing)


def train(epochs: int) -> tuple[float, float]:
    """Train and print; return the shares of the test's sentences that are right before and after."""
    nn.seed(0)
    texts, labels = sentences()
    tokens, mask = padded(texts)
    count = len(texts) * 3 // 4 // BATCH * BATCH
    example = tokens[:BATCH], mask[:BATCH], labels[:BATCH]
    step = tw.train_step(
        Classifier(pretrained()),
        nn.functional.cross_entropy,
        tw.optim.AdamW(lr=1e-4),
        example,
        trainable=["encoder.layers.*", "scores.*"],
    )

    def accuracy() -> float:
        tests = np.arange(count, len(texts) - BATCH + 1, BATCH)
        parts = [slice(k, k + BATCH) for k in tests]
        return float(np.mean([step.predict(tokens[p], mask[p]).argmax(1) == labels[p] for p in parts]))

    before = accuracy()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(count).reshape(-1, BATCH)
        losses = [float(step(tokens[k], mask[k], labels[k])) for k in order]
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, right {accuracy():.2f}", flush=True)
    return before, accuracy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    train(parser.parse_args().epochs)

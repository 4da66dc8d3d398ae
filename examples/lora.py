"""Adapt the small language model to a text by LoRA (Hu et al., "LoRA", 2021).

    python examples/lora.py --steps 40

Each product with a weight of the attention gets a second one of low rank, whose two matrices are trained; the
model's own weights are constants of the compiled step. The adapter is a file of 0.2 MB.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

import tilewright as tw

FOLDER = Path(__file__).parent / "small-model"
LENGTH, BATCH, RANK, SCALE = 128, 4, 4, 2.0
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")


class Adapted(torch.nn.Module):
    """A linear layer with a product of rank `RANK` beside it, which begins as zero."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.lora_a = torch.nn.Parameter(
            torch.randn(RANK, linear.in_features) / math.sqrt(linear.in_features)
        )
        self.lora_b = torch.nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x @ self.lora_a.T @ self.lora_b.T * SCALE


class Scores(torch.nn.Module):
    """The small model with adapters: tokens (batch, length) to scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
        for layer in self.model.model.layers:
            for name in ADAPTED:
                setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def loss(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the following tokens, in nats."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def pieces() -> np.ndarray[Any, Any]:
    """Pieces of `LENGTH` + 1 tokens of a text that the model has not seen, int64 (pieces, LENGTH + 1)."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokens = np.array(tokenizer.encode((FOLDER / "held_out.txt").read_text(encoding="utf-8")).ids)
    return tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)


def train(steps: int) -> tuple[list[float], tw.TrainStep]:
    """Train the adapter and print; return the losses and the step."""
    text = pieces()
    batch = text[:BATCH]
    step = tw.train_step(
        Scores(), loss, tw.optim.AdamW(lr=3e-3), (batch[:, :-1], batch[:, 1:]), trainable=["*.lora_?"]
    )
    random, losses = np.random.default_rng(0), []
    for number in range(1, steps + 1):
        batch = text[random.choice(len(text), BATCH, replace=False)]
        losses.append(float(step(batch[:, :-1], batch[:, 1:])))
        if number % 10 == 0:
            print(f"step {number}: loss {np.mean(losses[-10:]):.3f}", flush=True)
    return losses, step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--write", type=Path, help="the adapter's file")
    options = parser.parse_args()
    trained = train(options.steps)[1]
    if options.write:
        save_file({n: trained.state_dict()[n] for n in trained.parameter_names}, options.write)

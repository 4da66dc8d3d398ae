"""The program that the tests of process groups start: ``python -m tests.llm.parallel.programs LIBRARY``."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tilewright.llm.library import LibraryRunner
from tilewright.llm.parallel.launch import open_runner
from tilewright.llm.parallel.runner import Leader

PROMPT, TOKENS = 50, 24


def greedy(runner: LibraryRunner) -> tuple[list[int], Any]:
    """The most probable tokens after a prompt in two chunks, and all logits."""
    prompt = np.random.default_rng(0).integers(5, runner.vocabulary, PROMPT).astype(np.int32)
    pages, slot = np.arange(2, dtype=np.int32), np.zeros(1, np.int32)
    logits = [runner.prefill(prompt[at : at + 32], at, pages, 0) for at in range(0, PROMPT, 32)]
    tokens = []
    for k in range(TOKENS):
        tokens.append(int(logits[-1].argmax()))
        length = np.array([PROMPT + k], np.int32)
        logits.append(runner.decode(np.array(tokens[-1:], np.int32), length, pages[None], slot)[0])
    return tokens, np.stack(logits)


def main(path: str) -> None:
    runner, _ = open_runner(path)
    tokens, logits = greedy(runner)
    if isinstance(runner, Leader):
        runner.close()
    sys.stdout.write(json.dumps({"tokens": tokens, "logits": logits.tolist()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

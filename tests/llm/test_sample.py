"""Sampling inside a library chooses the tokens that the engine chooses."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.trace import Tensor
from tilewright.llm.drawing import random_words
from tilewright.llm.engine.sampling import Sampler, SamplingParameters, choose, logprobs
from tilewright.llm.token_sampling import CANDIDATES, NONE, UNDECIDED, candidates, sample

NAMES = ("logits", "temperature", "top_k", "top_p", "min_p", "uniform")


def compiled(vocabulary: int):  # type: ignore[no-untyped-def]
    f32 = np.float32
    examples = (
        np.zeros((2, vocabulary), f32),
        *(np.zeros(2, t) for t in (f32, np.int32, f32, f32, np.uint32)),
    )
    return tw.compile(sample, examples, dims={name: {0: "batch<=8"} for name in NAMES}, cache=False)


def drawn(library, logits, parameters, uniform):  # type: ignore[no-untyped-def]
    columns = zip(*((p.temperature, p.top_k, p.top_p, p.min_p) for p in parameters), strict=True)
    types = (np.float32, np.int32, np.float32, np.float32)
    return library(
        logits, *(np.array(c, t) for c, t in zip(columns, types, strict=True)), random_words(uniform)
    )


@pytest.mark.parametrize("vocabulary", [50, 4130])
def test_tokens_are_the_engines(vocabulary: int) -> None:
    """The library chooses the engine's tokens for logits of several widths, some of them with ties, and for
    draws that a seed repeats. It leaves the choice to the engine only where many tokens remain.
    """
    rng = np.random.default_rng(0)
    undecided = 0
    with compiled(vocabulary) as library:
        for step in range(40):
            logits = (rng.standard_normal((8, vocabulary)) * rng.choice([1, 3, 6])).astype(np.float32)
            logits = np.round(logits) if step % 4 == 0 else logits
            parameters = [
                SamplingParameters(
                    temperature=float(rng.choice([0, 0.5, 1, 1.5])), top_p=float(rng.choice([1, 0.9, 0.5])),
                    top_k=int(rng.choice([0, 0, 1, 5, 40, 200])), min_p=float(rng.choice([0, 0, 0.05, 0.3])),
                )
                for _ in range(8)
            ]  # fmt: skip
            choosers = [Sampler(p, [], int(rng.integers(1 << 60)), None) for p in parameters]
            wanted = choose(logits.copy(), [(c, step) for c in choosers])
            tokens, found = drawn(library, logits, parameters, [c.uniform(step) for c in choosers])
            for row, token in enumerate(tokens.tolist()):
                if token == UNDECIDED:
                    undecided += 1
                    p = parameters[row]
                    assert p.top_k == 0 or p.top_k > CANDIDATES
                else:
                    assert token == wanted[row], parameters[row]
                    assert abs(found[row] - logprobs(logits[row], token, 0).logprob) < 1e-3
    assert (undecided == 0) == (vocabulary == 50) and undecided < 60


def test_rows_without_a_token() -> None:
    logits = np.zeros((3, 50), np.float32)
    logits[0], logits[1, 7], logits[2, 3] = -np.inf, np.nan, 1
    with compiled(50) as library:
        tokens, _ = drawn(
            library, logits, [SamplingParameters(temperature=t) for t in (0, 1, 0)], np.zeros(3)
        )
    assert tokens.tolist() == [NONE, NONE, 3]


def test_candidates_are_the_greatest_in_order() -> None:
    rng = np.random.default_rng(1)
    for n in (40, 4100, 9000):
        logits = np.round(rng.standard_normal((2, n)) * 20).astype(np.float32)  # Rounding makes many equal.
        top, ids = (t.numpy() for t in candidates(Tensor(logits)))
        wanted = np.argsort(-logits, axis=1, kind="stable")[:, :CANDIDATES]
        np.testing.assert_array_equal(ids, wanted)
        np.testing.assert_array_equal(top, np.take_along_axis(logits, wanted, 1))

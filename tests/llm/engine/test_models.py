"""Engines with model definitions generate what `transformers` generates, for many requests at a time, with
little memory, and with or without speculation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file  # noqa: E402
from tests.llm.model_runner import ModelRunner  # noqa: E402
from tests.llm.models.test_families import checkpoint  # noqa: E402
from tests.llm.small_tokenizer import tokenizer  # noqa: E402

from tilewright.llm.engine.engine import Engine, EngineOptions  # noqa: E402
from tilewright.llm.engine.sampling import SamplingParameters  # noqa: E402
from tilewright.llm.engine.speculative import Speculation  # noqa: E402
from tilewright.llm.engine.stream import Request  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402


@pytest.mark.parametrize(
    ("family", "speculation"),
    [("llama", None), ("qwen 3", Speculation(adaptive=False)), ("falcon h1", None)],
    ids=["llama", "qwen 3, lookup", "falcon h1"],
)
def test_greedy_outputs_are_those_of_transformers(family: str, speculation: Any, tmp_path: Path) -> None:
    theirs = checkpoint(family, tmp_path)
    ours = build(tmp_path)
    load_weights(ours, load_file(tmp_path / "model.safetensors"))
    runner = ModelRunner(ours, vocabulary=96, pages=5, has_state=family == "falcon h1")
    engine = Engine(runner, tokenizer(), EngineOptions(speculation=speculation))
    system = np.random.default_rng(0).integers(3, 96, 70).tolist()
    prompts = [[*system, 5, 6, 7], system[:30], [9] * 20, [*system, 5, 8], [*system[:50], 4]]
    streams = [
        engine.submit(Request(p, SamplingParameters(temperature=0), max_tokens=12, ignore_eos=True))
        for p in prompts
    ]
    found = [stream.collect()[0].tokens for stream in streams]
    for prompt, tokens in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].numpy()
        # Each token is the most likely one, up to rounding.
        assert (logits[np.arange(12), tokens] > logits.max(axis=1) - 1e-3).all()
    if family != "falcon h1":
        assert engine.stats().cached_tokens > 0
    if speculation is not None:
        assert engine.stats().accepted_tokens > 0

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
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.load_weights import load_weights  # noqa: E402
from tilewright.llm.models import build  # noqa: E402


@pytest.mark.parametrize(
    ("family", "speculation"),
    [("llama", None), ("qwen 3", Speculation(adaptive=False)), ("falcon h1", None)],
    ids=["llama", "qwen 3, lookup", "falcon h1"],
)
def test_greedy_outputs_are_those_of_transformers(family: str, speculation: Any, tmp_path: Path) -> None:
    theirs = checkpoint(family, tmp_path, num_hidden_layers=1)
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


@pytest.mark.slow
def test_a_window_of_a_compiled_library_needs_its_own_memory_only(tmp_path: Path) -> None:
    """A prompt of nine pages runs in four."""
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MistralConfig(
        **size, num_key_value_heads=1, vocab_size=tokenizer().vocabulary, sliding_window=70,
        max_position_embeddings=640,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    model.save_pretrained(tmp_path)
    runner = LibraryRunner(compile_library(tmp_path, LibraryOptions(context=640, chunk=64, max_batch=2)))
    prompt = np.random.default_rng(0).integers(5, runner.vocabulary, 560).tolist()
    found = []
    for pages in (None, 4):
        engine = Engine(runner, tokenizer(), EngineOptions(pages=pages, replies=False))
        for begin in (prompt, prompt[:300]):
            stream = engine.submit(Request(begin, SamplingParameters(0), max_tokens=40, ignore_eos=True))
            found.append(stream.collect()[0].tokens)
    assert found[:2] == found[2:] and len(set(found[0])) > 3
    assert engine.stats().pages_released >= 8 and engine.stats().pages == 4

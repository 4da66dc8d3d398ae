"""The engine with a compiled model: a request's result does not depend on the other requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.small_library import check_bits, checkpoint, library
from tests.llm.small_tokenizer import tokenizer
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner


@pytest.fixture(scope="module", params=(("none", "bfloat16"), ("int4_g32", "int8")))
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LibraryRunner]:
    scheme, cached = request.param
    options = LibraryOptions(context=256, chunk=64, max_batch=6, cache_dtype=cached)
    with library(checkpoint(tmp_path_factory.mktemp("llama"), layers=1), scheme, options) as found:
        yield LibraryRunner(found)


def requests() -> list[Request]:
    """Return prompts of different lengths that begin alike; the last ones get long answers."""
    rng = np.random.default_rng(0)
    top = tokenizer().vocabulary
    shared = rng.integers(5, top, 100).tolist()
    lengths = (3, 70, 100, 130, 20, 90, 64, 1, 110, 128)
    prompts = [(shared + rng.integers(5, top, 60).tolist())[:n] for n in lengths]
    prompts += [[*([7, 8, 9] * 12), *shared[:i]] for i in range(8)]
    sampling = SamplingParameters(temperature=0)
    return [
        Request(p, sampling, max_tokens=12 if i < 10 else 150, ignore_eos=True) for i, p in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def alone(runner: LibraryRunner) -> list[list[int]]:
    return [Engine(runner, tokenizer()).submit(r).collect()[0].tokens for r in requests()]


def test_rows_and_chunks_do_not_matter(runner: LibraryRunner) -> None:
    check_bits(runner)


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(chunk=32),
        EngineOptions(pages=8),
        EngineOptions(pages=8, speculation=Speculation(max_batch=6, adaptive=False)),
    ],
    ids=["chunks", "few pages", "few pages, speculation"],
)
def test_output_under_load_is_output_alone(
    runner: LibraryRunner, alone: list[Any], options: EngineOptions
) -> None:
    """Each request gets the result that it gets alone. There are more requests than the batch holds, many
    begin alike, and sequences are preempted and resumed.
    """
    engine = Engine(runner, tokenizer(), options)
    streams = [engine.submit(r) for r in requests()]
    assert [s.collect()[0].tokens for s in streams] == alone
    statistics = engine.stats()
    assert statistics.cached_tokens > 0 and (statistics.preemptions > 0) == (options.pages is not None)
    assert (statistics.accepted_tokens > 0) == (options.speculation is not None)


def test_a_chat_goes_on(runner: LibraryRunner) -> None:
    """A request with the earlier turns in its prompt gets the same answer in the engine that served them.
    Their pages hold results of decoding, which differ from those of prefill.
    """
    engine = Engine(runner, tokenizer())
    prompt = requests()[3].prompt
    said = engine.submit(requests()[3]).collect()[0].tokens
    chat = Request([*prompt, *said, 5, 6], SamplingParameters(temperature=0), max_tokens=60, ignore_eos=True)
    assert engine.submit(chat).collect() == Engine(runner, tokenizer()).submit(chat).collect()


def test_windows_free_pages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The outputs of a compiled model with a window are those without freeing, in fewer pages."""
    import transformers

    folder = tmp_path_factory.mktemp("mistral")
    config = transformers.MistralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=tokenizer().vocabulary, max_position_embeddings=512,
        sliding_window=70,
    )  # fmt: skip
    transformers.MistralForCausalLM(config).save_pretrained(folder)
    options = LibraryOptions(context=512, chunk=64, max_batch=2, pages=16)
    with library(folder, "none", options) as found:
        windowed = LibraryRunner(found)
        assert windowed.window == 70
        asked = [
            Request(list(range(5, end)), SamplingParameters(temperature=0), max_tokens=300, ignore_eos=True)
            for end in (30, 150)
        ]
        results = []
        for window in (70, None):
            windowed.window = window
            engine = Engine(windowed, tokenizer(), EngineOptions(replies=False))
            streams = [engine.submit(request) for request in asked]
            results.append([stream.collect()[0].tokens for stream in streams])
            assert (engine.stats().pages_released > 4) == (window is not None)
    assert results[0] == results[1]

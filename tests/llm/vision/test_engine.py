"""Requests with images share pages and steps, and each has the tokens that it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from tests.llm.fake_runner import FakeRunner
from tests.llm.small_tokenizer import tokenizer
from tilewright.errors import RequestError
from tilewright.llm.engine.engine import Engine, EngineOptions
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.speculative import Speculation
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library, tokenizer_of
from tilewright.llm.runner import PAGE
from tilewright.llm.vision.reader import ImageReader
from tilewright.llm.weights import open_checkpoint

from .small_models import MOST, VOCABULARY, checkpoint, picture, reader_of

OTHERS = ["llava", "qwen 2 vl", "qwen 2.5 vl", "paligemma", "smolvlm"]


@pytest.fixture(
    scope="module", params=["gemma 3", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def seeing(request: Any, tmp_path_factory: Any) -> Iterator[tuple[LibraryRunner, Any, ImageReader]]:
    """A runner, its tokenizer and the reader of its images."""
    folder: Path = tmp_path_factory.mktemp("model")
    checkpoint(request.param, folder)
    found = open_checkpoint(folder)
    options = LibraryOptions(
        context=320, chunk=192 if request.param == "paligemma" else 48, max_batch=3, pages=5, source=MOST
    )
    with compile_library(found, options) as library:
        runner, own = LibraryRunner(library), tokenizer_of(found)
        yield runner, own, reader_of(folder)


def asked(reader: ImageReader, picture: Any, text: str = "again ", **others: Any) -> Request:
    tokens, images = reader.prompt(f"{text * 30}{reader.mark}{text * 30}", [picture])
    how = SamplingParameters(temperature=0.7, seed=5)
    values: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "images": images, **others}
    return Request(tokens, how, **values)


def test_prefix_cache(seeing: Any) -> None:
    """Equal images share pages; an equal text with another image shares only what lies before it."""
    runner, own, reader = seeing
    engine = Engine(runner, own)
    requests = [asked(reader, picture(40, 30, seed)) for seed in (0, 1, 0, 1)]
    streams = [engine.submit(request) for request in requests]
    outputs = []
    for request in requests:
        stream = engine.submit(request)
        outputs.append((stream.collect()[0].tokens, stream.cached_tokens))
    assert outputs[0][0] == outputs[2][0] != outputs[1][0] == outputs[3][0]
    assert [stream.collect()[0].tokens for stream in streams] == [tokens for tokens, _ in outputs]
    while engine.step():
        pass
    assert engine.stats().reply_tokens == 0, "replies after images are not computed ahead: images lack there"
    fresh = [Engine(runner, own, EngineOptions(prefix_cache=False)) for _ in requests]
    alone = [
        engine.submit(request).collect()[0].tokens for engine, request in zip(fresh, requests, strict=True)
    ]
    assert alone == [tokens for tokens, _ in outputs]
    engine = Engine(runner, own)
    counts = []
    for request in requests[:3]:
        stream = engine.submit(request)
        stream.collect()
        counts.append(stream.cached_tokens)
    place = int((requests[0].images.row_of >= 0).argmax())
    assert counts[0] == 0 and counts[1] <= place < PAGE <= counts[2]


def test_preemption_and_choices(seeing: Any) -> None:
    runner, own, reader = seeing
    requests = [asked(reader, picture(40, 30, seed), max_tokens=90) for seed in range(4)]
    alone = [Engine(runner, own).submit(request).collect()[0].tokens for request in requests]
    engine = Engine(runner, own, EngineOptions(prefix_cache=False))
    streams = [engine.submit(request) for request in requests]
    assert [stream.collect()[0].tokens for stream in streams] == alone
    assert engine.stats().preemptions > 0
    two = Engine(runner, own).submit(asked(reader, picture(40, 30, 0), max_tokens=20, n=2)).collect()
    assert two[0].tokens == alone[0][:20] != two[1].tokens


def test_speculation(seeing: Any) -> None:
    runner, own, reader = seeing
    request = asked(reader, picture(40, 30))
    alone = Engine(runner, own).submit(request).collect()[0].tokens
    guessing = Engine(runner, own, EngineOptions(speculation=Speculation(None, 3)))
    assert guessing.submit(request).collect()[0].tokens == alone
    with pytest.raises(RequestError, match="a draft model does not see the images"):
        Engine(runner, own, EngineOptions(speculation=Speculation(runner, 3)))


def test_refusals(seeing: Any) -> None:
    runner, own, reader = seeing
    request = asked(reader, picture(40, 30), prompt_logprobs=1)
    with pytest.raises(RequestError, match="log-probabilities of a prompt with images"):
        Engine(runner, own).submit(request)
    with pytest.raises(RequestError, match="the model takes no images"):
        Engine(FakeRunner(vocabulary=VOCABULARY), tokenizer()).submit(asked(reader, picture(40, 30)))

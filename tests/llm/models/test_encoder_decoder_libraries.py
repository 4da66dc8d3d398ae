"""Libraries of encoder-decoders: the tokens of `transformers`, for several sequences at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.llm.small_tokenizer import tokenizer
from tilewright.errors import RequestError
from tilewright.llm.engine.beam_search import BeamSearch
from tilewright.llm.engine.engine import Engine
from tilewright.llm.engine.sampling import SamplingParameters
from tilewright.llm.engine.stream import Request
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library
from tilewright.llm.weights import Conversion, convert

from .pairs import checkpoint, greedy, logits, source
from .test_families import close

TOKENS = 32


def options(**others: Any) -> LibraryOptions:
    return LibraryOptions(
        **{"context": 64, "chunk": 16, "max_batch": 3, "source": 100, "precision": None, **others}
    )


Compiled = Callable[[str], tuple[Any, LibraryRunner]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """A function that gives a model of `transformers` and its library, which is compiled once. Four pages are
    too few for three long sequences.
    """
    made: dict[str, tuple[Any, Any]] = {}

    def get(name: str) -> tuple[Any, LibraryRunner]:
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            theirs = checkpoint(name, folder)
            made[name] = theirs, compile_library(folder, options(context=192, pages=4, cache_dtype="float32"))
        theirs, library = made[name]
        return theirs, LibraryRunner(library)

    yield get
    for _, library in made.values():
        library.close()


@pytest.mark.parametrize("name", ["t5 1.1", "whisper"])
def test_like_transformers(name: str, compiled: Compiled) -> None:
    """Three sequences with encoders' inputs of different lengths, decoded together."""
    theirs, runner = compiled(name)
    given = [source(name, 1, n)[0] for n in (90, 5, 64)]
    tokens, found = greedy(runner, given, TOKENS)
    for k, one in enumerate(given):
        expected = logits(theirs, one[None], tokens[k : k + 1, :-1])[0]
        close(found[k], expected)
        np.testing.assert_array_equal(tokens[k, 1:], expected.argmax(-1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "mt5", "t5 1.1", "whisper"])
@pytest.mark.parametrize("scheme", ["int8", "int4_g32"])
def test_quantized(name: str, scheme: str, tmp_path: Path) -> None:
    """Logits are near those of the weights that are not quantized."""
    theirs = checkpoint(name, tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / scheme, Conversion(scheme))
    given = [source(name, 1, n)[0] for n in (90, 5)]
    with compile_library(tmp_path / scheme, options(cache_dtype="int8")) as library:
        tokens, found = greedy(LibraryRunner(library), given, 12)
    for k, one in enumerate(given):
        expected = logits(theirs, one[None], tokens[k : k + 1, :-1])[0]
        difference = np.sqrt(np.mean((found[k] - expected) ** 2) / np.mean(expected**2))
        assert difference < {"int8": 0.1, "int4_g32": 0.4}[scheme]


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_beam_search_is_that_of_transformers(name: str, compiled: Compiled) -> None:
    """Each sequence of a search keeps its own copy of the encoder's states."""
    import torch
    from transformers import GenerationMixin

    theirs, runner = compiled(name)
    end, width = 5, 3
    engine = Engine(runner, tokenizer())
    for n in (90, 5):
        given = source(name, 1, n)
        inputs = torch.tensor(given if name == "t5" else given.transpose(0, 2, 1))
        # Whisper's own `generate` gives the best sequence several times
        made = GenerationMixin.generate(
            theirs, **{"input_ids" if name == "t5" else "input_features": inputs},
            decoder_input_ids=torch.tensor([runner.start]), num_beams=width, num_return_sequences=width,
            do_sample=False, max_new_tokens=12, eos_token_id=end, pad_token_id=0, use_cache=False,
        )[:, 1:].tolist()  # fmt: skip
        wanted = [m[: m.index(end) + 1] if end in m else m for m in made]
        request = Request(
            runner.start, SamplingParameters(), source=given[0].astype("i4" if name == "t5" else "f4"),
            max_tokens=12, ignore_eos=True, stop_tokens=[end], beams=BeamSearch(width), n=width,
        )  # fmt: skip
        assert [choice.tokens for choice in engine.submit(request).collect()] == wanted


def test_engine(compiled: Compiled) -> None:
    """Requests share steps, and those that give their pages to others are encoded again: each has the tokens
    that it has alone.
    """
    _, runner = compiled("t5")
    given = [source("t5", 1, n)[0].astype(np.int32) for n in (90, 5, 64, 33, 12)]

    def run(sources: list[Any]) -> list[list[int]]:
        engine = Engine(runner, tokenizer())
        how = SamplingParameters(temperature=0.8, seed=3)
        streams = [
            engine.submit(Request(runner.start, how, source=x, max_tokens=150, ignore_eos=True))
            for x in sources
        ]
        found = [stream.collect()[0].tokens for stream in streams]
        preempted.append(engine.stats().preemptions)
        return found

    preempted: list[int] = []
    alone = [run([one])[0] for one in given]
    assert run(given) == alone and len({*map(tuple, alone)}) == len(given)
    assert preempted[-1] > 0
    engine = Engine(runner, tokenizer())
    for wrong, message in (
        (Request([0]), "input 'source' is needed"),
        (Request([0], source=np.zeros(101, np.int32)), "a length of 101; the encoder takes 1 to 100"),
        (Request([0], source=np.array([96], np.int32)), "a token outside"),
    ):
        with pytest.raises(RequestError, match=message):
            engine.submit(wrong)

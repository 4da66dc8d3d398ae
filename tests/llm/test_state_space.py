"""Mamba 2: chunks compared with one token after another. Libraries of models with state: slots, chunks,
batches, and an engine under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewright as tw  # noqa: E402
from tests.llm.models.test_families import checkpoint, logits  # noqa: E402
from tests.llm.small_tokenizer import tokenizer  # noqa: E402
from tilewright.cli.llm import command  # noqa: E402
from tilewright.errors import RequestError  # noqa: E402
from tilewright.llm.engine.engine import Engine, EngineOptions  # noqa: E402
from tilewright.llm.engine.sampling import SamplingParameters  # noqa: E402
from tilewright.llm.engine.speculative import Speculation  # noqa: E402
from tilewright.llm.engine.stream import Request  # noqa: E402
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library  # noqa: E402
from tilewright.llm.state_space import CHUNK, state_space_dual  # noqa: E402
from tilewright.llm.weights import Conversion, convert, open_checkpoint  # noqa: E402

TOKENS = np.random.default_rng(0).integers(3, 96, (3, 100)).astype(np.int32)
EXACT = LibraryOptions(context=128, chunk=100, max_batch=4, cache_dtype="float32", precision=None)


# -- The recurrence ------------------------------------------------------------------------------------------


def recurrence(n: int) -> tuple[Any, ...]:
    """Return state, x, rate, decay, taken and read of two sequences."""
    draw = np.random.default_rng(n).standard_normal
    parts = (
        draw((2, 2, 3, 8, 4)),
        draw((2, n, 2, 3, 8)),
        abs(draw((2, n, 2, 3))),
        -abs(draw((2, 3))),
        draw((2, n, 2, 4)),
        draw((2, n, 2, 4)),
    )
    return tuple(p.astype(np.float32) for p in parts)


def step_by_step(h: Any, x: Any, rate: Any, decay: Any, taken: Any, read: Any) -> tuple[Any, Any]:
    out = []
    for t in range(x.shape[1]):
        h = h * np.exp(rate[:, t] * decay)[..., None, None]
        h = h + (rate[:, t, ..., None] * x[:, t])[..., None] * taken[:, t, :, None, None]
        out.append((h * read[:, t, :, None, None]).sum(-1))
    return h, np.stack(out, 1)


@pytest.mark.parametrize("most", (CHUNK - 1, 3 * CHUNK))
def test_chunks_are_steps(most: int) -> None:
    bounds = {name: {1: f"n<={most}"} for name in ("x", "rate", "taken", "read")}
    with tw.compile(state_space_dual, recurrence(2), dims=bounds, cache=False) as library:
        for n in (1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK):
            wanted = step_by_step(*recurrence(n))
            for found, expected in zip(state_space_dual(*map(tw.Tensor, recurrence(n))), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(found), expected, atol=1e-4, rtol=1e-4)
            if n <= most:
                for found, expected in zip(library(*recurrence(n)), wanted, strict=True):
                    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


# -- Libraries -----------------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        "mamba",
        pytest.param("mamba 2", marks=pytest.mark.slow),
        "falcon h1",
        pytest.param("falcon h1, normalized", marks=pytest.mark.slow),
    ],
)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LibraryRunner, Any]]:
    """The runner of a family's library, and the logits of `transformers` after each of `TOKENS`."""
    folder = tmp_path_factory.mktemp("model")
    theirs = checkpoint(request.param, folder)
    with compile_library(folder, EXACT) as library:
        yield LibraryRunner(library), theirs


def test_slots(pair: tuple[LibraryRunner, Any]) -> None:
    """Chunks of any length, and batches of some of the sequences in any order, give the right logits in slots
    that others have used.
    """
    runner, theirs = pair
    expected = logits(theirs, TOKENS.astype(np.int64))
    pages, slots = np.array([[6, 1], [3, 2], [0, 7]], np.int32), np.array([2, 0, 3], np.int32)
    lengths = np.zeros(3, np.int32)

    def close(found: Any, row: Any, place: Any) -> None:
        np.testing.assert_allclose(found, expected[row, place], atol=1e-4 * np.abs(expected).max())

    for row, chunks in enumerate(((20, 7, 1, 2), (80, 10), (5, 5, 5))):
        runner.prefill(TOKENS[row, ::-1][:9].copy(), 0, pages[row], int(slots[row]))
        runner.reset(int(slots[row]))
        for n in chunks:
            start = lengths[row]
            found = runner.prefill(TOKENS[row, start : start + n], int(start), pages[row], int(slots[row]))
            lengths[row] += n
            close(found, row, lengths[row] - 1)
    for rows in ([0, 1, 2], [2, 0], [1], [0, 2, 1]):
        found = runner.decode(TOKENS[rows, lengths[rows]], lengths[rows], pages[rows], slots[rows])
        close(found, rows, lengths[rows])
        lengths[rows] += 1
    # Rows without a sequence do not change the others.
    none = np.array([1, 0, 1], np.int32)
    tokens, table = (
        np.where(none, 5, TOKENS[1, lengths[1]]).astype(np.int32),
        np.where(none[:, None], 5, pages[1]),
    )
    found = runner.decode(tokens, np.where(none, 0, lengths[1]), table, np.where(none, -1, slots[1]))
    close(found[1], 1, lengths[1])
    lengths[1] += 1
    found = runner.decode(TOKENS[np.arange(3), lengths], lengths, pages, slots)
    close(found, np.arange(3), lengths)


def test_divided_at_chunks(pair: tuple[LibraryRunner, Any]) -> None:
    """A prompt gives the same bits in one call as in two."""
    runner, _ = pair
    found = []
    for ends in ((100,), (CHUNK, 100)):
        runner.reset(1)
        for start, end in zip((0, *ends), ends, strict=False):
            logits_ = runner.prefill(TOKENS[0, start:end], start, np.array([4, 5], np.int32), 1)
        found.append(
            [
                logits_,
                *(
                    np.array(x[1])
                    for name, x in runner.library.state.items()
                    if name.endswith(("conv", "ssm"))
                ),
            ]
        )
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_such_a_library_has(pair: tuple[LibraryRunner, Any]) -> None:
    runner, _ = pair
    assert runner.has_state and runner.description["has_state"] is True
    assert set(runner.library.functions) == {"prefill", "decode", "reset", "sample", "embed"}
    assert runner.rows == runner.max_batch
    with pytest.raises(
        tw.CompileError, match="no function 'copy_page': .* keeps state that cannot be rolled back"
    ):
        runner.copy_page(0, 1)
    with pytest.raises(RequestError, match="cannot be used with speculation"):
        Engine(runner, tokenizer(), EngineOptions(speculation=Speculation()))


def test_output_under_load_is_output_alone(pair: tuple[LibraryRunner, Any]) -> None:
    """Each request gets the result that it gets alone. There are more requests than slots, memory is small
    and some requests are cancelled, so that slots and pages are used again and again.
    """
    runner, _ = pair
    draw = np.random.default_rng(1)
    prompts = [draw.integers(3, 96, n).tolist() for n in (90, 5, 70, 1, 33, 64, 12, 100, 8, 40)]

    def request(prompt: list[int]) -> Request:
        return Request(prompt, SamplingParameters(temperature=0), max_tokens=12, ignore_eos=True)

    engine = Engine(runner, tokenizer())
    alone = [engine.submit(request(p)).collect()[0].tokens for p in prompts]
    engine = Engine(runner, tokenizer(), EngineOptions(pages=5))
    streams = [engine.submit(request(p)) for p in prompts for _ in range(2)]
    for stream in streams[1::2]:  # Every second request is cancelled at some point.
        for _ in range(3):
            engine.step()
        stream.cancel()
    found = [stream.collect()[0].tokens for stream in streams[::2]]
    assert found == alone
    assert engine.stats().pages_used == 0


def test_no_cache_has_no_size(tmp_path: Path) -> None:
    checkpoint("mamba", tmp_path)
    arguments = ["compile", str(tmp_path), "-o", str(tmp_path / "model.so"), "--kv-cache", "1GB"]
    found = CliRunner().invoke(command, arguments)
    assert isinstance(found.exception, tw.CompileError) and "no layer of the model has a KV cache" in str(
        found.exception
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", ("mamba", "mamba 2", "falcon h1"))
@pytest.mark.parametrize("scheme", ("int8", "int4_g32"))
def test_quantized(family: str, scheme: str, tmp_path: Path) -> None:
    """The projections stay quantized. The error of rounding activations to 8 bits, or operands to bf16, is
    small compared with the logits.
    """
    theirs = checkpoint(family, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "converted", Conversion(scheme))
    converted = open_checkpoint(tmp_path / "converted")
    theirs.load_state_dict({n: torch.tensor(t.read()) for n, t in converted.items()}, strict=False)
    expected = logits(theirs, TOKENS[:1].astype(np.int64))[0]
    with compile_library(converted, LibraryOptions(context=128, chunk=80, max_batch=4)) as library:
        runner = LibraryRunner(library)
        assert "quantized_matmul" in library.ir("graph")
        pages, slots = np.array([2, 0], np.int32), np.array([1], np.int32)
        for found, place in (
            (runner.prefill(TOKENS[0, :70], 0, pages, 1), 69),
            (runner.decode(TOKENS[0, 70:71], np.array([70], np.int32), pages[None], slots)[0], 70),
        ):
            assert np.abs(found - expected[place]).max() < 0.05 * np.abs(expected).max()

"""Encoder-decoders give the logits of `transformers`: whole, token by token, with padding, in a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from safetensors.numpy import load_file

from tilewright.llm.cache import DenseCache, NoCache
from tilewright.llm.load_weights import load_weights
from tilewright.llm.models import build

from .pairs import PAIRS, checkpoint, logits, source
from .test_families import close


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: Any, tmp_path_factory: Any) -> tuple[str, Any, Any]:
    """A family's name, its model here, and the one of `transformers`."""
    folder = tmp_path_factory.mktemp("model")
    theirs = checkpoint(request.param, folder)
    ours = build(folder)
    load_weights(ours, load_file(folder / "model.safetensors"))
    return request.param, ours, theirs


def targets(batch: int, n: int) -> Any:
    return np.random.default_rng(7).integers(3, 96, (batch, n))


def test_whole(pair: tuple[str, Any, Any]) -> None:
    name, ours, theirs = pair
    given, tokens = source(name, 2, 45), targets(2, 21)
    close(ours(tokens, NoCache(tokens, ours.sources(given))), logits(theirs, given, tokens))


def test_token_by_token(pair: tuple[str, Any, Any]) -> None:
    name, ours, theirs = pair
    given, tokens = source(name, 2, 9), targets(2, 21)
    cache = DenseCache(ours.sources(given))
    parts = [tokens[:, a:b] for a, b in zip([0, 12, 18, 19, 20], [12, 18, 19, 20, 21], strict=True)]
    found = np.concatenate([ours(part, cache.before(part)) for part in parts], 1)
    close(found, logits(theirs, given, tokens))


def test_batch_with_padding(pair: tuple[str, Any, Any]) -> None:
    """Texts of different lengths in one call of the encoder: what `mask` leaves out changes nothing."""
    name, ours, theirs = pair
    if name == "whisper":
        pytest.skip("all recordings have one length")
    given, tokens = source(name, 3, 30), targets(3, 8)
    mask = np.arange(30)[None] < np.array([[30], [11], [1]])
    found = ours(tokens, NoCache(tokens, ours.sources(given, mask)))
    close(found, logits(theirs, given, tokens, mask))
    alone = ours(tokens[1:2], NoCache(tokens[1:2], ours.sources(given[1:2, :11])))
    close(found[1:2], alone.numpy())

"""Vision-language models read images and compute logits as `transformers` does, for small random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from tilewright.errors import CompileError, RequestError
from tilewright.frontends.trace import numpy as tnp
from tilewright.llm.cache import Given, NoCache, attend_where
from tilewright.llm.library import LibraryOptions, LibraryRunner, compile_library, model_of, tokenizer_of
from tilewright.llm.models import build
from tilewright.llm.models.base import missing_abilities
from tilewright.llm.vision.pixels import patches, squares
from tilewright.llm.weights import open_checkpoint

from .small_models import (
    MODELS,
    MOST,
    PICTURES,
    checkpoint,
    greedy,
    logits,
    picture,
    processed,
    prompt_of,
    reader_of,
)

TOKENS = 32


class Whole(NoCache):
    """A whole prompt at once, with images."""

    def __init__(self, tokens: Any, given: Given, places: Any) -> None:
        super().__init__(tokens)
        self.given, self._places = given, places

    @property
    def places(self) -> Any:
        return self.positions if self._places is None else self._places

    def attend(self, layer: int, q: Any, k: Any, v: Any, *, scale: float, **options: Any) -> Any:
        assert self.given is not None
        row, column = tnp.arange(q.shape[1])[:, None], tnp.arange(q.shape[1])[None]
        last = row if self.given.last is None else self.given.last[0][:, None]
        return attend_where(q, k, v, row, column, scale=scale, last=last, **options)


@pytest.mark.parametrize("name", MODELS)
def test_like_transformers(name: str, tmp_path: Path) -> None:
    """Pixels are equal, and so are the logits of prompts with one and with three images of other sizes."""
    theirs = checkpoint(name, tmp_path)
    ours, reader = model_of(open_checkpoint(tmp_path)), reader_of(tmp_path)
    vision: Any = ours.vision
    for images in (PICTURES[:1], PICTURES):
        tokens, placed = prompt_of(reader, images)
        pixels = processed(name, images)["pixel_values"].numpy()
        read = [view.arrays[0] for view in placed.views]
        if name.startswith("qwen"):
            np.testing.assert_array_equal(np.concatenate([x.reshape(-1, x.shape[-1]) for x in read]), pixels)
        elif name in ("pixtral", "mistral 3"):  # filled up at the right and at the bottom
            sizes, merge = processed(name, images)["image_sizes"].tolist(), 1 + (name == "mistral 3")
            for found, one, (height, width) in zip(read, pixels, sizes, strict=True):
                expected = squares(one[:, :height, :width], 4, merge)[0]
                np.testing.assert_array_equal(found, expected.reshape(found.shape))
        else:
            whole = pixels.reshape(-1, *pixels.shape[-3:])
            for found, one in zip(read, whole, strict=True):
                np.testing.assert_array_equal(found, patches(one, 4))
        rows = tnp.concatenate([vision(*view.arrays) for view in placed.views])
        last = placed.last[None].astype(np.int64) if vision.two_way else None
        places = placed.places[None] if vision.axes == 3 else None
        ids = np.array([tokens])
        found = np.asarray(ours(ids, Whole(ids, Given(rows, placed.row_of[None], last), places)))[0]
        expected = logits(name, theirs, tokens, len(tokens), images)
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


FAST = ("llava", "gemma 3", "mistral 3", "qwen 2.5 vl")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_compiled(name: str, tmp_path: Path) -> None:
    """Greedy tokens of the compiled library, in chunks of prompts, are those of `transformers`."""
    theirs = checkpoint(name, tmp_path)
    options = LibraryOptions(
        context=448, chunk=64, max_batch=3, precision=None, cache_dtype="float32", source=MOST
    )
    with compile_library(tmp_path, options) as library:
        runner, reader = LibraryRunner(library), reader_of(tmp_path)
        # The processor of PaliGemma takes no prompts without images.
        for images in (PICTURES[:1], PICTURES[:2], *([[]] if name != "paligemma" else [])):
            tokens, placed = prompt_of(reader, images)
            chosen, found = greedy(runner, tokens, placed, TOKENS)
            expected = logits(name, theirs, tokens + chosen, len(tokens), images)[len(tokens) - 1 : -1]
            np.testing.assert_array_equal(chosen, expected.argmax(-1))
            assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_without_images(tmp_path: Path) -> None:
    """A checkpoint can be built without its encoder, and one that has none gives a model of text."""
    checkpoint("llava", tmp_path)
    found = open_checkpoint(tmp_path)
    assert build(found.config).destination("vision_tower.vision_model.embeddings.position_ids") is None
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    assert tokenizer_of(open_checkpoint(tmp_path)).chat_templates == {"default": "{{ messages }}"}
    alone = model_of(found, images=False)
    assert alone.vision is None and missing_abilities(alone, found) == ["images"]
    whole = build(found.config)
    whole.adapt([name for name in found if "vision" not in name and "projector" not in name])
    assert whole.vision is None
    config = {**found.config, "vision_config": {**found.config["vision_config"], "model_type": "dinov2"}}
    with pytest.raises(CompileError, match="the image encoder of a llava is a dinov2; .*--no-images"):
        build(config)


def test_wrong_prompts(tmp_path: Path) -> None:
    checkpoint("qwen 2 vl", tmp_path)
    reader = reader_of(tmp_path)
    with pytest.raises(RequestError, match=r"1 places for images \('<image>' in its text\) and 2 images"):
        reader.prompt("<image> a", PICTURES[:2])
    with pytest.raises(RequestError, match="image 0: the data is no image of a known format: PNG, JPEG"):
        reader.prompt("<image> a", [b"GIF"])
    with pytest.raises(RequestError, match="image 0: one edge of 2010 x 10 pixels is more than 200 times"):
        reader.prompt("<image>", [picture(2010, 10)])
    with pytest.raises(RequestError, match="the prompt has 17 images; at most 16 are read"):
        reader.prompt("<image>" * 17, PICTURES[:1] * 17)
    assert reader.prompt("a", [])[1] is None


def test_parts_of_another_size(tmp_path: Path) -> None:
    checkpoint("smolvlm", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_image_size": {"longest_edge": 32}}))
    with pytest.raises(RequestError, match="parts of 32 x 32 pixels .*, the model's encoder takes 24 x 24"):
        reader_of(tmp_path).prompt("<image>", PICTURES[:1])


def test_rows_of_an_image_of_any_size(tmp_path: Path) -> None:
    """Images keep their ratio within the limits of the processor and of the library; tokens with the names of
    the processor's settings end rows and images.
    """
    checkpoint("pixtral", tmp_path)
    names = {"image_break_token": "<boi>", "image_end_token": "<eoi>"}
    (tmp_path / "processor_config.json").write_text(json.dumps(names))
    reader = reader_of(tmp_path)
    tokens, placed = reader.prompt("<image>", [picture(8, 10)])
    assert tokens == [2, 2, 3, 2, 2, 3, 2, 2, 4] and placed is not None and placed.views[0].grid == (3, 2)
    _, placed = reader.prompt("<image>", [picture(100, 60)])
    assert placed is not None and placed.views[0].grid == (4, 7)  # 28 x 16 pixels, of at most 28
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": {"longest_edge": 400}}))
    _, placed = reader_of(tmp_path).prompt("<image>", [picture(100, 60)])
    assert placed is not None and placed.views[0].grid == (4, 8)  # of at most 40 vectors
    with pytest.raises(RequestError, match="400 x 1 pixels need 63 vectors; .* 40 of an image: .*--image"):
        reader_of(tmp_path).prompt("<image>", [picture(400, 1)])
    config = open_checkpoint(tmp_path).config
    with pytest.raises(CompileError, match="'default' leaves out a patch of a pixtral"):
        build({**config, "vision_feature_select_strategy": "default"})

"""Places of images among a prompt's tokens, and the reading of files."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest

from tilewright.errors import RequestError
from tilewright.llm.config import Config
from tilewright.llm.engine.images import SeenRows
from tilewright.llm.engine.pages import PagePool
from tilewright.llm.engine.prefix_cache import PrefixCache
from tilewright.llm.models.llava import LlavaVision
from tilewright.llm.models.vision import Reading
from tilewright.llm.vision.given import Images, View, placed
from tilewright.llm.vision.pixels import MAX_BYTES, open_image

pillow = pytest.importorskip("PIL.Image")


def view(height: int, width: int, seed: float = 0.0) -> View:
    return View((np.full(3, seed, np.float32),), (height, width))


def images(two_way: str = "") -> Images:
    tokens = [5, 9, 9, 9, 9, 9, 9, 6, 9, 7, 8]
    return placed(tokens, 9, [view(2, 3), view(1, 1, 1.0)], two_way)


def test_places() -> None:
    found = images()
    assert found.row_of.tolist() == [-1, 0, 1, 2, 3, 4, 5, -1, 6, -1, -1]
    assert found.places[:, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 4, 5, 6, 7]
    assert found.places[:, 1].tolist() == [0, 1, 1, 1, 2, 2, 2, 4, 5, 6, 7]
    assert found.places[:, 2].tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7]
    assert found.offset == 8 - 11 and found.longest == 1
    assert [end for _, end, _ in found.contents] == [7, 9]
    with pytest.raises(RequestError, match="7 places for vectors of images, the images have 6"):
        placed([5, 9, 9, 9, 9, 9, 9, 6, 9, 7, 8], 9, [view(2, 3)])


def test_text_between_the_rows_of_an_image() -> None:
    """Tokens between the rows have positions as text has, and no vector."""
    found = placed([5, 9, 9, 4, 9, 9, 6], 9, [view(2, 2)._replace(between="|")])
    assert found.row_of.tolist() == [-1, 0, 1, -1, 2, 3, -1] and found.offset == 0
    assert found.places.tolist() == [[k] * 3 for k in range(7)]
    assert [(start, end) for start, end, _ in found.contents] == [(1, 6)]


def test_ends_of_calls() -> None:
    """A call ends before or after the tokens that see one another."""
    found = images("images")
    assert found.last.tolist() == [0, 6, 6, 6, 6, 6, 6, 7, 8, 9, 10] and found.longest == 6
    assert [found.cut(0, end) for end in range(1, 12)] == [1, 1, 1, 1, 1, 1, 7, 8, 9, 10, 11]
    assert [found.cut(3, end) for end in (4, 5, 6, 7, 8)] == [7, 7, 7, 7, 8]
    whole = images("prompt")
    assert whole.longest == 11 and whole.cut(0, 4) == 11 and whole.cut(0, 20) == 20
    whole.check(11, 11)
    with pytest.raises(RequestError, match="11 tokens of the prompt see one another .* which takes 10"):
        whole.check(11, 10)
    with pytest.raises(RequestError, match="placed in 11 tokens, the prompt has 12"):
        whole.check(12, 99)


@pytest.mark.parametrize("two_way", ["", "images", "prompt"])
def test_the_longest_range(two_way: str) -> None:
    """Ranges of neighboring images are told apart."""
    for tokens in ([9] * 7, [9, 9, 9, 9, 9, 9, 5, 9, 6], [5, *[9] * 7]):
        found = placed(tokens, 9, [view(2, 3), view(1, 1, 1.0)], two_way)
        ranges = [int(last) - found.start_of(k) + 1 for k, last in enumerate(found.last) if last > k]
        assert found.longest == max(ranges, default=1)
    assert placed([], 9, []).longest == 1


def test_contents_in_the_prefix_cache() -> None:
    """Equal images have equal numbers, others other ones, and numbers are no tokens."""
    cache = PrefixCache(PagePool(4))
    prompt = [5, 9, 9, 6]
    first, same, other = (placed(prompt, 9, [view(1, 2, seed)]) for seed in (0.0, 0.0, 1.0))
    assert cache.contents(prompt, first) == cache.contents(prompt, same) == [5, -1, -1, 6]
    assert cache.contents(prompt, other) == [5, -2, -2, 6]
    whole = [placed(tokens, 9, [view(1, 2)], "prompt") for tokens in (prompt, [5, 9, 9, 7])]
    assert cache.contents(prompt, whole[0]) == [-3] * 4 and cache.contents(prompt, whole[1]) == [-4] * 4


class Encoder:
    hidden = 2

    def see(self, one: View) -> np.ndarray:
        return np.arange(2 * one.vectors, dtype=np.float32).reshape(-1, 2) + 100 * one.arrays[0][0]

    def shift(self, slot: int, offset: int) -> None:
        pass


def test_rows_of_a_call() -> None:
    seen, found = SeenRows(Encoder(), kept=60), images()
    given = seen.given(found, 5, 9)
    assert given.row_of.tolist() == [0, 1, -1, 2] and given.rows[:, 0].tolist() == [8, 10, 100]
    assert seen.given(found, 5, 7).rows[:, 0].tolist() == [8, 10] and seen.encoded == 2
    later = seen.given(found, 9, 13)
    assert later.row_of.tolist() == [-1] * 4 and later.places[:, 1].tolist() == [6, 7, 8, 9]
    assert later.last.tolist() == [9, 10, 11, 12]
    small = SeenRows(Encoder(), kept=10)
    small.given(found, 0, 11)
    assert small.given(found, 1, 2).rows.tolist() == [[0, 1]] and small.encoded == 3


def header(width: int, height: int) -> bytes:
    """A PNG of a size that its few bytes do not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(10)))


def test_files() -> None:
    image = pillow.fromarray(np.zeros((4, 6, 4), np.uint8), "RGBA")
    for kind in ("PNG", "WEBP", "BMP", "GIF"):
        out = io.BytesIO()
        image.save(out, kind)
        assert open_image(out.getvalue()).size == (6, 4) and open_image(out.getvalue()).mode == "RGB"
        if kind in ("PNG", "WEBP"):
            assert open_image(out.getvalue()).getpixel((0, 0)) == (255, 255, 255), "it is transparent"
    turned, exif = io.BytesIO(), pillow.Exif()
    exif[0x0112] = 6
    image.convert("RGB").save(turned, "JPEG", exif=exif)
    assert open_image(turned.getvalue()).size == (4, 6)
    out = io.BytesIO()
    image.save(out, "TIFF")
    for wrong, message in (
        (out.getvalue(), "no image of a known format: PNG, JPEG, WEBP, GIF, BMP"),
        (b"", "no image of a known format"),
        (header(100_000, 100_000), "more than 33554432 pixels, which are not read: scale it down"),
        (header(6_000, 6_000), "6000 x 6000 pixels; at most 33554432 are read: scale it down"),
        (header(100, 100), "the image is damaged: "),
        (bytes(MAX_BYTES + 1), "20971521 bytes; at most 20971520 are read"),
    ):
        with pytest.raises(RequestError, match=message):
            open_image(wrong)


def test_long_images() -> None:
    """An image of one column is not scaled to billions of pixels."""
    config = {
        "model_type": "llava",
        "text_config": {"model_type": "llama"},
        "vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 336},
    }
    for settings in ({}, {"do_pad": True}):
        reading = Reading(Config(config), settings, str, 1)
        with pytest.raises(
            RequestError, match="1 x 30000 pixels would be scaled to .*: give one whose edges"
        ):
            LlavaVision.pieces(pillow.new("RGB", (1, 30_000)), reading)
        assert len(LlavaVision.pieces(pillow.new("RGB", (10, 900)), reading)) == 1

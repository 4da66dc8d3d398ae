"""Reading and preparing images with Pillow: what Hugging Face's image processors do, without torch."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import RequestError
from .given import Array

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 20 << 20
"""Largest size of a file of an image."""
MAX_PIXELS = 1 << 25
"""Largest number of pixels of an image, 32 Mi."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The formats of files that are read; of several frames, the first one."""


def open_image(data: bytes) -> Image:
    """Decode the file of an image, turned as its EXIF data says, to RGB.

    The size in the file's header is checked before pixels are decoded, so that a small file cannot fill the
    memory.

    Args:
        data: The content of the file.

    Raises:
        RequestError: It is no image of a known format, is damaged or too large, or Pillow is not installed.
    """
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError:
        raise RequestError(
            "images in prompts need the package pillow: pip install 'tilewright[llm]'"
        ) from None
    if len(data) > MAX_BYTES:
        raise RequestError(f"the image has {len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        image = pillow.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise RequestError(
                f"the image has {width} x {height} pixels; at most {MAX_PIXELS} are read: scale it down"
            )
        return as_rgb(ImageOps.exif_transpose(image))
    except RequestError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise RequestError(
            f"the image has more than {MAX_PIXELS} pixels, which are not read: scale it down"
        ) from None
    except pillow.UnidentifiedImageError:
        raise RequestError(f"the data is no image of a known format: {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders raise many kinds for damaged files
        raise RequestError(f"the image is damaged: {error}") from None


def as_rgb(image: Image) -> Image:
    """An image in RGB, before white where it is transparent, as the image processors of `transformers` do."""
    from PIL import Image as pillow

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    whole = image.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", whole.size, "white"), whole).convert("RGB")


def check_size(image: Image, height: int, width: int) -> None:
    """Check the size that an image is going to have, since a small one may become large if it is very long.

    Args:
        image: The image before.
        height: The new height in pixels.
        width: The new width in pixels.

    Raises:
        RequestError: It has too many pixels.
    """
    if height * width > 2 * MAX_PIXELS:
        raise RequestError(
            f"the image of {image.width} x {image.height} pixels would be scaled to {width} x {height}, more "
            f"than {2 * MAX_PIXELS} pixels: give one whose edges differ less"
        )


def resized(image: Image, height: int, width: int, settings: Mapping[str, Any], default: int) -> Image:
    """Scale an image.

    Args:
        image: The image.
        height: The new height in pixels.
        width: The new width in pixels.
        settings: The image processor's; ``resample`` is the number of Pillow's filter.
        default: The filter where the settings have none.

    Raises:
        RequestError: The new size is too large.
    """
    check_size(image, height, width)
    resample = settings.get("resample")
    return image.resize((width, height), default if resample is None else int(resample))


def values(
    image: Image, settings: Mapping[str, Any], mean: tuple[float, ...], std: tuple[float, ...]
) -> Array:
    """The pixels, scaled and normalized: float32 [3, height, width].

    Args:
        image: The image.
        settings: The image processor's: ``do_rescale``, ``rescale_factor``, ``do_normalize``,
            ``image_mean`` and ``image_std``.
        mean: The mean of each channel where the settings have none.
        std: The standard deviation of each channel where the settings have none.
    """
    x = np.asarray(image, np.float64)
    if settings.get("do_rescale", True):
        x = x * float(settings.get("rescale_factor") or 1 / 255)
    x = x.astype(np.float32)
    if settings.get("do_normalize", True):
        x -= np.asarray(settings.get("image_mean") or mean, np.float32)
        x /= np.asarray(settings.get("image_std") or std, np.float32)
    return np.ascontiguousarray(x.transpose(2, 0, 1))


def patches(x: Array, size: int) -> Array:
    """Cut pixels [3, height, width] to patches of `size` x `size`: [number, 3 * size * size], row by row."""
    channels, height, width = x.shape
    cut = x.reshape(channels, height // size, size, width // size, size).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(cut.reshape(-1, channels * size * size))


def squares(x: Array, size: int, merge: int) -> tuple[Array, Array]:
    """Cut pixels to patches of `size` x `size`, and these to squares of `merge` x `merge`, row by row.

    Args:
        x: Pixels [3, height, width], whose edges are multiples of both sizes.
        size: The edge of a patch in pixels.
        merge: The edge of a square in patches.

    Returns:
        The patches of each square [squares, merge * merge, 3, size, size], and their rows and columns
        [squares, merge * merge, 2], int32.
    """
    down, across = (edge // (size * merge) for edge in x.shape[1:])
    cut = x.reshape(3, down, merge, size, across, merge, size).transpose(1, 4, 2, 5, 0, 3, 6)
    cell = np.stack(np.divmod(np.arange(down * across), across), 1)
    inner = np.stack(np.divmod(np.arange(merge * merge), merge), 1)
    positions = (cell[:, None] * merge + inner[None]).astype(np.int32)
    return np.ascontiguousarray(cut.reshape(down * across, merge * merge, 3, size, size)), positions


def shrunk(height: int, width: int, factor: int, pixels: int) -> tuple[int, int]:
    """Scale an image to at most `pixels` pixels, if it is no longer than `pixels / factor**2` of its widths.

    Returns:
        Height and width, multiples of `factor`, each at least `factor`.
    """
    ratio = math.sqrt(height * width / pixels)
    down, across = (max(factor, math.floor(edge / ratio / factor) * factor) for edge in (height, width))
    return down, across


def center(image: Image, height: int, width: int) -> Image:
    """Cut the middle of an image, with black borders where it is too small."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALVES = (0.5, 0.5, 0.5)
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1

__all__ = [
    "BICUBIC",
    "BILINEAR",
    "CLIP_MEAN",
    "CLIP_STD",
    "FORMATS",
    "HALVES",
    "LANCZOS",
    "MAX_BYTES",
    "MAX_PIXELS",
    "as_rgb",
    "center",
    "check_size",
    "open_image",
    "patches",
    "resized",
    "shrunk",
    "squares",
    "values",
]

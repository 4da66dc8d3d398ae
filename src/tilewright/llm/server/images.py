"""Images in chats: OpenAI's parts ``image_url`` and Anthropic's blocks ``image``.

Only images that a request contains are read. The server fetches nothing, since a client could otherwise let
it reach machines that only the server can reach.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import RequestError
from ..vision.given import Images
from ..vision.pixels import MAX_BYTES, open_image
from ..vision.reader import MOST_IMAGES, as_parts
from .errors import ApiError

if TYPE_CHECKING:
    from .service import Service

MOST_PIXELS = 1 << 26
"""Largest number of pixels of a request's images together, 64 Mi. Small files can hold many, and all are in
memory at once.
"""


class Attached(NamedTuple):
    """An image of a request."""

    data: bytes
    """The content of its file."""
    where: str
    """The request's field."""


def from_url(url: str, where: str) -> Attached:
    """Return the image in a ``data:`` URL.

    Args:
        url: The URL.
        where: The request's field, which errors name.

    Raises:
        ApiError: 400: the URL is another one, or its data is not in base64.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        message = (
            f"'{where}': the server fetches no images, here from {url[:64]!r}: send the image itself, as "
            "'data:image/png;base64,...'"
        )
        raise ApiError(400, message, param=where, code="invalid_value")
    kind, comma, data = rest.partition(",")
    if not comma or not kind.lower().endswith(";base64"):
        message = f"'{where}': the URL is not 'data:image/png;base64,...'"
        raise ApiError(400, message, param=where, code="invalid_value")
    return from_base64(data, where)


def from_base64(data: str, where: str) -> Attached:
    """Return an image in base64; arguments and errors as of `from_url`."""
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        message = f"'{where}': the image has more than {MAX_BYTES} bytes"
        raise ApiError(400, message, param=where, code="invalid_value")
    try:
        return Attached(base64.b64decode(data, validate=True), where)
    except (binascii.Error, ValueError) as error:
        message = f"'{where}': the image's data is not base64: {error}"
        raise ApiError(400, message, param=where, code="invalid_value") from None


def only_users(parts: Sequence[str | Attached], role: str, where: str) -> str | list[str | Attached]:
    """Return the content of a message: a text, if it has no images.

    Args:
        parts: The parts of the message.
        role: Its role.
        where: The request's field, which errors name.

    Raises:
        ApiError: 400: the message has images, but is not the user's.
    """
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    if role != "user":
        raise ApiError(400, f"'{where}.content': only a user's message has images", param=f"{where}.content")
    return list(parts)


def seen(service: Service, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Attached]]:
    """Return messages as the chat template reads them, and their images in order.

    Args:
        service: The model.
        messages: The messages, whose content is a text, or a list of texts and `Attached`.

    Raises:
        ApiError: 400: the model or its chat template takes no images.
    """
    images = [
        part
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, Attached)
    ]
    templates = "\n".join(service.tokenizer.chat_templates.values())
    if images and (service.images is None or "image" not in templates):
        lacks = "the model takes" if service.images is None else "the chat template of the model takes"
        where = images[0].where
        raise ApiError(400, f"'{where}': {lacks} text only, no images", param=where, code="invalid_value")
    return as_parts(messages, "image" in templates and service.images is not None), images


async def encode(
    service: Service, text: str, images: Sequence[Attached], param: str
) -> tuple[list[int], Images | None]:
    """Return the tokens of a rendered chat with its images, and the images.

    Args:
        service: The model.
        text: The text that the chat template wrote.
        images: The chat's images.
        param: The request's field that errors of the whole name.

    Raises:
        ApiError: 400: the prompt is empty or too long, or an image cannot be read.
    """
    reader = service.images
    if not images or reader is None:
        return await service.encode(text, special=False, param=param), None
    service.check_length(text, param)
    if len(images) > MOST_IMAGES:  # before any of them is decoded
        message = f"the prompt has {len(images)} images; at most {MOST_IMAGES} are read"
        raise ApiError(400, message, param=param, code="invalid_value")

    def read() -> tuple[list[int], Images | None]:
        opened, pixels = [], 0
        for image in images:
            try:
                opened.append(open_image(image.data))
            except RequestError as error:
                message = f"'{image.where}': {error}"
                raise ApiError(400, message, param=image.where, code="invalid_value") from None
            pixels += opened[-1].width * opened[-1].height
            if pixels > MOST_PIXELS:
                message = (
                    f"'{image.where}': the request's images have more than {MOST_PIXELS} pixels together: "
                    "scale them down"
                )
                raise ApiError(400, message, param=image.where, code="invalid_value")
        return reader.prompt(text, opened)

    try:
        async with service.images_turn:  # decoded images take much memory, whatever their files' size
            tokens, placed = await service.encoding(len(text), read)
    except RequestError as error:
        raise ApiError(400, str(error), param=param, code="invalid_value") from None
    service.check_prompt(tokens, param)
    return tokens, placed


__all__ = ["MOST_PIXELS", "Attached", "encode", "from_base64", "from_url", "only_users", "seen"]

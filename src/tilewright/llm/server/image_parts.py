"""The parts of messages that are images: OpenAI's ``image_url`` and ``input_image``, and the sources of
Anthropic's ``image``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ImageUrl(_Model):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Model):
    """An image in a message of OpenAI's API."""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputImage(_Model):
    """An image in the input of OpenAI's responses."""

    type: Literal["input_image"]
    image_url: str
    file_id: None = None
    detail: Literal["auto", "low", "high"] | None = None


class Base64Source(_Model):
    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(_Model):
    type: Literal["url"]
    url: str


ImageSource = Annotated[Base64Source | UrlSource, Field(discriminator="type")]

__all__ = ["Base64Source", "ImagePart", "ImageSource", "ImageUrl", "InputImage", "UrlSource"]

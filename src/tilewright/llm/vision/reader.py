"""`ImageReader`: turns a text with images to a prompt's tokens and `Images`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ArtifactError, RequestError
from ..config import Config
from ..library import LibraryRunner
from ..models.base import family_of
from ..models.vision import Reading, Vision, prepared, vision_of
from ..tokenizer import TOKENIZER, Tokenizer
from .given import Images, View, placed
from .pixels import as_rgb, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..engine.engine import Engine

MOST_IMAGES = 16
"""The most images of one prompt."""


class ImageReader:
    """Reads the images of prompts as a model's processor in `transformers` does.

    Args:
        family: The class of the model's image encoder.
        config: The configuration of the whole model.
        settings: The image processor's.
        tokenizer: The model's tokenizer.
        most: The most vectors of one image, for encoders whose number varies.
        vocabulary: The number of the model's tokens.

    Raises:
        ArtifactError: The tokenizer lacks the token that stands for an image.
    """

    def __init__(
        self, family: type[Vision], config: Config, settings: Mapping[str, Any], tokenizer: Tokenizer,
        most: int, vocabulary: int,
    ) -> None:  # fmt: skip
        self._family, self._tokenizer, self._vocabulary = family, tokenizer, vocabulary
        self._reading = Reading(config, settings, self._text_of, most)
        self.image_token = family.image_token(config)
        self.mark = self._text_of(family.placeholder(config))
        """The text that stands for an image in a prompt."""

    @classmethod
    def from_folder(
        cls, folder: str | Path, config: Mapping[str, Any], tokenizer: Tokenizer, most: int, vocabulary: int
    ) -> ImageReader:
        """The reader of a model.

        Args:
            folder: Where preprocessor_config.json or processor_config.json lies; without them the defaults
                of the family count.
            config: The content of the model's config.json.
            tokenizer: The model's tokenizer.
            most: The most vectors of one image, for encoders whose number varies.
            vocabulary: The number of the model's tokens.

        Raises:
            ArtifactError: The model has no image encoder, a file is damaged, or the tokenizer lacks a token.
        """
        text = Config(config)
        language, family = family_of(text), vision_of(text)
        if family is None:
            raise ArtifactError(f"a {text.model_type} has no image encoder")
        complete = language.complete(prepared(text))
        return cls(family, complete, _settings(Path(folder)), tokenizer, most, vocabulary)

    @classmethod
    def of_library(cls, engine: Engine, path: str | Path) -> ImageReader:
        """The reader of a compiled library.

        Args:
            engine: The library's engine.
            path: The library's file; the settings lie in the folder of its tokenizer.

        Raises:
            ArtifactError: The library has no image encoder, a file is damaged, or the tokenizer lacks a
                token.
        """
        runner = engine.runner
        if runner.sight is None or not isinstance(runner, LibraryRunner):
            raise ArtifactError(f"{path}: the model takes text only, no images")
        described, folder = runner.description, Path(path).with_suffix(TOKENIZER)
        return cls.from_folder(
            folder, described["config"], engine.tokenizer, described["source"], runner.vocabulary
        )

    def _text_of(self, token: int) -> str:
        text = self._tokenizer.backend.id_to_token(token)
        if text is None:
            raise ArtifactError(f"the tokenizer has no token {token}, which the model uses for images")
        return str(text)

    def prompt(
        self, text: str, images: Sequence[Image | bytes], *, special: bool = False
    ) -> tuple[list[int], Images | None]:
        """The tokens of a prompt, and the images among them; None without images.

        Args:
            text: The text, in which `mark` stands for each image.
            images: The images in order, as Pillow's or as the contents of files.
            special: Whether to add the tokens that the tokenizer adds.

        Raises:
            RequestError: The number of images differs from that of their places in the text, there are too
                many, or one cannot be read.
        """
        if len(images) > MOST_IMAGES:
            raise RequestError(f"the prompt has {len(images)} images; at most {MOST_IMAGES} are read")
        if images:
            text = self._family.arranged(text, len(images), self.mark, self._reading)
        parts = text.split(self.mark)
        if len(parts) - 1 != len(images):
            raise RequestError(
                f"the prompt has {len(parts) - 1} places for images ({self.mark!r} in its text) and "
                f"{len(images)} images"
            )
        whole, views = parts[0], list[View]()
        for number, (image, rest) in enumerate(zip(images, parts[1:], strict=True)):
            try:
                opened = open_image(image) if isinstance(image, bytes) else as_rgb(image)
                pieces = self._family.pieces(opened, self._reading)
            except RequestError as error:
                raise RequestError(f"image {number}: {error}") from None
            for piece in pieces:
                if isinstance(piece, View):
                    views.append(piece)
                    rows, columns = piece.grid
                    piece = piece.between.join([self._text_of(self.image_token) * columns] * rows)
                whole += piece
            whole += rest
        tokens = self._tokenizer.encode(whole, special=special)
        if not views:
            return tokens, None
        found = placed(tokens, self.image_token, views, self._family.two_way)
        # The embedding of the token is not read, and may not exist.
        known = self.image_token < self._vocabulary
        return tokens if known else [0 if t == self.image_token else t for t in tokens], found


def as_parts(messages: Sequence[Mapping[str, Any]], listed: bool) -> list[Mapping[str, Any]]:
    """Messages whose content has the form that a chat template reads.

    Args:
        messages: Messages whose content is a text, or a list of texts and of images of any type.
        listed: Whether contents are lists of ``{"type": "text", "text": ...}`` and ``{"type": "image"}``, as
            templates of models with images expect; otherwise they are texts.
    """
    found: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        pieces = content if isinstance(content, list) else [] if content is None else [content]
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if listed:
            parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in pieces]
            found.append({**message, "content": parts})
        else:
            found.append({**message, "content": "".join(texts)} if isinstance(content, list) else message)
    return found


def _settings(folder: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} is not JSON: {error}") from error
        inner = content.get("image_processor", {}) if isinstance(content, dict) else None
        if not isinstance(inner, dict):
            raise ArtifactError(f"{path} does not describe an image processor")
        found |= {**content, **inner}
    return found


__all__ = ["MOST_IMAGES", "ImageReader", "as_parts"]

"""`Vision`, the base class of image encoders of vision-language models, and their registry.

A vision-language model is a language model of any family, and a `Vision` beside it, which gives vectors that
replace the embeddings of some tokens of a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from ...errors import CompileError, RequestError
from ...frontends.nn import Module
from ..config import Config
from ..vision.given import View
from ..vision.pixels import BICUBIC, HALVES, patches, resized, values

if TYPE_CHECKING:
    from PIL.Image import Image

VISION = "vision."
"""The beginning of the names of an encoder's parameters in its model."""


@dataclass(frozen=True)
class Reading:
    """The circumstances of the reading of an image."""

    config: Config
    """The configuration of the whole model."""
    settings: Mapping[str, Any]
    """The image processor's, from preprocessor_config.json or processor_config.json."""
    text_of: Callable[[int], str]
    """Gives the text of a special token."""
    most: int
    """The most vectors of one image, for encoders whose number varies."""

    def check(self, image: Image, vectors: int) -> None:
        """Check the number of vectors of an image.

        Raises:
            RequestError: The library was compiled for fewer.
        """
        if vectors > self.most:
            raise RequestError(
                f"{image.width} x {image.height} pixels need {vectors} vectors; the library was compiled for "
                f"{self.most} of an image: compile with a larger --image-tokens"
            )


class Vision(Module):
    """An image encoder and the projection of its result to the size of the language model's embeddings.

    `renamed` maps names of the checkpoint's arrays, as that of `LanguageModel` does: those of the encoder to
    names that begin with ``vision.``, the others to the names of the language model.

    Args:
        config: The configuration of the whole model, with the language model's keys and ``vision_config``.
    """

    renamed: ClassVar[Mapping[str, str]] = {
        r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.",
        r"^(model\.)?language_model\.lm_head": "lm_head",
    }
    axes: ClassVar[int] = 1
    """The number of axes of the language model's positions: 3 for time, height and width."""
    two_way: ClassVar[Literal["", "images", "prompt"]] = ""
    """Which tokens see one another in both directions; see `given.placed`."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values for keys that ``vision_config`` may leave out."""

    text_values: ClassVar[Mapping[str, Any]] = {}
    """Values of keys of the language model's part, in place of those of config.json."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.hidden = config, config.hidden

    @classmethod
    def tower_config(cls, config: Config) -> Config:
        """Return the configuration of the encoder.

        Args:
            config: The configuration of the whole model.

        Raises:
            CompileError: It has none.
        """
        inner = config["vision_config"]
        if not isinstance(inner, Mapping):
            raise CompileError(f"config.json of a {config.model_type}: 'vision_config' is not an object")
        return Config(inner).with_defaults(cls.defaults)

    @classmethod
    def text_defaults(cls, config: Config) -> Mapping[str, Any]:
        """Return values for keys that the language model's part of config.json may leave out.

        Args:
            config: The configuration of the whole model.
        """
        return {}

    @classmethod
    def image_token(cls, config: Config) -> int:
        """Return the number of the token that vectors replace.

        Args:
            config: The configuration of the whole model.
        """
        return int(config.get("image_token_id", config.get("image_token_index")))

    @classmethod
    def placeholder(cls, config: Config) -> int:
        """Return the number of the token that stands for an image in a chat template's text.

        Args:
            config: The configuration of the whole model.
        """
        return cls.image_token(config)

    @classmethod
    def least_chunk(cls, config: Config) -> int:
        """Return the number of tokens that a call of ``prefill`` must be able to take.

        Args:
            config: The configuration of the whole model.
        """
        return 1

    @classmethod
    def arranged(cls, text: str, count: int, mark: str, reading: Reading) -> str:
        """Return a prompt's text with one `mark` for each of its images, where the family adds some.

        Args:
            text: The text.
            count: The number of images.
            mark: The text of the token `placeholder`.
            reading: The circumstances of the reading.
        """
        return text

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        """Return what stands in a prompt for an image: views and texts between them.

        Args:
            image: The image.
            reading: The circumstances of the reading.

        Raises:
            RequestError: The image cannot be read by this model.
        """
        raise NotImplementedError

    def example(self, most: int) -> tuple[tuple[Any, ...], dict[str, dict[int, str]]]:
        """Return example arguments of `forward`, and the bounds of their sizes.

        Args:
            most: The most vectors of one image, for encoders whose number varies.
        """
        raise NotImplementedError

    def destination(self, name: str) -> str | None:
        """Return the parameter of this module in which a renamed array is stored; None: it is not needed.

        Args:
            name: The array's name after `renamed`.
        """
        return name


class TowerVision(Vision):
    """An encoder whose layers are those of `tower`."""

    tower: Any

    def destination(self, name: str) -> str | None:
        layer = re.match(r"vision\.tower\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= len(self.tower.layers):
            return None
        if re.match(r"vision\.tower\.(vision_model\.)?head\.", name):
            return None
        return None if self.tower.post_norm is None and ".post_norm." in name else name


class FixedVision(TowerVision):
    """An encoder of images of one size, given as patches [patches, 3 * size * size]."""

    mean: ClassVar[tuple[float, ...]] = HALVES
    std: ClassVar[tuple[float, ...]] = HALVES
    resample: ClassVar[int] = BICUBIC
    inputs: int
    count: int
    """Elements of a patch, and the number of patches."""

    def example(self, most: int) -> tuple[tuple[Any, ...], dict[str, dict[int, str]]]:
        return (np.zeros((self.count, self.inputs), np.float32),), {}

    @classmethod
    def fitted(cls, image: Image, edge: int, reading: Reading) -> Image:
        """Return the image in `edge` x `edge` pixels.

        Args:
            image: The image.
            edge: The length of an edge, in pixels.
            reading: The circumstances of the reading.
        """
        return resized(image, edge, edge, reading.settings, cls.resample)

    @classmethod
    def view(cls, image: Image, reading: Reading, rows: int) -> View:
        """Return the view of an image that gives `rows` x `rows` vectors.

        Args:
            image: The image.
            reading: The circumstances of the reading.
            rows: The number of vectors along an edge.
        """
        tower = cls.tower_config(reading.config)
        x = values(cls.fitted(image, int(tower["image_size"]), reading), reading.settings, cls.mean, cls.std)
        return View((patches(x, int(tower["patch_size"])),), (rows, rows))

    @classmethod
    def side(cls, config: Config) -> int:
        """Return the number of patches along an edge.

        Args:
            config: The configuration of the whole model.
        """
        tower = cls.tower_config(config)
        return int(tower["image_size"]) // int(tower["patch_size"])


_Vision = TypeVar("_Vision", bound=type[Vision])
_REGISTERED: dict[str, type[Vision]] = {}


def register_vision(*names: str) -> Callable[[_Vision], _Vision]:
    """Register a class as the image encoder of models.

    Args:
        *names: Values of ``model_type``, each for any encoder, or followed by a slash and the ``model_type``
            of one encoder.
    """

    def registered(cls: _Vision) -> _Vision:
        _REGISTERED.update(dict.fromkeys(names, cls))
        return cls

    return registered


def visions() -> Mapping[str, type[Vision]]:
    """Return the registered encoders by the names of `register_vision`."""
    return dict(_REGISTERED)


def vision_of(config: Config) -> type[Vision] | None:
    """Return the image encoder's class of a config.json; None: the model has none, or none is known.

    Args:
        config: The configuration of the whole model.
    """
    name, tower = config.model_type if config.outer is None else config.outer, config.get("vision_config")
    kind = tower.get("model_type") if isinstance(tower, Mapping) else None
    return _REGISTERED.get(f"{name}/{kind}") or _REGISTERED.get(name)


def prepared(config: Config) -> Config:
    """Return a configuration with what the model's image encoder changes in the language model's part.

    Args:
        config: The configuration of the whole model.
    """
    family = vision_of(config)
    if family is None:
        return config
    return config.with_defaults(family.text_defaults(config)).with_values(**family.text_values)


def renamed_by(cls: type[Vision], name: str) -> str:
    """Return the name of a checkpoint's array in the language model or, from ``vision.`` on, in `cls`.

    Args:
        cls: The encoder's class.
        name: The array's name in the checkpoint.
    """
    for pattern, other in cls.renamed.items():
        name = re.sub(pattern, other, name)
    return name


__all__ = [
    "VISION",
    "FixedVision",
    "Reading",
    "TowerVision",
    "Vision",
    "prepared",
    "register_vision",
    "renamed_by",
    "vision_of",
    "visions",
]

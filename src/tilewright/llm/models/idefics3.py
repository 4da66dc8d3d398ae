"""Idefics 3 and SmolVLM: SigLIP on square parts of an image. Laurençon et al., 2024; Marafioti et al.,
2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import RequestError
from ...frontends.nn import Linear
from ...frontends.trace import Tensor
from ..config import Config
from ..vision.given import View
from ..vision.pixels import HALVES, LANCZOS, patches, resized, values
from ..vision.towers import TOWER_NAMES, PatchTower
from .vision import FixedVision, Reading, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096
"""The longest edge of an image, in pixels, whatever the settings say."""
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


@register_vision("idefics3", "smolvlm")
class Idefics3Vision(FixedVision):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^model\.text_model\.": "model.",
        r"^model\.vision_model\.": "vision.tower.",
        r"^model\.connector\.modality_projection\.proj\.": "vision.projector.",
        **TOWER_NAMES,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
        "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }  # fmt: skip
    resample = LANCZOS

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower, self.scale = self.tower_config(config), int(config.get("scale_factor", 2))
        self.tower = PatchTower(tower, clip=False)
        self.count, self.inputs = self.tower.side**2, self.tower.inputs
        self.projector = Linear(tower.hidden * self.scale**2, config.hidden, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Return vectors [rows, hidden] for `patches` [patches, 3 * size * size] of one part of an image."""
        side, scale = self.tower.side, self.scale
        x = self.tower(patches, buckets(side))
        rows = side // scale
        x = x.reshape(rows, scale, rows, scale, x.shape[-1]).transpose(0, 2, 1, 3, 4)
        result: Tensor = self.projector(x.reshape(rows * rows, -1))
        return result

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        settings, config = reading.settings, reading.config
        tower = cls.tower_config(config)
        size, patch = int(tower["image_size"]), int(tower["patch_size"])
        rows = size // patch // int(config.get("scale_factor", 2))
        part = int((settings.get("max_image_size") or {}).get("longest_edge", size))
        if part != size:
            raise RequestError(
                f"preprocessor_config.json divides images into parts of {part} x {part} pixels "
                f"('max_image_size'), the model's encoder takes {size} x {size} ('image_size' of config.json)"
            )

        def view(part: Image) -> View:
            return View((patches(values(part, settings, HALVES, HALVES), patch),), (rows, rows))

        if settings.get("do_resize", True):
            longest = (settings.get("size") or {}).get("longest_edge", 4 * size)
            image = resized(image, *longest_edge(image, int(longest)), settings, cls.resample)
        if not settings.get("do_image_splitting", True):
            whole = resized(image, size, size, settings, cls.resample)
            return [AROUND + WHOLE, view(whole), AROUND]
        image = resized(image, *multiples(image, size), settings, cls.resample)
        down, across = image.height // size, image.width // size
        pieces: list[View | str] = []
        if down * across > 1:
            for row in range(down):
                for column in range(across):
                    box = column * size, row * size, (column + 1) * size, (row + 1) * size
                    pieces += [f"{AROUND}<row_{row + 1}_col_{column + 1}>", view(image.crop(box))]
                pieces.append("\n")
            image = resized(image, size, size, settings, cls.resample)
            pieces.append("\n")
        return [*pieces, AROUND + WHOLE, view(image), AROUND]


def buckets(side: int) -> np.ndarray[Any, Any]:
    """The vectors for positions of the patches of a whole square, int64 [side * side]: the fraction of the
    edge at which a patch begins, among as many equal parts, in float32 as the model was trained.
    """
    borders = (1 / side + (1 / side) * np.arange(side - 1)).astype(np.float32)
    starts = np.arange(side, dtype=np.float32) * np.float32(1 / side)
    found = np.searchsorted(borders, np.minimum(starts, np.float32(1 - 1e-6)), side="right")
    return (found[:, None] * side + found[None]).reshape(-1)


def longest_edge(image: Image, longest: int) -> tuple[int, int]:
    """Height and width of an image that is scaled to a longest edge, the shorter one even."""
    width, height = image.size
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LARGEST:
        width, height = LARGEST, int(LARGEST / ratio)
    elif height > width and height > LARGEST:
        height, width = LARGEST, int(LARGEST * ratio)
    return max(height, 1), max(width, 1)


def multiples(image: Image, size: int) -> tuple[int, int]:
    """Height and width of an image, rounded up to multiples of `size`, the longer one first."""
    width, height = image.size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / size) * size
        height = math.ceil(int(width / ratio) / size) * size
    else:
        height = math.ceil(height / size) * size
        width = math.ceil(int(height * ratio) / size) * size
    return height, width

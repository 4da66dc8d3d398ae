"""LLaVA: a CLIP or SigLIP encoder before a language model. Liu et al., 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import CompileError
from ...frontends.nn import Linear, Module
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..config import Config
from ..layers import ACTIVATIONS
from ..vision.given import View
from ..vision.pixels import CLIP_MEAN, CLIP_STD, center, check_size, resized
from ..vision.towers import CLIP, SIGLIP, TOWER_NAMES, PatchTower
from .vision import FixedVision, Reading, Vision, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image

PROJECTED = {
    r"^(model\.)?vision_tower\.": "vision.tower.",
    r"^(model\.)?multi_modal_projector\.": "vision.projector.",
}
"""The names of encoder and projector in the checkpoints of several families."""


class Projector(Module):
    """Two linear layers with an activation between them.

    Args:
        inputs: The last size of the input.
        hidden: The last size of the result.
        bias: Whether the layers add a bias.
        activation: The name of the activation.
    """

    def __init__(self, inputs: int, hidden: int, bias: bool, activation: str) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise CompileError(
                f"projector_hidden_act {activation!r} in config.json is not supported; known: "
                f"{', '.join(ACTIVATIONS)}"
            )
        self.linear_1, self.linear_2 = Linear(inputs, hidden, bias), Linear(hidden, hidden, bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., hidden] for `x` [..., inputs]."""
        result: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return result


def chosen_layers(config: Config, tower: Config, default: int) -> list[int]:
    """Return the layers whose states an image's vectors are made of; 0 is the input of the first layer.

    Args:
        config: The configuration of the whole model, whose ``vision_feature_layer`` names one or several.
        tower: The configuration of the encoder.
        default: The layer where there is no such key; negative numbers count from the last layer.

    Raises:
        CompileError: The encoder has no such layer.
    """
    layers = config.get("vision_feature_layer", default)
    numbers = [layers] if isinstance(layers, int) else list(layers)
    chosen = [tower.layers + 1 + k if k < 0 else k for k in numbers]
    if not all(0 <= k <= tower.layers for k in chosen):
        raise CompileError(f"vision_feature_layer {layers}: the encoder has {tower.layers} layers")
    return chosen


@register_vision("llava")
class LlavaVision(FixedVision):
    renamed: ClassVar[Mapping[str, str]] = {**Vision.renamed, **PROJECTED, **TOWER_NAMES}
    mean, std = CLIP_MEAN, CLIP_STD

    @classmethod
    def text_defaults(cls, config: Config) -> Mapping[str, Any]:
        if config.model_type != "llama":
            return {}
        return {
            "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }  # fmt: skip

    @classmethod
    def tower_config(cls, config: Config) -> Config:
        tower = super().tower_config(config)
        if tower.model_type not in ("clip_vision_model", "siglip_vision_model"):
            raise CompileError(
                f"the image encoder of a llava is a {tower.model_type or 'model'}; clip_vision_model, "
                "siglip_vision_model and pixtral are supported: compile with --no-images for text alone"
            )
        return tower.with_defaults(CLIP if tower.model_type.startswith("clip") else SIGLIP)

    @classmethod
    def _kept(cls, config: Config) -> int:
        """The first vector of the encoder that is used: 1 leaves out CLIP's vector of the whole image."""
        strategy = config.get("vision_feature_select_strategy", "default")
        if strategy not in ("default", "full"):
            raise CompileError(f"vision_feature_select_strategy {strategy!r}: 'default' and 'full' are known")
        return int(strategy == "default")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower = self.tower_config(config)
        self.chosen = chosen_layers(config, tower, -2)
        clip = tower.model_type.startswith("clip")
        self.tower = PatchTower(tower, clip=clip, layers=max(self.chosen), last_norm=False)
        self.count, self.inputs, self.kept = self.tower.side**2, self.tower.inputs, self._kept(config)
        self.projector = Projector(
            tower.hidden * len(self.chosen), config.hidden,
            bool(config.get("multimodal_projector_bias", True)),
            str(config.get("projector_hidden_act", "gelu")),
        )  # fmt: skip

    def forward(self, patches: Tensor) -> Tensor:
        """Return vectors [rows, hidden] for `patches` [patches, 3 * size * size]."""
        states = self.tower.states(patches)
        x = tnp.concatenate([states[k][0] for k in self.chosen], -1)
        result: Tensor = self.projector(x[self.kept :])
        return result

    @classmethod
    def fitted(cls, image: Image, edge: int, reading: Reading) -> Image:
        settings = reading.settings
        wanted = settings.get("size") or {"shortest_edge": edge}
        if settings.get("do_pad") and image.width != image.height:
            image = squared(image, [int(255 * x) for x in settings.get("image_mean") or cls.mean])
        if isinstance(wanted, int) or "shortest_edge" in wanted:
            short = wanted if isinstance(wanted, int) else int(wanted["shortest_edge"])
            height, width = image.height, image.width
            longer = int(short * max(height, width) / min(height, width))
            image = resized(
                image, *((longer, short) if height > width else (short, longer)), settings, cls.resample
            )
        else:
            image = resized(image, int(wanted["height"]), int(wanted["width"]), settings, cls.resample)
        if image.size != (edge, edge) or settings.get("do_center_crop"):
            image = center(image, edge, edge)
        return image

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        tower, side = cls.tower_config(reading.config), cls.side(reading.config)
        view = cls.view(image, reading, side)
        more = int(tower.model_type.startswith("clip")) - cls._kept(reading.config)
        return [view if not more else View(view.arrays, (1, side * side + more))]


def squared(image: Image, color: list[int]) -> Image:
    """An image in the middle of a square with a background of `color`.

    Raises:
        RequestError: The square is too large.
    """
    from PIL import Image as pillow

    side = max(image.size)
    check_size(image, side, side)
    square = pillow.new("RGB", (side, side), tuple(color))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square

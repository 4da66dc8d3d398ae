"""Pixtral and Mistral 3: images of any size, whose rows of patches are told apart by tokens. Agrawal et al.,
2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import CompileError
from ...frontends.nn import Linear, Module, ModuleList, RMSNorm
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..cache import Bidirectional
from ..config import Config
from ..layers import Attention, Block, GatedMLP
from ..vision.given import View
from ..vision.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, resized, shrunk, squares, values
from ..vision.towers import PatchProjection, plane_rotation
from .llava import PROJECTED, Projector, chosen_layers
from .vision import Reading, TowerVision, Vision, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image


class PixtralTower(Module):
    """Encodes patches at any places, whose queries and keys are rotated by row and column.

    Args:
        config: The configuration of the encoder.
        layers: The number of layers to run.
    """

    post_norm = None

    def __init__(self, config: Config, layers: int) -> None:
        super().__init__()
        size = int(config["patch_size"])

        def norm() -> Module:
            return RMSNorm(config.hidden, 1e-5)

        self.patches = PatchProjection(config.hidden, (3, size, size), bias=False)
        self.pre_norm = norm()
        self.layers = ModuleList(Block(Attention(config, k), GatedMLP(config), norm) for k in range(layers))
        base = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
        frequencies = float(base) ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        # Rows have the frequencies of even numbers, columns those of odd ones.
        self.frequencies = frequencies.reshape(-1, 2).T.astype(np.float32)

    def states(self, patches: Tensor, positions: Tensor) -> list[Tensor]:
        """Return the hidden states [1, patches, hidden] before the first layer, and after each layer.

        Args:
            patches: The pixels of each patch [patches, 3 * size * size].
            positions: Their rows and columns [patches, 2], integers.
        """
        x = self.pre_norm(self.patches(patches))[None]
        rotation, cache, states = plane_rotation(positions, self.frequencies), Bidirectional(x), [x]
        for layer in self.layers:
            states.append(layer(states[-1], cache, rotation))
        return states


@register_vision("llava/pixtral")
class PixtralVision(TowerVision):
    renamed: ClassVar[Mapping[str, str]] = {
        **Vision.renamed,
        **PROJECTED,
        r"^vision\.tower\.transformer\.": "vision.tower.",
        r"^vision\.tower\.patch_conv\.": "vision.tower.patches.",
        r"^vision\.tower\.ln_pre\.": "vision.tower.pre_norm.",
        r"\.attention_norm\.": ".input_layernorm.",
        r"\.ffn_norm\.": ".post_attention_layernorm.",
        r"\.attention\.": ".self_attn.",
        r"\.feed_forward\.": ".mlp.",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 1024, "patch_size": 16, "hidden_act": "gelu",
    }  # fmt: skip
    feature_layer: ClassVar[int] = -2
    """The layer whose states become vectors where config.json names none, counted from the last one."""

    @classmethod
    def text_defaults(cls, config: Config) -> Mapping[str, Any]:
        if config.model_type != "mistral":
            return {}
        return {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8,
        }  # fmt: skip

    @classmethod
    def merged(cls, config: Config) -> int:
        """Return the edge of the squares of patches that become one vector.

        Args:
            config: The configuration of the whole model.

        Raises:
            CompileError: The model leaves out vectors of patches.
        """
        if (strategy := config.get("vision_feature_select_strategy", "default")) != "full":
            raise CompileError(
                f"vision_feature_select_strategy {strategy!r} leaves out a patch of a pixtral; 'full' is "
                "supported"
            )
        return 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower = self.tower_config(config)
        self.chosen = chosen_layers(config, tower, self.feature_layer)
        self.square, self.inputs = self.merged(config) ** 2, 3 * int(tower["patch_size"]) ** 2
        self.tower = PixtralTower(tower, max(self.chosen))
        self.projector = self.make_projector(config, tower)

    def make_projector(self, config: Config, tower: Config) -> Module:
        """Make the projection of vectors, called with [patches, size].

        Args:
            config: The configuration of the whole model.
            tower: The configuration of the encoder.
        """
        return Projector(
            tower.hidden * len(self.chosen), config.hidden,
            bool(config.get("multimodal_projector_bias", True)),
            str(config.get("projector_hidden_act", "gelu")),
        )  # fmt: skip

    def forward(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Return vectors [rows, hidden].

        Args:
            patches: The pixels of the patches that each vector joins, [rows, square, 3 * size * size].
            positions: Their rows and columns [rows, square, 2], integers.
        """
        count = patches.shape[0] * self.square
        states = self.tower.states(patches.reshape(count, self.inputs), positions.reshape(count, 2))
        result: Tensor = self.projector(tnp.concatenate([states[k][0] for k in self.chosen], -1))
        return result

    def example(self, most: int) -> tuple[tuple[Any, ...], dict[str, dict[int, str]]]:
        arrays = (
            np.zeros((2, self.square, self.inputs), np.float32),
            np.zeros((2, self.square, 2), np.int32),
        )
        rows = {0: f"vectors<={most}"}
        return arrays, {"patches": rows, "positions": rows}

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        settings, patch = reading.settings, int(cls.tower_config(reading.config)["patch_size"])
        factor = patch * (merge := cls.merged(reading.config))
        height, width = fitting(image, factor, reading)
        x = values(resized(image, height, width, settings, BICUBIC), settings, CLIP_MEAN, CLIP_STD)
        cut, positions = squares(x, patch, merge)
        arrays = cut.reshape(*cut.shape[:2], -1), positions
        line = str(settings.get("image_break_token", "[IMG_BREAK]"))
        grid = height // factor, width // factor
        return [View(arrays, grid, line), str(settings.get("image_end_token", "[IMG_END]"))]


def fitting(image: Image, factor: int, reading: Reading) -> tuple[int, int]:
    """Height and width of an image whose edges are multiples of `factor`, and within the limits of the image
    processor and of the library.

    Raises:
        RequestError: The image is too long for its width.
    """
    size = reading.settings.get("size") or {}
    longest = size.get("longest_edge")
    most = (longest, longest) if longest else (size.get("height", 1024), size.get("width", 1024))
    ratio = max(1.0, image.height / int(most[0]), image.width / int(most[1]))
    # An edge of at least one pixel: longer images are refused by the number of their vectors.
    height, width = (max(1, math.floor(edge / ratio)) for edge in (image.height, image.width))
    down, across = (-(-edge // factor) * factor for edge in (height, width))
    if down * across > reading.most * factor**2:
        down, across = shrunk(down, across, factor, reading.most * factor**2)
    reading.check(image, down * across // factor**2)
    return down, across


class MergingProjector(Projector):
    """A projection of squares of patches, which are normalized and joined before.

    Args:
        config: The configuration of the whole model.
        tower: The configuration of the encoder.
        merge: The edge of a square.
    """

    def __init__(self, config: Config, tower: Config, merge: int) -> None:
        bias = bool(config.get("multimodal_projector_bias", False))
        super().__init__(tower.hidden, config.hidden, bias, str(config.get("projector_hidden_act", "gelu")))
        self.square = merge**2
        self.norm = RMSNorm(tower.hidden, config.eps)
        self.merging_layer = Linear(tower.hidden * self.square, tower.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, hidden] for the patches `x` [rows * square, size], square by square."""
        rows, size = x.shape[0] // self.square, x.shape[1]
        # The elements of the patches of a square lie beside one another.
        x = self.norm(x).reshape(rows, self.square, size).transpose(0, 2, 1)
        return super().forward(self.merging_layer(x.reshape(rows, size * self.square)))


@register_vision("mistral3")
class Mistral3Vision(PixtralVision):
    """The encoder of Pixtral, whose squares of patches become one vector."""

    renamed: ClassVar[Mapping[str, str]] = {
        **PixtralVision.renamed, r"^vision\.projector\.patch_merger\.": "vision.projector.",
    }  # fmt: skip
    feature_layer = -1

    @classmethod
    def image_token(cls, config: Config) -> int:
        return int(config.get("image_token_id", config.get("image_token_index", 10)))

    @classmethod
    def merged(cls, config: Config) -> int:
        return int(config.get("spatial_merge_size", 2))

    def make_projector(self, config: Config, tower: Config) -> Module:
        if len(self.chosen) > 1:
            raise CompileError("vision_feature_layer of a mistral3 names several layers; one is supported")
        return MergingProjector(config, tower, self.merged(config))

"""Gemma 1, 2 and 3 (text). Gemma Team, 2024 and 2025."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...frontends.nn import Module
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import Attention, Block, RotaryEmbeddingByKind
from ..norms import OffsetRMSNorm
from ..vision.given import View
from ..vision.pixels import BILINEAR
from ..vision.towers import SIGLIP, TOWER_NAMES, PatchTower
from .base import CausalLM, alternating, register
from .llava import PROJECTED
from .vision import FixedVision, Reading, Vision, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image


class Scaled(CausalLM):
    """A model with scaled embeddings, and normalizations that scale by their weight plus 1."""

    norm_class = OffsetRMSNorm

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) * self.config.hidden**0.5


@register("gemma")
class Gemma(Scaled):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "rms_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256,
            "max_position_embeddings": 8192,
        }  # fmt: skip


class NormalizedTwice(Scaled):
    """Normalizes inputs and results of blocks; logits and scores may be capped."""

    heads_normalized = False

    def attention(self, layer: int) -> Module:
        return Attention(
            self.config, layer, bias=bool(self.config.get("attention_bias", False)),
            norm=self.norm if self.heads_normalized else None,
            scale=float(self.config["query_pre_attn_scalar"]) ** -0.5,
            softcap=self.config.get("attn_logit_softcapping"),
        )  # fmt: skip

    def block(self, config: Config, layer: int) -> Module:
        norm = lambda: self.norm(config.hidden)  # noqa: E731
        return Block(self.attention(layer), self.mlp(layer), norm, place="both")

    def make_rotary(self) -> Module:
        return RotaryEmbeddingByKind(self.config)


_COMMON = {
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip


@register("gemma2")
class Gemma2(NormalizedTwice):
    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        caps = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
        return {
            **_COMMON,
            **caps,
            "max_position_embeddings": 8192,
            "layer_types": alternating(2, config.layers),
        }


def ropes_by_kind(config: Config) -> Mapping[str, Any]:
    """The ``rope_parameters`` that older files give by keys for each kind of layer.

    Args:
        config: The configuration of the model.
    """
    slow = {
        "rope_type": "default",
        "rope_theta": config.get("rope_theta", 1e6),
        **config.get("rope_scaling", {}),
    }
    fast = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 1e4)}
    return {"full_attention": slow, "sliding_attention": fast}


@register("gemma3_text", "gemma3")
class Gemma3(NormalizedTwice):
    """Gemma 3, also as the language model of checkpoints with a vision model, and EmbeddingGemma."""

    heads_normalized = True
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.",)

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        types = alternating(int(config.get("sliding_window_pattern", 6)), config.layers)
        return {
            **_COMMON,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "layer_types": types,
            "rope_parameters": ropes_by_kind(config),
        }

    @classmethod
    def complete(cls, config: Config) -> Config:
        result = super().complete(config)
        if not result.get("use_bidirectional_attention", False):
            return result
        # The file has the size of the whole window, half of which lies before a token.
        return result.with_values(sliding_window=int(result["sliding_window"]) // 2 + 1)

    @property
    def bidirectional(self) -> bool:
        return bool(self.config.get("use_bidirectional_attention", False))


@register_vision("gemma3")
class Gemma3Vision(FixedVision):
    """SigLIP, whose vectors are averaged in squares, normalized and projected. Tokens of an image see one
    another.
    """

    renamed: ClassVar[Mapping[str, str]] = {**Vision.renamed, **PROJECTED, **TOWER_NAMES}
    defaults = SIGLIP
    resample = BILINEAR
    two_way = "images"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower = self.tower_config(config)
        self.tower = PatchTower(tower, clip=False)
        self.count, self.inputs = self.tower.side**2, self.tower.inputs
        self.projector = PooledProjector(
            tower.hidden, config.hidden, tower.eps, self.tower.side, self._rows(config)
        )

    @classmethod
    def _rows(cls, config: Config) -> int:
        """The number of vectors along an edge of the image."""
        return math.isqrt(int(config.get("mm_tokens_per_image", 256)))

    @classmethod
    def least_chunk(cls, config: Config) -> int:
        return cls._rows(config) ** 2

    @classmethod
    def placeholder(cls, config: Config) -> int:
        return int(config.get("boi_token_index", 255999))

    @classmethod
    def image_token(cls, config: Config) -> int:
        return int(config.get("image_token_index", config.get("image_token_id", 262144)))

    def forward(self, patches: Tensor) -> Tensor:
        """Return vectors [rows, hidden] for `patches` [patches, 3 * size * size]."""
        result: Tensor = self.projector(self.tower(patches))
        return result

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        config, rows = reading.config, cls._rows(reading.config)
        begin = reading.text_of(cls.placeholder(config))
        end = reading.text_of(int(config.get("eoi_token_index", 256000)))

        def whole(part: Image) -> list[View | str]:
            return [f"\n\n{begin}", cls.view(part, reading, rows), f"{end}\n\n"]

        crops = pan_and_scan(image, reading.settings) if reading.settings.get("do_pan_and_scan") else []
        if not crops:
            return whole(image)
        pieces = ["Here is the original image ", *whole(image)]
        for k, crop in enumerate(crops):
            pieces += [" " if k else " and here are some crops to help you see better ", *whole(crop)]
        return pieces


class PooledProjector(Module):
    """Averages squares of vectors, normalizes the averages and projects them.

    Args:
        inputs: The size of the vectors.
        hidden: The size of the results.
        eps: The constant of the normalization.
        side: The number of vectors along an edge of the image.
        rows: The number of results along an edge.
    """

    def __init__(self, inputs: int, hidden: int, eps: float, side: int, rows: int) -> None:
        super().__init__()
        self.mm_input_projection_weight = uniform((inputs, hidden), 1)
        self.mm_soft_emb_norm = OffsetRMSNorm(inputs, eps)
        self.rows, self.square = rows, side // rows

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows * rows, hidden] for `x` [side * side, inputs]."""
        x = x.reshape(self.rows, self.square, self.rows, self.square, x.shape[-1]).mean((1, 3))
        x = x.reshape(self.rows * self.rows, x.shape[-1])
        result: Tensor = self.mm_soft_emb_norm(x) @ self.mm_input_projection_weight
        return result


def pan_and_scan(image: Image, settings: Mapping[str, Any]) -> list[Image]:
    """The crops of a long image that are shown to the model beside the whole, as Gemma 3's image processor
    makes them; none if the image is nearly square.

    Args:
        image: The image.
        settings: The image processor's.
    """
    least = int(settings.get("pan_and_scan_min_crop_size") or 256)
    most = int(settings.get("pan_and_scan_max_num_crops") or 4)
    ratio = float(settings.get("pan_and_scan_min_ratio_to_activate") or 1.2)
    short, long = sorted(image.size)
    if long / short < ratio:
        return []
    count = min(most, max(2, min(long // least, math.floor(long / short + 0.5))))
    across, down = (count, 1) if image.width >= image.height else (1, count)
    width, height = math.ceil(image.width / across), math.ceil(image.height / down)
    if min(width, height) < least:
        return []
    return [
        image.crop((x, y, min(x + width, image.width), min(y + height, image.height)))
        for y, x in itertools.product(range(0, height * down, height), range(0, width * across, width))
    ]

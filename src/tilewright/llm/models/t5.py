"""T5 (Raffel et al., 2020), T5 1.1 and Flan-T5 (Chung et al., 2022), mT5 (Xue et al., 2021): relative
positions as terms of the scores, in buckets of distances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ...errors import CompileError
from ...frontends.nn import Linear, Module
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..config import Config
from ..layers import MLP, Attention, Block, GatedMLP
from .base import register
from .encoder_decoder import CrossAttention, CrossBlock, Encoder, EncoderDecoder


def distance_buckets(count: int, farthest: int, both: bool) -> np.ndarray[Any, Any]:
    """The bucket of each distance, key's position minus query's, from `-farthest` to `farthest`: int32.

    The first half of the buckets of a direction are single distances, the others grow like powers up to
    `farthest`, from which on all distances share the last one.

    Args:
        count: The number of all buckets.
        farthest: The distance from which on all share a bucket.
        both: Whether later keys have buckets of their own, the second half; else they share the first one.
    """
    distance = np.arange(-farthest, farthest + 1)
    half = count // 2 if both else count
    exact = half // 2
    size = np.abs(distance) if both else np.maximum(-distance, 0)
    # In float32 as in the first implementation, so that equal distances are on the same side of a limit.
    grown = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.log(farthest / exact)
    far = exact + (grown.astype(np.float32) * np.float32(half - exact)).astype(np.int64)
    bucket = np.where(size < exact, size, np.minimum(far, half - 1))
    return (bucket + (half if both else 0) * (distance > 0)).astype(np.int32)


class RelativePositions(Module):
    """The terms that are added to the scores of a head, one for each distance of key and query.

    Args:
        config: The configuration of the stack of layers that share it.
        both: Whether keys after the query are told apart from those before it.
    """

    def __init__(self, config: Config, both: bool) -> None:
        super().__init__()
        count = int(config["relative_attention_num_buckets"])
        self.farthest = int(config.get("relative_attention_max_distance", 128))
        self.buckets = distance_buckets(count, self.farthest, both)
        self.weight = uniform((count, config.heads), 1)

    def forward(self, distance: Tensor) -> Tensor:
        """Return terms [batch, heads, n, m] or [heads, n, m] for distances [batch, n, m] or [n, m]."""
        by_distance = tnp.astype(self.weight, "float32")[self.buckets]
        place = tnp.clip(distance, -self.farthest, self.farthest) + self.farthest
        result: Tensor = tnp.moveaxis(by_distance[place], -1, -3)
        return result


@register("t5", "mt5")
class T5(EncoderDecoder):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^shared\.": "model.embed_tokens.",
        r"^decoder\.final_layer_norm\.": "model.norm.",
        r"^encoder\.final_layer_norm\.": "encoder.norm.",
        r"^decoder\.block\.": "model.layers.",
        r"^encoder\.block\.": "encoder.layers.",
        r"^(\w+)\.layers\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.": r"\1.positions.",
        r"\.layer\.0\.SelfAttention\.([qkvo])\.": r".self_attn.\1_proj.",
        r"\.layer\.1\.EncDecAttention\.([qkvo])\.": r".cross_attn.\1_proj.",
        r"\.layer\.0\.layer_norm\.": ".input_layernorm.",
        r"^(model\..*)\.layer\.1\.layer_norm\.": r"\1.cross_layernorm.",
        r"\.layer\.[12]\.layer_norm\.": ".post_attention_layernorm.",
        r"\.layer\.[12]\.DenseReluDense\.wi_0\.": ".mlp.gate_proj.",
        r"\.layer\.[12]\.DenseReluDense\.(wi|wi_1)\.": ".mlp.up_proj.",
        r"\.layer\.[12]\.DenseReluDense\.wo\.": ".mlp.down_proj.",
    }
    # Early checkpoints repeat the shared embedding, and have positions that are not used.
    ignored: ClassVar[Iterable[str]] = (
        r"^(encoder|decoder)\.embed_tokens\.weight$",
        r"EncDecAttention\.relative_attention_bias\.weight$",
    )

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        gated, _, kind = str(config.get("feed_forward_proj", "relu")).rpartition("-")
        return {
            "num_attention_heads": config["num_heads"], "head_dim": config["d_kv"],
            "intermediate_size": config["d_ff"], "relative_attention_num_buckets": 32,
            "layer_norm_epsilon": 1e-6, "max_position_embeddings": 1 << 20,
            "hidden_act": "gelu_new" if gated and kind == "gelu" else kind,
        }  # fmt: skip

    @classmethod
    def complete(cls, config: Config) -> Config:
        encoder = int(config.get("num_layers", 0) or config["num_hidden_layers"])
        completed = super().complete(config)
        return completed.with_values(
            encoder_layers=encoder, num_hidden_layers=int(config.get("num_decoder_layers", encoder)),
            # `n_positions` is the length of texts in training; distances have no limit.
            max_position_embeddings=completed.values.get("max_position_embeddings", 1 << 20),
        )  # fmt: skip

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.positions = RelativePositions(config, both=False)
        self.encoder = Encoder(int(config["encoder_layers"]), self.encoder_block, self.norm(config.hidden))
        self.encoder.positions = RelativePositions(config, both=True)
        # T5 1.1 and mT5 have a head of their own, unless the checkpoint lacks it, and do not scale.
        scaled = bool(config.get("scale_decoder_outputs", config.tied and config.model_type == "t5"))
        self.logits_scale = config.hidden**-0.5 if scaled else 1.0
        self.lm_head = None if scaled else Linear(config.hidden, config.vocabulary, False)

    def adapt(self, names: Iterable[str]) -> None:
        if "lm_head.weight" not in names:  # mT5 saved by newer programs shares the embedding
            self.lm_head = None

    def attention(self, layer: int) -> Module:
        return Attention(self.config, layer, scale=1.0, terms=lambda distance: self.model.positions(distance))

    def encoder_block(self, layer: int) -> Module:
        """Make layer number `layer` of the encoder."""
        attention = Attention(
            self.config, layer, scale=1.0, terms=lambda distance: self.encoder.positions(distance)
        )
        return Block(attention, self.mlp(layer), lambda: self.norm(self.config.hidden))

    def mlp(self, layer: int) -> Module:
        kind = str(self.config.get("feed_forward_proj", "relu"))
        if kind.startswith("gated-"):
            return GatedMLP(self.config)
        if "-" in kind:
            raise CompileError(f"config.json of a t5: feed_forward_proj is {kind!r}, not NAME or gated-NAME")
        return MLP(self.config, bias=False)

    def block(self, config: Config, layer: int) -> Module:
        cross = CrossAttention(config, layer, scale=1.0)
        return CrossBlock(self.attention(layer), cross, self.mlp(layer), lambda: self.norm(config.hidden))

    def make_rotary(self) -> None:
        return None

    def embed_source(self, source: TensorLike) -> Tensor:
        result: Tensor = self.model.embed_tokens(source)
        return result

    def source_example(self, most: int) -> tuple[Any, dict[int, str]]:
        return np.zeros(2, np.int32), {0: f"source<={most}"}

"""Whisper (Radford et al., 2022): an encoder of spectrograms and a decoder of text with timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ...frontends.nn import Conv1d, Embedding, LayerNorm, Module
from ...frontends.nn import functional as F
from ...frontends.nn.layers import uniform
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..cache import Cache
from ..config import Config
from ..layers import MLP, Attention, Block
from .base import register
from .encoder_decoder import CrossAttention, CrossBlock, Encoder, EncoderDecoder


class WhisperAttention(Attention):
    """Self-attention whose keys have no bias."""

    def make_projections(self, config: Config, bias: bool, out_bias: bool) -> None:
        super().make_projections(config, bias, out_bias)
        self.k_proj.bias = None


@register("whisper")
class Whisper(EncoderDecoder):
    source_kind = "audio"
    norm_class = LayerNorm
    renamed: ClassVar[Mapping[str, str]] = {
        r"^model\.encoder\.": "encoder.",
        r"^model\.decoder\.": "model.",
        r"^encoder\.embed_positions\.weight$": "encoder.positions",
        r"^model\.embed_positions\.": "model.positions.",
        r"^(encoder|model)\.layer_norm\.": r"\1.norm.",
        r"\.self_attn_layer_norm\.": ".input_layernorm.",
        r"\.encoder_attn_layer_norm\.": ".cross_layernorm.",
        r"\.final_layer_norm\.": ".post_attention_layernorm.",
        r"\.encoder_attn\.": ".cross_attn.",
        r"\.out_proj\.": ".o_proj.",
        r"\.fc1\.": ".mlp.up_proj.",
        r"\.fc2\.": ".mlp.down_proj.",
    }
    ignored: ClassVar[Iterable[str]] = (r"^proj_out\.",)  # the embedding

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "layer_norm_eps": 1e-5, "hidden_act": "gelu", "max_source_positions": 1500, "num_mel_bins": 80,
            "max_position_embeddings": int(config.get("max_target_positions", 448)),
            "intermediate_size": config["decoder_ffn_dim"],
        }  # fmt: skip

    @classmethod
    def complete(cls, config: Config) -> Config:
        numbers = int(config["decoder_layers"]), int(config["decoder_attention_heads"])
        return super().complete(
            config.with_values(num_hidden_layers=numbers[0], num_attention_heads=numbers[1])
        )

    @classmethod
    def source_limit(cls, config: Config) -> int:
        return int(config["max_source_positions"])

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.positions = Embedding(int(config["max_position_embeddings"]), config.hidden)
        self.embedding_scale = config.hidden**0.5 if config.get("scale_embedding", False) else 1.0
        self.mels, self.most = int(config["num_mel_bins"]), self.source_limit(config)
        encoder = config.with_values(
            num_attention_heads=int(config["encoder_attention_heads"]),
            num_key_value_heads=int(config["encoder_attention_heads"]),
            intermediate_size=int(config["encoder_ffn_dim"]),
        )
        self.encoder = Encoder(
            int(config["encoder_layers"]),
            lambda layer: Block(
                WhisperAttention(encoder, layer, bias=True), MLP(encoder), lambda: self.norm(config.hidden)
            ),
            self.norm(config.hidden),
        )
        self.encoder.conv1 = Conv1d(self.mels, config.hidden, 3, padding=1)
        self.encoder.conv2 = Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.encoder.positions = uniform((self.most, config.hidden), 1)

    def attention(self, layer: int) -> Module:
        return WhisperAttention(self.config, layer, bias=True)

    def mlp(self, layer: int) -> Module:
        return MLP(self.config)

    def block(self, config: Config, layer: int) -> Module:
        cross = CrossAttention(config, layer, bias=True, key_bias=False)
        return CrossBlock(self.attention(layer), cross, self.mlp(layer), lambda: self.norm(config.hidden))

    def make_rotary(self) -> None:
        return None

    def embed(self, tokens: TensorLike, cache: Cache) -> Tensor:
        return super().embed(tokens, cache) + self.model.positions(cache.positions)

    def embed_source(self, source: TensorLike) -> Tensor:
        """Return [batch, m, hidden] for frames [batch, 2 m, mels] of a spectrogram with normalized
        logarithms, where m is the number of positions of the encoder.
        """
        x = tnp.asarray(source).transpose(0, 2, 1)
        x = F.gelu(self.encoder.conv2(F.gelu(self.encoder.conv1(x))))
        return x.transpose(0, 2, 1) + self.encoder.positions

    def source_example(self, most: int) -> tuple[Any, dict[int, str]]:
        return np.zeros((2 * self.most, self.mels), np.float32), {}

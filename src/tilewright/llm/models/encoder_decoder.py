"""`EncoderDecoder`, the base class of models whose decoder attends to the states of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from ...errors import CompileError
from ...frontends.nn import Linear, Module, ModuleList
from ...frontends.trace import Tensor
from ...frontends.trace.tensor import TensorLike
from ..cache import Bidirectional, Cache, DenseSource, Source
from ..config import Config
from ..layers import Block, Rotations
from .base import CausalLM


class CrossAttention(Module):
    """Attention of a decoder's tokens to the states of an encoder, without order.

    Args:
        config: The configuration of the decoder.
        layer: The number of the layer, by which a `Source` holds its keys and values.
        bias: Whether the projections of queries, values and output add a bias.
        key_bias: Whether the projection of keys adds a bias; None: as `bias`.
        scale: The factor of the scores; None is ``1 / sqrt(head_dim)``.
    """

    def __init__(
        self, config: Config, layer: int, *, bias: bool = False, key_bias: bool | None = None,
        scale: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.scale = config.head_dim**-0.5 if scale is None else scale
        width = config.heads * config.head_dim
        self.q_proj = Linear(config.hidden, width, bias)
        self.k_proj = Linear(config.hidden, width, bias if key_bias is None else key_bias)
        self.v_proj = Linear(config.hidden, width, bias)
        self.o_proj = Linear(width, config.hidden, bias)

    def _split(self, x: Tensor) -> Tensor:
        result: Tensor = x.reshape(*x.shape[:2], -1, self.head_dim)
        return result

    def keep(self, states: Tensor, source: Source) -> None:
        """Store the keys and values of the encoder's `states` [batch, m, hidden] in `source`."""
        source.keep(self.layer, self._split(self.k_proj(states)), self._split(self.v_proj(states)))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden].

        Raises:
            CompileError: `cache` has no `source`.
        """
        if cache.source is None:
            raise CompileError("a model with an encoder needs its states: the cache's `source` is missing")
        y = cache.source.attend(self.layer, self._split(self.q_proj(x)), scale=self.scale)
        result: Tensor = self.o_proj(y.reshape(*x.shape[:2], -1))
        return result


class CrossBlock(Block):
    """A decoder layer with attention to an encoder between its self-attention and its feed-forward block,
    each after a normalization.

    Args:
        attention: The self-attention, called with hidden states, cache and rotations.
        cross: The attention to the encoder.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
    """

    def __init__(
        self, attention: Module, cross: CrossAttention, mlp: Module, norm: Callable[[], Module]
    ) -> None:
        super().__init__(attention, mlp, norm)
        self.cross_attn, self.cross_layernorm = cross, norm()

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        x = self.added(x, self.self_attn(self.input_layernorm(x), cache, rotations))
        x = self.added(x, self.cross_attn(self.cross_layernorm(x), cache))
        return self.added(x, self.mlp(self.post_attention_layernorm(x)))


class Encoder(Module):
    """The layers of an encoder and a normalization.

    Args:
        layers: The number of layers.
        block: Makes a layer from its number.
        norm: The last normalization.
    """

    def __init__(self, layers: int, block: Callable[[int], Module], norm: Module) -> None:
        super().__init__()
        self.layers = ModuleList(block(k) for k in range(layers))
        self.norm = norm

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Return states [batch, m, hidden] for embedded inputs `x` [batch, m, hidden]."""
        for layer in self.layers:
            x = layer(x, cache, None)
        result: Tensor = self.norm(x)
        return result


class EncoderDecoder(CausalLM):
    """A model whose decoder attends to the states of an encoder.

    The configuration's common names (`Config.layers`, `.heads`, ...) are those of the decoder, after
    `complete`. A family gives `encoder_settings`, `embed_source` and `block`.
    """

    source_kind: ClassVar[Literal["tokens", "audio"]] = "tokens"
    """The input of the encoder: tokens, or frames of a spectrogram."""
    grouped = False

    @classmethod
    def complete(cls, config: Config) -> Config:
        config.get("is_encoder_decoder")
        return super().complete(config)

    @classmethod
    def source_limit(cls, config: Config) -> int | None:
        """Return the largest number of states of the encoder that `config` describes; None: no limit."""
        return None

    def start(self) -> list[int]:
        """Return the tokens with which the decoder begins if it has no prompt."""
        return [int(self.config.get("decoder_start_token_id", 0))]

    def embed_source(self, source: TensorLike) -> Tensor:
        """Return the input [batch, m, hidden] of the encoder's layers, of the parameters' type.

        Args:
            source: Tokens [batch, m], or frames [batch, any, size] of audio.
        """
        raise NotImplementedError

    def encode(self, source: TensorLike, mask: TensorLike | None = None) -> Tensor:
        """Return the encoder's states [batch, m, hidden], of the parameters' type.

        Args:
            source: As for `embed_source`.
            mask: Which states are seen, bools or numbers [batch, m]; None: all.
        """
        x = self.embed_source(source)
        result: Tensor = self.encoder(x, Bidirectional(x, mask))
        return result

    def keep(self, states: Tensor, source: Source) -> None:
        """Store the keys and values of all layers for the encoder's `states` [batch, m, hidden] in
        `source`.
        """
        for layer in self.model.layers:
            layer.cross_attn.keep(states, source)

    def sources(self, source: TensorLike, mask: TensorLike | None = None) -> DenseSource:
        """Encode for the caches of the decoder.

        Args:
            source: As for `embed_source`.
            mask: Which states are seen, bools or numbers [batch, m]; None: all.
        """
        kept = DenseSource(mask)
        self.keep(self.encode(source, mask), kept)
        return kept

    def source_example(self, most: int) -> tuple[Any, dict[int, str]]:
        """Return an example of one input of the encoder, and the bounds of its sizes, for at most `most`
        states.
        """
        raise NotImplementedError


__all__ = ["CrossAttention", "CrossBlock", "Encoder", "EncoderDecoder"]

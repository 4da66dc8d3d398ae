"""`Encoder`, the base class of models whose tokens see each other in both directions, and its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ...frontends.nn import Embedding, LayerNorm, Linear, Module, ModuleList
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..cache import Bidirectional, Cache
from ..config import Config
from ..layers import MLP, Attention, Rotations, pooled
from .base import Destination, LanguageModel


class EncoderBlock(Module):
    """A layer that normalizes the sums of its input and the results of attention and feed-forward block.

    Args:
        attention: The attention layer, called with hidden states, cache and rotations.
        mlp: The feed-forward block, called with hidden states.
        norm: Makes a normalization of hidden states.
    """

    def __init__(self, attention: Module, mlp: Module, norm: Callable[[], Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.attention_norm, self.mlp_norm = norm(), norm()

    def forward(self, x: Tensor, cache: Cache, rotations: Rotations) -> Tensor:
        """Return [batch, n, hidden] for `x` [batch, n, hidden]; see `layers.Block`."""
        x = self.attention_norm(x + self.self_attn(x, cache, rotations))
        result: Tensor = self.mlp_norm(x + self.mlp(x))
        return result


class Embeddings(Module):
    """The normalized sum of the vectors of tokens, of positions and of segments.

    Args:
        config: The configuration of the model.
        positions: The number of vectors for positions; 0: none.
        segments: The number of vectors for segments; 0: none.
    """

    def __init__(self, config: Config, positions: int, segments: int) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocabulary, config.hidden)
        self.position_embeddings = Embedding(positions, config.hidden) if positions else None
        self.token_type_embeddings = Embedding(segments, config.hidden) if segments else None
        self.LayerNorm = LayerNorm(config.hidden, config.eps)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """Return [batch, n, hidden] for `tokens` [batch, n], their positions, and the numbers of their
        segments (None: all 0).
        """
        x = self.word_embeddings(tokens)
        if self.token_type_embeddings is not None:
            table = self.token_type_embeddings
            x = x + (table.weight[0] if segments is None else table(segments))
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions)
        result: Tensor = self.LayerNorm(x)
        return result


class Classifier(Module):
    """The logits of the classes of a text: ``output(norm(activation(dense(vector))))``.

    Args:
        config: The configuration of the model.
        function: The activation.
        pooling: How the vector follows from those of tokens, as for `layers.pooled`.
        bias: Whether `dense` adds a bias.
        norm: Makes the normalization; None: none.
    """

    def __init__(
        self, config: Config, function: Callable[[Any], Tensor] = F.tanh, *, pooling: str = "cls",
        bias: bool = True, norm: Callable[[], Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dense, self.function, self.pooling = (
            Linear(config.hidden, config.hidden, bias),
            function,
            pooling,
        )
        self.norm = None if norm is None else norm()
        self.output = Linear(config.hidden, config.labels)

    def forward(self, hidden: Tensor, mask: TensorLike | None = None) -> Tensor:
        """Return logits [batch, labels] for `hidden` [batch, n, hidden]; `mask` [batch, n] is nonzero where
        there is a token.
        """
        x = self.function(self.dense(pooled(hidden, mask, self.pooling)))
        result: Tensor = self.output(x if self.norm is None else self.norm(x))
        return result


class Encoder(LanguageModel):
    """``model(tokens, mask, types)`` returns the last hidden states [batch, n, hidden].

    A family overrides what differs from BERT: `embeddings`, `attention`, `mlp`, `block`, `last_norm`,
    `classifier` and `rotary` make modules, `bias` and `positions` compute what these need.
    """

    renamed: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Iterable[str]] = (
        r"position_ids$",
        r"rotary_emb\.",
        r"^cls\.",
        r"^lm_head\.",
        r"^decoder\.",
    )
    heads: ClassVar[str] = r"^(pooler|classifier)\."
    """An expression for names of arrays, as `renamed`, that only a classifier needs."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = self.make_embeddings()
        self.layers = ModuleList(self.block(k) for k in range(config.layers))
        self.norm = self.last_norm()
        self.rotary = self.make_rotary()
        self.classifier = self.make_classifier() if config.classifies else None

    def make_embeddings(self) -> Module:
        """Make the module that is called with tokens, positions and segments."""
        return Embeddings(self.config, int(self.config["max_position_embeddings"]), self.segments)

    @property
    def segments(self) -> int:
        return int(self.config.get("type_vocab_size", 0))

    def make_norm(self) -> Module:
        """Make a normalization of hidden states."""
        return LayerNorm(self.config.hidden, self.config.eps)

    def attention(self, layer: int) -> Module:
        """Make the attention of a layer, called with hidden states, cache and rotations."""
        return Attention(self.config, layer, bias=True)

    def mlp(self, layer: int) -> Module:
        """Make the feed-forward block of a layer, called with hidden states.

        Raises:
            CompileError: The configuration's activation is unknown.
        """
        return MLP(self.config)

    def block(self, layer: int) -> Module:
        """Make a layer, called with hidden states, cache and rotations.

        Raises:
            CompileError: The configuration's activation is unknown.
        """
        return EncoderBlock(self.attention(layer), self.mlp(layer), self.make_norm)

    def last_norm(self) -> Module | None:
        """Make the normalization after the last layer; None: there is none."""
        return None

    def make_rotary(self) -> Module | None:
        """Make the rotary embedding, called with positions; None: there is none."""
        return None

    def make_classifier(self) -> Module:
        """Make the module that computes the logits of classes from hidden states and a mask."""
        return Classifier(self.config)

    def positions(self, tokens: Tensor) -> Tensor:
        """Return the places of `tokens` [batch, n] in the table of positions, broadcast to [batch, n]."""
        result: Tensor = tnp.arange(tokens.shape[1])[None]
        return result

    def bias(self, length: int) -> Tensor | None:
        """Return what is added to the scores of attention [1, heads, length, length]; None: nothing."""
        return None

    def destination(self, name: str) -> Destination | None:
        found = super().destination(name)
        head = found is not None and self.classifier is None and re.search(self.heads, found.name)
        return None if head else found

    def states(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        ids = tnp.asarray(tokens)
        x = self.embeddings(ids, self.positions(ids), None if types is None else tnp.asarray(types))
        cache = Bidirectional(ids, mask, self.bias(ids.shape[1]))
        rotations = None if self.rotary is None else self.rotary(cache.positions)
        for layer in self.layers:
            x = layer(x, cache, rotations)
        result: Tensor = x if self.norm is None else self.norm(x)
        return result

    def classes(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        assert self.classifier is not None
        result: Tensor = self.classifier(self.states(tokens, mask, types), mask)
        return result

    def forward(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return the last hidden states [batch, n, hidden]; see `states`."""
        return self.states(tokens, mask, types)


__all__ = ["Classifier", "Embeddings", "Encoder", "EncoderBlock"]

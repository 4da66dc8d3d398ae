"""BERT (Devlin et al., 2018) and RoBERTa (Liu et al., 2019): encoders with bidirectional attention, for
embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ...frontends.nn import Embedding, LayerNorm, Linear, Module, ModuleList
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ...frontends.trace.tensor import TensorLike
from ..config import Config
from ..layers import MLP
from .base import LanguageModel, register


class BertAttention(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.query, self.key, self.value, self.output = (
            Linear(config.hidden, config.hidden) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            f(x).reshape(*x.shape[:2], self.heads, self.head_dim).transpose(0, 2, 1, 3)
            for f in (self.query, self.key, self.value)
        )
        y = F.attention(q, k, v, None if mask is None else mask[:, None, None])
        result: Tensor = self.output(y.transpose(0, 2, 1, 3).reshape(x.shape))
        return result


class BertLayer(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention, self.mlp = BertAttention(config), MLP(config)
        self.attention_norm, self.mlp_norm = (LayerNorm(config.hidden, config.eps) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        result: Tensor = self.mlp_norm(x + self.mlp(x))
        return result


class BertEmbeddings(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocabulary, config.hidden)
        self.position_embeddings = Embedding(int(config["max_position_embeddings"]), config.hidden)
        self.token_type_embeddings = Embedding(int(config.get("type_vocab_size", 2)), config.hidden)
        self.LayerNorm = LayerNorm(config.hidden, config.eps)


@register("bert")
class Bert(LanguageModel):
    """``model(tokens, mask, types)`` returns the last hidden states [batch, n, hidden]."""

    renamed: ClassVar[Mapping[str, str]] = {
        r"^(bert|roberta)\.": "",
        # names in the first checkpoints
        r"\.LayerNorm\.gamma$": ".LayerNorm.weight",
        r"\.LayerNorm\.beta$": ".LayerNorm.bias",
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.self\.": ".attention.",
        r"\.attention\.output\.dense\.": ".attention.output.",
        r"\.attention\.output\.LayerNorm\.": ".attention_norm.",
        r"\.intermediate\.dense\.": ".mlp.up_proj.",
        r"(\d)\.output\.dense\.": r"\1.mlp.down_proj.",
        r"(\d)\.output\.LayerNorm\.": r"\1.mlp_norm.",
    }
    ignored: ClassVar[Iterable[str]] = (
        r"position_ids$",
        r"(^|\.)pooler\.",
        r"^cls\.",
        r"^lm_head\.",
        r"^classifier\.",
    )

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.layers = ModuleList(BertLayer(config) for _ in range(config.layers))

    def positions(self, tokens: Tensor) -> Tensor:
        result: Tensor = tnp.arange(tokens.shape[1])[None]
        return result

    def forward(
        self, tokens: TensorLike, mask: TensorLike | None = None, types: TensorLike | None = None
    ) -> Tensor:
        """Return the last hidden states [batch, n, hidden] of `tokens` [batch, n].

        `mask` [batch, n] is nonzero where there is a token; `types` [batch, n] are segment numbers, 0 by
        default.
        """
        ids, e = tnp.asarray(tokens), self.embeddings
        segments = e.token_type_embeddings.weight[0] if types is None else e.token_type_embeddings(types)
        x = e.LayerNorm(e.word_embeddings(ids) + segments + e.position_embeddings(self.positions(ids)))
        for layer in self.layers:
            x = layer(x, None if mask is None else tnp.astype(mask, bool))
        return x


@register("roberta", "xlm-roberta", "camembert")
class Roberta(Bert):
    """Bert with positions that start after the padding token's id; padding has that id as its position."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {**super().defaults(config), "pad_token_id": 1}

    def positions(self, tokens: Tensor) -> Tensor:
        padding = int(self.config["pad_token_id"])
        there = tnp.astype(tokens != padding, "int64")
        result: Tensor = tnp.cumsum(there, 1) * there + padding
        return result

"""BERT (Devlin et al., 2018), RoBERTa (Liu et al., 2019) and DistilBERT (Sanh et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ...frontends.nn import Module
from ...frontends.nn import functional as F
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..config import Config
from .base import register
from .encoder import Classifier, Encoder


@register("bert")
class Bert(Encoder):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^(bert|roberta)\.": "",
        # names in the first checkpoints
        r"\.LayerNorm\.gamma$": ".LayerNorm.weight",
        r"\.LayerNorm\.beta$": ".LayerNorm.bias",
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.self\.query\.": ".self_attn.q_proj.",
        r"\.attention\.self\.key\.": ".self_attn.k_proj.",
        r"\.attention\.self\.value\.": ".self_attn.v_proj.",
        r"\.attention\.output\.dense\.": ".self_attn.o_proj.",
        r"\.attention\.output\.LayerNorm\.": ".attention_norm.",
        r"\.intermediate\.dense\.": ".mlp.up_proj.",
        r"(\d)\.output\.dense\.": r"\1.mlp.down_proj.",
        r"(\d)\.output\.LayerNorm\.": r"\1.mlp_norm.",
        # a classifier of BERT, and one of RoBERTa
        r"^pooler\.dense\.": "classifier.dense.",
        r"^classifier\.(weight|bias)$": r"classifier.output.\1",
        r"^classifier\.out_proj\.": "classifier.output.",
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {
            "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
            "type_vocab_size": 2,
        }  # fmt: skip


@register("roberta", "xlm-roberta", "camembert")
class Roberta(Bert):
    """Bert with positions that start after the padding token's id; padding has that id as its position."""

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        padding = int(config.get("pad_token_id", 1))
        return {**super().defaults(config), "pad_token_id": 1, "unused_positions": padding + 1}

    def positions(self, tokens: Tensor) -> Tensor:
        padding = int(self.config["pad_token_id"])
        there = tnp.astype(tokens != padding, "int64")
        result: Tensor = tnp.cumsum(there, 1) * there + padding
        return result


@register("distilbert")
class DistilBert(Encoder):
    """Bert without segments, and with a classifier of its own."""

    renamed: ClassVar[Mapping[str, str]] = {
        r"^distilbert\.": "",
        r"^transformer\.layer\.": "layers.",
        r"\.attention\.(q|k|v)_lin\.": r".self_attn.\1_proj.",
        r"\.attention\.out_lin\.": ".self_attn.o_proj.",
        r"\.sa_layer_norm\.": ".attention_norm.",
        r"\.output_layer_norm\.": ".mlp_norm.",
        r"\.ffn\.lin1\.": ".mlp.up_proj.",
        r"\.ffn\.lin2\.": ".mlp.down_proj.",
        r"^pre_classifier\.": "classifier.dense.",
        r"^classifier\.(weight|bias)$": r"classifier.output.\1",
    }
    ignored: ClassVar[Iterable[str]] = (*Encoder.ignored, r"^vocab_(transform|layer_norm|projector)\.")

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512}

    def make_classifier(self) -> Module:
        return Classifier(self.config, F.relu)

"""MPNet: BERT with a learned bias for the distance of two tokens, shared by all layers. Song et al., 2020."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...frontends.nn import Embedding
from ...frontends.trace import Tensor
from ...frontends.trace import numpy as tnp
from ..config import Config
from .base import register
from .bert import Roberta

FAR = 128
"""Distances of this number of tokens and more share a bias."""


def buckets(count: int) -> np.ndarray[Any, Any]:
    """The number of the bias of each position of a key minus the query's, from ``-FAR`` to `FAR`.

    Half of the `count` biases are for keys after the query. A half has a bias for each of its first
    ``count / 4`` distances, and beyond them biases of equal width in the logarithm (Raffel et al. 2020).

    Returns:
        int64 [2 FAR + 1].
    """
    distance = np.arange(-FAR, FAR + 1)
    half, exact = count // 2, count // 4
    far = np.maximum(np.abs(distance), 1).astype(np.float32)
    scaled = np.log(far / exact, dtype=np.float32) / np.float32(math.log(FAR / exact)) * (half - exact)
    number = np.where(np.abs(distance) < exact, np.abs(distance), exact + scaled.astype(np.int64))
    return np.minimum(number, half - 1) + np.where(distance > 0, half, 0)


@register("mpnet")
class MPNet(Roberta):
    renamed: ClassVar[Mapping[str, str]] = {
        r"^mpnet\.": "",
        r"^encoder\.relative_attention_bias\.": "relative_bias.",
        r"\.attention\.attn\.(q|k|v|o)\.": r".self_attn.\1_proj.",
        r"\.attention\.LayerNorm\.": ".attention_norm.",
        **Roberta.renamed,
    }

    @classmethod
    def defaults(cls, config: Config) -> Mapping[str, Any]:
        return {**super().defaults(config), "type_vocab_size": 0, "relative_attention_num_buckets": 32}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.buckets = int(config["relative_attention_num_buckets"])
        self.relative_bias = Embedding(self.buckets, config.heads)

    def bias(self, length: int) -> Tensor:
        # The original computes buckets of 32, whatever the number of biases is.
        place = tnp.arange(length)
        distance = tnp.clip(place[None] - place[:, None], -FAR, FAR) + FAR
        table = self.relative_bias(tnp.asarray(buckets(32)))
        result: Tensor = table[distance].transpose(2, 0, 1)[None]
        return result

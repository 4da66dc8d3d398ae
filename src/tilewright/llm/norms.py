"""Normalizations of the last dimension that `tilewright.nn` lacks."""

from __future__ import annotations

from ..frontends.nn import LayerNorm, Module, RMSNorm
from ..frontends.nn import functional as F
from ..frontends.nn.layers import uniform
from ..frontends.trace import Tensor


class OffsetRMSNorm(RMSNorm):
    """RMS normalization that scales by its weight plus 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight + 1.0, eps=self.eps)


class OffsetLayerNorm(LayerNorm):
    """Layer normalization that scales by its weight plus 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight + 1.0, self.bias, self.axes, self.eps)


class UnbiasedLayerNorm(LayerNorm):
    """Layer normalization that adds no bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps, bias=False)


class FixedLayerNorm(Module):
    """Layer normalization of the last dimension, without parameters."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, eps=self.eps)


class LayerNormOfHeads(Module):
    """Layer normalization of each head of [batch, n, heads, size], with a weight [heads, size]."""

    def __init__(self, heads: int, size: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, uniform((heads, size), 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.layer_norm(x, eps=self.eps) * self.weight
        return result


class FixedRMSNorm(Module):
    """RMS normalization without parameters."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, eps=self.eps)


__all__ = [
    "FixedLayerNorm",
    "FixedRMSNorm",
    "LayerNormOfHeads",
    "OffsetLayerNorm",
    "OffsetRMSNorm",
    "UnbiasedLayerNorm",
]

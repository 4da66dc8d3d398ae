"""Layers whose weights are codes of few bits with a scale for each group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..dialects import graph as g
from ..frontends.nn import Embedding, Linear, Module
from ..frontends.nn.functional import embedding
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as _tnp
from ..frontends.trace.tensor import apply
from ..ir.types import DType, i8

tnp: Any = _tnp

_factors: ContextVar[DType] = ContextVar("factors", default=i8)


@contextmanager
def factors(dtype: DType) -> Iterator[None]:
    """Layers called inside multiply numbers of `dtype`, see `graph.quantized_matmul`: i8 reads the least memory, bf16 has more digits."""
    token = _factors.set(dtype)
    try:
        yield
    finally:
        _factors.reset(token)


class QuantizedLinear(Module):
    """``x (codes * scales)^T + bias``: `codes` int4 or int8 [out, in], `scales` [out, groups], `bias` [out] or None.

    `permutation` (int [in]): column i of the codes is for ``x[..., permutation[i]]``.
    """

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, permutation: Tensor | None = None
    ) -> None:
        super().__init__()
        self.codes, self.scales, self.bias, self.permutation = codes, scales, bias, permutation

    def forward(self, x: Any) -> Tensor:
        if self.permutation is not None:
            x = x[..., self.permutation]
        y: Tensor = apply(g.QuantizedMatMul, x, self.codes, self.scales, factors=_factors.get())
        return y if self.bias is None else y + self.bias


class QuantizedEmbedding(Module):
    """Rows of a table ``codes * scales``, float32: `codes` int4 or int8 [count, size], `scales` [count, groups]."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.codes, self.scales = codes, scales

    def forward(self, ids: Any) -> Tensor:
        codes, scales = (tnp.astype(embedding(ids, part), "float32") for part in (self.codes, self.scales))
        grouped = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1]) * scales[..., None]
        return grouped.reshape(*codes.shape)  # type: ignore[no-any-return]

    def attend(self, x: Any) -> Tensor:
        """See `Embedding.attend`."""
        return apply(g.QuantizedMatMul, x, self.codes, self.scales, factors=_factors.get())  # type: ignore[no-any-return]


def replace_linears(model: Module, quantized: Any) -> None:
    """Put what ``quantized(path, layer)`` returns, unless None, in the place of each linear layer and embedding of a model."""
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (Linear, Embedding)):
                new = quantized(f"{path}.{name}" if path else name, child)
                if new is not None:
                    setattr(module, name, new)


__all__ = ["QuantizedEmbedding", "QuantizedLinear", "factors", "replace_linears"]

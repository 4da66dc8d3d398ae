"""Layers whose weights are codes of few bits with a scale for each group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..dialects import graph as g
from ..frontends.nn import Linear, Module
from ..frontends.nn.functional import embedding, grouped_matmul
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


class QuantizedMatrix(Module):
    """A matrix ``codes * scales - offsets``: `codes` int4 or int8 [out, in]; `scales` and `offsets` (None: zero) [out, groups], one for each group of columns."""

    def __init__(self, codes: Tensor, scales: Tensor, offsets: Tensor | None = None) -> None:
        super().__init__()
        self.codes, self.scales, self.offsets = codes, scales, offsets

    def product(self, x: Any, index: Any = None) -> Tensor:
        """``x @ matrix.T``, with the matrix that `index` names for each row where it is given; what offsets add needs the sums of groups of x alone."""
        y: Tensor = apply(g.QuantizedMatMul, x, self.codes, self.scales, index, factors=_factors.get())
        if self.offsets is None:
            return y
        sums = x.reshape(*x.shape[:-1], self.scales.shape[-1], -1).sum(-1)
        more = sums @ self.offsets.T if index is None else grouped_matmul(sums, self.offsets.mT, index)
        return y - more  # type: ignore[no-any-return]


class QuantizedLinear(QuantizedMatrix):
    """``x @ matrix.T + bias``, `bias` [out] or None. `permutation` (int [in]): column i of the codes is for ``x[..., permutation[i]]``."""

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None = None, *, offsets: Tensor | None = None,
        permutation: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(codes, scales, offsets)
        self.bias, self.permutation = bias, permutation

    def forward(self, x: Any) -> Tensor:
        y = self.product(x if self.permutation is None else x[..., self.permutation])
        return y if self.bias is None else y + self.bias


class QuantizedGroupedLinear(QuantizedMatrix):
    """What `layers.GroupedLinear` is, of matrices that are codes: all parts have a dimension of them in front."""

    def forward(self, x: Any, index: Any) -> Tensor:
        return self.product(x, index)


class QuantizedEmbedding(QuantizedMatrix):
    """Rows of a matrix, float32."""

    def forward(self, ids: Any) -> Tensor:
        codes, scales = (tnp.astype(embedding(ids, part), "float32") for part in (self.codes, self.scales))
        grouped = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1]) * scales[..., None]
        if self.offsets is not None:
            grouped = grouped - embedding(ids, self.offsets)[..., None]
        return grouped.reshape(*codes.shape)  # type: ignore[no-any-return]

    def attend(self, x: Any) -> Tensor:
        """See `Embedding.attend`."""
        return self.product(x)


def replace_linears(model: Module, quantized: Any, kind: type[Module] = Linear) -> None:
    """Put what ``quantized(path, layer)`` returns, unless None, in the place of each linear layer of a model, or of another `kind`."""
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                new = quantized(f"{path}.{name}" if path else name, child)
                if new is not None:
                    setattr(module, name, new)


__all__ = [
    "QuantizedEmbedding",
    "QuantizedGroupedLinear",
    "QuantizedLinear",
    "QuantizedMatrix",
    "factors",
    "replace_linears",
]

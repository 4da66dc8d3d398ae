"""Layers with quantized weights and one scale per group of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..dialects import graph as g
from ..frontends.nn import Linear, Module
from ..frontends.nn.functional import embedding, grouped_matmul
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.operands import apply
from ..ir.types import DType, i8

_factors: ContextVar[DType] = ContextVar("factors", default=i8)


@contextmanager
def factors(dtype: DType) -> Iterator[None]:
    """Make layers called in the ``with`` block multiply operands of `dtype`; see `graph.quantized_matmul`.

    i8 reads the least memory, bf16 is more precise.
    """
    token = _factors.set(dtype)
    try:
        yield
    finally:
        _factors.reset(token)


class QuantizedMatrix(Module):
    """A matrix ``qvalues * scales - offsets``.

    `qvalues` is the operand of `graph.quantized_matmul` of this name: int4 or int8 [out, in];
    `scales` and `offsets` (None: zero) are [out, groups], one per group of columns.
    """

    def __init__(self, qvalues: Tensor, scales: Tensor, offsets: Tensor | None = None) -> None:
        super().__init__()
        self.qvalues, self.scales, self.offsets = qvalues, scales, offsets

    def product(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """``x @ matrix.T``; with `index`, each row is multiplied by the matrix that it selects.

        Offsets contribute through the sums of groups of x only.
        """
        y: Tensor = apply(g.QuantizedMatMul, x, self.qvalues, self.scales, index, factors=_factors.get())
        if self.offsets is None:
            return y
        sums = x.reshape(*x.shape[:-1], self.scales.shape[-1], -1).sum(-1)
        more = sums @ self.offsets.T if index is None else grouped_matmul(sums, self.offsets.mT, index)
        result: Tensor = y - more
        return result


class QuantizedLinear(QuantizedMatrix):
    """``x @ matrix.T + bias``, with `bias` [out] or None.

    `permutation` (int [in]): column i of the quantized values belongs to ``x[..., permutation[i]]``.
    """

    def __init__(
        self, qvalues: Tensor, scales: Tensor, bias: Tensor | None = None, *, offsets: Tensor | None = None,
        permutation: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(qvalues, scales, offsets)
        self.bias, self.permutation = bias, permutation

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x if self.permutation is None else x[..., self.permutation])
        return y if self.bias is None else y + self.bias


class QuantizedGroupedLinear(QuantizedMatrix):
    """`experts.GroupedLinear` with quantized matrices: all parts have a leading dimension of matrices."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.product(x, index)


class QuantizedEmbedding(QuantizedMatrix):
    """An embedding table with quantized rows; results are float32."""

    def forward(self, ids: Tensor) -> Tensor:
        qvalues, scales = (
            tnp.astype(embedding(ids, part), "float32") for part in (self.qvalues, self.scales)
        )
        grouped = qvalues.reshape(*scales.shape, qvalues.shape[-1] // scales.shape[-1]) * scales[..., None]
        if self.offsets is not None:
            grouped = grouped - embedding(ids, self.offsets)[..., None]
        result: Tensor = grouped.reshape(*qvalues.shape)
        return result

    def attend(self, x: Tensor) -> Tensor:
        """See `Embedding.attend`."""
        return self.product(x)


def replace_linears(
    model: Module, quantized: Callable[[str, Any], Module | None], kind: type[Module] = Linear
) -> None:
    """Replace each layer of type `kind` in a model by the result of ``quantized(path, layer)``, unless that
    is None.
    """
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

"""`QuantizedLinear`: a linear layer whose weights are codes of few bits with a scale for each group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..dialects import graph as g
from ..frontends.nn import Linear, Module
from ..frontends.trace import Tensor
from ..frontends.trace.tensor import apply
from ..ir.types import DType, i8

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
    """``x (codes * scales)^T + bias``: `codes` int4 or int8 [out, in], `scales` [out, groups], `bias` [out] or None."""

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.codes, self.scales, self.bias = codes, scales, bias

    def forward(self, x: Any) -> Tensor:
        y: Tensor = apply(g.QuantizedMatMul, x, self.codes, self.scales, factors=_factors.get())
        return y if self.bias is None else y + self.bias


def replace_linears(model: Module, quantized: Any) -> None:
    """Put what ``quantized(path, linear)`` returns, unless None, in the place of each linear layer of a model."""
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                new = quantized(f"{path}.{name}" if path else name, child)
                if new is not None:
                    setattr(module, name, new)


__all__ = ["QuantizedLinear", "factors", "replace_linears"]

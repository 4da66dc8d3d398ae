"""The gradient of attention as an operator that reads no logarithms of the rows' sums of exponentials.

torch's own operator reads them, so a forward pass would compute all scores once more to return them. The
gradient computes the sums anew from the scores, which it needs anyway.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SCHEMA = (
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, bool is_causal, *, "
    "Tensor? attn_mask=None, float? scale=None) -> (Tensor, Tensor, Tensor)"
)
_libraries: list[Any] = []  # The operator exists as long as its library.


def decompositions() -> dict[Any, Any]:
    """Return the decomposition of torch's operator for the gradient into this one."""
    import torch

    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _decomposed}


def _decomposed(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p > 0:
        return NotImplemented
    return _operator()(grad, query, key, value, out, is_causal, attn_mask=attn_mask, scale=scale)


@cache
def _operator() -> Any:
    """Return the operator; the first call registers it with torch."""
    import torch

    library = torch.library.Library("tilewright", "FRAGMENT")
    library.define(_SCHEMA)
    library.impl("attention_backward", _in_torch, "CompositeExplicitAutograd")
    torch.library.register_fake("tilewright::attention_backward", _shapes, lib=library)
    _libraries.append(library)
    return torch.ops.tilewright.attention_backward.default


def _in_torch(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    import torch

    aten = torch.ops.aten
    options = {"attn_mask": attn_mask, "scale": scale}
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    _, logsumexp = forward(query, key, value, 0.0, is_causal, **options)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, logsumexp, 0.0, is_causal, **options
    )


def _shapes(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
) -> Any:
    import torch

    def like(x: torch.Tensor) -> torch.Tensor:  # As torch's own operator returns them.
        return torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype, device=x.device)

    return like(query), like(key), like(value)


__all__ = ["decompositions"]

"""Operators of mixtures of experts: the number of tokens of each expert, and matrix products by group."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from .checks import check, random  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc(dtype: Any) -> None:
    x = random(50, dtype=dtype)
    x[3], x[4] = 1.0, -1.0
    check(lambda x: torch.histc(x, bins=7, min=-1, max=1), x)
    check(lambda x: torch.histc(x, bins=4), x, others=[(torch.ones(50, dtype=dtype),)])


def test_histc_counts_experts() -> None:
    chosen = random(3, 8, dtype=torch.int64).abs().float()
    check(
        lambda x: torch.histc(x, bins=6, min=0, max=5),
        chosen,
        dims={"x": {0: "tokens"}},
        others=[(chosen[:1],)],
    )


def test_grouped_matmul() -> None:
    """Groups may be without rows, and rows may follow the last group."""
    pytest.importorskip("transformers.integrations.moe")

    def function(x: Any, w: Any, ends: Any) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(x, w, ends)

    def ends(*values: int) -> Any:
        return torch.tensor(values, dtype=torch.int32)

    w = random(4, 6, 5)
    others = [
        (random(9, 6), w, ends(0, 9, 9, 9)),
        (random(7, 6), w, ends(2, 2, 3, 5)),
        (random(1, 6), w, ends(0, 0, 0, 1)),
    ]
    check(function, random(9, 6), w, ends(3, 3, 8, 9), dims={"x": {0: "rows"}}, others=others)


def test_grouped_mm() -> None:
    """torch's own operator for grouped products agrees on bfloat16."""
    x, w = random(9, 16).bfloat16(), random(4, 16, 8).bfloat16()

    def ends(*values: int) -> Any:
        return torch.tensor(values, dtype=torch.int32)

    def function(x: Any, w: Any, ends: Any) -> Any:
        return torch._grouped_mm(x, w, offs=ends)

    check(function, x, w, ends(3, 3, 8, 9), others=[(x, w, ends(0, 9, 9, 9))])

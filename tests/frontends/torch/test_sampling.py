"""Windows at random places, attention with dropout, and other operators that take random numbers as
inputs.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilewright as tw  # noqa: E402

from .checks import Lambda, check, random  # noqa: E402


@pytest.mark.parametrize(
    ("shape", "kernel", "size"),
    [
        ((2, 3, 9, 11), (3, 2), (4, 5)),
        ((2, 3, 9, 7), (3, 3), (1, 2)),
        ((3, 9, 11), (2, 2), (4, 5)),
        ((2, 3, 6, 7, 9), (2, 3, 2), (3, 2, 4)),
    ],
)
def test_fractional_pooling(shape: Any, kernel: Any, size: Any) -> None:
    rank = len(kernel)
    batch = shape[0] if len(shape) == rank + 2 else 1
    pool = getattr(torch._C._nn, f"fractional_max_pool{rank}d")
    draws = torch.rand(batch, 3, rank, generator=torch.Generator().manual_seed(1))
    check(lambda x, y: pool(x, kernel, size, y), random(*shape), draws)


@pytest.mark.parametrize(
    "options", ({"is_causal": True}, {"enable_gqa": True}, {"attn_mask": random(5, 7) > -0.5})
)
def test_attention_with_dropout(options: Any) -> None:
    """Half of the weights are dropped, and the mean over many seeds is that of attention without dropout."""
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = random(2, 4, 5, 8), random(2, heads, 7, 8), random(2, heads, 7, 8, seed=1)
    attention = F.scaled_dot_product_attention
    model = Lambda(lambda x, y, z: attention(x, y, z, dropout_p=0.5, **options))
    with tw.compile(model.eval(), (q, k, v)) as library:
        mean = sum(torch.as_tensor(library(q, k, v, seed=seed)) for seed in range(600)) / 600
    torch.testing.assert_close(mean, attention(q, k, v, **options), rtol=0, atol=0.25)


def test_attention_broadcasts() -> None:
    check(F.scaled_dot_product_attention, random(4, 3, 8), random(2, 4, 6, 8), random(2, 4, 6, 8, seed=1))


def test_cross_entropy_of_a_linear_layer() -> None:
    """The cross entropy of a linear layer, a dedicated operator that torch computes in chunks, gives torch's
    results.
    """
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    options = LinearCrossEntropyOptions(batch_chunk_size=2)
    x, weight, target = random(8, 3), random(4, 3), torch.tensor([0, 3, 1, 2, 2, 1, 3, 0])
    for more in (
        {"reduction": "mean"},
        {"reduction": "sum", "weight": random(4).abs()},
        {"reduction": "none"},
    ):
        check(
            lambda x, y, z, more=more: F.linear_cross_entropy(
                x, y, z, ignore_index=1, options=options, **more
            ),
            x,
            weight,
            target,
        )


def test_rows_of_limited_norm() -> None:
    table = random(5, 4) * 3
    check(lambda x, y: torch.ops.aten.embedding_renorm(x, y, 1.5, 2.0), table, torch.tensor([[0, 3], [3, 4]]))

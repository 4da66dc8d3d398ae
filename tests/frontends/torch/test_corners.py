"""Tensors without dimensions or elements, unsigned integers, booleans: compiled models against eager
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

from .checks import Lambda, check  # noqa: E402

F = torch.nn.functional
HALF = [torch.tensor(v, dtype=torch.float16) for v in (1.0, 2.0, 3.0)]
BYTES = torch.tensor([0, 1, 2, 200, 254, 255], dtype=torch.uint8)
TRUTH = torch.tensor([True, False, True])


def compiled_equals_eager(function: Callable[..., Any], *inputs: Any) -> None:
    model = function if isinstance(function, torch.nn.Module) else Lambda(function)
    with torch.no_grad():
        wanted = model.eval()(*inputs)
    result = tw.compile(model, inputs, cache=False)(*inputs)
    torch.testing.assert_close(result, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "inputs"),
    {
        "prelu": (torch.nn.PReLU(), (torch.tensor(-1.5),)),
        "flip": (lambda x: torch.flip(x, (0,)), (torch.tensor(1.0),)),
        "three results": (
            lambda x, y, z: (
                (x + 1).expand(1, 1),
                y.sigmoid() * z.sigmoid(),
                (x + 1) / y.sigmoid() - z.sigmoid(),
            ),
            HALF,
        ),
    }.values(),
)
def test_tensors_without_dimensions(function: Any, inputs: Any) -> None:
    compiled_equals_eager(function, *inputs)


def test_median_of_nothing() -> None:
    x = torch.ones(0, 5)
    compiled_equals_eager(lambda x: (x.median(), x.nanmedian()), x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 0, 3, 4), (0, 2, 3, 4), (2, 1, 0, 4)])
def test_attention_over_nothing(shape: Any, causal: bool) -> None:
    q = torch.ones(shape)
    compiled_equals_eager(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, q, q)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, q, q)


def test_attention_to_no_keys() -> None:
    q, k = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 0, 4)
    compiled_equals_eager(F.scaled_dot_product_attention, q, k, k)
    check(F.scaled_dot_product_attention, q, k, k)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.float() + torch.ones(1, dtype=torch.uint8).clamp(-1, 1),
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp(min=-3),
        lambda x: x.clamp_max(-1),
        lambda x: F.threshold(x, -2, -1),
        lambda x: x + -1,
        lambda x: torch.where(x > 1, x, -1),
        lambda x: x.masked_fill(x > 1, -255),
    ],
)
def test_negative_numbers_beside_bytes(function: Any) -> None:
    """Negative numbers that are combined with uint8 wrap around, as in torch."""
    compiled_equals_eager(function, BYTES)
    check(function, BYTES)


@pytest.mark.parametrize("equation", ["i,j->ij", "ii->i", "ij->ji", "ij->i", "ij->"])
def test_einsum_of_booleans(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    inputs = [TRUTH if len(t) == 1 else TRUTH.outer(TRUTH) for t in terms]
    compiled_equals_eager(
        lambda x, y=None: torch.einsum(equation, *(v for v in (x, y) if v is not None)), *inputs
    )

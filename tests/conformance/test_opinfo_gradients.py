"""Gradients of some of torch's operators; `python -m tests.conformance.opinfo_gradients` compares all."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from .opinfo_gradients import DATA, UNLIKE_TORCH, difference, differentiable, outcomes

OPERATORS = (
    "erfinv",
    "frexp",
    "linalg.norm.subgradients_at_zero",
    "linalg.qr",
    "logcumsumexp",
    "nextafter",
    "special.i1e",
    "special.log_ndtr",
    "special.ndtri",
    "torch.ops.aten._safe_softmax.default",
)
"""Operators whose formulas need a rule, or need their parts in another form, for their gradients."""


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients(name: str) -> None:
    found = list(outcomes(name, 0, "float64", 3))
    assert found and set(found) == {"pass"}


@pytest.mark.slow
def test_gradients_of_pseudoinverses() -> None:
    found = list(outcomes("linalg.pinv.singular", 0, "float64", 6))
    assert found and set(found) == {"pass"}


def test_a_gradient_as_differences_is_told_from_a_wrong_one() -> None:
    """Torch adds gradients of elements that a scatter writes twice or over."""
    found = list(outcomes("as_strided_scatter", 0, "float64", 1))
    assert found == [UNLIKE_TORCH]


def test_differences_are_described() -> None:
    import torch

    wanted = torch.tensor([1.0, 2.0])
    assert not difference([[1.0, 2.0 + 1e-10]], [wanted], 1e-9)
    assert "differs by" in difference([[1.0, 2.1]], [wanted], 1e-9)
    assert "NaN" in difference([[1.0, 2.0]], [torch.tensor([1.0, torch.nan])], 1e-9)


def test_no_recorded_gradient_is_wrong() -> None:
    for dtype, row in json.loads(DATA.read_text()).items():
        assert row["operators"] > 0.95 * len(differentiable(dtype))
        for name, counts in row["not_passed"].items():
            for outcome in counts:
                assert outcome.startswith(("pass", "not exported", "refused: aten.", UNLIKE_TORCH)), (
                    name,
                    outcome,
                )

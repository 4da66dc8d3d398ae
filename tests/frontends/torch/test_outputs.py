"""Outputs that are not results of operators, and calls without outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402

from .checks import Lambda, random  # noqa: E402


class Various(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x: Any) -> dict[str, Any]:
        return {
            "y": x + 1,
            "whole": 3,
            "part": 2.5,
            "flag": True,
            "nothing": None,
            "text": "as it is",
            "x": x,
            "table": self.table,
            "size": x.shape[0],
            "double": 2 * x.shape[0] + 1,
            "many": x.shape[0] > 4,
        }


def test_numbers_sizes_constants_and_inputs() -> None:
    """Outputs that are numbers become scalar tensors; None and strings are left out."""
    library = tw.compile(Various(), (random(5, 3),), dims={"x": {0: "n<=64"}})
    for n in (5, 2):
        x = random(n, 3)
        result = library(x)
        wanted = {k: v for k, v in Various()(x).items() if v is not None and not isinstance(v, str)}
        assert len(result) == len(wanted)
        for value, (name, expected) in zip(result, wanted.items(), strict=True):
            kind = expected.dtype if isinstance(expected, torch.Tensor) else np.asarray(expected).dtype
            assert str(value.dtype) == f"torch.{str(kind).removeprefix('torch.')}", name
            np.testing.assert_array_equal(value.numpy(), np.asarray(expected), err_msg=name)
    before = x.clone()
    result[[spec.name for spec in library.outputs].index("x")].add_(1)
    torch.testing.assert_close(x, before)  # An output does not share memory with an input.


def test_nothing_but_an_input() -> None:
    x = random(2, 3)
    torch.testing.assert_close(tw.compile(Lambda(lambda x: x), (x,))(x), x)


def test_assertions_about_data_end_the_run() -> None:
    def function(x: Any) -> Any:
        torch._assert_async((x > 0).all(), "everything must be positive")
        return x * 2

    library = tw.compile(Lambda(function), (torch.ones(3),))
    torch.testing.assert_close(library(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(TilewrightError, match="everything must be positive"):
        library(-torch.ones(3))


def test_effects_in_order() -> None:
    """Effects run in order. The tokens by which torch orders them are not inputs or outputs for callers."""

    def function(x: Any) -> Any:
        torch._assert_async((x > 0).all(), "positive")
        y = x.clone()
        y.add_(1)
        torch._assert_async((y < 9).all(), "small")
        return y

    program = torch.export.export(Lambda(function), (torch.ones(3),)).run_decompositions()
    library = tw.compile(program)
    torch.testing.assert_close(library(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(TilewrightError, match="small"):
        library(torch.full((3,), 20.0))

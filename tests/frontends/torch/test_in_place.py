"""Operators that overwrite a tensor are imported without a second trace where that is plain to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tilewright.frontends.torch import import_torch  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402

from .checks import Lambda, check, random  # noqa: E402


@pytest.fixture
def retraced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry for each program that torch traces a second time."""
    calls: list[int] = []
    decompose = torch.export.ExportedProgram.run_decompositions

    def run_decompositions(program: Any, *args: Any) -> Any:
        calls.append(1)
        return decompose(program, *args)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", run_decompositions)
    return calls


def _residual(x: Any) -> Any:
    y = (x * 2).relu_()
    z = y.exp()
    y += z
    y.mul_(3.0)
    return y + z, y


def _with_itself(x: Any) -> Any:
    y = x.sin()
    return y.add_(y)


def _dropout(x: Any) -> Any:
    return F.dropout(x.view(6), 0.5, False, True) + 1


@pytest.mark.parametrize("function", [_residual, _with_itself, _dropout])
def test_a_new_tensor_that_is_overwritten_needs_no_second_trace(
    function: Callable[..., Any], retraced: list[int]
) -> None:
    check(function, random(2, 3))
    assert not retraced


def test_relu_in_place_after_a_convolution_and_a_normalization(retraced: list[int]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.ReLU6(True)).eval()
    import_torch(model, (random(1, 3, 6, 6),))
    assert not retraced


def _of_an_input(x: Any) -> Any:
    x.add_(1.0)
    return x * 2


def _through_a_view(x: Any) -> Any:
    y = x * 2
    part = y[0]
    y.add_(1.0)
    return part + y


def _of_a_view(x: Any) -> Any:
    y = x * 2
    y[0].add_(1.0)
    return y


def _of_an_output(x: Any) -> Any:
    y = x * 2
    y.add_(1.0)
    return y, y * 3


def _of_another_type(x: Any) -> Any:
    y = x.to(torch.float16) * 2
    y.add_(x)
    return y


@pytest.mark.parametrize(
    "function",
    [_of_an_input, _through_a_view, _of_a_view, _of_an_output, _of_another_type],
)
def test_a_tensor_in_shared_memory_that_is_overwritten_is_right(function: Callable[..., Any]) -> None:
    x = random(2, 3)
    wanted = function(x.clone())
    module = import_torch(Lambda(function), (x.clone(),))
    found = Interpreter(module).run("main", [x.numpy().copy()])
    for got, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=False):
        np.testing.assert_allclose(np.asarray(got, np.float32), want.float().numpy(), rtol=1e-3, atol=1e-5)

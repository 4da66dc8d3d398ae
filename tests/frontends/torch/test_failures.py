"""Models that torch.export cannot trace: the error names the line of the model and a remedy, and nothing is
printed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import CompileError  # noqa: E402

from .checks import Lambda  # noqa: E402

F = torch.nn.functional


def branch(x: Any) -> Any:
    if x.sum() > 0:  # A branch on a value.
        return x * 2
    return x


def number(x: Any) -> Any:
    count = int(x.max())  # A number computed from a value.
    return x[:count]


def loop(x: Any) -> Any:
    for v in x.tolist():
        x = x + v if v > 0 else x  # A loop over values.
    return x


def chosen_size(x: Any) -> Any:
    y = x[x > 0]
    return y if y.shape[0] > 3 else x  # A size that depends on values.


def other_library(x: Any) -> Any:
    return torch.from_numpy(x.numpy() + 1)  # A call of NumPy.


def assertion(x: Any) -> Any:
    assert x.min() >= 0, "negative"
    return x


def causal(x: Any) -> Any:
    # The option is_causal depends on a size.
    return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1)


def wrong(x: Any) -> Any:
    return x.reshape(2, -1) @ torch.ones(7, 7)  # Shapes that do not fit.


# The error quotes the line of the model, which is recognized by its comment.
@pytest.mark.parametrize(
    ("function", "line", "advice"),
    [
        (branch, "# A branch on a value", "torch.cond"),
        (number, "# A number computed from a value", "replace .item"),
        (loop, "# A loop over values", "tolist"),
        (chosen_size, "# A size that depends on values", r"torch._check\("),
        (other_library, "# A call of NumPy", "custom_op"),
        (assertion, "assert x.min", "torch._assert_async"),
        (wrong, "# Shapes that do not fit", "runs on the example inputs"),
    ],
)
def test_the_line_and_the_way_around(
    function: Callable[..., Any], line: str, advice: str, capfd: Any
) -> None:
    with pytest.raises(
        CompileError,
        match=f"(?s)cannot trace Lambda: .*{__name__.rpartition('.')[2]}.py:[0-9]+: .*{line}.*{advice}",
    ) as caught:
        tw.compile(Lambda(function), (torch.ones(4),), cache=False)
    message = str(caught.value)
    assert len(message.splitlines()) <= 10
    assert "Tilewright, not in your model" not in message
    text = "".join(traceback.format_exception(caught.value))
    assert "site-packages" not in text  # Only the model's lines are shown, not those of torch's files.
    out, err = capfd.readouterr()
    assert out == err == ""


def test_a_flag_that_a_dynamic_size_decides(capfd: Any) -> None:
    with pytest.raises(CompileError, match="(?s)is_causal=x.shape.*pass is_causal=True"):
        tw.compile(Lambda(causal), (torch.ones(1, 2, 3, 4),), dims={"x": {2: "n"}}, cache=False)
    assert capfd.readouterr().err == ""


def test_training_mode_is_named_where_it_matters() -> None:
    class Dropped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = torch.nn.Dropout()

        def forward(self, x: Any) -> Any:
            return branch(self.dropout(x))

    with pytest.raises(CompileError, match="after model.eval"):
        tw.compile(Dropped().train(), (torch.ones(4),), cache=False)
    with pytest.raises(CompileError) as caught:
        tw.compile(Dropped().eval(), (torch.ones(4),), cache=False)
    assert "eval" not in str(caught.value)

"""Mistakes in traced functions raise errors that name the mistake and its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, ShapeError
from tilewright.frontends.nn import functional as F

X = np.ones((2, 3), np.float32)


def undefined(x: Any) -> Any:
    return x + nothing  # type: ignore[name-defined]  # noqa: F821


def missing(x: Any) -> Any:
    return x.brightness()


def refused(x: Any) -> Any:
    raise ValueError("not today")


def of_numpy(x: Any) -> Any:
    return np.linalg.brightness(x)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (undefined, "NameError: name 'nothing' is not defined"),
        (missing, "AttributeError: .*brightness'"),
        (refused, "ValueError: not today"),
        (of_numpy, "AttributeError: .*brightness'"),
    ],
)
def test_a_mistake_in_the_function(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(
        CompileError, match=f"(?s)^{function.__name__} raises {message}\n  at .*test_mistakes.py:[0-9]+: "
    ) as caught:
        tw.compile(function, (X,), cache=False)
    assert "bug in Tilewright" not in str(caught.value)


def limited(x: Any) -> Any:
    return x[: max(x.shape[0], 1)]


def ordered(x: Any) -> Any:
    return x + 1 if x.shape[0] > 3 else x


def nested(x: Any) -> Any:
    size = x.shape[0]
    for _ in range(1000):
        size = size * 3 // 4 + 1
    return tw.numpy.zeros((size,), np.float32) + x[0, 0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (limited, "limited raises TypeError: the order of 'n' and '1' is not known at compile time"),
        (ordered, "ordered raises TypeError: the order of 'n' and '3' is not known at compile time"),
        (nested, "a size is computed by more than 100 divisions"),
    ],
)
def test_a_question_about_a_size_that_only_a_run_has(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(CompileError, match=f"(?s)^{message}.*\n  at .*test_mistakes.py:[0-9]+: ") as caught:
        tw.compile(function, (X,), dims={"x": {0: "n"}}, cache=False)
    assert "bug in Tilewright" not in str(caught.value)


def test_a_size_of_many_divisions() -> None:
    def size_of(size: Any) -> Any:
        for _ in range(90):
            size = size * 3 // 4 + 1
        return size

    def f(x: Any) -> Any:
        return tw.numpy.zeros((size_of(x.shape[0]),), np.float32) + x[0, 0]

    with tw.compile(f, (X,), dims={"x": {0: "n"}}, cache=False) as library:
        for rows in (2, 3000):
            result = np.asarray(library(np.ones((rows, 3), np.float32)))
            np.testing.assert_array_equal(result, np.ones(size_of(rows), np.float32))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: F.conv(x[None], np.ones((4, 2, 2), np.float32), np.ones(3)), "conv': bias has shape .3,."),
        (lambda x: F.conv(x[None], np.ones((5, 1, 2), np.float32), groups=2), "2 groups do not divide 5"),
        (lambda x: F.conv(x[None], np.ones((4, 2, 2), np.float32), stride=0), "strides is .0,., needs"),
        (
            lambda x: F.layer_norm(x, np.ones(4)),
            "layer_norm': scale has shape .4,., which does not broadcast",
        ),
        (lambda x: F.rms_norm(x, np.ones(4)), "rms_norm': scale has shape .4,., which does not broadcast"),
        (lambda x: F.group_norm(x, 2, np.ones(2)), "groups do not divide 3|scale has shape"),
        (
            lambda x: F.batch_norm(x, *np.ones((4, 2), np.float32)),
            "batch_norm': mean has|scale has shape .2,.",
        ),
        (
            lambda x: F.attention(*[x[None, None]] * 3, mask=np.ones((3, 3))),
            "attention': mask has shape .3, 3.",
        ),
        (lambda x: F.rotary(x[:, :2], np.ones((5, 2)), np.ones((5, 2))), "rotary': cos has shape .5, 2."),
        (lambda x: tw.numpy.einsum("ij->m", x), "'m' of the result of 'ij->m' is in no operand"),
        (lambda x: tw.numpy.einsum("ij,jk->ik", x, x.T, x), "2 terms for 3 operands"),
        (lambda x: F.gelu(x, approximate="x"), "unknown approximate 'x'; known: none, tanh"),
        (lambda x: tw.numpy.argmax(x[:0], axis=0), "no elements along dimension 0"),
    ],
)
def test_arguments_that_do_not_fit(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        function(tw.Tensor(X))
    with pytest.raises(ShapeError, match=message):
        tw.compile(function, (X,), cache=False)


def test_parameters_of_normalizations_are_arrays_of_any_float_type() -> None:
    for dtype in (np.float32, np.float64):
        weight, bias = np.arange(3, dtype=dtype), np.ones(3, dtype)
        y = F.layer_norm(tw.Tensor(X + np.arange(3, dtype=np.float32)), weight, bias)
        assert y.dtype == np.float32
        normal = np.array([-1, 0, 1]) * np.sqrt(1.5)
        np.testing.assert_allclose(y.numpy()[0], normal * weight + bias, rtol=1e-3)


def test_an_index_that_is_known_to_be_outside() -> None:
    with pytest.raises(CompileError, match="(?s)IndexError: index 3 is outside .*\n  at .*test_mistakes.py:"):
        tw.compile(lambda x: x[np.array([3])], (X,), cache=False)

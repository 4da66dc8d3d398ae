"""Mistakes in traced functions raise errors that name the mistake and its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError

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

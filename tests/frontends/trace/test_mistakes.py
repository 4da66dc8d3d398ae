"""Mistakes in traced functions are told as such, with their line."""

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
    ) as found:
        tw.compile(function, (X,), cache=False)
    assert "bug in Tilewright" not in str(found.value)

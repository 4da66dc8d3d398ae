"""Loop programs that are refused where they are defined, with the line of the mistake."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

import tilewright as tw

from .wrong_programs import WRONG


@pytest.mark.parametrize(("function", "message"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_refusals_show_the_line(function: Callable[..., None], message: str) -> None:
    with pytest.raises(tw.KernelError) as caught:
        tw.kernel(function)
    text = str(caught.value)
    assert re.search(message, text), text
    lines, start = inspect.getsourcelines(function)
    marked = [start + k for k, line in enumerate(lines) if "# here" in line]
    for line in marked:
        assert f"wrong_programs.py:{line}: " in text and lines[line - start].strip() in text


def test_functions_without_a_source() -> None:
    names: dict[str, Callable[..., None]] = {}
    exec("def made(x, y):\n    y[0] = x[0]\n", names)
    with pytest.raises(tw.KernelError, match="the source of 'made' cannot be read .*; define it by"):
        tw.kernel(names["made"])
    with pytest.raises(tw.KernelError, match="is not defined by `def`"):
        tw.kernel(lambda x, y: None)


def test_types_name_parameters() -> None:
    def copy(x: object, y: object) -> None:
        for i in tw.axis(x.n):  # type: ignore[attr-defined]
            y[i] = x[i]  # type: ignore[index]

    with pytest.raises(tw.KernelError, match="types= names 'z', which is no parameter"):
        tw.kernel(types={"x": tw.f32["n"], "z": tw.f32["n"]})(copy)

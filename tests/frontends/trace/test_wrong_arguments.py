"""Arguments that a function does not take are reported as the user's, never as a bug of the compiler."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InternalError, TilewrightError, internal_errors
from tilewright.frontends.nn import functional
from tilewright.frontends.trace.importer import import_function

X = np.ones((2, 3), np.float32)
OTHER = ("x", None, 1.5, (0, 0), np.ones(4, np.float32))
"""Arguments beside X."""


def functions() -> list[tuple[str, Callable[..., Any]]]:
    found = []
    for module in (tw.numpy, tw.numpy.linalg, functional):
        for name in dir(module):
            function = getattr(module, name)
            public = not name.startswith("_") and name not in ("apply", "as_tensor", "together")
            if public and callable(function) and not isinstance(function, type):
                found.append((name, function))
    return found


@pytest.mark.parametrize("name", sorted({name for name, _ in functions()}))
def test_wrong_arguments(name: str) -> None:
    function = dict(functions())[name]
    for other in OTHER:
        try:
            with internal_errors(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_function(lambda x, other=other: function(x, other), (X,), None, None)
        except InternalError as error:
            pytest.fail(f"{name}(x, {other!r}): {error}")
        except TilewrightError:
            pass
        with suppress(TypeError, ValueError, IndexError, ArithmeticError, TilewrightError):
            function(tw.Tensor(X), tw.Tensor(other) if isinstance(other, np.ndarray) else other)


def test_objects_and_missing_tensors() -> None:
    for data in (None, [None], [1.0, None], object()):
        with pytest.raises(TypeError, match="cannot be a tensor"):
            tw.Tensor(data)
    with pytest.raises(TypeError, match="is a string"):
        tw.numpy.einsum(tw.Tensor(X))
    for join in (tw.numpy.concatenate, tw.numpy.stack):
        with pytest.raises(ValueError, match="at least one tensor"):
            join([])
    for axes in (4, (0, 0), -4):
        with pytest.raises(ValueError, match="not distinct dimensions of a result of rank"):
            tw.numpy.expand_dims(tw.Tensor(X), axes)


def test_an_error_in_a_function_that_takes_its_arguments_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("tilewright.frontends.trace.shapes")
    code = "def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:\n    return x + len(None)\n"
    monkeypatch.setattr(module, "reshape", module.reshape)  # which is put back
    exec(compile(code, module.__file__ or "", "exec"), vars(module))
    for shape, bug in (((3, 2), True), ("x", False)):
        with pytest.raises((InternalError, TilewrightError)) as e, internal_errors():
            import_function(lambda x, shape=shape: module.reshape(x, shape), (X,), None, None)
        assert isinstance(e.value, InternalError) == bug
        assert ("This is a bug in Tilewright" in str(e.value)) == bug

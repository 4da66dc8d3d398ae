"""Depth: chains of thousands of operators and models of hundreds of layers, within the stack that Python has by default, or less."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp
from tilewright.compiler import import_model
from tilewright.ir.equality import first_difference
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.verifier import verify

Chain = tuple[Callable[..., Any], tuple[np.ndarray[Any, Any], ...]]


def linear_relu(n: int) -> Chain:
    draws = np.random.default_rng(0)
    weights = [draws.standard_normal((4, 4)).astype(np.float32) * 0.7 for _ in range(n // 2)]

    def f(x: Any) -> Any:
        for w in weights:
            x = tnp.maximum(x @ w + np.float32(0.1), 0)
        return x

    return f, (np.ones((3, 4), np.float32),)


def elementwise(n: int) -> Chain:
    def f(x: Any, y: Any) -> Any:
        for k in range(n):
            x = tnp.tanh(x) if k % 5 == 0 else x * y if k % 2 else x + np.float32(k % 7) * np.float32(0.1)
        return x

    return f, (np.linspace(-1, 1, 32, dtype=np.float32), np.linspace(0.5, 0.9, 32, dtype=np.float32))


def movements(n: int) -> Chain:
    """Reshapes and transposes that do not cancel: each meets a value that is added."""

    def f(x: Any) -> Any:
        for k in range(n // 3):
            x = (x.reshape(6, 4) if k % 2 else x.reshape(3, 8)).T.reshape(4, 6) + np.float32(1)
        return x

    return f, (np.arange(24, dtype=np.float32).reshape(4, 6),)


def concatenations(n: int) -> Chain:
    def f(x: Any) -> Any:
        for _ in range(n // 4):
            x = tnp.concatenate([x[1:], x[:1] * np.float32(0.5)])
        return x

    return f, (np.arange(8, dtype=np.float32),)


def one_sum(n: int) -> Chain:
    """The values of a chain, added up at its end: each has a reader far away."""

    def f(x: Any) -> Any:
        values = []
        for _ in range(n // 2):
            x = tnp.sin(x)
            values.append(x)
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total

    return f, (np.linspace(-1, 1, 32, dtype=np.float32),)


def reductions(n: int) -> Chain:
    def f(x: Any) -> Any:
        for k in range(n // 3):
            x = x - x.mean(axis=k % 2, keepdims=True) * np.float32(0.5)
        return x

    return f, (np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6),)


def gathers(n: int) -> Chain:
    def f(x: Any, i: Any) -> Any:
        for _ in range(n // 2):
            x = x[i] + np.float32(1)
        return x

    return f, (np.linspace(-1, 1, 16, dtype=np.float32), np.random.default_rng(0).permutation(16))


CHAINS: dict[str, Callable[[int], Chain]] = {
    f.__name__: f for f in (linear_relu, elementwise, movements, concatenations, one_sum, reductions, gathers)
}


@contextmanager
def frames_left(count: int) -> Iterator[None]:
    """Inside, calls may be nested `count` deep from here, as for a caller who is deep in a program already."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + count)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def check_chain(kind: str, n: int) -> None:
    """Print, parse, verify, interpret, compile and run a chain of about `n` operators."""
    f, args = CHAINS[kind](n)
    module = import_model(f, args, {}, None)
    again = parse(print_op(module, resources=True))
    verify(again)
    assert first_difference(module, again) is None
    wanted = np.asarray(f(*args))
    (interpreted,) = Interpreter(again).run("main", args)
    np.testing.assert_allclose(interpreted, wanted, rtol=1e-5, atol=1e-6)
    with tw.compile(f, args, cache=False) as library:
        np.testing.assert_allclose(np.asarray(library(*args)), wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_of_300_operators_with_little_stack(kind: str) -> None:
    tw.compile(lambda x: x + 1, (np.zeros(3, np.float32),), cache=False)  # modules are imported
    with frames_left(150):
        check_chain(kind, 300)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_of_2000_operators(kind: str) -> None:
    check_chain(kind, 2000)

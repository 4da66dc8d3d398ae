"""Deep models: chains of thousands of operators and models of hundreds of layers compile within Python's
default stack, or less.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp
from tilewright.driver.frontend_registry import import_model
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
    """Return a chain of reshapes and transposes that do not cancel, because a number is added after each
    pair.
    """

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
    """Return a chain whose values are all added up at its end, so that each has a reader far away."""

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
    """Allow `count` nested calls from here, as for a caller that is already deep in a program."""
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
    # Imports the modules, which needs more stack.
    tw.compile(lambda x: x + 1, (np.zeros(3, np.float32),), cache=False)
    with frames_left(150):
        check_chain(kind, 300)


def sizes(kind: str, n: int) -> Any:
    """Return an ONNX model that computes a size from its input's size in `n` steps, and broadcasts a number
    to that size.
    """
    h = pytest.importorskip("onnx").helper
    nodes = [h.make_node("Shape", ["x"], ["s"]), h.make_node("Squeeze", ["s"], ["d0"])]
    for k in range(n):
        if kind == "limits":
            nodes.append(h.make_node("Sub", [f"d{k}", "one"], [f"a{k}"]))
            nodes.append(h.make_node("Max", [f"a{k}", "one"], [f"d{k + 1}"]))
        else:
            nodes.append(h.make_node("Mul", [f"d{k}", "three"], [f"a{k}"]))
            nodes.append(h.make_node("Div", [f"a{k}", "four"], [f"b{k}"]))
            nodes.append(h.make_node("Add", [f"b{k}", "one"], [f"d{k + 1}"]))
    nodes.append(h.make_node("Unsqueeze", [f"d{n}", "zero"], ["u"]))
    nodes.append(h.make_node("Expand", ["v", "u"], ["y"]))
    int64, float32 = 7, 1
    initializers = [
        h.make_tensor(name, int64, [], [v]) for name, v in (("one", 1), ("three", 3), ("four", 4))
    ]
    initializers.append(h.make_tensor("zero", int64, [1], [0]))
    inputs = [h.make_tensor_value_info("x", float32, ["n"]), h.make_tensor_value_info("v", float32, [1])]
    outputs = [h.make_tensor_value_info("y", float32, ["m"])]
    graph = h.make_graph(nodes, "sizes", inputs, outputs, initializers)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)])


@pytest.mark.parametrize(("kind", "n"), [("limits", 2000), ("divisions", 60)])
def test_a_size_computed_in_many_steps(kind: str, n: int) -> None:
    """Successive limits are simplified to one; divisions that are nested too deep are computed at run
    time.
    """
    with tw.compile(sizes(kind, n), cache=False) as library:
        for size in (5, 37, 2100):
            wanted = size
            for _ in range(n):
                wanted = max(wanted - 1, 1) if kind == "limits" else wanted * 3 // 4 + 1
            found = np.asarray(library(np.ones(size, np.float32), np.full(1, 7, np.float32)))
            np.testing.assert_array_equal(found, np.full(wanted, 7, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_of_2000_operators(kind: str) -> None:
    check_chain(kind, 2000)

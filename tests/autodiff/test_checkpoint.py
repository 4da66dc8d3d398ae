"""Rematerialization: gradients are unchanged, and the planned memory is smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp

RNG = np.random.default_rng(0)


def mlp(wrap: Callable[..., Any], layers: int) -> Callable[..., Any]:
    def block(x: Any, w: Any, v: Any) -> Any:
        return x + tnp.tanh(tnp.sin(x @ w) @ v)

    def loss(x: Any, ws: Any, vs: Any) -> Any:
        for k in range(layers):
            x = wrap(block)(x, ws[k], vs[k])
        return (x * x).sum()

    return loss


def weights(layers: int, width: int) -> tuple[list[Any], list[Any]]:
    made = [[RNG.standard_normal((width, width)) * 0.2 for _ in range(layers)] for _ in range(2)]
    return made[0], made[1]


def flat(args: Any) -> list[Any]:
    """The arguments as a library takes them."""
    return [args[0], *args[1], *args[2]]


def gradients(loss: Callable[..., Any], args: Any, dims: Any = None) -> Any:
    def pair(x: Any, ws: Any, vs: Any) -> Any:
        return tw.grad(loss, argnums=(0, 1, 2))(x, ws, vs)

    return tw.compile(pair, args, dims=dims)


def test_gradients_are_unchanged_and_memory_falls() -> None:
    layers, width, rows = 8, 8, 512
    args = (RNG.standard_normal((rows, width)), *weights(layers, width))
    plain = gradients(mlp(lambda f: f, layers), args)
    saved = gradients(mlp(tw.checkpoint, layers), args)
    for x, y in zip(plain(*flat(args)), saved(*flat(args)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-12, atol=1e-12)
    # Without it, three tensors of a layer are kept: the input and both functions' results.
    before, after = (lib.metadata["memory"]["arena_bytes"] for lib in (plain, saved))
    assert after < 0.7 * before, (before, after)


def test_at_once_and_second_order() -> None:
    args = (RNG.standard_normal((3, 4)), *weights(2, 4))
    results = []
    for wrap in (lambda f: f, tw.checkpoint):
        loss = mlp(wrap, 2)

        def twice(x: Any, ws: Any, vs: Any, loss: Any = loss) -> Any:
            dx = tw.grad(loss)(x, ws, vs)
            return (dx * dx).sum()

        results.append(
            (
                tw.grad(twice)(*args),
                tw.compile(lambda x, ws, vs: tw.grad(twice)(x, ws, vs), args)(*flat(args)),
            )
        )
    for x in (results[1][0], results[0][1], results[1][1]):
        np.testing.assert_allclose(np.asarray(x), np.asarray(results[0][0]), rtol=1e-9, atol=1e-9)


def test_nested_and_of_a_dynamic_number_of_rows() -> None:
    args = (RNG.standard_normal((3, 4)), *weights(4, 4))

    def nested(x: Any, ws: Any, vs: Any) -> Any:
        half = tw.checkpoint(lambda x, ws, vs: mlp_body(x, ws, vs))
        return (half(half(x, ws[:2], vs[:2]), ws[2:], vs[2:]) ** 2).sum()

    def mlp_body(x: Any, ws: Any, vs: Any) -> Any:
        for w, v in zip(ws, vs, strict=True):
            x = tw.checkpoint(lambda x, w=w, v=v: x + tnp.tanh(tnp.sin(x @ w) @ v))(x)
        return x

    plain = gradients(mlp(lambda f: f, 4), args, {"x": {0: "n"}})
    saved = gradients(nested, args, {"x": {0: "n"}})
    args = (RNG.standard_normal((5, 4)), *args[1:])
    for x, y in zip(plain(*flat(args)), saved(*flat(args)), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-11, atol=1e-12)


def test_in_the_body_of_a_scan() -> None:
    def f(x: Any, w: Any, wrap: Any) -> Any:
        step = wrap(lambda h, s: tnp.tanh(tnp.sin(h @ w) + s))
        h, rows = tw.scan(lambda h, s: (step(h, s),) * 2, x[0], x)
        return (rows * rows).sum() + h.sum()

    x, w = RNG.standard_normal((4, 3, 5)), RNG.standard_normal((5, 5))
    found = [
        tw.compile(lambda x, w, wrap=wrap: tw.grad(lambda x, w: f(x, w, wrap), (0, 1))(x, w), (x, w))(x, w)
        for wrap in (lambda f: f, tw.checkpoint)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-11, atol=1e-12)


def test_states_are_replaced_once() -> None:
    counter = tw.State("counter", (2,), "float64")

    @tw.checkpoint
    def layer(x: Any) -> Any:
        counter.value = counter.value + 1
        return tnp.sin(x) * x

    library = tw.compile(lambda x: tw.grad(lambda x: layer(x).sum())(x), (np.ones(3),))
    library(np.ones(3))
    np.testing.assert_array_equal(np.asarray(library.state["counter"]), np.ones(2))


def test_a_result_of_a_size_of_the_run_is_refused() -> None:
    with pytest.raises(tw.TraceError, match="checkpointed function"):
        tw.compile(lambda x: tw.checkpoint(lambda x: tnp.nonzero(x)[0])(x), (np.ones(3),))

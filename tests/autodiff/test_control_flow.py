"""Gradients of scans, branches and loops with a condition: they equal those of the same loops in torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import numpy as tnp
from tilewright.nn import functional as F

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [RNG.standard_normal(s) for s in shapes]


def check(
    ours: Callable[..., Any],
    reference: Callable[..., Any],
    args: list[Any],
    dims: dict[str, dict[int, str]] | None = None,
    second: bool = True,
) -> Any:
    """Compare gradients by all arguments with torch's, at once and compiled; return the compiled library."""
    numbers = tuple(range(len(args)))
    leaves = [torch.tensor(a, requires_grad=True) for a in args]
    wanted = torch.autograd.grad(reference(*leaves), leaves, create_graph=second, allow_unused=True)
    wanted = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, wanted, strict=True)]
    gradient = tw.grad(ours, argnums=numbers)
    library = tw.compile(gradient, tuple(args), dims=dims)
    for found in (gradient(*args), library(*args)):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(x), y.detach().numpy(), rtol=1e-9, atol=1e-9)
    if second:

        @functools.wraps(ours)
        def squares(*values: Any) -> Any:
            return sum((g * g).sum() for g in gradient(*values))

        twice = torch.autograd.grad(sum((g * g).sum() for g in wanted), leaves, allow_unused=True)
        of_squares = tw.grad(squares, argnums=numbers)
        for found in (of_squares(*args), tw.compile(of_squares, tuple(args), dims=dims)(*args)):
            for x, y in zip(found, twice, strict=True):
                expected = np.zeros(np.shape(x)) if y is None else y.detach().numpy()
                np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-8, atol=1e-8)
    return library


def torch_rnn(x: Any, w: Any, r: Any, b: Any, h: Any, reverse: bool = False) -> Any:
    rows = {}
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        h = torch.tanh(x[t] @ w + h @ r + b)
        rows[t] = h
    weights = torch.arange(1.0, len(x) + 1, dtype=torch.float64)[:, None, None]
    return (weights * torch.stack([rows[t] for t in range(len(x))]) ** 2).sum() + (3 * h).sum()


def rnn(x: Any, w: Any, r: Any, b: Any, h: Any, reverse: bool = False) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = tnp.tanh(x @ w + h @ r + b)
        return h, h

    last, rows = tw.scan(step, h, x, reverse=reverse)
    weights = tnp.arange(1, x.shape[0] + 1, dtype="float64")[:, None, None]
    return (weights * rows * rows).sum() + (3 * last).sum()


RNN = ((5, 3, 4), (4, 6), (6, 6), (6,), (3, 6))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    check(
        lambda x, w, r, b, h: rnn(x, w, r, b, h, reverse),
        lambda x, w, r, b, h: torch_rnn(x, w, r, b, h, reverse),
        arrays(*RNN),
    )


def test_the_weights_gradient_is_one_product_after_the_loop() -> None:
    library = tw.compile(tw.grad(rnn, argnums=(0, 1, 2, 3, 4)), tuple(arrays(*RNN)))
    text = library.ir("graph")
    loops = text.split("graph.scan")[1:]
    inside = ["".join(line for line in part.partition("graph.yield")[0]) for part in loops]
    assert [body.count("einsum") + body.count("matmul") for body in inside] == [1, 1]
    assert all(body.count("reduce_sum") == 0 for body in inside)


def test_scan_over_a_dynamic_number_of_steps() -> None:
    args = arrays(*RNN)
    library = check(rnn, torch_rnn, args, dims={"x": {0: "time", 1: "batch"}, "h": {0: "batch"}})
    other = arrays((2, 1, 4), (4, 6), (6, 6), (6,), (1, 6))
    leaves = [torch.tensor(a, requires_grad=True) for a in other]
    wanted = torch.autograd.grad(torch_rnn(*leaves), leaves)
    for x, y in zip(library(*other), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), y.numpy(), rtol=1e-9, atol=1e-9)


def test_scan_of_zero_steps() -> None:
    def f(x: Any, w: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = tnp.tanh(x * w + h)
            return h, h

        last, rows = tw.scan(step, h, x)
        return (last * last).sum() + rows.sum()

    x, w, h = np.zeros((0, 3)), np.ones(3), np.array([1.0, 2.0, 3.0])
    gradient = tw.grad(f, argnums=(0, 1, 2))
    dynamic = tw.compile(gradient, (np.ones((4, 3)), w, h), dims={"x": {0: "0<=t"}})
    for dx, dw, dh in (gradient(x, w, h), dynamic(x, w, h)):
        assert np.asarray(dx).shape == (0, 3)
        np.testing.assert_array_equal(np.asarray(dw), np.zeros(3))
        np.testing.assert_array_equal(np.asarray(dh), 2 * h)


def test_scan_with_integers_and_unused_parts() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            count, total, unused = carry
            total = total + x * w * count.astype("float64")
            return (count + 1, total, unused * x), (count, total)

        (count, total, _), (counts, totals) = tw.scan(step, (tw.tensor(1), x[0] * 0, x[0]), x)
        return (totals * counts.astype("float64")[:, None]).sum() + total.sum() * count.astype("float64")

    def reference(x: Any, w: Any) -> Any:
        total, result = x[0] * 0, torch.zeros((), dtype=torch.float64)
        for k in range(len(x)):
            total = total + x[k] * w * (k + 1)
            result = result + (total * (k + 1)).sum()
        return result + total.sum() * (len(x) + 1)

    check(f, reference, arrays((4, 3), (3,)))


def test_values_that_are_initial_and_captured() -> None:
    def f(h: Any, x: Any) -> Any:
        last, _ = tw.scan(lambda c, s: (c * h + s * x.sum(), None), h, x)
        return last.sum()

    def reference(h: Any, x: Any) -> Any:
        c = h
        for s in x:
            c = c * h + s * x.sum()
        return c.sum()

    check(f, reference, arrays((3,), (4, 3)))


def test_nested_scans() -> None:
    def f(x: Any, w: Any) -> Any:
        def outer(total: Any, row: Any) -> Any:
            def inner(h: Any, s: Any) -> Any:
                h = tnp.sin(h * w + s * total)
                return h, h * s

            h, rows = tw.scan(inner, total, row)
            return total + h, rows.sum()

        total, sums = tw.scan(outer, w * 0.5, x)
        return (total * total).sum() + (sums * sums).sum()

    def reference(x: Any, w: Any) -> Any:
        total, result = w * 0.5, 0.0
        for row in x:
            h, sums = total, 0.0
            for s in row:
                h = torch.sin(h * w + s * total)
                sums = sums + (h * s).sum()
            total, result = total + h, result + sums * sums
        return (total * total).sum() + result

    check(f, reference, arrays((3, 4, 2), (2,)))


def lstm(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = (x @ weights[k] + h @ weights[k + 4] + weights[k + 8] for k in range(4))
        c = F.sigmoid(f) * c + F.sigmoid(i) * tnp.tanh(g)
        h = F.sigmoid(o) * tnp.tanh(c)
        return (h, c), h

    (h, c), rows = tw.scan(step, (h, c), x)
    return (rows * rows).sum() + (h * c).sum()


def torch_lstm(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    inputs, state, bias = (torch.cat(weights[k : k + 4], -1) for k in (0, 4, 8))
    zero = torch.zeros_like(bias)
    rows, h, c = torch.lstm(
        x, (h[None], c[None]), [inputs.T, state.T, bias, zero], True, 1, 0.0, False, False, False
    )
    return (rows * rows).sum() + (h * c).sum()


def test_lstm() -> None:
    args = arrays((5, 2, 3), (2, 4), (2, 4), *[(3, 4)] * 4, *[(4, 4)] * 4, *[(4,)] * 4)
    check(lstm, torch_lstm, args, second=False)


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_branches(value: float) -> None:
    def f(x: Any, w: Any) -> Any:
        y = tw.cond(
            x.sum() > 0,
            lambda: tnp.tanh(x @ w) @ w.T,
            lambda: tnp.exp(x * tnp.sin(x)),
        )
        return (y * y).sum()

    def reference(x: Any, w: Any) -> Any:
        y = torch.tanh(x @ w) @ w.T if x.sum() > 0 else torch.exp(x * torch.sin(x))
        return (y * y).sum()

    x, w = arrays((3, 2), (2, 2))
    check(f, reference, [np.abs(x) * np.sign(value), w])


def test_branches_in_a_scan() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(h: Any, s: Any) -> Any:
            h = tw.cond(s.sum() > 0, lambda: tnp.sin(h * w) * s, lambda: h * h * w)
            return h, h

        h, rows = tw.scan(step, w, x)
        return (rows * rows).sum() + h.sum()

    def reference(x: Any, w: Any) -> Any:
        h, total = w, 0.0
        for s in x:
            h = torch.sin(h * w) * s if s.sum() > 0 else h * h * w
            total = total + (h * h).sum()
        return total + h.sum()

    check(f, reference, arrays((6, 3), (3,)))


def test_loops_with_a_condition() -> None:
    def f(x: Any, w: Any) -> Any:
        def body(state: Any) -> Any:
            n, y = state
            return n + 1, tnp.sin(y) * w + 1.5 * y

        n, y = tw.while_loop(lambda s: (s[1] * s[1]).sum() < 50, body, (tw.tensor(0), x))
        return (y * y).sum() * n.astype("float64")

    def reference(x: Any, w: Any) -> Any:
        n, y = 0, x
        while (y * y).sum() < 50:
            n, y = n + 1, torch.sin(y) * w + 1.5 * y
        return (y * y).sum() * n

    x = np.array([0.3, 0.5, 1.0])
    check(f, reference, [x, np.array([0.7, 0.9, 0.4])])
    check(f, reference, [x * 10, np.array([0.7, 0.9, 0.4])], second=False)  # no step


def test_loops_with_a_condition_inside_loops_and_branches() -> None:
    def f(x: Any, w: Any) -> Any:
        def grown(y: Any) -> Any:
            return tw.while_loop(lambda s: (s * s).sum() < 20, lambda s: s * w + 0.3 * tnp.sin(s), y)

        def step(h: Any, s: Any) -> Any:
            h = tw.cond(s.sum() > 0, lambda: grown(h * 0.3 + s), lambda: h - grown(s))
            return h * 0.5, grown(h)

        h, rows = tw.scan(step, w, x)
        return (rows * rows).sum() + h.sum()

    def reference(x: Any, w: Any) -> Any:
        def grown(y: Any) -> Any:
            while (y * y).sum() < 20:
                y = y * w + 0.3 * torch.sin(y)
            return y

        h, total = w, 0.0
        for s in x:
            h = grown(h * 0.3 + s) if s.sum() > 0 else h - grown(s)
            total = total + (grown(h) ** 2).sum()
            h = h * 0.5
        return total + h.sum()

    check(f, reference, [*arrays((4, 3)), np.array([1.3, 1.1, 1.2])], second=False)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_of_torch(kind: Any) -> None:
    """A step of gradient descent with rate 1 subtracts the gradient."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(5, 7, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            rows, state = self.layer(x)
            last = state[0] * state[1] if isinstance(state, tuple) else state
            return (rows * rows).sum() + (last * last).sum()

    net, x = Net().double(), torch.tensor(RNG.standard_normal((2, 4, 5)))
    gradients = torch.autograd.grad(net(x), list(net.parameters()))
    before = [p.detach().numpy().copy() for p in net.parameters()]
    step = tw.train_step(net, None, tw.optim.SGD(1.0), (x,))
    step(x)
    step.sync()
    for old, new, wanted in zip(before, net.parameters(), gradients, strict=True):
        np.testing.assert_allclose(old - new.detach().numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)
    assert not step.library.report.slower


def test_independent_columns_are_one_kernel_forward_and_backward() -> None:
    def f(a: Any, b: Any) -> Any:
        _, rows = tw.scan(lambda h, s: (h * s[0] + s[1],) * 2, a[0] * 0, (a, b))
        return (rows * rows).sum()

    a, b = (x.astype(np.float32) for x in arrays((5, 256), (5, 256)))
    library = tw.compile(tw.grad(f, argnums=(0, 1)), (a * 0.5, b))
    assert library.ir("tensor").count('"recurrence"') == 2

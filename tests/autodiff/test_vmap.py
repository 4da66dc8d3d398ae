"""`tw.vmap` equals a loop over the batch; so do gradients of it, and it of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as tnp
from tilewright.dialects import graph as g
from tilewright.errors import CompileError, ShapeError
from tilewright.frontends.nn import functional as F
from tilewright.frontends.trace.operands import apply, apply_several, as_tensor

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [RNG.standard_normal(s) for s in shapes]


def looped(f: Callable[..., Any], args: Sequence[Any], axes: Sequence[int | None]) -> Any:
    size = next(x.shape[a] for x, a in zip(args, axes, strict=True) if a is not None)
    rows = []
    for k in range(size):
        element = [x if a is None else np.take(x, k, a) for x, a in zip(args, axes, strict=True)]
        rows.append(np.asarray(f(*map(tw.tensor, element))))
    return np.stack(rows)


def mlp(x: Any, w: Any) -> Any:
    return tnp.tanh(x @ w).sum()


def scan(x: Any, w: Any) -> Any:
    h, rows = tw.scan(lambda h, s: (tnp.tanh(h * w + s), h * s), w, x)
    return (rows * rows).sum() + h.sum()


def branch(x: Any, w: Any) -> Any:
    return tw.cond(x.sum() > 0, lambda: x * w, lambda: tnp.sin(x)).sum()


def steps(x: Any, w: Any) -> Any:
    """The number of steps depends on the element."""
    n, y = tw.while_loop(
        lambda s: (s[1] * s[1]).sum() < 50, lambda s: (s[0] + 1, s[1] * 2 + w * w + 0.1), (tw.tensor(0), x)
    )
    return (y * w).sum() * n.astype("float64")


def shapes(x: Any, w: Any) -> Any:
    joined = tnp.concatenate([x[1:], x[:1] * 2])
    running = tnp.cumsum(joined)[::-1]
    table = tnp.einsum("i,j->ij", x, w).T.reshape(-1)
    return (running * tnp.sort(x)).sum() + table[1:5].sum() + x.max() + tnp.take(w, tnp.argmax(x) % 2)


def solved(x: Any, w: Any) -> Any:
    (factor,) = apply_several(g.Cholesky, x @ x.T + 3 * np.eye(3))
    (y,) = apply_several(g.TriangularSolve, factor, as_tensor(w), upper=False)
    return (y * y * y).sum()


@tw.custom_gradient
def _twice_the_slope(x: Any, w: Any) -> Any:
    return x * w * w, lambda dy: (dy * w * w * 2, dy * x * w)


def ruled(x: Any, w: Any) -> Any:
    return (_twice_the_slope(x, w) * x).sum()


def rematerialized(x: Any, w: Any) -> Any:
    return tw.checkpoint(lambda x: tnp.sin(tnp.tanh(x @ w) * 2))(x).sum()


def convolved(x: Any, w: Any) -> Any:
    y = F.conv(x, w, stride=2, padding=1, groups=2)
    return (tnp.tanh(y) * y).sum()


def upsampled(x: Any, w: Any) -> Any:
    attributes: dict[str, Any] = {
        "strides": (2,),
        "padding": ((0, 0),),
        "output_padding": (0,),
        "dilations": (1,),
    }
    y = apply(g.ConvTranspose, as_tensor(x), as_tensor(w), None, **attributes)
    return (y * y * y).sum()


def pooled(x: Any, w: Any) -> Any:
    y = F.max_pool(tnp.tanh(x) * w, 2) + F.avg_pool(x * w, 2)
    return (y * y).sum()


def attending(x: Any, w: Any) -> Any:
    """Queries of 4 heads meet keys of 2; the mask is that of the element or of all."""
    q, k, v = x[:, :4], x[:, 4:6] * w.sum(), x[:, 6:]
    y = F.attention(q, k, v, mask=w)
    return (y * y).sum()


CASES = {
    "convolution": (convolved, [(3, 2, 4, 7, 5), (6, 2, 3, 3)], (0, None)),
    "a convolution's weights": (convolved, [(2, 4, 7, 5), (3, 6, 2, 3, 3)], (None, 0)),
    "both of a convolution": (convolved, [(2, 3, 4, 7, 5), (6, 2, 3, 3, 3)], (1, 4)),
    "transposed convolution": (upsampled, [(3, 2, 4, 5), (4, 3, 3)], (0, None)),
    "both of a transposed convolution": (upsampled, [(3, 2, 4, 5), (3, 4, 3, 3)], (0, 0)),
    "pooling": (pooled, [(3, 2, 2, 6, 4), (2, 1, 1)], (0, None)),
    "attention": (attending, [(3, 2, 8, 5, 4), (5, 5)], (0, None)),
    "both of attention": (attending, [(3, 2, 8, 5, 4), (3, 5, 5)], (0, 0)),
    "attention's mask": (attending, [(2, 8, 5, 4), (3, 5, 5)], (None, 0)),
    "mlp": (mlp, [(4, 3), (3, 2)], (0, None)),
    "both batched": (mlp, [(3, 4), (4, 3, 2)], (1, 0)),
    "scan": (scan, [(4, 5, 3), (3,)], (0, None)),
    "branch": (branch, [(6, 3), (3,)], (0, None)),
    "steps": (steps, [(5, 3), (3,)], (0, None)),
    "shapes": (shapes, [(5, 4), (2,)], (0, None)),
    "solved": (solved, [(2, 3, 3), (3, 2)], (0, None)),
    "custom gradient": (ruled, [(5, 4), (4,)], (0, None)),
    "checkpoint": (rematerialized, [(4, 3), (3, 2)], (0, None)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_equals_a_loop(name: str) -> None:
    f, sizes, axes = CASES[name]
    args = arrays(*sizes)
    gradient = tw.grad(f, argnums=(0, 1))

    def everything(x: Any, w: Any) -> Any:
        values = tw.vmap(f, in_axes=axes)(x, w)
        each = tw.vmap(gradient, in_axes=axes)(x, w)
        total = tw.grad(lambda x, w: tw.vmap(f, in_axes=axes)(x, w).sum(), argnums=(0, 1))(x, w)
        return values, *each, *total

    wanted = [looped(f, args, axes)]
    wanted += [looped(lambda x, w, k=k: gradient(x, w)[k], args, axes) for k in (0, 1)]
    wanted += [x.sum(0) if a is None else np.moveaxis(x, 0, a) for x, a in zip(wanted[1:], axes, strict=True)]
    for found in (everything(*args), tw.compile(everything, tuple(args))(*args)):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-10)


def test_common_operators_run_on_the_whole_batch() -> None:
    library = tw.compile(tw.vmap(tw.grad(mlp), in_axes=(0, None)), tuple(arrays((4, 3), (3, 2))))
    assert "graph.scan" not in library.ir("graph")


@pytest.mark.parametrize("name", [n for n in CASES if "convolution" in n or n in ("pooling", "attention")])
def test_operators_with_a_batch_of_their_own_need_no_loop(name: str) -> None:
    """Gradients of the weights of each example are one convolution with more groups."""
    f, sizes, axes = CASES[name]
    library = tw.compile(tw.vmap(tw.grad(f, argnums=(0, 1)), in_axes=axes), tuple(arrays(*sizes)))
    assert "graph.scan" not in library.ir("graph")


def test_a_dynamic_batch() -> None:
    def f(x: Any, w: Any) -> Any:
        return tw.vmap(scan, in_axes=(0, None))(x, w)

    library = tw.compile(f, tuple(arrays((4, 5, 3), (3,))), dims={"x": {0: "n", 1: "t"}})
    args = arrays((2, 6, 3), (3,))
    np.testing.assert_allclose(np.asarray(library(*args)), looped(scan, args, (0, None)), rtol=1e-9)


def test_nested_trees_and_other_axes() -> None:
    x, y = arrays((3, 4), (5, 4))
    table = tw.vmap(lambda a: tw.vmap(lambda b: {"dot": a @ b, "a": a}, out_axes={"dot": 0, "a": None})(y))(x)
    np.testing.assert_allclose(np.asarray(table["dot"]), x @ y.T)
    np.testing.assert_array_equal(np.asarray(table["a"]), x)
    flipped = tw.vmap(lambda a: a * 2, in_axes=1, out_axes=1)(x)
    np.testing.assert_array_equal(np.asarray(flipped), x * 2)


def test_a_modules_gradients_for_each_example() -> None:
    layer = tw.nn.Linear(3, 2)
    x = RNG.standard_normal((4, 3)).astype(np.float32)

    def loss(layer: Any, x: Any) -> Any:
        return (layer(x) ** 2).sum()

    each = tw.vmap(tw.grad(loss), in_axes=(None, 0))(layer, x)
    for k in range(4):
        single = tw.grad(loss)(layer, x[k])
        assert each.keys() == single.keys()
        for name, value in single.items():
            np.testing.assert_allclose(np.asarray(each[name])[k], np.asarray(value), rtol=1e-5, atol=1e-6)


def test_jacobians_by_forward_and_reverse_mode() -> None:
    x, w = arrays((3,), (3, 3))

    def f(x: Any) -> Any:
        h, rows = tw.scan(lambda h, s: (tnp.sin(h * s) + x, h * x), x, tnp.tanh(x @ w))
        return (h * rows.sum(0)) @ w

    def forward(x: Any) -> Any:
        return tw.vmap(lambda dx: tw.jvp(f, (x,), (dx,))[1], out_axes=1)(np.eye(3))

    def reverse(x: Any) -> Any:
        _, pull = tw.vjp(f, x)
        return tw.vmap(lambda dy: pull(dy)[0])(np.eye(3))

    step = 1e-6
    differences = [
        (np.asarray(f(tw.tensor(x + d))) - np.asarray(f(tw.tensor(x - d)))) / (2 * step)
        for d in step * np.eye(3)
    ]
    for jacobian in (forward(x), tw.compile(forward, (x,))(x), tw.compile(reverse, (x,))(x)):
        np.testing.assert_allclose(np.asarray(jacobian), np.stack(differences, 1), rtol=1e-6, atol=1e-7)


def test_wrong_axes_are_named() -> None:
    x = np.ones((3, 4))
    with pytest.raises(ShapeError, match=r"argument 0 of shape \[3, 4\] has no dimension 2"):
        tw.vmap(lambda x: x, in_axes=2)(x)
    with pytest.raises(ShapeError, match="argument 1 has 4 elements to map over, others have 3"):
        tw.vmap(lambda x, y: x, in_axes=(0, 1))(x, x)
    with pytest.raises(ShapeError, match="no argument is mapped over"):
        tw.vmap(lambda x: x, in_axes=None)(x)
    with pytest.raises(ShapeError, match="in_axes has 1 entries for 2 arguments"):
        tw.vmap(lambda x, y: x, in_axes=(0,))(x, x)
    with pytest.raises(ShapeError, match="out_axes None depends on the element"):
        tw.vmap(lambda x: x, out_axes=None)(x)
    with pytest.raises(CompileError, match="depends on the element of a tw.vmap"):
        tw.compile(tw.vmap(lambda x: tnp.nonzero(x)[0]), (x,))

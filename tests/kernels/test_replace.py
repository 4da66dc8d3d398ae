"""Kernels in place of equal subgraphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.errors import CompileError, KernelError, ReplaceWarning
from tilewright.ir.core import Module
from tilewright.nn import functional
from tilewright.passes import register_pass, unregister_pass

from .sources import rms_kernel

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def swish(pattern: Callable[..., Any] = lambda x, y: x / (1 + tnp.exp(-x)) * y, **changed: Any) -> tw.Kernel:
    """An elementwise kernel of two inputs."""
    return tw.c_kernel(
        "swish",
        source="""
        void swish(int64_t begin, int64_t end, int64_t n, const float *x, const float *y, float *z) {
            for (int64_t i = begin; i < end; i++) z[i] = x[i] / (1 + __builtin_expf(-x[i])) * y[i];
        }""",
        inputs=changed.pop("inputs", [tw.f32["*n"], tw.f32["*n"]]),
        outputs=[tw.f32["*n"]],
        split="n",
        reference=lambda x, y: x / (1 + np.exp(-x)) * y,
        pattern=pattern,
        **changed,
    )


def replaced(function: Callable[..., Any], *args: np.ndarray, kernel: tw.Kernel, **options: Any) -> int:
    """The number of subgraphs that a kernel replaces in a function; the results are compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplaceWarning)
        library = tw.compile(function, args, replace=[kernel], **options)
    expected = np.asarray(function(*map(tw.Tensor, args)))
    np.testing.assert_allclose(library(*args), expected, rtol=1e-4, atol=1e-5)
    assert library.ir("graph").count("kernel.apply") == library.report.replaced[kernel.name]
    return int(library.report.replaced[kernel.name])


def test_occurrences_are_replaced() -> None:
    x, w = normal(4, 6, 10), normal(10)
    kernel = rms_kernel()

    def model(x: Any, w: Any) -> Any:
        y = x / tnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w
        z = tnp.tanh(y) * 2
        return z / tnp.sqrt((z * z).mean(-1, keepdims=True) + 0.25) * w

    assert replaced(model, x, w, kernel=kernel) == 2
    assert replaced(model, x, w, kernel=kernel, dims={"x": {0: "a", 2: "d"}, "w": {0: "d"}}) == 2
    assert replaced(lambda x, w: functional.rms_norm(x, w, eps=1e-6), x, w, kernel=kernel) == 1
    assert replaced(model, x, w, kernel=kernel, check=True) == 2
    assert replaced(model, x, w, kernel=kernel, opt="O0") == 2


def test_the_order_of_factors_does_not_matter() -> None:
    x, y = normal(4, 6), normal(4, 6)
    assert replaced(lambda x, y: y * (x / (tnp.exp(-x) + 1)), x, y, kernel=swish()) == 1
    assert (
        replaced(lambda x, y: functional.silu(x) * y, x, y, kernel=swish(lambda x, y: y * functional.silu(x)))
        == 1
    )
    assert replaced(lambda x: x / (tnp.exp(-x) + 1) * x, x, kernel=swish()) == 1


def test_what_differs_stays() -> None:
    x, y = normal(4, 6), normal(4, 6)
    kernel = swish()
    assert replaced(lambda x, y: x / (2 + tnp.exp(-x)) * y, x, y, kernel=kernel) == 0
    assert replaced(lambda x, y: x / (1 + tnp.exp(-y)) * y, x, y, kernel=kernel) == 0
    assert replaced(lambda x, y: x / (1 + tnp.exp(-x)) * y[:1], x, y, kernel=kernel) == 0
    double = x.astype(np.float64)
    assert replaced(lambda x: x / (1 + tnp.exp(-x)) * x, double, kernel=kernel) == 0
    # along another axis
    w = normal(6)
    other = rms_kernel()
    assert (
        replaced(lambda x, w: x / tnp.sqrt((x * x).mean(0, keepdims=True) + 1e-5) * w, x, w, kernel=other)
        == 0
    )
    # a weight of another shape than the kernel's
    assert (
        replaced(lambda x, y: x / tnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * y, x, y, kernel=other)
        == 0
    )


def test_what_something_else_needs_stays() -> None:
    x, y = normal(4, 6), normal(4, 6)

    def model(x: Any, y: Any) -> Any:
        silu = x / (1 + tnp.exp(-x))
        return silu * y + silu

    assert replaced(model, x, y, kernel=swish()) == 1


def test_inside_a_loop() -> None:
    x, w = normal(5, 8), normal(8)

    def model(x: Any, w: Any) -> Any:
        def step(s: Any, row: Any) -> Any:
            t = s + row
            return t / tnp.sqrt((t * t).mean(-1, keepdims=True) + 1e-5) * w, row.sum()

        return tw.scan(step, tnp.zeros(8), x)[0]

    kernel = rms_kernel(inputs=[tw.f32["d"], tw.f32["d"]], outputs=[tw.f32["d"]], split=None,
                        source="""void rms(int64_t d, const float *x, const float *w, float *y, double eps) {
        float total = 0;
        for (int64_t j = 0; j < d; j++) total += x[j] * x[j];
        for (int64_t j = 0; j < d; j++) y[j] = x[j] / __builtin_sqrtf(total / d + (float)eps) * w[j];
    }""")  # fmt: skip
    assert replaced(model, x, w, kernel=kernel) == 1


def test_a_registered_pass() -> None:
    x, y = normal(4, 6), normal(4, 6)
    kernel = swish()

    def place_swish(module: Module) -> None:
        kernel.place(module)

    def model(x: Any, y: Any) -> Any:
        return x / (1 + tnp.exp(-x)) * y

    register_pass(place_swish, level="graph", before="recognize")
    try:
        library = tw.compile(model, (x, y))
        assert "kernel.call" in library.ir("loop")
        assert tw.compile(model, (x, y)).report.cached
        kernel = swish(flags=["-O2"])
        assert not tw.compile(model, (x, y)).report.cached, "another kernel"
    finally:
        unregister_pass("place-swish")
    np.testing.assert_allclose(library(x, y), x / (1 + np.exp(-x)) * y, rtol=1e-5, atol=1e-5)
    assert "kernel.call" not in tw.compile(model, (x, y)).ir("loop")
    with pytest.raises(KernelError, match="it has no pattern"):
        rms_kernel(pattern=None).place(Module())


def test_a_kernel_that_replaces_nothing_is_a_warning() -> None:
    with pytest.warns(ReplaceWarning, match="no subgraph equal to the pattern of swish") as caught:
        tw.compile(lambda x: x + 1, (normal(3),), replace=[swish()])
    assert caught[0].filename == __file__


def test_wrong_arguments() -> None:
    x = normal(3)
    with pytest.raises(CompileError, match="replace: 'rms' is no kernel"):
        tw.compile(lambda x: x + 1, (x,), replace=["rms"])  # type: ignore[list-item]
    with pytest.raises(CompileError, match="the kernel 'rms' has no pattern; define it with pattern="):
        tw.compile(lambda x: x + 1, (x,), replace=[rms_kernel(pattern=None)])
    with pytest.raises(KernelError, match="its pattern contains no operator"):
        tw.compile(lambda x: x + 1, (x,), replace=[swish(lambda x, y: x)])
    with pytest.raises(KernelError, match="its pattern returns tensor<f32>"):
        tw.compile(lambda x: x + 1, (x,), replace=[swish(lambda x, y: (x * y).sum())])


def test_the_cache_knows_what_is_replaced() -> None:
    x, y = normal(4, 6), normal(4, 6)

    def model(x: Any, y: Any) -> Any:
        return x / (1 + tnp.exp(-x)) * y

    tw.compile(model, (x, y))
    for _ in range(2):
        library = tw.compile(model, (x, y), replace=[swish()])
        assert library.report.replaced == {"swish": 1}
    assert library.report.cached
    assert not tw.compile(model, (x, y)).report.replaced


def norm_and_mean(x: Any, w: Any, y: Any, mean: Any) -> None:
    for i in tw.axis(x.n):
        m = tw.sum(x[i, k] for k in tw.axis(x.d)) / x.d
        mean[i] = m
        for j in tw.axis(x.d):
            y[i, j] = (x[i, j] - m) * w[j]


NORM_TYPES = {"x": tw.f32["n", "d"], "w": tw.f32["d"], "y": tw.f32["n", "d"], "mean": tw.f32["n"]}


def several(pattern: Callable[..., Any]) -> tw.Kernel:
    return tw.kernel(types=NORM_TYPES, pattern=pattern)(norm_and_mean)


def test_patterns_with_several_results() -> None:
    def pattern(x: Any, w: Any) -> Any:
        mean = x.mean(-1)
        return (x - mean[:, None]) * w, mean

    x, w, v = normal(6, 8), normal(8), normal(8)
    kernel = several(pattern)

    def model(x: Any, w: Any, v: Any) -> Any:
        h = tnp.tanh(x)
        mean = h.mean(-1)
        early = mean * 3  # before the second factor is known
        y = (h - mean[:, None]) * tnp.exp(v)
        other = h.mean(-1)[:, None] * x
        return y + early[:, None], mean, other

    def twice(x: Any, w: Any, v: Any) -> Any:
        total = x
        for factor in (w, v):
            mean = total.mean(-1)
            total = (total - mean[:, None]) * factor + mean[:, None]
        return total

    def depends(x: Any, w: Any, v: Any) -> Any:
        mean = x.mean(-1)
        return (x - mean[:, None]) * (w + mean.sum()), mean  # a factor from the second result

    def only_one(x: Any, w: Any, v: Any) -> Any:
        return (x - x.mean(-1)[:, None]) * w

    for function, count in ((model, 1), (twice, 2), (depends, 0), (only_one, 1)):
        for options in ({}, {"opt": "O0"}, {"dims": {"x": {0: "n"}}}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ReplaceWarning)
                library = tw.compile(function, (x, w, v), replace=[kernel], **options)
            assert library.report.replaced == {"norm_and_mean": count}, function
            results = library(x, w, v)
            expected = function(*map(tw.Tensor, (x, w, v)))
            for a, b in zip(
                results if isinstance(results, (tuple, list)) else (results,),
                expected if isinstance(expected, tuple) else (expected,),
                strict=True,
            ):
                np.testing.assert_allclose(a, np.asarray(b), rtol=1e-4, atol=1e-5)


def test_results_that_do_not_depend_on_each_other() -> None:
    def pattern(x: Any, w: Any) -> Any:
        return x * w, x.max(-1)

    x, w = normal(6, 8), normal(8)
    kernel = several(pattern)
    library = tw.compile(lambda x, w: (x.max(-1), x * w), (x, w), replace=[kernel])
    assert library.report.replaced == {"norm_and_mean": 1}
    with pytest.warns(ReplaceWarning):
        tw.compile(lambda x, w: (x * w, tnp.tanh(x).max(-1)), (x, w), replace=[kernel])
    with pytest.raises(KernelError, match="two results of its pattern are the same"):
        tw.compile(
            lambda x, w: x * w,
            (x, w),
            replace=[
                tw.kernel(
                    types={**NORM_TYPES, "mean": tw.f32["n", "d"]}, pattern=lambda x, w: (x * w, x * w)
                )(both)
            ],
        )


def both(x: Any, w: Any, y: Any, mean: Any) -> None:
    for i, j in tw.axes(x.n, x.d):
        y[i, j] = x[i, j] * w[j]
        mean[i, j] = x[i, j]

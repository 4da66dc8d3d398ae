# ruff: noqa: F821, UP037
"""Loop programs whose iterations conflict, at any distance, are refused; numbers keep Python's meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import TilewrightError


def reads_the_first(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
    for i in range(x.n):
        y[i] = y[i] - y[0]


def reads_far_behind(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
    for i in range(100, x.n):
        y[i] = x[i] + 0.5 * y[i - 100]


def reads_a_running_sum(x: tw.f32["n"], y: tw.f32["n"], s: tw.f32[1]):
    s[0] = 0.0
    for i in tw.axis(x.n):
        s[0] += x[i]
        y[i] = s[0]


def combines_differently(x: tw.i32["n"], c: tw.i64[16], y: tw.i64["n"]):
    for b in tw.axis(16):
        c[b] = 0
    t = 0
    for i in range(x.n):
        t = t * 2 + 1
        c[x[i]] += 1
        c[3] *= 2
        y[i] = t


def combines_on_one_line(x: tw.i32["n"], c: tw.i64[16]):
    for b in tw.axis(16):
        c[b] = 0
    for i in range(x.n):
        c[x[i]] += 1; c[3] *= 2  # fmt: skip  # noqa: E702


def truth_of_an_index(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = bool(i) + 1.0


def part_of_a_fraction(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = int(i / 2)


def negative_shift(x: tw.i32["n"], y: tw.i32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i] + (1 << -1)


def too_large(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i] + 10**400


def membership(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = 1.0 if 1 in x else 0.0


@pytest.mark.parametrize(
    "program",
    [
        reads_the_first,
        reads_far_behind,
        reads_a_running_sum,
        combines_differently,
        combines_on_one_line,
        truth_of_an_index,
        part_of_a_fraction,
        negative_shift,
        too_large,
        membership,
    ],
)
def test_refused(program: Callable[..., None]) -> None:
    with pytest.raises(TilewrightError, match=r"test_loops_conflicts.py"):
        tw.kernel(program)


def carried(x: tw.f32["n"], y: tw.f32["n"]):
    last = 0.0
    for i in range(x.n):
        last = 0.5 * last + x[i]
        y[i] = last


def interleaved(x: tw.f32["n"], y: tw.f32["2*n"]):
    for i in tw.axis(2 * x.n):
        y[i] = 0.0
    for i in tw.axis(x.n):
        y[2 * i] = x[i]
        y[2 * i + 1] = y[2 * i]


def halves_far_apart(x: tw.f32["n"], y: tw.f32[2000]):
    for i in tw.axis(2000):
        y[i] = 1.0
    for i in tw.axis(1000):
        y[i + 1000] = 2.0 * y[i]


def on_a_curve(x: tw.f32["n"], y: tw.f32["n*n"]):
    for i in tw.axis(x.n * x.n):
        y[i] = 0.0
    for i in tw.axis(x.n):
        y[i * i] = x[i]


def test_what_is_proved_apart_is_accepted() -> None:
    curve = tw.kernel(on_a_curve)(tw.Tensor(np.array([3.0, 4.0, 5.0], np.float32)))
    np.testing.assert_array_equal(curve.numpy(), [3, 4, 0, 0, 5, 0, 0, 0, 0])
    x = tw.Tensor(np.arange(1, 6, dtype=np.float32))
    np.testing.assert_allclose(tw.kernel(carried)(x).numpy(), [1, 2.5, 4.25, 6.125, 8.0625])
    np.testing.assert_array_equal(tw.kernel(interleaved)(x).numpy(), np.repeat(x.numpy(), 2))
    np.testing.assert_array_equal(tw.kernel(halves_far_apart)(x).numpy(), np.repeat([1.0, 2.0], 1000))


def empty_beside(x: tw.f32["n"], y: tw.f32["n"], rest: tw.f32[0]):
    for i in tw.axis(x.n):
        y[i] = x[i]
        for k in tw.axis(0):
            rest[k] = x[i]


def test_outputs_without_elements_count_as_written() -> None:
    kernel = tw.kernel(empty_beside)
    x = np.arange(4, dtype=np.float32)
    library = tw.compile(lambda x: kernel(x), (x,), cache=False)
    for y, rest in (library(x), kernel(tw.Tensor(x))):
        np.testing.assert_array_equal(np.asarray(y), x)
        assert np.asarray(rest).shape == (0,)


def small_parts(x: tw.f32["n"], y: tw.i8["n"]):
    for i in tw.axis(x.n):
        a = i * 100 if x[i] > 0 else 0
        y[i] = a // 100


def test_numbers_without_a_type_do_not_wrap() -> None:
    x: Any = np.ones(8, np.float32)
    np.testing.assert_array_equal(tw.kernel(small_parts)(tw.Tensor(x)).numpy(), np.arange(8))


def wraps(x: tw.u8["n"], t: tw.f32[8], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        tw.claim(x[i] < 8)
        y[i] = t[x[i] - 1]


def test_an_index_that_wraps_around_is_checked() -> None:
    t = np.arange(8, dtype=np.float32)
    kernel = tw.kernel(wraps)
    good = np.array([1, 2, 8 - 1], np.uint8)
    library = tw.compile(lambda x: kernel(x, t), (good,), cache=False)
    np.testing.assert_array_equal(library(good), t[good - 1])
    with pytest.raises(TilewrightError, match="index"):
        library(np.array([1, 2, 0], np.uint8))

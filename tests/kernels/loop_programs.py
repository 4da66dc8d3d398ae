"""Loop programs with their meaning in NumPy, and inputs."""

# The names in types are sizes.
# ruff: noqa: F722, F821, F841, UP037

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Example:
    """A kernel, its meaning, and inputs for each of several sizes."""

    kernel: tw.Kernel
    reference: Callable[..., Any]
    inputs: Callable[..., tuple[Array, ...]]
    sizes: tuple[tuple[int, ...], ...]
    tolerance: float = 2e-5


EXAMPLES: dict[str, Example] = {}


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def example(
    reference: Callable[..., Any],
    inputs: Callable[..., tuple[Array, ...]],
    *sizes: tuple[int, ...],
    tolerance: float = 2e-5,
) -> Callable[[Callable[..., Any]], tw.Kernel]:
    def define(function: Callable[..., Any]) -> tw.Kernel:
        kernel = tw.kernel(function)
        EXAMPLES[kernel.name] = Example(kernel, reference, inputs, sizes, tolerance)
        return kernel

    return define


def matrix(n: int, d: int) -> tuple[Array, ...]:
    return (normal(n, d),)


def softmax_reference(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@example(lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5), matrix, (4, 7), (1, 1), (33, 64))
def rms_norm(x: tw.f32["n", "d"], y: tw.f32["n", "d"], eps: float = 1e-5):
    for i in tw.axis(x.n):
        total = tw.sum(x[i, k] ** 2 for k in tw.axis(x.d))
        for j in tw.axis(x.d):
            y[i, j] = x[i, j] * tw.rsqrt(total / x.d + eps)


@example(softmax_reference, matrix, (4, 7), (1, 1), (33, 64))
def softmax(x: tw.f32["*n", "d"], y: tw.f32["*n", "d"]):
    for i in tw.axis(x.n):
        top = max(x[i, k] for k in tw.axis(x.d))
        total = sum(math.exp(x[i, k] - top) for k in tw.axis(x.d))
        for j in tw.axis(x.d):
            y[i, j] = math.exp(x[i, j] - top) / total


def layer_norm_reference(x: Array, w: Array, b: Array) -> tuple[Array, Array]:
    mean = x.mean(-1)
    scaled = (x - mean[:, None]) / np.sqrt(x.var(-1) + 1e-5)[:, None]
    return scaled * w + b, mean


@example(layer_norm_reference, lambda n, d: (normal(n, d), normal(d), normal(d, 1)[:, 0]), (4, 7), (33, 64))
def layer_norm(x: tw.f32["n", "d"], w: tw.f32["d"], b: tw.f32["d"], y: tw.f32["n", "d"], mean: tw.f32["n"]):
    for i in tw.axis(x.n):
        m = tw.sum(x[i, k] for k in tw.axis(x.d)) / x.d
        var = tw.sum((x[i, k] - m) ** 2 for k in tw.axis(x.d)) / x.d
        mean[i] = m
        for j in tw.axis(x.d):
            y[i, j] = (x[i, j] - m) * tw.rsqrt(var + 1e-5) * w[j] + b[j]


def bins(n: int) -> tuple[Array, ...]:
    return (np.random.default_rng(n).integers(0, 16, n).astype(np.int32),)


@example(lambda x: np.bincount(x, minlength=16).astype(np.int64), bins, (100,), (1,), (1000,))
def histogram(x: tw.i32["n"], counts: tw.i64[16]):
    for b in tw.axis(16):
        counts[b] = 0
    for i in tw.axis(x.n):
        counts[x[i]] += 1


def rows(n: int, m: int, d: int) -> tuple[Array, ...]:
    return normal(n, d), np.random.default_rng(m).integers(0, n, m).astype(np.int64)


@example(lambda table, index: table[index], rows, (9, 5, 7), (1, 3, 1), (40, 33, 16))
def gather_rows(table: tw.f32["n", "d"], index: tw.i64["m"], y: tw.f32["m", "d"]):
    for i, j in tw.axes(index.m, table.d):
        y[i, j] = table[index[i], j]


def scattered(n: int, m: int, d: int) -> tuple[Array, ...]:
    return normal(m, d), np.random.default_rng(m).integers(0, n, m).astype(np.int64), normal(n, d)


def scatter_add_reference(x: Array, index: Array, y0: Array) -> Array:
    y = y0.astype(np.float64)
    np.add.at(y, index, x)
    return y


@example(scatter_add_reference, scattered, (9, 5, 7), (3, 40, 8))
def scatter_add(x: tw.f32["m", "d"], index: tw.i64["m"], y0: tw.f32["n", "d"], y: tw.f32["n", "d"]):
    for i in tw.axis(y.n):
        for j in tw.axis(y.d):
            y[i, j] = y0[i, j]
    for i in tw.axis(x.m):
        for j in tw.axis(x.d):
            y[index[i], j] += x[i, j]


@example(lambda x: np.cumsum(x, 1), matrix, (4, 7), (1, 1), (5, 300), tolerance=2e-4)
def cumulative_sum(x: tw.f32["n", "d"], y: tw.f32["n", "d"]):
    for i in tw.axis(x.n):
        total = 0.0
        for j in range(x.d):
            total += x[i, j]
            y[i, j] = total


@example(lambda x: np.cumsum(x, 1), matrix, (4, 7), (5, 300), tolerance=2e-4)
def prefix_sum(x: tw.f32["n", "d"], y: tw.f32["n", "d"]):
    for i in tw.axis(x.n):
        for j in tw.axis(x.d):
            y[i, j] = tw.sum(x[i, k] for k in tw.axis(j + 1))


def blur_reference(x: Array) -> Array:
    p = np.pad(x, 1)
    h, w = x.shape
    return sum(p[a : a + h, b : b + w] for a in range(3) for b in range(3)) / 9


@example(blur_reference, matrix, (6, 9), (1, 1), (32, 31))
def box_blur(x: tw.f32["h", "w"], y: tw.f32["h", "w"]):
    for i, j in tw.axes(x.h, x.w):
        total = 0.0
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                if 0 <= i + a < x.h and 0 <= j + b < x.w:
                    total += x[i + a, j + b]
        y[i, j] = total / 9


@example(lambda x: np.ascontiguousarray(x.T), matrix, (4, 7), (33, 64))
def transpose(x: tw.f32["n", "m"], y: tw.f32["m", "n"]):
    for i, j in tw.axes(x.n, x.m):
        y[j, i] = x[i, j]


def factors(m: int, k: int, n: int) -> tuple[Array, ...]:
    return normal(m, k), normal(k, n)


@example(lambda a, b: a @ b, factors, (4, 7, 5), (1, 1, 1), (64, 65, 66), tolerance=1e-4)
def matmul(a: tw.f32["m", "k"], b: tw.f32["k", "n"], c: tw.f32["m", "n"]):
    for i in tw.axis(a.m):
        for j in tw.axis(b.n):
            c[i, j] = 0.0
            for k in tw.axis(a.k):
                c[i, j] += a[i, k] * b[k, j]


@example(lambda a, b: np.maximum(a @ b, 0), factors, (4, 7, 5), (64, 65, 66), tolerance=1e-4)
def matmul_relu(a: tw.f32["m", "k"], b: tw.f32["k", "n"], c: tw.f32["m", "n"]):
    for i in tw.axis(a.m):
        for j in tw.axis(b.n):
            total = 0.0
            for k in tw.axis(a.k):
                total += a[i, k] * b[k, j]
            c[i, j] = total if total > 0 else 0.0


def attention_reference(q: Array, k: Array, v: Array) -> Array:
    s = np.einsum("hid,hjd->hij", q, k) / np.sqrt(q.shape[-1])
    s = np.where(np.tri(s.shape[1], s.shape[2], dtype=bool), s, -np.inf)
    return np.einsum("hij,hjd->hid", softmax_reference(s), v)


@example(
    attention_reference,
    lambda h, n, d: (normal(h, n, d), normal(h, n, d) * 2, normal(h, n, d) + 1),
    (2, 5, 4),
    (1, 1, 1),
    (3, 33, 16),
    tolerance=1e-4,
)
def attention(
    q: tw.f32["h", "n", "d"], k: tw.f32["h", "n", "d"], v: tw.f32["h", "n", "d"], y: tw.f32["h", "n", "d"]
):
    scale = 1 / math.sqrt(4)
    s = tw.array(tw.f32, q.h, q.n, q.n)
    for h, i, j in tw.axes(q.h, q.n, q.n):
        dot = tw.sum(q[h, i, c] * k[h, j, c] for c in tw.axis(q.d))
        s[h, i, j] = dot / tw.sqrt(q.d) if j <= i else -math.inf
    for h, i in tw.axes(q.h, q.n):
        top = tw.max(s[h, i, j] for j in tw.axis(q.n))
        total = tw.sum(tw.exp(s[h, i, j] - top) for j in tw.axis(q.n))
        for c in tw.axis(q.d):
            y[h, i, c] = tw.sum(tw.exp(s[h, i, j] - top) * v[h, j, c] for j in tw.axis(q.n)) / total


def window_reference(x: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, 3, axis=1).max(-1)


@example(window_reference, matrix, (4, 7), (2, 3), (5, 100))
def window_max(x: tw.f32["n", "d"], y: tw.f32["n", "d - 2"]):
    for i in tw.axis(x.n):
        for j in tw.axis(x.d - 2):
            y[i, j] = tw.max(x[i, j + k] for k in tw.axis(3))


def rotary_reference(x: Array) -> Array:
    h = x.shape[1] // 2
    angle = np.arange(x.shape[0])[:, None] * np.exp(np.arange(h) * (-math.log(10000.0) / h))
    a, b = x[:, :h], x[:, h:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


@example(rotary_reference, lambda n, h: (normal(n, 2 * h),), (5, 4), (1, 1), (17, 16), tolerance=1e-4)
def rotary(x: tw.f32["n", "2*h"], y: tw.f32["n", "2*h"]):
    for i in tw.axis(x.n):
        for j in tw.axis(x.h):
            angle = i * tw.exp(j * (-math.log(10000.0) / x.h))
            a, b = x[i, j], x[i, j + x.h]
            y[i, j] = a * tw.cos(angle) - b * tw.sin(angle)
            y[i, j + x.h] = b * tw.cos(angle) + a * tw.sin(angle)


def quantize_reference(x: Array) -> tuple[Array, Array]:
    groups = x.reshape(x.shape[0], -1, 8)
    scale = np.maximum(np.abs(groups).max(-1), 1e-8) / np.float32(127)
    q = np.rint(groups / scale[..., None])
    return q.astype(np.int8).reshape(x.shape), scale


@example(quantize_reference, lambda n, g: (normal(n, 8 * g),), (3, 2), (1, 1), (16, 5))
def quantize(x: tw.f32["n", "8*g"], q: tw.i8["n", "8*g"], scale: tw.f32["n", "g"]):
    for i, g in tw.axes(x.n, x.g):
        top = tw.max(abs(x[i, 8 * g + k]) for k in tw.axis(8))
        s = tw.max(top, 1e-8) / 127
        scale[i, g] = s
    for i, j in tw.axes(x.n, 8 * x.g):
        q[i, j] = tw.cast(round(x[i, j] / scale[i, j // 8]), tw.i8)


@example(lambda x: (x.max(1), x.argmax(1)), matrix, (4, 7), (1, 1), (33, 64))
def top_one(x: tw.f32["n", "d"], best: tw.f32["n"], place: tw.i64["n"]):
    for i in tw.axis(x.n):
        best[i] = max(x[i, j] for j in tw.axis(x.d))
        place[i] = tw.argmax(x[i, j] for j in tw.axis(x.d))


@example(lambda x: (x.max(1), x.argmax(1).astype(np.int32)), matrix, (4, 7), (33, 64))
def top_one_in_order(x: tw.f32["n", "d"], best: tw.f32["n"], place: tw.i32["n"]):
    for i in tw.axis(x.n):
        top, at = x[i, 0], tw.cast(0, tw.i32)
        for j in range(1, x.d):
            if x[i, j] > top:
                top = x[i, j]
                at = tw.cast(j, tw.i32)
        best[i] = top
        place[i] = at


def mandelbrot_reference(x: Array, y: Array) -> Array:
    c = x.astype(np.complex64)[None, :] + 1j * y.astype(np.float32)[:, None]
    z, steps = np.zeros_like(c), np.zeros(c.shape, np.int32)
    for _ in range(20):
        inside = z.real**2 + z.imag**2 <= 4
        steps[inside] += 1
        z[inside] = z[inside] ** 2 + c[inside]
    return steps


def plane(w: int, h: int) -> tuple[Array, ...]:
    return np.linspace(-2, 0.6, w, dtype=np.float32), np.linspace(-1.2, 1.2, h, dtype=np.float32)


@example(mandelbrot_reference, plane, (12, 9), (31, 17), tolerance=0)
def mandelbrot(cx: tw.f32["w"], cy: tw.f32["h"], steps: tw.i32["h", "w"]):
    for i, j in tw.axes(cy.h, cx.w):
        zx, zy, count = 0.0, 0.0, tw.cast(0, tw.i32)
        for _ in range(20):
            if zx * zx + zy * zy <= 4:
                zx, zy = zx * zx - zy * zy + cx[j], 2 * zx * zy + cy[i]
                count += 1
        steps[i, j] = count


def gelu(v):
    """A function that kernels call."""
    if v is None:
        return 0.0
    return 0.5 * v * (1 + tw.erf(v / math.sqrt(2)))


def gelu_reference(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@example(gelu_reference, matrix, (4, 7), (3, 129))
def gelu_rows(x: tw.f32["n", "d"], y: tw.f32["n", "d"]):
    for i, j in tw.axes(x.n, x.d):
        y[i, j] = gelu(x[i, j])


def interleave_reference(a: Array, b: Array) -> Array:
    return np.stack([a, b], 1).reshape(-1)


@example(interleave_reference, lambda n: (normal(n), -normal(n)), (5,), (1,), (64,))
def interleave(a: tw.f32["n"], b: tw.f32["n"], y: tw.f32["2*n"]):
    for i in tw.axis(a.n):
        y[2 * i] = a[i]
        y[2 * i + 1] = b[i]


@example(
    lambda x, k: np.where((k >= 0) & (k < len(x)), x[np.clip(k, 0, len(x) - 1)], -1),
    lambda n, m: (normal(n), np.random.default_rng(m).integers(-3, n + 3, m).astype(np.int32)),
    (5, 20),
    (64, 100),
)
def gather_or(x: tw.f32["n"], k: tw.i32["m"], y: tw.f32["m"]):
    for i in tw.axis(k.m):
        j = k[i]
        y[i] = x[j] if 0 <= j < x.n else -1.0


@example(lambda x: np.where(np.tri(len(x), dtype=bool), x, 0), lambda n: (normal(n, n),), (5,), (1,), (33,))
def lower_triangle(x: tw.f32["n", "n"], y: tw.f32["n", "n"]):
    for i, j in tw.axes(x.n, x.n):
        y[i, j] = 0.0
    for i in tw.axis(x.n):
        for j in tw.axis(i + 1):
            y[i, j] = x[i, j]


@example(lambda x: (x > 0).sum(1), matrix, (4, 7), (33, 64))
def count_positive(x: tw.f32["n", "d"], y: tw.i64["n"]):
    for i in tw.axis(x.n):
        y[i] = tw.sum(1 for j in tw.axis(x.d) if x[i, j] > 0)


def smooth_reference(x: Array) -> Array:
    y = np.zeros_like(x)
    state = np.zeros(x.shape[0], np.float32)
    for j in range(x.shape[1] - 1, -1, -1):
        state = np.float32(0.9) * state + x[:, j]
        y[:, j] = state
    return y


@example(smooth_reference, matrix, (4, 7), (33, 64), tolerance=1e-4)
def smooth_backward(x: tw.f32["n", "d"], y: tw.f32["n", "d"]):
    for i in tw.axis(x.n):
        state = 0.0
        for j in range(x.d - 1, -1, -1):
            state = 0.9 * state + x[i, j]
            y[i, j] = state


def convolution_reference(x: Array, w: Array) -> Array:
    p = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(p, (3, 3), axis=(1, 2))
    return np.einsum("chwab,ocab->ohw", windows, w)


@example(
    convolution_reference,
    lambda c, h, w, o: (normal(c, h, w), normal(o, c, 3, 3)),
    (2, 4, 5, 3),
    (8, 17, 16, 8),
    tolerance=1e-4,
)
def convolution(x: tw.f32["c", "h", "w"], k: tw.f32["o", "c", 3, 3], y: tw.f32["o", "h", "w"]):
    for o, i, j in tw.axes(k.o, x.h, x.w):
        y[o, i, j] = 0.0
        for c, a, b in tw.axes(x.c, 3, 3):
            v = x[c, i + a - 1, j + b - 1] if 0 <= i + a - 1 < x.h and 0 <= j + b - 1 < x.w else 0.0
            y[o, i, j] += v * k[o, c, a, b]

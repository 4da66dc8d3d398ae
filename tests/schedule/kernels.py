"""Kernels to schedule, what they compute in NumPy, and a function that runs them in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dialects import loop, tensor
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Region, Value
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import smax, symbol
from tilewright.ir.types import DType, TensorType, f32, i4, i8, i32, i64, u8
from tilewright.lowering.tensor_to_loop import kernel_of_group
from tilewright.passes.tensor.pack_constants import integer_in
from tilewright.tools.schedule_check.orders import Order
from tilewright.tools.schedule_check.orders import run as run_kernel

N = symbol("n", 1, 12)
ROWS = 5


def kernel_from(
    shapes: Sequence[tuple[Any, ...]],
    body: Callable[..., Sequence[Any]],
    name: str = "k",
    dtypes: Sequence[DType] | None = None,
    kind: str = "plain",
) -> loop.Kernel:
    """Return the naive kernel of a group over inputs of float32, or of `dtypes`. `body` takes the builder and
    wrapped tensors.
    """
    group = tensor.Group.assemble([], [], {"kind": kind}, [Region()])
    types = [TensorType(t, s) for t, s in zip(dtypes or [f32] * len(shapes), shapes, strict=True)]
    args = [group.body.add_arg(t, f"x{k}") for k, t in enumerate(types)]
    t = TensorBuilder(Builder(group.body))
    results: list[Value] = [r.value for r in body(t, *map(t.wrap, args))]
    # Blocks are named in the order of the computations.
    for k, op in enumerate(op for op in group.walk() if isinstance(op, tensor.Compute)):
        notes.ORIGIN.set(op, f"b{k}")
    group.body.append(tensor.Yield(results))
    return kernel_of_group(tensor.Group((), kind=kind, regions=[group.regions[0]]), name)


def matmul() -> loop.Kernel:
    """b0 = x0 @ x1; b1 = max(b0 + x2, 0)."""

    def body(t: TensorBuilder, a: Any, b: Any, bias: Any) -> list[Any]:
        y = t.reduce("sum", (N, 8), (6,), lambda i, j, r: a[i, r] * b[r, j])
        return [t.compute((N, 8), lambda i, j: (y[i, j] + bias[j]).apply("max", 0.0))]

    return kernel_from([(N, 6), (6, 8), (8,)], body)


def softmax() -> loop.Kernel:
    """b0 = max, b1 = exp(x - b0), b2 = sum, b3 = b1 / b2, over rows of symbolic length."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        top = t.reduce("max", (4,), (N,), lambda i, r: x[i, r])
        e = t.compute((4, N), lambda i, j: (x[i, j] - top[i]).apply("exp"))
        s = t.reduce("sum", (4,), (N,), lambda i, r: e[i, r])
        return [t.compute((4, N), lambda i, j: e[i, j] / s[i])]

    return kernel_from([(4, N)], body)


def attention() -> loop.Kernel:
    """b0 = scores, b1 = b0 within a window of 5 columns, b2 = max, b3 = exp(b1 - b2), b4 = sum, b5 = b3 @
    values, b6 = b5 / b4.
    """

    def body(t: TensorBuilder, q: Any, k: Any, v: Any) -> list[Any]:
        scores = t.reduce("sum", (N, N), (3,), lambda i, j, r: q[i, r] * k[r, j])

        def visible(i: Any, j: Any) -> Any:
            return (t.index(j) <= t.index(i)) & (t.index(i) - t.index(j) < t.index(j - j + 5))

        x = t.compute((N, N), lambda i, j: visible(i, j).select(scores[i, j], -np.inf))
        top = t.reduce("max", (N,), (N,), lambda i, r: x[i, r])
        e = t.compute((N, N), lambda i, j: (x[i, j] - top[i]).apply("exp"))
        total = t.reduce("sum", (N,), (N,), lambda i, r: e[i, r])
        y = t.reduce("sum", (N, 4), (N,), lambda i, j, r: e[i, r] * v[r, j])
        return [t.compute((N, 4), lambda i, j: y[i, j] / total[i])]

    return kernel_from([(N, 3), (3, N), (N, 4)], body)


def windowed_attention(q: Any, k: Any, v: Any) -> Any:
    rows, columns = np.indices((len(q), len(q)))
    x = np.where((columns <= rows) & (rows - columns < 5), q @ k, -np.inf)
    e = np.exp(x - x.max(1, keepdims=True))
    return e @ v / e.sum(1, keepdims=True)


def stencil() -> loop.Kernel:
    """b0 = 2x; b1[i] = b0[i - 1] + b0[i] with the border repeated; b2 = b1 * x."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        double = t.compute((N,), lambda i: x[i] * 2.0)
        both = t.compute((N,), lambda i: double[smax(i - 1, 0)] + double[i])
        return [t.compute((N,), lambda i: both[i] * x[i])]

    return kernel_from([(N,)], body)


def transposed() -> loop.Kernel:
    """b0 = exp(x) transposed; b1 = the sums of b0 over its last two dimensions."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        y = t.compute((3, N, 4), lambda i, j, k: x[k, j, i].apply("exp"))
        return [t.reduce("sum", (3,), (N, 4), lambda i, r, q: y[i, r, q]), y]

    return kernel_from([(4, N, 3)], body)


def scalar_sum() -> loop.Kernel:
    """b0 = sum(x); b1 = b0 * 2, a block outside of all loops."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        s = t.reduce("sum", (), (N,), lambda r: x[r])
        return [t.compute((), lambda: s[()] * 2.0)]

    return kernel_from([(N,)], body)


def decaying() -> loop.Kernel:
    """n steps of b0: h = x1 h + x2; b1 = the sums of h over its middle dimension, stacked."""

    def body(t: TensorBuilder, first: Any, kept: Any, added: Any) -> list[Any]:
        step = symbol("step", 0, N - 1)
        types = [first.value.type, TensorType(f32, (N, 2, 40))]
        scan = tensor.Scan([first.value], step=step, places=(step,), result_types=types)
        inside = TensorBuilder(Builder(scan.body))
        h, kept, added = map(inside.wrap, (scan.body.add_arg(first.value.type), kept.value, added.value))
        h = inside.compute((2, 3, 40), lambda i, j, k: h[i, j, k] * kept[j, k] + added[step, i, k])
        y = inside.reduce("sum", (2, 40), (3,), lambda i, k, r: h[i, r, k])
        scan.body.append(tensor.Yield([h.value, y.value]))
        t.builder.insert(scan)
        return [t.wrap(r) for r in scan.results]

    return kernel_from([(2, 3, 40), (3, 40), (N, 2, 40)], body)


def decayed(h: Any, kept: Any, added: Any) -> list[Any]:
    sums = []
    for x in added:
        h = h * kept + x[:, None]
        sums.append(h.sum(1))
    return [h, np.stack(sums)]


def quantized() -> loop.Kernel:
    """b0 = the sums of the groups of rows; b1 = rows of 8-bit integers times packed qvalues, in two groups of
    four, as unsigned bytes, whose first term in a group subtracts 128 times the group's sum; b2 = b1 + 1.
    """

    def body(t: TensorBuilder, x: Any, x_scales: Any, qvalues: Any, scales: Any) -> list[Any]:
        sums = t.reduce("sum", (N, 2), (4,), lambda i, g, k: x[i, g, k].cast(i32))

        def product(i: Any, j: Any, g: Any, k: Any) -> Any:
            inner = x[i, g, k].cast(i32) * qvalues[j // 4, g, k // 4, j % 4, k % 4].cast(i32)
            scale = scales[j // 4, g, j % 4]
            less = t.index(k).equals(0).select(sums[i, g], 0).cast(f32) * (scale * 128.0)
            return x_scales[i, g] * (inner.cast(f32) * scale - less)

        y = t.reduce("sum", (N, 10), (2, 4), product)
        return [t.compute((N, 10), lambda i, j: y[i, j] + 1.0)]

    return kernel_from([(N, 2, 4), (N, 2), (3, 2, 1, 4, 4), (3, 2, 4)], body, dtypes=(i8, f32, u8, f32))


def halves() -> loop.Kernel:
    """b0 = rows of bytes times integers of 4 bits, of which two columns share a byte; b1 = b0 as floats."""

    def body(t: TensorBuilder, x: Any, w: Any) -> list[Any]:
        def product(i: Any, j: Any, k: Any) -> Any:
            half = integer_in(w[j // 4, k, j % 4 // 2], j % 2 * 4, i4).cast(i8)
            return x[i, k].cast(i32) * half.cast(i32)

        y = t.reduce("sum", (N, 10), (6,), product)
        return [t.compute((N, 10), lambda i, j: y[i, j].cast(f32))]

    return kernel_from([(N, 6), (3, 6, 2)], body, dtypes=(u8, i8))


def columns_of(w: Any) -> Any:
    low, high = w << 4 >> 4, w >> 4
    return np.stack([low, high], -1).transpose(1, 0, 2, 3).reshape(6, 12)[:, :10]


def grouped() -> loop.Kernel:
    """b0 = rows times the matrix that an integer of each row chooses; b1 = b0 + x."""

    def body(t: TensorBuilder, x: Any, w: Any, index: Any) -> list[Any]:
        y = t.reduce("sum", (N, 8), (8,), lambda i, j, r: x[i, r] * w[index[i], r, j])
        return [t.compute((N, 8), lambda i, j: y[i, j] + x[i, j])]

    return kernel_from([(N, 8), (3, 8, 8), (N,)], body, dtypes=(f32, f32, i64))


def scattered(combiner: str | None) -> Callable[[], loop.Kernel]:
    """b0 = a copy of x0 with the rows x1 written at, or added to, the rows that x2 names."""

    def body(t: TensorBuilder, x: Any, rows: Any, index: Any) -> list[Any]:
        def point(i: Any, j: Any) -> tuple[Any, ...]:
            return rows[i, j], index[i], t.index(j)

        y = t.scatter(x, (N, 4), point, combiner)
        return [y]

    return lambda: kernel_from([(3, 4), (N, 4), (N,)], body, dtypes=(f32, f32, i64))


def added_rows(x: Any, rows: Any, index: Any) -> Any:
    result = x.copy()
    np.add.at(result, index, rows)
    return result


def placed_rows(x: Any, rows: Any, index: Any) -> Any:
    result = x.copy()
    for i, row in zip(index, rows, strict=True):
        result[i] = row
    return result


def running() -> loop.Kernel:
    """b0 = the running sum of x along its first axis."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        return [t.reduce("sum", (N, 6), (lambda i, j: i + 1,), lambda i, j, r: x[r, j])]

    return kernel_from([(N, 6)], body, kind="cumulative")


def in_place(kernel: loop.Kernel, *pairs: tuple[int, int]) -> loop.Kernel:
    """A kernel of which some outputs are the memory of inputs: pairs (output, input)."""
    notes.BUFFER_ALIASES.set(kernel, pairs)
    return kernel


def centered() -> loop.Kernel:
    """b0 = the means of the rows of x; b1 = x - b0, written over x."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        mean = t.reduce("sum", (N,), (6,), lambda i, r: x[i, r] * (1 / 6))
        return [t.compute((N, 6), lambda i, j: x[i, j] - mean[i])]

    return in_place(kernel_from([(N, 6)], body), (0, 0))


def residual() -> loop.Kernel:
    """b0 = x0 @ x1; b1 = b0 + x2, written over x2."""

    def body(t: TensorBuilder, a: Any, b: Any, x: Any) -> list[Any]:
        y = t.reduce("sum", (N, 8), (6,), lambda i, j, r: a[i, r] * b[r, j])
        return [t.compute((N, 8), lambda i, j: y[i, j] + x[i, j])]

    return in_place(kernel_from([(N, 6), (6, 8), (N, 8)], body), (0, 2))


def flattened() -> loop.Kernel:
    """b0 = exp(x); b1 = b0 + x in one dimension, written over x; b2 = b0 of the rows in reverse order."""

    def body(t: TensorBuilder, x: Any) -> list[Any]:
        y = t.compute((N, 4), lambda i, j: x[i, j].apply("exp"))
        z = t.compute((N * 4,), lambda i: y[i // 4, i % 4] + x[i // 4, i % 4])
        return [z, t.compute((N, 4), lambda i, j: y[N - 1 - i, j])]

    return in_place(kernel_from([(N, 4)], body), (0, 0))


def unpacked(x: Any, x_scales: Any, qvalues: Any, scales: Any) -> Any:
    right = qvalues.transpose(0, 3, 1, 2, 4).reshape(12, 2, 4)[:10].astype("f8") - 128
    right *= scales.transpose(0, 2, 1).reshape(12, 2)[:10, :, None]
    return (x * x_scales[..., None]).reshape(len(x), 8) @ right.reshape(10, 8).T + 1


KERNELS: dict[str, tuple[Callable[[], loop.Kernel], Callable[..., list[Any]]]] = {
    "matmul": (matmul, lambda a, b, c: [np.maximum(a @ b + c, 0)]),
    "softmax": (
        softmax,
        lambda x: [
            np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
        ],
    ),
    "attention": (attention, lambda q, k, v: [windowed_attention(q, k, v)]),
    "stencil": (stencil, lambda x: [(2 * x[np.maximum(np.arange(len(x)) - 1, 0)] + 2 * x) * x]),
    "transposed": (transposed, lambda x: [np.exp(x).T.sum((1, 2)), np.exp(x).T]),
    "quantized": (quantized, lambda *x: [unpacked(*x)]),
    "halves": (halves, lambda x, w: [x.astype(np.int64) @ columns_of(w)]),
    "decaying": (decaying, decayed),
    "grouped": (grouped, lambda x, w, index: [np.einsum("ik,ikj->ij", x, w[index]) + x]),
    "scalar_sum": (scalar_sum, lambda x: [np.asarray(x.sum() * 2)]),
    "added": (scattered("sum"), lambda *x: [added_rows(*x)]),
    "placed": (scattered(None), lambda *x: [placed_rows(*x)]),
    "running": (running, lambda x: [np.cumsum(x, 0)]),
    "centered": (centered, lambda x: [x - x.mean(1, keepdims=True)]),
    "residual": (residual, lambda a, b, x: [a @ b + x]),
    "flattened": (flattened, lambda x: [(np.exp(x) + x).reshape(-1), np.exp(x)[::-1]]),
}


def inputs_of(kernel: loop.Kernel, n: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n)
    args = kernel.body.args[: len(kernel.body.args) - kernel.num_outputs]
    numbers = []
    for a in args:
        x = rng.standard_normal([int(evaluate(d, {"n": n})) for d in a.type.shape])
        numbers.append(
            np.clip(x * 50 + 128 * (a.type.dtype is u8), -127 * (a.type.dtype is i8), 255)
            if a.type.dtype in (i8, u8)
            else np.clip(np.abs(x), 0, 2)  # the index of one of three matrices
            if a.type.dtype is i64
            else x
        )
    return [x.astype(a.type.dtype.numpy) for x, a in zip(numbers, args, strict=True)]


def run(kernel: loop.Kernel, n: int, shuffle: bool = False) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of a kernel on random inputs; an output that may be the memory of an input is. With
    `shuffle`, loops whose order is free run in a random order.
    """
    outputs = kernel.body.args[len(kernel.body.args) - kernel.num_outputs :]
    results = [np.full([int(evaluate(d, {"n": n})) for d in a.type.shape], np.nan, "f4") for a in outputs]
    # Only finished kernels may run in odd orders: before, a buffer of all iterations stands for one of each.
    order = Order(2) if shuffle else None
    return run_kernel(kernel, [*inputs_of(kernel, n), *results], {"n": n}, order)

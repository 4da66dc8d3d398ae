"""Whole block programs: results on devices equal the interpreter's, in every language that runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import loop, scalar, simt
from tilewright.dialects.scalar import BINARY
from tilewright.errors import CompileError
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Operation
from tilewright.ir.symbolic import ceildiv, symbol
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.ir.types import BufferType, DType, boolean, f16, f32, f64, i8, i32, i64
from tilewright.targets.gpu.dialects.cuda import CUDA
from tilewright.targets.gpu.printer import print_kernel

from .programs import DEVICES, Array, device, elementwise, interpreted, nest, new_kernel, run

LANGUAGES = pytest.mark.parametrize("language", DEVICES)
ANYWHERE = TargetInfo(gpu=Gpu())
n = symbol("n", 0, None)
m = symbol("m", 1, 4096)


def check(
    language: str,
    kernel: loop.Kernel,
    arrays: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    rtol: float = 1e-5,
) -> str:
    """Compare a kernel's buffers on a device with the interpreter's. Returns the text."""
    found, printed = run(language, kernel, arrays, dims)
    for k, (a, w) in enumerate(zip(found, interpreted(kernel, arrays, dims or {}), strict=True)):
        np.testing.assert_allclose(
            a.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=1e-6, err_msg=f"buffer {k}"
        )
    return printed.text


def numbers(*shape: int, seed: int = 0, dtype: DType = f32) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(-100, 100, shape).astype(dtype.numpy)


def add(b: Builder, *values: Any) -> Any:
    return b(BINARY["add"](*values))


def blocks_and_threads(kernel: loop.Kernel, blocks: Any, threads: int) -> tuple[Builder, Any, Builder, Any]:
    outer, block = nest(Builder(kernel.body), "block", blocks, "block.x")
    inner, thread = nest(outer, "thread", threads, "thread.x")
    return outer, block, inner, thread


@LANGUAGES
@pytest.mark.parametrize("size", [0, 1, 64, 1000])
def test_symbolic_sizes(language: str, size: int) -> None:
    kernel = elementwise([f32, f32], f32, lambda b, x, y: add(b, x, y), n, dims=[n])
    check(language, kernel, [numbers(size), numbers(size, seed=1), np.zeros(size, np.float32)], {"n": size})


@LANGUAGES
def test_a_reduction_carries_its_values(language: str) -> None:
    """Two values are carried, and exchanged with each other, around a loop of symbolic extent."""
    kernel, (x, y, z) = new_kernel([BufferType(f32, (8, m))] + [BufferType(f32, (8,))] * 2, 2, [m])
    _, _, b, t = blocks_and_threads(kernel, 1, 8)
    first, second = (b(scalar.Constant(value=v, dtype=f32)) for v in (0.5, -1.0))
    f = b.insert(loop.For([first, second], iv=symbol("k", 0, m - 1), combiners=("sum", "sum")))
    args = [f.body.add_arg(f32) for _ in range(2)]
    inside = Builder(f.body)
    element = inside(loop.Load(x, (), None, indices=(t, f.iv)))
    inside.insert(loop.Yield([args[1], add(inside, args[0], element)]))
    for target, value in zip((y, z), f.results, strict=True):
        b.insert(loop.Store(value, target, (), indices=(t,)))
    check(language, kernel, [numbers(8, 37), np.zeros(8, np.float32), np.zeros(8, np.float32)], {"m": 37})


@LANGUAGES
@pytest.mark.parametrize("kind", ["serial", "unroll", "vectorize"])
def test_kinds_of_inner_loops(language: str, kind: str) -> None:
    kernel, (x, y) = new_kernel([BufferType(i32, (16, 12))] * 2, 1)
    _, _, b, t = blocks_and_threads(kernel, 1, 16)
    inner, k = nest(b, "k", 12, kind)
    value = inner(loop.Load(x, (), None, indices=(t, k)))
    inner.insert(loop.Accumulate(value, y, (), combiner="sum", indices=(t, (k + 1) % 12)))
    text = check(language, kernel, [numbers(16, 12, dtype=i32), numbers(16, 12, seed=3, dtype=i32)])
    if kind == "unroll" and language != "wgsl":
        assert "unroll" in text


VECTORS = ("cuda", "hip", "metal", "opencl")
"""Languages whose loops over lanes access several elements at once."""


@LANGUAGES
@pytest.mark.parametrize(("dtype", "width", "vector"), [(f32, 4, 16), (f16, 8, 16), (i8, 8, 8), (f64, 2, 16)])
@pytest.mark.parametrize("columns", [16, 19])
def test_lanes_access_vectors(language: str, dtype: DType, width: int, vector: int, columns: int) -> None:
    """Rows of 19 elements begin at addresses that are no multiples of a vector's size."""
    if dtype not in device(language).dialect.storage:
        pytest.skip("the language has no such type here")
    kernel, (x, y, z) = new_kernel([BufferType(dtype, (6, columns))] * 3, 2)
    _, _, b, t = blocks_and_threads(kernel, 1, 6)
    groups, g = nest(b, "g", columns // width)
    inner, k = nest(groups, "k", width, "vectorize")
    first = inner(loop.Load(x, (), None, indices=(t, g * width + k)))
    second = inner(loop.Load(y, (), None, indices=(t, g * width + k)))
    inner.insert(loop.Store(add(inner, first, second), y, (), indices=(t, g * width + k)))
    inner.insert(loop.Store(first, z, (), indices=(t, g * width + k)))
    arrays = [numbers(6, columns, seed=s, dtype=dtype) // 4 for s in range(3)]
    text = check(language, kernel, arrays, rtol=0)
    assert (text.count(f"tw_{vector}*)lanes") == 4) == (language in VECTORS)


@LANGUAGES
def test_lanes_of_a_reduction(language: str) -> None:
    """Loads come in vectors; the carried value and a statement that touches what it stored stay."""
    kernel, (x, y, z) = new_kernel(
        [BufferType(f32, (4, 32)), BufferType(f32, (4, 32)), BufferType(f32, (4,))], 2
    )
    _, _, b, t = blocks_and_threads(kernel, 1, 4)
    zero = b(scalar.Constant(value=0.0, dtype=f32))
    outer = b.insert(loop.For([zero], iv=symbol("g", 0, 7), combiners=("sum",)))
    total = outer.body.add_arg(f32)
    groups = Builder(outer.body)
    f = groups.insert(
        loop.For([total], iv=symbol("k", 0, 3), combiners=("sum",), kind=loop.LoopKind.VECTORIZE)
    )
    carried = f.body.add_arg(f32)
    inner, at = Builder(f.body), outer.iv * 4 + f.iv
    value = inner(loop.Load(x, (), None, indices=(t, at)))
    inner.insert(loop.Store(value, y, (), indices=(t, at)))
    again = inner(loop.Load(y, (), None, indices=(t, at)))
    inner.insert(loop.Yield([add(inner, carried, again)]))
    groups.insert(loop.Yield([f.results[0]]))
    b.insert(loop.Store(outer.results[0], z, (), indices=(t,)))
    text = check(language, kernel, [numbers(4, 32), np.zeros((4, 32), np.float32), np.zeros(4, np.float32)])
    assert (text.count("tw_16*)lanes") == 1) == (language in VECTORS), "only the load of x"


@LANGUAGES
def test_guards_and_dynamic_indices(language: str) -> None:
    """A gather whose index is data, where the index is inside the table; a guarded store."""
    kernel, (table, ids, y) = new_kernel(
        [BufferType(f32, (10, 4)), BufferType(i64, (n,)), BufferType(f32, (n, 4))], 1, [n]
    )
    _, block, b, t = blocks_and_threads(kernel, ceildiv(n, 8), 8)
    row = block * 8 + t
    v0 = symbol("v0", None, None)
    zero = b(scalar.Cast(b(scalar.Constant(value=0, dtype=f32)), dtype=i64))
    index = b(loop.Load(ids, (), zero, indices=(row,), guard=(n - 1 - row,)))
    nothing = b(scalar.Constant(value=-7.0, dtype=f32))
    inner, k = nest(b, "k", 4)
    value = inner(loop.Load(table, [index], nothing, indices=(v0, k), guard=(v0, 9 - v0)))
    inner.insert(loop.Store(value, y, (), indices=(row, k), guard=(n - 1 - row,)))
    ids_data = np.array([3, 0, 9, -1, 10, 2**40 if language != "wgsl" else 77, 5, 5, 1, 8, 2], np.int64)
    check(language, kernel, [numbers(10, 4), ids_data, np.zeros((11, 4), np.float32)], {"n": 11})


@LANGUAGES
def test_scatter_to_dynamic_places(language: str) -> None:
    kernel, (x, places, y) = new_kernel(
        [BufferType(f32, (6,)), BufferType(i64, (6,)), BufferType(f32, (20,))], 1
    )
    _, _, b, t = blocks_and_threads(kernel, 1, 6)
    place = b(loop.Load(places, (), None, indices=(t,)))
    value = b(loop.Load(x, (), None, indices=(t,)))
    v0 = symbol("v0", None, None)
    b.insert(loop.Accumulate(value, y, [place], combiner="max", indices=(v0 * 3 + 1,), guard=(5 - v0,)))
    check(language, kernel, [numbers(6), np.array([4, 9, 0, 1, 2, 5], np.int64), numbers(20, seed=2)])


@LANGUAGES
def test_shared_memory_and_barriers(language: str) -> None:
    """A block transposes a tile through shared memory; thread nests of different extents."""
    kernel, (x, y) = new_kernel([BufferType(f32, (64, 32)), BufferType(f32, (32, 64))], 1)
    outer, block = nest(Builder(kernel.body), "block", 2, "block.x")
    tile = outer(loop.Alloc(buffer=BufferType(f32, (32, 33), "shared")))
    first, t = nest(outer, "t0", 128, "thread.x")
    rows, r = nest(first, "r", 8)
    row, column = r * 4 + t // 32, t % 32
    value = rows(loop.Load(x, (), None, indices=(block * 32 + row, column)))
    rows.insert(loop.Store(value, tile, (), indices=(row, column)))
    outer.insert(simt.Barrier())
    second, u = nest(outer, "t1", 32, "thread.x")
    columns, c = nest(second, "c", 32)
    value = columns(loop.Load(tile, (), None, indices=(u, c)))
    columns.insert(loop.Store(value, y, (), indices=(c, block * 32 + u)))
    text = check(language, kernel, [numbers(64, 32), np.zeros((32, 64), np.float32)])
    assert "if (thread_x < 32) {" in text


@LANGUAGES
@pytest.mark.parametrize("count", [1, 8, 64, 128])
@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_all_reduce(language: str, count: int, combiner: str) -> None:
    """Groups of threads combine values in a loop that reuses the shared memory of the exchange."""
    kernel, (x, y) = new_kernel([BufferType(f32, (3, 128))] * 2, 1)
    outer, _ = nest(Builder(kernel.body), "block", 1, "block.x")
    rounds, k = nest(outer, "k", 3)
    part = rounds(loop.Alloc(buffer=BufferType(f32, (128,), "register")))
    load, t = nest(rounds, "t0", 128, "thread.x")
    load.insert(loop.Store(load(loop.Load(x, (), None, indices=(k, t))), part, (), indices=(t,)))
    rounds.insert(simt.AllReduce(part, combiner=combiner, count=count))
    store, u = nest(rounds, "t1", 128, "thread.x")
    store.insert(loop.Store(store(loop.Load(part, (), None, indices=(u,))), y, (), indices=(k, u)))
    check(language, kernel, [numbers(3, 128), np.zeros((3, 128), np.float32)])


@LANGUAGES
@pytest.mark.parametrize("threads", [48, 16])
def test_all_reduce_of_few_threads(language: str, threads: int) -> None:
    """Threads that are no whole warps."""
    kernel, (x, y) = new_kernel([BufferType(i32, (64,))] * 2, 1)
    body = Builder(kernel.body)
    part = body(loop.Alloc(buffer=BufferType(i32, (threads,), "register")))
    load, t = nest(body, "t0", threads, "thread.x")
    load.insert(loop.Store(load(loop.Load(x, (), None, indices=(t,))), part, (), indices=(t,)))
    body.insert(simt.AllReduce(part, combiner="sum", count=16))
    store, u = nest(body, "t1", 64, "thread.x")
    inside = Builder(store.insert(loop.If(conditions=(threads - 1 - u,))).body)
    inside.insert(loop.Store(inside(loop.Load(part, (), None, indices=(u,))), y, (), indices=(u,)))
    check(language, kernel, [numbers(64, dtype=i32), np.zeros(64, np.int32)])


@LANGUAGES
def test_registers_live_between_nests(language: str) -> None:
    kernel, (x, y) = new_kernel([BufferType(f32, (32, 3))] * 2, 1)
    body = Builder(kernel.body)
    part = body(loop.Alloc(buffer=BufferType(f32, (32, 3), "register")))
    first, t = nest(body, "t0", 32, "thread.x")
    inner, k = nest(first, "k", 3, "unroll")
    inner.insert(loop.Store(inner(loop.Load(x, (), None, indices=(t, k))), part, (), indices=(t, k)))
    second, u = nest(body, "t1", 32, "thread.x")
    inner, k = nest(second, "k1", 3, "unroll")
    inner.insert(loop.Store(inner(loop.Load(part, (), None, indices=(u, 2 - k))), y, (), indices=(u, k)))
    check(language, kernel, [numbers(32, 3), np.zeros((32, 3), np.float32)])


@LANGUAGES
def test_local_arrays_of_narrow_types(language: str) -> None:
    kernel, (x, y) = new_kernel([BufferType(i8, (16, 4)), BufferType(boolean, (16, 4))], 1)
    _, _, b, t = blocks_and_threads(kernel, 1, 16)
    memory = b(loop.Alloc(buffer=BufferType(i8, (4,), "local")))
    inner, k = nest(b, "k", 4)
    inner.insert(loop.Store(inner(loop.Load(x, (), None, indices=(t, k))), memory, (), indices=(k,)))
    again, j = nest(b, "j", 4)
    value = again(loop.Load(memory, (), None, indices=(3 - j,)))
    again.insert(loop.Store(again(scalar.Cast(value, dtype=boolean)), y, (), indices=(t, j)))
    check(language, kernel, [numbers(16, 4, dtype=i8) // 60, np.zeros((16, 4), np.bool_)])


@LANGUAGES
def test_runs_of_equal_elements(language: str) -> None:
    """Each run's rows are summed with the run's number, position and length."""
    kernel, (ids, x, y) = new_kernel(
        [BufferType(i64, (m,)), BufferType(f32, (m,)), BufferType(f32, (5, 4))], 1, [m]
    )
    _, _, b, t = blocks_and_threads(kernel, 1, 4)
    first, length, value = symbol("first", 0, None), symbol("length", 0, None), symbol("value", 0, 4)
    runs = b.insert(loop.Runs(ids, first=first, length=length, value=value, range=(1, m - 2)))
    inside = Builder(runs.body)
    inner, k = nest(inside, "k", length)
    element = inner(loop.Load(x, (), None, indices=(first + k + 1,)))
    inner.insert(loop.Accumulate(element, y, (), combiner="sum", indices=(value, t)))
    ids_data = np.array([4, 2, 2, 2, 0, 3, 3, 1, 1, 4], np.int64)
    check(language, kernel, [ids_data, numbers(10), np.zeros((5, 4), np.float32)], {"m": 10})


@LANGUAGES
def test_three_dimensions_of_blocks(language: str) -> None:
    kernel, (y,) = new_kernel([BufferType(i64, (n, 3, 4, 8))], 1, [n])
    body = Builder(kernel.body)
    body, i = nest(body, "i", 4, "block.x")
    body, j = nest(body, "j", 3, "block.y")
    body, k = nest(body, "k", n, "block.z")
    b, t = nest(body, "t", 8, "thread.x")
    value = b(scalar.Index(expr=k * 1000 + j * 100 + i * 10 + t))
    b.insert(loop.Store(value, y, (), indices=(k, j, i, t)))
    check(language, kernel, [np.zeros((5, 3, 4, 8), np.int64)], {"n": 5})
    folded = print_kernel(kernel, CUDA, ANYWHERE)
    assert folded.grid[1:] == (1, 1), "a dimension of unknown size is folded into the first one"


@LANGUAGES
def test_floor_division_of_negative_indices(language: str) -> None:
    kernel, (x, y) = new_kernel([BufferType(f32, (40,)), BufferType(f32, (3, 40))], 1)
    _, _, b, t = blocks_and_threads(kernel, 1, 40)
    inner, w = nest(b, "w0", 3)
    at = (t - w * 5) // 3 + 12
    value = inner(loop.Load(x, (), None, indices=(at,)))
    inner.insert(loop.Accumulate(value, y, (), combiner="sum", indices=(w, (w * 7 - t) % 40)))
    check(language, kernel, [numbers(40), np.zeros((3, 40), np.float32)])


@LANGUAGES
def test_one_thread(language: str) -> None:
    """A kernel without thread loops runs in one thread."""
    kernel, (x, y) = new_kernel([BufferType(f32, (9,))] * 2, 1)
    b, k = nest(Builder(kernel.body), "k", 8)
    value = b(loop.Load(x, (), None, indices=(k + 1,)))
    b.insert(loop.Accumulate(value, y, (), combiner="sum", indices=(k // 2,)))
    found, printed = run(language, kernel, [numbers(9), np.zeros(9, np.float32)])
    assert printed.threads == 1 and printed.grid == (1, 1, 1)
    np.testing.assert_allclose(found[1], interpreted(kernel, [numbers(9), np.zeros(9, np.float32)], {})[1])


# -- Facts about the text ------------------------------------------------------------------------------------


def test_indices_have_32_bits_where_they_fit() -> None:
    small = print_kernel(elementwise([f32], f32, lambda b, x: x, 1000), CUDA, ANYWHERE)
    assert "long long" not in small.text
    bounded = print_kernel(elementwise([f32], f32, lambda b, x: x, m, dims=[m]), CUDA, ANYWHERE)
    assert "(long long)" not in bounded.text and "long long n0" in bounded.text
    unbounded = print_kernel(elementwise([f32], f32, lambda b, x: x, n, dims=[n]), CUDA, ANYWHERE)
    assert "(long long)(block_x)" in unbounded.text


def test_parameters() -> None:
    """Buffers, then sizes; restrict only where buffers are not shared."""
    kernel = elementwise([f32, f32], f32, lambda b, x, y: add(b, x, y), n, dims=[n])
    kernel.sym_name = "sum of two"
    notes.BUFFER_ALIASES.set(kernel, ((0, 1),))
    printed = print_kernel(kernel, CUDA, ANYWHERE)
    assert printed.entry == "tw_sum_of_two" and printed.dims == ("n",)
    assert printed.written == (False, False, True) and printed.threads == 64
    assert (
        'extern "C" __global__ void __launch_bounds__(64) tw_sum_of_two('
        "const float* __restrict__ b0, const float* b1, float* b2, long long n0) {" in printed.text
    )


def test_large_shared_memory_is_given_by_the_launch() -> None:
    kernel, (x,) = new_kernel([BufferType(f32, (64,))], 1)
    body = Builder(kernel.body)
    for _ in range(2):
        memory = body(loop.Alloc(buffer=BufferType(f64, (4000,), "shared")))
        b, t = nest(body, "t", 64, "thread.x")
        value = b(scalar.Cast(b(loop.Load(x, (), None, indices=(t,))), dtype=f64))
        b.insert(loop.Store(value, memory, (), indices=(t * 3,)))
    printed = print_kernel(kernel, CUDA, ANYWHERE)
    assert printed.shared_bytes == printed.dynamic_bytes == 64000
    assert "double* shared1 = (double*)(tw_memory + 32000);" in printed.text


class _Strange(Operation):
    name = "test.strange"

    def infer_types(self) -> tuple[()]:
        return ()


@LANGUAGES
def test_refusals_name_type_and_place(language: str) -> None:
    there = device(language)
    storage = {t: s for t, s in there.dialect.storage.items() if t is not i8}
    kernel = elementwise([i8], f32, lambda b, x: b(scalar.Cast(x, dtype=f32)), 8, name="narrow")
    with pytest.raises(CompileError, match=r"int8 \(buffer 0 of kernel 'narrow'\)"):
        print_kernel(kernel, replace(there.dialect, storage=storage), there.info)
    kernel, _ = new_kernel([], 0, name="odd")
    kernel.body.append(_Strange())
    with pytest.raises(CompileError, match=r"'test\.strange' \(kernel 'odd'\)"):
        print_kernel(kernel, there.dialect, there.info)

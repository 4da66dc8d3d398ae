"""Kernels as LLVM IR compute the results of the tensor level, with masked, unmasked and narrow vectors, and
access no other memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.dialects import loop, scalar
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.symbolic import smin, symbol
from tilewright.ir.types import BufferType, DType, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from tilewright.schedule import Schedule, ScheduleError
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.llvm.kernel import print_kernel, upper_bound

from .jit import ISAS, MIDDLE, NARROW
from .kernels import interpreted, make_group, reference, run_kernel, scheduled

n = symbol("n", 1, 256)
m = symbol("m", 1, 64)


def data(types: Sequence[TensorType], dims: Mapping[str, int], seed: int = 0) -> list[np.ndarray[Any, Any]]:
    from tilewright.ir.substitution import evaluate

    rng = np.random.default_rng(seed)
    result = []
    for t in types:
        shape = tuple(evaluate(d, dims) for d in t.shape)
        if t.dtype.is_float:
            result.append(rng.standard_normal(shape).astype(t.dtype.numpy))
        elif t.dtype is boolean:
            result.append(rng.random(shape) < 0.5)
        else:
            low = 0 if t.dtype.kind == "uint" else -100
            result.append(rng.integers(low, 100, shape).astype(t.dtype.numpy))
    return result


def check(
    types: Sequence[TensorType],
    body: Callable[..., Sequence[Any]],
    isa: Isa,
    rule: Callable[[Schedule], object] | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[np.ndarray[Any, Any]] | None = None,
    interpret: bool = False,
    exact: bool = False,
    **options: Any,
) -> list[np.ndarray[Any, Any]]:
    """Compare a group's kernel with the tensor level, and with the loop level if it is small. Returns the
    outputs.
    """
    dims = dims or {}
    group = make_group(types, body)
    inputs = data(types, dims) if inputs is None else inputs
    wanted = reference(group, inputs, dims)
    kernel = scheduled(group, rule)
    found, _ = run_kernel(kernel, isa, inputs, dims, **options)
    narrow = any(w.dtype.itemsize == 2 for w in wanted)
    tolerance = (
        {"rtol": 0, "atol": 0}
        if exact
        else {"rtol": 1e-2, "atol": 1e-3}
        if narrow
        else {"rtol": 1e-5, "atol": 1e-5}
    )
    for levels in (found, interpreted(kernel, inputs, dims)) if interpret else (found,):
        for a, w in zip(levels, wanted, strict=True):
            np.testing.assert_allclose(a.astype(np.float64), w.astype(np.float64), **tolerance)
    return found


def last_vectorized(s: Schedule) -> None:
    """Vectorize the innermost loop of every block."""
    for op in [op for op in s.kernel.walk() if isinstance(op, loop.Block)]:
        names = s.loops(op.sym_name)
        if names and s.loop(names[-1]).kind == "serial":
            s.vectorize(names[-1])


def rows_parallel(s: Schedule) -> None:
    """Merge and parallelize outer loops, and vectorize inner ones."""
    blocks = [op.sym_name for op in s.kernel.walk() if isinstance(op, loop.Block)]
    first = s.loops(blocks[0])[0]
    for other in blocks[1:]:
        s.fuse_loops(first, s.loops(other)[0])
    s.parallel(first)
    last_vectorized(s)


def columns_vectorized(s: Schedule) -> None:
    """Vectorize the columns, outside of the loop of a reduction over the first axis."""
    (block,) = [op.sym_name for op in s.kernel.walk() if isinstance(op, loop.Block)]
    s.vectorize(s.loops(block)[0])


# -- Elementwise ---------------------------------------------------------------------------------------------


@ISAS
def test_tails_of_every_size(isa: Isa) -> None:
    """Tails are right in one kernel for all sizes, and in one for each size."""
    types = [TensorType(f32, (n,)), TensorType(f32, (n,))]

    def body(t: Any, x: Any, y: Any) -> list[Any]:
        return [t.compute(x.shape, lambda i: x[i] * y[i] + 0.5)]

    group = make_group(types, body)
    kernel = scheduled(group, last_vectorized)
    for size in [*range(1, 41), 64, 65, 130]:
        inputs = data(types, {"n": size}, size)
        found, _ = run_kernel(kernel, isa, inputs, {"n": size})
        np.testing.assert_allclose(found[0], inputs[0] * inputs[1] + 0.5, rtol=1e-6, atol=1e-6)


@ISAS
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 63, 67, 100, 129])
def test_static_tails(isa: Isa, size: int) -> None:
    check(
        [TensorType(f32, (size,)), TensorType(f32, (size,))],
        lambda t, x, y: [t.compute((size,), lambda i: x[i] - y[i])],
        isa,
        last_vectorized,
    )


@ISAS
def test_broadcasting(isa: Isa) -> None:
    types = [TensorType(f32, (5, 1, 19)), TensorType(f32, (7, 1)), TensorType(f32, ())]

    def body(t: Any, x: Any, y: Any, z: Any) -> list[Any]:
        return [t.compute((5, 7, 19), lambda i, j, k: (x[i, 0, k] + y[j, 0]) * z.at())]

    check(types, body, isa, rows_parallel, pieces=3, interpret=True)


@ISAS
def test_symbolic_dims(isa: Isa) -> None:
    types = [TensorType(f32, (m, n)), TensorType(f32, (n,))]

    def body(t: Any, x: Any, y: Any) -> list[Any]:
        return [t.compute((m, n), lambda i, j: x[i, j] * y[j] + t.index(i + n, f32))]

    for dims in ({"m": 3, "n": 37}, {"m": 1, "n": 1}, {"m": 8, "n": 128}):
        check(types, body, isa, rows_parallel, dims, pieces=2)


@ISAS
@pytest.mark.parametrize("vector", [0, 1])
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i8], ids=str)
def test_transpose(isa: Isa, dtype: DType, vector: int) -> None:
    """Transposes are right with vectors along the source (scattered stores) and along the result (gathered
    loads).
    """

    def rule(s: Schedule) -> None:
        names = s.loops("map")
        s.reorder(names[1 - vector], names[vector])
        s.vectorize(names[vector])

    check(
        [TensorType(dtype, (13, 41))],
        lambda t, x: [t.compute((41, 13), lambda i, j: x[j, i])],
        isa,
        rule,
        exact=True,
    )


def square(isa: Isa, lanes: int) -> Callable[[Schedule], None]:
    """Return a rule for a transpose in squares: stores run along i and loads along j, which is the inner
    loop, in steps of `lanes`.
    """

    def rule(s: Schedule) -> None:
        i, j = s.loops("map")[-1], s.loops("map")[-2]
        s.reorder(i, j)
        s.unroll(j, lanes)
        s.vectorize(i, lanes)

    return rule


@ISAS
@pytest.mark.parametrize("dtype", [f32, f64, bf16, u8, boolean], ids=lambda d: d.name)
def test_squares_are_transposed_in_registers(isa: Isa, dtype: DType) -> None:
    """Squares are right for every remainder of both sizes, and nothing outside of the buffers is accessed."""
    lanes = isa.lanes(max(dtype.bits, 32))
    for dims in (
        {"m": 3 * lanes, "n": 2 * lanes},
        {"m": 2 * lanes + 1, "n": lanes - 1},
        {"m": 3, "n": 3 * lanes - 1},
    ):
        types = [TensorType(dtype, (n, m))]
        rule = square(isa, lanes)
        check(types, lambda t, x: [t.compute((m, n), lambda j, i: x[i, j])], isa, rule, dims, exact=True)
    for rows, columns in ((lanes, lanes), (2 * lanes + 3, lanes // 2 + 1), (5, 3 * lanes - 2)):
        types = [TensorType(dtype, (rows, columns))]
        check(
            types,
            lambda t, x: [t.compute(x.shape[::-1], lambda j, i: x[i, j])],
            isa,
            square(isa, lanes),
            exact=True,
        )
    types = [TensorType(dtype, (2 * lanes, 3 * lanes))]
    group = make_group(types, lambda t, x: [t.compute(x.shape[::-1], lambda j, i: x[i, j])])
    assert "gather" not in print_kernel(scheduled(group, square(isa, lanes)), isa, "k").text


@ISAS
@pytest.mark.parametrize("dtype", [f32, bf16], ids=lambda d: d.name)
def test_squares_along_an_axis_of_two_dimensions(isa: Isa, dtype: DType) -> None:
    """A step along the lanes is not one stride: kernel elements of a weight move behind its channels."""
    lanes = isa.lanes(32)
    for channels, outputs in ((lanes, 2 * lanes), (lanes + 1, lanes - 1), (3, 2 * lanes + 3)):
        types = [TensorType(dtype, (9, channels, outputs))]
        shape = (outputs, 9 * channels)

        def body(t: Any, x: Any, shape: tuple[int, int] = shape) -> list[Any]:
            return [t.compute(shape, lambda o, e: x[e % 9, e // 9, o])]

        def rule(s: Schedule) -> None:
            o, e = s.loops("map")
            s.reorder(e, o)
            s.unroll(o, lanes)
            s.vectorize(e, lanes)

        check(types, body, isa, rule, exact=True)
        if channels % lanes == outputs % lanes == 0:
            assert "gather" not in print_kernel(scheduled(make_group(types, body), rule), isa, "k").text


@ISAS
@pytest.mark.parametrize("otherwise", [0.0, 2.5])
def test_squares_with_guards_and_other_operands(isa: Isa, otherwise: float) -> None:
    """Rows after the end are not read. One operand varies along the lanes, and another is the same in all of
    them.
    """
    types = [TensorType(f32, (n, m)), TensorType(f32, (n,)), TensorType(f32, (m,))]

    def body(t: Any, x: Any, y: Any, z: Any) -> list[Any]:
        padded = lambda i, j: x.at(i, j, guard=(n - 1 - i,), otherwise=otherwise)  # noqa: E731
        return [t.compute((m, n), lambda j, i: padded(i, j) + padded(i + 3, j) * z[j] + y[i])]

    for dims in ({"m": 37, "n": 29}, {"m": 16, "n": 2}, {"m": 1, "n": 40}):
        check(types, body, isa, square(isa, isa.lanes(32)), dims)


@ISAS
def test_gather_of_rows_and_of_elements(isa: Isa) -> None:
    types = [TensorType(f32, (11, 20)), TensorType(i64, (9,)), TensorType(i32, (9, 20))]
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal((11, 20)).astype(np.float32),
        rng.integers(0, 11, 9),
        rng.integers(0, 20, (9, 20)).astype(np.int32),
    ]

    def body(t: Any, x: Any, rows: Any, columns: Any) -> list[Any]:
        return [
            t.compute((9, 20), lambda i, j: x[rows[i], j]),
            t.compute((9, 20), lambda i, j: x[i, columns[i, j]]),
        ]

    (whole, single) = check(types, body, isa, rows_parallel, inputs=inputs, exact=True, interpret=True)
    np.testing.assert_array_equal(whole, inputs[0][inputs[1]])
    np.testing.assert_array_equal(single, np.take_along_axis(inputs[0][:9], inputs[2].astype(np.int64), 1))


@ISAS
@pytest.mark.parametrize("otherwise", [0.0, -np.inf, 2.5])
@pytest.mark.parametrize("vector", [0, 1])
def test_padding_guards(isa: Isa, vector: int, otherwise: float) -> None:
    """Guards in the vector loop's variable and in another one are right, and nothing outside of the buffers
    is read.
    """

    def body(t: Any, x: Any) -> list[Any]:
        return [
            t.compute(
                (13, 29),
                lambda i, j: x.at(
                    i - 2, j - 5, guard=(i - 2, 9 - 1 - (i - 2), j - 5, 18 - 1 - (j - 5)), otherwise=otherwise
                ),
            )
        ]

    def rule(s: Schedule) -> None:
        names = s.loops("map")
        s.reorder(names[1 - vector], names[vector])
        s.vectorize(names[vector])

    inputs = data([TensorType(f32, (9, 18))], {})
    (found,) = check([TensorType(f32, (9, 18))], body, isa, rule, inputs=inputs, exact=True)
    np.testing.assert_array_equal(found, np.pad(inputs[0], ((2, 2), (5, 6)), constant_values=otherwise))


@ISAS
def test_guarded_read_with_computed_replacement_and_stride(isa: Isa) -> None:
    """In a dilated read, an element is read where 3 divides the index; elsewhere it is another input's
    element.
    """

    def body(t: Any, x: Any, y: Any) -> list[Any]:
        return [
            t.compute(
                (40,), lambda i: x.at(3 * i - 30, guard=(3 * i - 30, 59 - (3 * i - 30)), otherwise=y[i])
            )
        ]

    check([TensorType(f32, (60,)), TensorType(f32, (40,))], body, isa, last_vectorized, exact=True)


@ISAS
@pytest.mark.parametrize("shape", [(4, 16), (6, 10), (3, 64)])
def test_divisions_in_addresses(isa: Isa, shape: tuple[int, int]) -> None:
    """Divisions in addresses are right in a fused loop, in blocks within rows (contiguous in lanes), and for
    remainders that wrap.
    """
    rows, columns = shape

    def body(t: Any, x: Any, y: Any) -> list[Any]:
        return [
            t.compute((columns, rows), lambda i, j: x[j, i]),
            t.compute(
                (rows * columns,),
                lambda i: (
                    x[i // columns, i % columns]
                    + y[(i * 3 + 7) % columns] * y[(rows * columns - 1 - i) // rows]
                ),
            ),
        ]

    def rule(s: Schedule) -> None:
        s.vectorize(s.fuse(*s.loops("map")))
        s.vectorize(s.loops("map2")[0])

    check([TensorType(f32, shape), TensorType(f32, (columns,))], body, isa, rule)


@ISAS
def test_split_with_remainder_and_unroll(isa: Isa) -> None:
    def rule(s: Schedule) -> None:
        rows, columns = s.loops("map")
        outer, inner = s.split(columns, 12)
        ro, ri = s.split(rows, 4)
        s.reorder(ro, outer, ri, inner)
        s.parallel(s.fuse(ro, outer))
        s.unroll(ri, 3)
        s.vectorize(inner)

    body = lambda t, x: [t.compute((m, 50), lambda i, j: x[i, j] * 2.0)]  # noqa: E731
    check([TensorType(f32, (m, 50))], body, isa, rule, {"m": 11}, pieces=3)


@ISAS
def test_in_place(isa: Isa) -> None:
    """An output may be in its input's memory, because each element is read before it is written."""
    group = make_group(
        [TensorType(f32, (6, 45))], lambda t, x: [t.compute((6, 45), lambda i, j: x[i, j] * x[i, j] + 1.0)]
    )
    kernel = scheduled(group, rows_parallel)
    notes.BUFFER_ALIASES.set(kernel, ((0, 0),))
    (x,) = data([TensorType(f32, (6, 45))], {})
    found, _ = run_kernel(kernel, isa, [x], {}, in_place={0: 0})
    np.testing.assert_allclose(found[0], x * x + 1, rtol=1e-6)


# -- Rows ----------------------------------------------------------------------------------------------------


def softmax(t: Any, x: Any) -> list[Any]:
    rows, columns = x.shape
    top = t.reduce("max", (rows,), (columns,), lambda i, r: x[i, r])
    e = t.compute(x.shape, lambda i, j: (x[i, j] - top[i]).exp())
    total = t.reduce("sum", (rows,), (columns,), lambda i, r: e[i, r])
    return [t.compute(x.shape, lambda i, j: e[i, j] / total[i])]


def layer_norm(t: Any, x: Any, scale: Any, shift: Any) -> list[Any]:
    rows, columns = x.shape
    mean = t.reduce("sum", (rows,), (columns,), lambda i, r: x[i, r] * (1.0 / 61))
    variance = t.reduce(
        "sum", (rows,), (columns,), lambda i, r: (x[i, r] - mean[i]) * (x[i, r] - mean[i]) * (1.0 / 61)
    )
    return [
        t.compute(
            x.shape, lambda i, j: (x[i, j] - mean[i]) * (variance[i] + 1e-5).rsqrt() * scale[j] + shift[j]
        )
    ]


@ISAS
def test_softmax_rows(isa: Isa) -> None:
    for shape, dims in (((7, 61), {}), ((m, n), {"m": 5, "n": 77}), ((m, n), {"m": 2, "n": 3})):
        inputs = data([TensorType(f32, shape)], dims)
        (found,) = check([TensorType(f32, shape)], softmax, isa, rows_parallel, dims, inputs, pieces=2)
        e = np.exp(inputs[0].astype(np.float64) - inputs[0].max(1, keepdims=True))
        np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@ISAS
def test_layer_norm_rows(isa: Isa) -> None:
    types = [TensorType(f32, (m, 61)), TensorType(f32, (61,)), TensorType(f32, (61,))]
    check(types, layer_norm, isa, rows_parallel, {"m": 9}, pieces=4)


def test_local_buffers_of_unknown_size_go_to_scratch() -> None:
    big = symbol("big", 1, 1 << 20)
    types = [TensorType(f32, (3, big))]
    group = make_group(types, softmax)
    kernel = scheduled(group, rows_parallel)
    inputs = data(types, {"big": 5003})
    found, code = run_kernel(kernel, MIDDLE, inputs, {"big": 5003})
    assert str(code.scratch) == "64*((big + 15) // 16)"
    np.testing.assert_allclose(found[0], reference(group, inputs, {"big": 5003})[0], rtol=1e-5, atol=1e-8)


# -- Reductions ----------------------------------------------------------------------------------------------


@ISAS
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("columns", [1, 5, 16, 67, 300, n])
def test_reduce_last_axis(isa: Isa, combiner: str, columns: Any) -> None:
    body = lambda t, x: [t.reduce(combiner, (3,), (columns,), lambda i, r: x[i, r])]  # noqa: E731
    dims = {} if isinstance(columns, int) else {"n": 83}
    check([TensorType(f32, (3, columns))], body, isa, rows_parallel, dims, pieces=2)


@ISAS
@pytest.mark.parametrize("columns", [1, 6, 40, 131, n])
def test_reduce_first_axis(isa: Isa, columns: Any) -> None:
    """With the reduction's loop inside the vector loop, each lane has accumulators of its own."""
    body = lambda t, x: [t.reduce("sum", (columns,), (19,), lambda j, r: x[r, j] * x[r, j])]  # noqa: E731
    dims = {} if isinstance(columns, int) else {"n": 83}
    check([TensorType(f32, (19, columns))], body, isa, columns_vectorized, dims)


@ISAS
@pytest.mark.parametrize("dtype", [i32, i64, u8, f16, f64, boolean], ids=str)
def test_reduce_dtypes(isa: Isa, dtype: DType) -> None:
    types = [TensorType(dtype, (4, 37))]
    for combiner in (
        ("or", "and") if dtype is boolean else ("max", "min", "sum") if dtype is not u8 else ("max", "min")
    ):
        check(
            types,
            lambda t, x, c=combiner: [t.reduce(c, (4,), (37,), lambda i, r: x[i, r])],
            isa,
            rows_parallel,
        )


@ISAS
def test_reduce_nothing(isa: Isa) -> None:
    """A reduction of no elements gives the neutral element."""
    k = symbol("k", 0, 100)
    types = [TensorType(f32, (3, k))]
    (found,) = check(
        types, lambda t, x: [t.reduce("max", (3,), (k,), lambda i, r: x[i, r])], isa, rows_parallel, {"k": 0}
    )
    assert (found == -np.inf).all()


@ISAS
def test_minimum_and_maximum_propagate_nan(isa: Isa) -> None:
    x = np.array(
        [[1, np.nan, 3, 4] * 9, [np.nan] + [1.0] * 35, [-np.inf] * 36, [1.0] * 35 + [np.nan]], np.float32
    )
    for combiner in ("max", "min"):
        (found,) = check(
            [TensorType(f32, (4, 36))],
            lambda t, x, c=combiner: [t.reduce(c, (4,), (36,), lambda i, r: x[i, r])],
            isa,
            rows_parallel,
            inputs=[x],
            exact=True,
        )
        assert np.isnan(found).tolist() == [True, True, False, True]
    y = x[::-1].copy()
    for name in ("min", "max"):
        check(
            [TensorType(f32, (4, 36))] * 2,
            lambda t, a, b, f=name: [
                t.compute((4, 36), lambda i, j: a[i, j].apply(f, b[i, j])),
                t.compute((4, 36), lambda i, j: a[i, j].apply(f, 2.0)),
            ],
            isa,
            rows_parallel,
            inputs=[x, y],
            exact=True,
        )


@ISAS
def test_lanes_of_a_triangular_reduction_are_refused(isa: Isa) -> None:
    """The length of the sums differs between lanes."""
    body = lambda t, x: [t.reduce("sum", (30,), (lambda i: i + 1,), lambda i, r: x[r])]  # noqa: E731
    with pytest.raises(ScheduleError, match="the extent of loop 'reduce_r0' .* differs between lanes"):
        check([TensorType(f32, (30,))], body, isa, columns_vectorized)


@ISAS
def test_argmax(isa: Isa) -> None:
    types = [TensorType(f32, (6, 43))]

    def body(t: Any, x: Any) -> list[Any]:
        top = t.reduce("max", (6,), (43,), lambda i, r: x[i, r])
        return [
            t.reduce(
                "min",
                (6,),
                (43,),
                lambda i, r: x[i, r].equals(top[i]).select(t.index(r), t.constant(43, i64)),
            )
        ]

    inputs = data(types, {})
    inputs[0][2, 40] = inputs[0][2, 7] = 9.0
    (found,) = check(types, body, isa, rows_parallel, inputs=inputs, exact=True)
    np.testing.assert_array_equal(found, inputs[0].argmax(1))


@ISAS
def test_reduction_continues_outside_the_vector_loop(isa: Isa) -> None:
    body = lambda t, x: [t.reduce("sum", (4,), (5, 21), lambda i, r, s: x[r, i, s])]  # noqa: E731
    check([TensorType(f32, (5, 4, 21))], body, isa, rows_parallel, interpret=True)


# -- Scalars -------------------------------------------------------------------------------------------------

DTYPES = [boolean, i8, i32, i64, u8, f16, bf16, f32, f64]


@ISAS
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(isa: Isa, source: DType) -> None:
    types = [TensorType(source, (23,))]
    x = data(types, {})[0]
    if source.is_float:
        special = [
            np.nan,
            np.inf,
            -np.inf,
            300.0,
            -300.0,
            1e30,
            -0.5,
            2.0**-24,
            65519.0,
            65520.0,
            1 + 2.0**-8,
            1 + 3 * 2.0**-9,
        ]
        with np.errstate(over="ignore"):
            x[: len(special)] = np.array(special).astype(source.numpy)
    body = lambda t, x: [t.compute((23,), lambda i, d=d: x[i].cast(d)) for d in DTYPES]  # noqa: E731
    found = check(types, body, isa, last_vectorized, inputs=[x], exact=True)
    assert len(found) == len(DTYPES)


@ISAS
@pytest.mark.parametrize("dtype", [i8, i64, u8, f32, f16], ids=str)
def test_arithmetic(isa: Isa, dtype: DType) -> None:
    names = [
        name
        for name, op in scalar.BINARY.items()
        if dtype.kind in op.kinds and name not in ("pow", "atan2", "shl", "shr")
    ]
    types = [TensorType(dtype, (39,))] * 2
    x, y = data(types, {})
    y = data(types, {}, seed=1)[1]
    y[y == 0] = 1
    if dtype.kind == "int":
        x[:3], y[:3] = np.iinfo(dtype.numpy).min, [-1, 1, 7]
    body = lambda t, a, b: [t.compute((39,), lambda i, f=f: a[i].apply(f, b[i])) for f in names]  # noqa: E731
    check(types, body, isa, last_vectorized, inputs=[x, y], exact=dtype.kind in ("int", "uint"))


@ISAS
def test_division_by_zero_does_not_trap(isa: Isa) -> None:
    names = ("div", "floordiv", "mod", "rem")
    types = [TensorType(i32, (20,))] * 2
    x, y = data(types, {})
    y[:] = 0
    check(
        types,
        lambda t, a, b: [t.compute((20,), lambda i, f=f: a[i].apply(f, b[i])) for f in names],
        isa,
        last_vectorized,
        inputs=[x, y],
    )


@ISAS
def test_remainders_of_floats(isa: Isa) -> None:
    x = np.array([5.5, -5.5, 1e30, 3.0, 0.0, -0.0, 1e-40, 7.0, np.inf, 2.0, 1.0, -1.0, 1.0], np.float32)
    y = np.array([2.0, 2.0, 3.0, np.inf, 2.0, 2.0, 3e-41, -2.5, 2.0, 0.0, 0.1, np.inf, np.nan], np.float32)
    types = [TensorType(f32, x.shape)] * 2

    def body(t: Any, a: Any, b: Any) -> list[Any]:
        return [t.compute(x.shape, lambda i, f=f: a[i].apply(f, b[i])) for f in ("rem", "mod", "floordiv")]

    rem, _, quotient = check(types, body, isa, last_vectorized, inputs=[x, y], exact=True)
    np.testing.assert_array_equal(rem, np.fmod(x, y))
    np.testing.assert_array_equal(quotient[10], np.float32(9.0))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.signbit(quotient[:10]), np.signbit(np.floor_divide(x, y)[:10]))
    assert np.signbit(rem[5])


@ISAS
def test_shifts(isa: Isa) -> None:
    for dtype in (i32, u8, i64):
        x = data([TensorType(dtype, (21,))], {})[0]
        amount = (np.arange(21) * 3 % (dtype.bits + 5)).astype(dtype.numpy)
        body = lambda t, a, b: [t.compute((21,), lambda i, f=f: a[i].apply(f, b[i])) for f in ("shl", "shr")]  # noqa: E731
        check([TensorType(dtype, (21,))] * 2, body, isa, last_vectorized, inputs=[x, amount], exact=True)


@ISAS
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_functions(isa: Isa, dtype: DType) -> None:
    names = [name for name, op in scalar.UNARY.items() if "float" in op.kinds]
    x = np.random.default_rng(0).random(21).astype(dtype.numpy) * 0.9 + 0.05
    x = x.astype(dtype.numpy)
    body = lambda t, a: [  # noqa: E731
        t.compute((21,), lambda i, f=f: (a[i] + 1.0 if f == "acosh" else a[i]).apply(f)) for f in names
    ]
    check([TensorType(dtype, (21,))], body, isa, last_vectorized, inputs=[x])


@ISAS
def test_integer_and_boolean_functions(isa: Isa) -> None:
    for dtype in (i8, i32, i64, u8):
        names = [name for name, op in scalar.UNARY.items() if dtype.kind in op.kinds]
        check(
            [TensorType(dtype, (19,))],
            lambda t, a, f=names: [t.compute((19,), lambda i, f=f: a[i].apply(f)) for f in f],
            isa,
            last_vectorized,
            exact=True,
        )
    names = [name for name, op in scalar.BINARY.items() if "bool" in op.kinds]
    check(
        [TensorType(boolean, (19,))] * 2,
        lambda t, a, b: [
            t.compute((19,), lambda i: ~a[i]),
            *(t.compute((19,), lambda i, f=f: a[i].apply(f, b[i])) for f in names),
        ],
        isa,
        last_vectorized,
    )


@ISAS
def test_bitcasts(isa: Isa) -> None:
    check(
        [TensorType(f32, (19,))],
        lambda t, a: [t.compute((19,), lambda i: a[i].bitcast(i32))],
        isa,
        last_vectorized,
        exact=True,
    )
    from tilewright.ir.types import u16

    for dtype in (f16, bf16):
        check(
            [TensorType(dtype, (19,))],
            lambda t, a: [
                t.compute((19,), lambda i: a[i].bitcast(u16)),
                t.compute((19,), lambda i: a[i].bitcast(u16).bitcast(a.dtype)),
            ],
            isa,
            last_vectorized,
            exact=True,
        )


def test_every_float16_is_converted_exactly() -> None:
    """Without conversion instructions, all values are converted to float32 and back exactly."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    types = [TensorType(f16, (1 << 16,))]
    body = lambda t, a: [  # noqa: E731
        t.compute((1 << 16,), lambda i: a[i].cast(f32)),
        t.compute((1 << 16,), lambda i: a[i].cast(f32).cast(f16)),
    ]
    group = make_group(types, body)
    assert not NARROW.half
    found, _ = run_kernel(scheduled(group, last_vectorized), NARROW, [x], {})
    np.testing.assert_array_equal(found[0], x.astype(np.float32))
    np.testing.assert_array_equal(found[1][~np.isnan(x)].view(np.uint16), x[~np.isnan(x)].view(np.uint16))
    assert np.isnan(found[1][np.isnan(x)]).all()


# -- Conditions, scatters, symbols ---------------------------------------------------------------------------


@ISAS
def test_conditions(isa: Isa) -> None:
    """`loop.if` in a vector loop may depend on its variable and on an outer one."""
    kernel = loop.Kernel(sym_name="kernel")
    x, y = (kernel.body.add_arg(BufferType(f32, (6, 37))) for _ in range(2))
    i, j = symbol("i", 0, 5), symbol("j", 0, 36)
    rows, columns = loop.For(iv=i), loop.For(iv=j, kind="vectorize")
    kernel.body.append(rows)
    rows.body.append(columns)
    inner = Builder(columns.body)
    inner.insert(loop.Store(inner(scalar.Constant(value=-1.0, dtype=f32)), y, (), indices=(i, j)))
    condition = loop.If(conditions=(j - 3, 30 - j - i, i - 1))
    inner.insert(condition)
    body = Builder(condition.body)
    body.insert(loop.Store(body(loop.Load(x, (), None, indices=(i, j - 3))), y, (), indices=(i, j)))
    inputs = data([TensorType(f32, (6, 37))], {})
    (wanted,) = interpreted(kernel, inputs, {})
    found, _ = run_kernel(kernel, isa, inputs, {})
    assert -1 in wanted and len(np.unique(wanted)) > 30
    np.testing.assert_array_equal(found[0], wanted)


@ISAS
@pytest.mark.parametrize("combiner", [None, "sum"])
def test_scatter(isa: Isa, combiner: str | None) -> None:
    """If several updates have the same place, the last one is kept, or all are combined. Updates out of range
    are dropped.
    """
    types = [TensorType(f32, (10,)), TensorType(i64, (25,)), TensorType(f32, (25,))]
    inputs = data(types, {})
    inputs[1] = np.random.default_rng(3).integers(-2, 12, 25)

    def body(t: Any, x: Any, where: Any, updates: Any) -> list[Any]:
        return [t.scatter(x, (25,), lambda i: (updates[i], where[i]), combiner)]

    def rule(s: Schedule) -> None:
        copy, update = (s.loops(op.sym_name)[0] for op in s.kernel.walk() if isinstance(op, loop.Block))
        s.vectorize(copy)
        with pytest.raises(ScheduleError, match="if the data give both the same index"):
            s.vectorize(update)

    group = make_group(types, body, "scatter")
    found, _ = run_kernel(scheduled(group, rule), isa, inputs, {})
    wanted = inputs[0].copy()
    for at, u in zip(inputs[1], inputs[2], strict=True):
        if 0 <= at < 10:
            wanted[at] = u if combiner is None else wanted[at] + u
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)


@ISAS
def test_brgemm(isa: Isa) -> None:
    """A contraction tile has its epilogue in place, and its rows are divided into pieces."""
    types = [TensorType(f32, (m, 24)), TensorType(f32, (24, 32)), TensorType(f32, (32,))]

    def body(t: Any, a: Any, b: Any, bias: Any) -> list[Any]:
        product = t.reduce("sum", (m, 32), (24,), lambda i, j, r: a[i, r] * b[r, j])
        return [t.compute((m, 32), lambda i, j: (product[i, j] + bias[j]).max(0.0))]

    def rule(s: Schedule) -> None:
        rows, columns = s.loops("map")
        ro, _ = s.split(rows, 6)
        s.parallel(ro)
        r, c, k = s.compute_at("reduce", ro)
        s.vectorize(columns)
        s.write_into("reduce", "map")
        s.tensorize("reduce", r, c, (), k, 32)

    for size in (1, 6, 20):
        check(types, body, isa, rule, {"m": size}, pieces=2)


def test_scratch_bound_of_loop_dependent_sizes() -> None:
    outer = symbol("o", 0, (n + 31) // 32 - 1)
    assert upper_bound(smin(32, n - outer * 32), frozenset({n})) == smin(32, n)
    assert upper_bound((outer + 1) * m, frozenset({n, m})) == ((n + 31) // 32) * m
    assert upper_bound(symbol("free", 0, None) * 2, frozenset({n})) is None


def test_inner_loop_of_an_avx512_kernel() -> None:
    """The inner loop has full-width vectors, no spills, and no address arithmetic but the counter."""
    from tilewright.targets.cpu.isa import X86_64_V4
    from tilewright.targets.llvm.toolchain import assembly

    types = [TensorType(f32, (m, 768)), TensorType(f32, (m, 768))]
    elementwise = lambda t, x, y: [t.compute((m, 768), lambda i, j: (x[i, j] * y[i, j] + 1.0).max(0.0))]  # noqa: E731
    row_sum = lambda t, x, y: [t.reduce("sum", (m,), (768,), lambda i, r: x[i, r] * y[i, r])]  # noqa: E731
    for body in (elementwise, row_sum):
        code = print_kernel(scheduled(make_group(types, body), rows_parallel), X86_64_V4, "kernel")
        text = assembly("\n".join([*code.helpers.values(), code.text]), X86_64_V4)
        inner = _innermost_loop(text)
        assert sum("%zmm" in line for line in inner) >= 8
        assert not any("%rsp" in line for line in inner)
        integer = [line for line in inner if "%zmm" not in line]
        assert len(integer) <= 3, integer  # count, compare and branch


def _innermost_loop(text: str) -> list[str]:
    """Return the instructions from a label to the first backward jump to it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    for at, line in enumerate(lines):
        if line.startswith("j"):
            label = line.split()[-1] + ":"
            before = [k for k in range(at) if lines[k].startswith(label)]
            if before and any("zmm" in x for x in lines[before[-1] : at]):
                return [x for x in lines[before[-1] + 1 : at + 1] if not x.startswith(".")]
    raise AssertionError("no loop")


@ISAS
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i8, boolean], ids=str)
def test_steps_backward_and_by_two(isa: Isa, dtype: DType) -> None:
    """Reversed reads and stores, and those of every second element, are right in whole vectors and tails up
    to the ends of the buffer.
    """
    for length in (1, 2, 31, 64, 129, 160):
        x = TensorType(dtype, (3, length))
        check(
            [x],
            lambda t, a, m=length: [t.compute((3, m), lambda i, j: a[i, m - 1 - j])],
            isa,
            last_vectorized,
            exact=True,
        )
        half = -(-length // 2)
        check(
            [x],
            lambda t, a, h=half: [t.compute((3, h), lambda i, j: a[i, 2 * j])],
            isa,
            last_vectorized,
            exact=True,
        )
        odd = length // 2
        if odd:
            check(
                [x],
                lambda t, a, h=odd: [t.compute((3, h), lambda i, j: a[i, 2 * j + 1])],
                isa,
                last_vectorized,
                exact=True,
            )


@ISAS
def test_loads_whose_guard_never_holds(isa: Isa) -> None:
    """The code reads no memory for them: bounds of loop variables tell that the guard fails."""

    def body(t: Any, x: Any) -> list[Any]:
        return [t.compute((3, 40), lambda j, i: x.at(j, i, guard=(i - 40 - j,), otherwise=2.5))]

    types = [TensorType(f32, (3, 80))]
    text = print_kernel(scheduled(make_group(types, body), last_vectorized), isa, "kernel").text
    assert "load <" not in text and "masked.load" not in text and "load float" not in text
    (found,) = check(types, body, isa, last_vectorized, exact=True)
    assert (found == 2.5).all()

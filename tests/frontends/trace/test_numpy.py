"""Functions on tensors give NumPy's results: eagerly, through NumPy's own functions, and compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance import numpy_names
from tests.conformance.coverage import PAGE

import tilewright as tw

rng = np.random.default_rng(0)
DATA: dict[str, np.ndarray] = {
    "x": rng.standard_normal((3, 4)).astype(np.float32),
    "y": rng.standard_normal((3, 4)).astype(np.float32),
    "z": rng.standard_normal((2, 3, 4)).astype(np.float32),
    "v": rng.standard_normal(4).astype(np.float32),
    "u": rng.uniform(0.1, 0.9, (3, 4)).astype(np.float32),
    "n": rng.integers(-5, 9, (3, 4)).astype(np.int32),
    "m": rng.integers(1, 5, (3, 4)).astype(np.int32),
    "k": rng.integers(0, 3, (2, 5)),
    "b": rng.random((3, 4)) > 0.5,
    "c": rng.random((3, 4)) > 0.5,
    "h": np.where(rng.random((3, 4)) > 0.7, np.nan, rng.standard_normal((3, 4))).astype(np.float32),
    "w": np.array([np.nan, np.inf, -np.inf, 2.5, -3.5, 0.0], np.float32),
}
CASES: dict[str, list[str]] = {
    "elementwise": [
        *(
            f"xp.{f}(u)"
            for f in "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan "
            "sinh cosh tanh "
            "arcsinh arctanh".split()
        ),
        *(
            f"xp.{f}(x)"
            for f in "floor ceil trunc rint abs negative sign square reciprocal cbrt deg2rad "
            "rad2deg positive".split()
        ),
        *(f"xp.{f}(n)" for f in "floor abs negative sign square invert logical_not isnan isfinite".split()),
        *(f"xp.{f}(w)" for f in "isnan isinf isfinite sign floor nan_to_num".split()),
        "xp.round(x, 2)",
        "xp.arccosh(1 + u)",
        "xp.clip(x, -0.5, 0.5)",
        "xp.clip(n, None, 3)",
        "xp.where(b, x, y)",
        "xp.where(b, x, 0)",
    ],
    "binary": [
        *(
            f"xp.{f}(x, y)"
            for f in "add subtract multiply divide floor_divide remainder fmod minimum maximum "
            "fmin fmax arctan2 "
            "hypot logaddexp heaviside".split()
        ),
        *(f"xp.{f}(x, v)" for f in "add equal not_equal less less_equal greater greater_equal".split()),
        *(
            f"xp.{f}(n, m)"
            for f in "add subtract multiply floor_divide remainder fmod minimum maximum power bitwise_and "
            "bitwise_or bitwise_xor left_shift right_shift".split()
        ),
        *(
            f"xp.{f}(b, c)"
            for f in "add multiply logical_and logical_or logical_xor bitwise_and bitwise_xor "
            "equal maximum".split()
        ),
        "xp.power(u, y)",
        "u ** 2",
        "u ** -0.5",
        "2 ** x",
        "1 - x",
        "2 / u",
        "x // 0.5",
        "x % 0.3",
        "n + 3",
        "7 - n",
        "n % 4",
        "-n // 3",
        "~b",
        "abs(x)",
        "x + n.astype('int8')",
        "x * b",
        "b + 2",
        "x @ y.T",
        "x @ v",
        "(x > 0) & (y > 0)",
        "xp.isclose(x, x + 1e-9)",
    ],
    "reduction": [
        *(
            f"xp.{f}(z{a})"
            for f in "sum mean max min prod var std argmax argmin ptp all any count_nonzero".split()
            for a in ("", ", axis=1", ", axis=-1, keepdims=True")
            if not (f in ("ptp",) and "keepdims" in a)
        ),
        *(f"xp.{f}(n, axis=0)" for f in "sum max min prod mean argmax cumsum cumprod".split()),
        "xp.sum(b)",
        "xp.max(b, axis=0)",
        "z.sum((0, 2))",
        "xp.cumsum(x)",
        "xp.cumsum(z, axis=1)",
        "xp.var(z, axis=0, ddof=1)",
        "xp.nansum(w[:1])",
        "xp.average(x, axis=1, weights=v + 9)",
        "xp.median(z, axis=1)",
        "xp.median(x)",
        "xp.sort(x)",
        "xp.sort(n, axis=0)",
        "xp.argsort(x, axis=0)",
        "xp.sort(w)",
    ],
    "shape": [
        "xp.reshape(z, (4, -1))",
        "z.reshape(2, 12)",
        "xp.ravel(z)",
        "xp.transpose(z)",
        "z.transpose(1, 0, 2)",
        "z.T",
        "xp.swapaxes(z, 0, 2)",
        "xp.moveaxis(z, 0, -1)",
        "xp.moveaxis(z, (0, 1), (2, 0))",
        "xp.expand_dims(x, 1)",
        "xp.squeeze(x[None])",
        "xp.broadcast_to(v, (3, 4))",
        "xp.concatenate([x, y])",
        "xp.concatenate([x, n], axis=1)",
        "xp.stack([x, y], axis=-1)",
        "xp.vstack([x, v])",
        "xp.hstack([x, y])",
        "xp.column_stack([v, v])",
        "xp.split(z, 2, axis=2)[1]",
        "xp.array_split(v, 3)[0]",
        "xp.tile(x, (2, 3))",
        "xp.tile(v, (2, 1))",
        "xp.repeat(x, 2, axis=1)",
        "xp.repeat(x, 3)",
        "xp.repeat(x, [1, 0, 2], axis=0)",
        "xp.flip(z)",
        "xp.flip(z, 1)",
        "xp.roll(x, 1)",
        "xp.roll(z, (1, -2), (0, 2))",
        "xp.rot90(x)",
        "xp.rot90(x, 3)",
        "xp.pad(x, 1)",
        "xp.pad(x, ((1, 0), (0, 2)), mode='edge')",
        "xp.pad(x, (1, 2), mode='reflect')",
        "xp.tril(x)",
        "xp.triu(z, 1)",
        "xp.diagonal(z, 1, 1, 2)",
        "xp.diagonal(x, -1)",
        "xp.diag(v)",
        "xp.diag(v, 2)",
        "xp.diag(v, -1)",
        "xp.diag(x)",
        "xp.trace(x)",
        "xp.diff(x)",
        "xp.diff(z, 2, axis=0 + 2)",
        "xp.meshgrid(v, x[0])[1]",
        "xp.zeros_like(n)",
        "xp.full_like(x, 3)",
        "xp.ones_like(b)",
        "xp.kron(x, y[:2, :2])",
        "xp.broadcast_arrays(x, v)[1]",
    ],
    "index": [
        "z[0]",
        "z[-1, 1:]",
        "z[..., 0]",
        "z[:, None, ::2]",
        "z[::-1, ::-2]",
        "z[1, ..., 1:3]",
        "z[:, -2:, :1]",
        "x[5:]",
        "x[2:1]",
        "z[k % 2]",
        "x[k]",
        "x[:, k]",
        "x[k, 1]",
        "x[k[:, :3], k[:, 2:]]",
        "z[:, k[0], k[1]]",
        "z[k[0] % 2, :, k[1]]",
        "z[0, :, k[1]]",
        "z[None, :, k[0], None]",
        "x[[0, 2]]",
        "x[-k - 1]",
        "xp.take(x, k, axis=0)",
        "xp.take(x, k)",
        "xp.take_along_axis(x, n[:, :2] % 4, axis=1)",
        "xp.isin(n, m[0])",
        "xp.searchsorted(xp.sort(v), x)",
    ],
    "product": [
        "xp.matmul(z, y.T)",
        "z @ x.T",
        "v @ x.T",
        "n @ m.T",
        "xp.dot(x, v)",
        "xp.dot(z, v)",
        "xp.inner(x, y)",
        "xp.outer(v, v)",
        "xp.vdot(x, y)",
        "xp.tensordot(z, x, ([1, 2], [0, 1]))",
        "xp.tensordot(x, y.T, 1)",
        "xp.einsum('ij,kj->ik', x, y)",
        "xp.einsum('bij,ij->b', z, x)",
        "xp.einsum('ii->i', x[:3, :3])",
        "xp.einsum('ij->', x)",
        "xp.einsum('bij,kj,lk->bil', z, x, z[:, :, 0])",
        "xp.einsum('...i,i', z, v)",
        "xp.cross(x[:, :3], y[:, 1:])",
    ],
    "composed": [
        *(
            f"xp.{f}(h{a})"
            for f in "nanmax nanmin nanprod nanvar nanstd nanargmax nanargmin nancumsum nancumprod".split()
            for a in ("", ", axis=1")
        ),
        "xp.nanmax(n)",
        "xp.nanmin(xp.where(b[:, :1], h, xp.nan), axis=1)",
        "xp.quantile(x, 0.3)",
        "xp.quantile(z, [0, 0.25, 1], axis=1)",
        "xp.quantile(z, 0.5, axis=-1, keepdims=True)",
        "xp.percentile(n, [10, 90], axis=0)",
        "xp.percentile(h, 50, axis=1)",
        "xp.cov(x)",
        "xp.cov(x, rowvar=False, ddof=0)",
        "xp.cov(v, x[0])",
        "xp.corrcoef(x, y)",
        "xp.trapezoid(x)",
        "xp.trapezoid(z, dx=0.5, axis=1)",
        "xp.trapezoid(x, v)",
        "xp.cumulative_sum(x, axis=0)",
        "xp.cumulative_prod(v)",
        "xp.select([x > 1, x > 0], [x, n], 7)",
        "xp.isneginf(w)",
        "xp.isposinf(w)",
        "xp.logaddexp2(x, y)",
        "xp.sinc(x)",
        "xp.sinc(w[-1:])",
        "xp.conjugate(x)",
        "xp.interp(x, [-1, 0, 0.5, 2], [3, 1, 4, 1])",
        "xp.digitize(x, [-1, 0, 1])",
        "xp.digitize(n, m[0] * 0 + xp.arange(4), right=True)",
        "xp.delete(x, [0, 2], axis=1)",
        "xp.delete(v, 1)",
        "xp.append(x, y)",
        "xp.append(x, y, axis=1)",
        "xp.atleast_3d(v)",
        "xp.atleast_3d(x)",
        "xp.dstack([v, v])",
        "xp.dstack([x, y])",
        "xp.vsplit(x, 3)[1]",
        "xp.hsplit(x, [1, 2])[1]",
        "xp.hsplit(v, 2)[1]",
        "xp.dsplit(z, 2)[0]",
        "xp.diagflat(x[:2, :2], 1)",
        "xp.vecdot(x, y)",
        "xp.matvec(z, v)",
        "xp.vecmat(v, z.transpose(0, 2, 1))",
        "xp.linalg.multi_dot([x, y.T, x])",
        "xp.linalg.trace(z)",
        "xp.linalg.diagonal(z, offset=1)",
        "xp.linalg.outer(v, v)",
        "xp.linalg.norm(x)",
    ],
}
OF_DATA = [
    "x[x > 0]",
    "z[:, b]",
    "xp.nonzero(n)[1]",
    "xp.argwhere(b)",
    "xp.compress(b[:, 0], x, axis=0)",
    "xp.extract(b, x)",
    "x[b[:, 1]]",
]


def evaluate(text: str, xp: Any, data: dict[str, Any]) -> Any:
    return eval(text, {"xp": xp, "abs": abs, **data})


def same(result: Any, expected: Any, text: str) -> None:
    """Check for equal values, shapes and types; where NumPy computes in float64, tensors have float32."""
    result, expected = np.asarray(result), np.asarray(expected)
    wanted = np.float32 if expected.dtype == np.float64 else expected.dtype
    assert result.dtype == wanted, f"{text}: {result.dtype} for {expected.dtype}"
    assert result.shape == expected.shape, f"{text}: {result.shape} for {expected.shape}"
    np.testing.assert_allclose(result, expected, rtol=3e-5, atol=3e-5, err_msg=text)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", [*(t for group in CASES.values() for t in group), *OF_DATA])
def test_at_once(text: str) -> None:
    expected = evaluate(text, np, DATA)
    tensors = {n: tw.Tensor(a) for n, a in DATA.items()}
    same(evaluate(text, tw.numpy, tensors), expected, text)
    # NumPy's own functions, called on tensors, give the same results.
    result = evaluate(text, np, tensors)
    assert isinstance(result, tw.Tensor)
    same(result, expected, text)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("group", [*CASES, "of data"])
def test_compiled(group: str) -> None:
    texts = CASES.get(group, OF_DATA)

    def run(**data: Any) -> dict[str, Any]:
        return {f"r{k}": evaluate(t, tw.numpy, data) for k, t in enumerate(texts)}

    compiled_result = tw.jit(run)(**DATA)
    for text, result in zip(texts, compiled_result.values(), strict=True):
        same(result, evaluate(text, np, DATA), text)


MADE: list[Callable[[Any], Any]] = [
    lambda xp: xp.arange(5),
    lambda xp: xp.arange(2, 9, 3),
    lambda xp: xp.arange(7, 0, -2),
    lambda xp: xp.arange(0.0, 1.0, 0.25),
    lambda xp: xp.zeros((2, 3)),
    lambda xp: xp.ones(3, dtype="int32"),
    lambda xp: xp.full((2, 2), 7),
    lambda xp: xp.eye(3, 4, 1),
    lambda xp: xp.identity(3),
    lambda xp: xp.tri(3, 4),
    lambda xp: xp.linspace(0, 1, 7),
]


@pytest.mark.parametrize("make", MADE)
def test_functions_that_create_arrays(make: Callable[[Any], Any]) -> None:
    same(make(tw.numpy), make(np), "")


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_updates(method: str) -> None:
    x, rows = DATA["x"], np.array([2, 0])

    def places(rows: Any) -> Any:
        return 1, (slice(None), 2), (rows, slice(1, 3)), (rows, rows), rows, rows[:, None] - 3, (rows, ...)

    def update(x: Any, rows: Any) -> Any:
        return [getattr(x.at[i], method)(0.5) for i in places(rows)]

    function = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}.get(method)
    for run in (update, tw.jit(update)):
        for i, result in zip(places(rows), run(tw.Tensor(x), tw.Tensor(rows)), strict=True):
            expected = x.copy()
            expected[i] = 0.5 if function is None else function(expected[i], np.float32(0.5))
            same(result, expected, method)


@pytest.mark.parametrize("accumulate", [False, True])
def test_updates_of_whole_slices(accumulate: bool) -> None:
    """Arrays in front, behind, in the middle and apart, with values in the shape that indexing gives."""
    rng = np.random.default_rng(0)
    x = rng.random((3, 4, 5, 6), np.float32)
    i, j, k = np.array([[2, 0], [1, -1]]), np.array([[3], [1]]), np.array([4, -3])
    every = slice(None)
    places = [
        (i, every, every, j),
        (every, j),
        (every, j, k),
        (every, every, every, k),
        (i, every, k),
        (every, i, every, k),
        (every, 0 * i + np.arange(4).reshape(2, 2), every, j),
    ]
    values = [rng.random(x[index].shape, np.float32) for index in places]

    def update(x: Any, values: Any) -> Any:
        updates = [x.at[index] for index in places]
        return [(u.add if accumulate else u.set)(v) for u, v in zip(updates, values, strict=True)]

    for run in (update, tw.jit(update)):
        results = run(tw.Tensor(x), [tw.Tensor(v) for v in values])
        for index, v, result in zip(places, values, results, strict=True):
            expected = x.copy()
            if accumulate:
                np.add.at(expected, index, v)
            else:
                expected[index] = v
            same(result, expected, str(index))


def test_updates_outside_are_refused() -> None:
    """An update out of range is refused, as in NumPy. Without checks the index is clamped, and nothing is
    written outside of the tensor.
    """
    x, rows = DATA["x"], np.array([99, -99])

    def update(x: Any, rows: Any) -> Any:
        return x.at[rows].set(0.5), x.at[rows, 1].set(0.5)

    with pytest.raises(IndexError, match="outside of -3 .. 2"):
        tw.jit(update)(tw.Tensor(x), tw.Tensor(rows))
    with tw.compile(update, (x, rows), checks=False, cache=False) as library:
        for result, index in zip(library(x, rows), ([-1, 0], ([-1, 0], 1)), strict=True):
            expected = x.copy()
            expected[index] = 0.5
            same(result, expected, "")


def test_types() -> None:
    half, single, byte = (tw.Tensor(np.ones(2, t)) for t in ("float16", "float32", "int8"))
    bf16 = tw.Tensor([1.0, 2.0], "bfloat16")
    for result, dtype in (
        (half + 1.5, "float16"),
        (half + np.float64(2), "float16"),
        (single * 2, "float32"),
        (single / np.sqrt(64), "float32"),
        (half + single, "float32"),
        (half + bf16, "float32"),
        (bf16 * 3, "bfloat16"),
        (byte + 1, "int8"),
        (byte + 0.5, "float32"),
        (byte / 2, "float32"),
        (half + byte, "float16"),
        (half + np.float32(2), "float32"),
        (byte + np.int64(3), "int64"),
        (byte + tw.Tensor(np.ones(2, "uint8")), "int16"),
        (tw.Tensor(True) + 1, "int64"),
        (tw.Tensor(1.0), "float32"),
        (tw.Tensor(1), "int64"),
    ):
        assert result.dtype == np.dtype(dtype)
    with pytest.raises(OverflowError):
        byte + 300
    with pytest.raises(tw.ShapeError, match="int64 and uint64"):
        tw.Tensor(1) + tw.Tensor(np.uint64(1))[None]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, v: np.add.reduce(x),
        lambda x, v: np.multiply.reduce(x, axis=1, keepdims=True),
        lambda x, v: np.maximum.reduce(x, (0, 1)),
        lambda x, v: np.add.accumulate(x, 1),
        lambda x, v: np.multiply.accumulate(v),
        lambda x, v: np.subtract.outer(v, x),
        lambda x, v: np.logical_or.reduce(x > 1, axis=None),
    ],
)
def test_methods_of_ufuncs(call: Callable[..., Any]) -> None:
    result = call(tw.Tensor(DATA["x"]), tw.Tensor(DATA["v"]))
    assert isinstance(result, tw.Tensor)
    same(result, call(DATA["x"], DATA["v"]), "")
    same(tw.jit(call)(DATA["x"], DATA["v"]), call(DATA["x"], DATA["v"]), "")


def test_norms() -> None:
    x = tw.Tensor(DATA["x"])
    for arguments in ((), (None, 1), (1, 0), (np.inf, -1), (3, 1, True), ("fro",)):
        result = np.linalg.norm(x, *arguments)
        assert isinstance(result, tw.Tensor)
        same(result, np.linalg.norm(DATA["x"], *arguments), str(arguments))


def test_the_list_of_missing_functions_is_current() -> None:
    listed = json.loads(numpy_names.DATA.read_text())
    if listed["numpy"] != np.__version__:
        pytest.skip("the list is of another release of NumPy")
    assert numpy_names.outcome() == listed
    assert all(name in PAGE.read_text() for name in listed["lacks"])


def test_refusals() -> None:
    x = tw.Tensor(DATA["x"])
    with pytest.raises(tw.ShapeError, match="do not broadcast"):
        x + tw.Tensor([1.0, 2.0])
    with pytest.raises(IndexError, match="index 3 is outside"):
        x[3]
    with pytest.raises(IndexError, match="index 9 is outside"):
        x[tw.Tensor([0, 9])]
    with pytest.raises(IndexError, match="3 indices"):
        x[0, 0, 0]
    with pytest.raises(TypeError, match=r"x\.at\[index\]\.set"):
        x[0] = 1
    with pytest.raises(TypeError, match=r"numpy\.linalg\.inv is not implemented"):
        np.linalg.inv(x)
    with pytest.raises(TypeError, match="order 2"):
        np.linalg.norm(x, 2)
    with pytest.raises(TypeError, match="norms of vectors of order 'fro'"):
        np.linalg.norm(x[0], "fro")
    with pytest.raises(TypeError, match="two alternatives"):
        np.where(x > 0, x)
    with pytest.raises(TypeError, match=r"numpy\.add\.at is not implemented"):
        np.add.at(x, [0], 1)
    with pytest.raises(TypeError, match=r"numpy\.divide\.reduce is not implemented"):
        np.divide.reduce(x)
    with pytest.raises(
        TypeError,
        match=r"numpy\.sum of tilewright\.Tensor takes .*axis.*: got an unexpected keyword argument 'where'",
    ):
        np.sum(x, where=DATA["b"])
    with pytest.raises(TypeError, match="'out' is not supported"):
        np.add(x, x, out=np.zeros((3, 4), np.float32))
    with pytest.raises(tw.ShapeError, match="axis 5"):
        x.sum(5)
    with pytest.raises(TypeError):
        tw.Tensor(["a"])

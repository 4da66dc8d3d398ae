"""Elements of 8 and 16 bits in the words of WebGPU's buffers: every narrow type, neighbours that other
threads write, slices that begin inside of a word, copies of odd sizes, states and weights of artifacts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.devices import need

import tilewright as tw
import tilewright.numpy as tnp

RNG = np.random.default_rng(7)
FLOATS = "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"
INTEGERS = "int8", "uint8", "int16", "uint16"


@pytest.fixture(autouse=True)
def adapter() -> None:
    need("webgpu")


def compiled(model: Any, args: tuple[Any, ...], target: str = "webgpu", **options: Any) -> Any:
    return tw.compile(model, args, target=target, cache=False, **options)


def drawn(dtype: str, *shape: int) -> Any:
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    return (RNG.standard_normal(shape) * 4).astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_bits_of_moved_elements(dtype: str) -> None:
    """Rows of 5 elements share words. A transpose lets each thread write beside other threads' elements."""
    x = drawn(dtype, 7, 5)
    found = compiled(lambda x: (tnp.transpose(x, (1, 0)), x[1:6], x[3]), (x,))(x)
    for f, wanted in zip(found, (x.T, x[1:6], x[3]), strict=True):
        assert f.dtype == x.dtype and f.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize(
    ("dtype", "target"), [("float16", "webgpu"), ("bfloat16", "webgpu"), ("float16", "webgpu:f16")]
)
def test_floats_are_rounded_as_numpy_does(dtype: str, target: str) -> None:
    """Numbers that are subnormal in the type, halfway between two of its numbers, too large, or NaN."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = drawn("float16", 3, 333).astype(np.float32) * np.float32([[1e-6], [1.0], [2e4]])
    half = np.arange(1, 65, dtype=np.float32) + np.float32(2**-9)
    x = np.concatenate([x.reshape(-1), half, np.float32([np.nan, np.inf, -np.inf, -0.0, 65519, 65520])])
    with np.errstate(over="ignore"):
        y = x.astype(kind)
        added = (y.astype(np.float32) + np.float32(kind.type(0.3))).astype(kind)
    found = compiled(lambda x, y: (x.astype(dtype), y + 0.3, y.astype("float32")), (x, y), target)(x, y)
    for f, wanted in zip(found, (y, added, y.astype(np.float32)), strict=True):
        assert f.dtype == wanted.dtype
        np.testing.assert_array_equal(f.astype(np.float32), wanted.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(f), np.signbit(wanted))


def test_elements_of_float16_are_those_of_the_language() -> None:
    """With the feature f16, elements are no parts of words, and four are read at once."""
    a, b = drawn("float16", 64, 32), drawn("float16", 32, 48)
    model = lambda a, b: (tnp.maximum(a @ b, 0), tnp.transpose(a, (1, 0)), a[3], b + 1)  # noqa: E731
    library = compiled(model, (a, b), "webgpu:f16")
    text = library.code_text("wgsl")
    assert library.metadata["target"] == {"name": "webgpu", "features": ["f16"]}
    assert "enable f16;" in text and "array<vec4<f16>>" in text and "atomic<u32>" not in text
    product, moved, row, more = library(a, b)
    wide = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    np.testing.assert_allclose(product.astype(np.float64), wide, rtol=2**-10, atol=1e-3)
    np.testing.assert_array_equal(moved, a.T)
    np.testing.assert_array_equal(row, a[3])
    np.testing.assert_array_equal(more, b + np.float16(1))


def test_features_of_the_target_are_told() -> None:
    with pytest.raises(tw.CompileError, match="unknown feature 'f8' of webgpu"):
        compiled(lambda x: x + 1, (drawn("float16", 4),), "webgpu:f8")


@pytest.mark.parametrize("dtype", [*INTEGERS, "bfloat16"])
def test_products_and_sums(dtype: str) -> None:
    """Tiles in shared memory have 32 bits an element; integers wrap around as NumPy's do."""
    a, b = drawn(dtype, 37, 130), drawn(dtype, 130, 41)

    def model(a: Any, b: Any) -> Any:
        return a @ b, tnp.sum(a.astype("float32"), axis=1), tnp.max(a, axis=0)

    product, sums, most = compiled(model, (a, b))(a, b)
    wide = np.float64 if dtype == "bfloat16" else np.int64
    wanted = a.astype(wide) @ b.astype(wide)
    if dtype == "bfloat16":
        np.testing.assert_allclose(product.astype(np.float64), wanted, rtol=0, atol=2**-8 * abs(wanted).max())
    else:
        np.testing.assert_array_equal(product, wanted.astype(dtype))
    np.testing.assert_allclose(sums, a.astype(np.float64).sum(1), rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(most, a.max(0))


def test_a_loop_hands_on_odd_slices() -> None:
    """Steps read and write rows of 5 bytes of one buffer, which begin anywhere in a word."""
    x = drawn("int8", 9, 5)

    def model(x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            new = h * 3 + row
            return new, new

        return tw.scan(step, tnp.zeros((5,), dtype="int8"), x)

    state, rows = np.zeros(5, np.int8), []
    for row in x:
        state = state * np.int8(3) + row
        rows.append(state)
    last, found = compiled(model, (x,))(x)
    np.testing.assert_array_equal(last, state)
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bfloat16"])
@pytest.mark.parametrize("how", ["add", "min"])
def test_elements_are_combined_with_old_ones(dtype: str, how: str) -> None:
    """A scatter reads the element that it replaces; places repeat, and neighbours have other writers."""
    places = np.concatenate([np.arange(13), np.arange(13)[::-1], [5, 5]])
    x, values = drawn(dtype, 13), drawn(dtype, 28)
    if dtype == "bfloat16":
        x, values = (np.round(a.astype(np.float32)).astype(x.dtype) for a in (x, values))
    found = compiled(lambda x, at, v: getattr(x.at[at], how)(v), (x, places, values))(x, places, values)
    wide = x.astype(np.float32 if dtype == "bfloat16" else np.int64)
    (np.add if how == "add" else np.minimum).at(wide, places, values.astype(wide.dtype))
    np.testing.assert_array_equal(found.astype(wide.dtype), wide.astype(x.dtype).astype(wide.dtype))


def test_sizes_that_the_run_computes() -> None:
    """As many bytes as elements are positive: none, one, or no multiple of a word."""

    def model(x: Any) -> Any:
        return x[x > 0]

    library = compiled(model, (drawn("int8", 11),))
    for count in (0, 1, 6, 11):
        x = np.where(np.arange(11) < count, 1 + np.arange(11), -3).astype(np.int8)
        np.testing.assert_array_equal(library(x), x[:count])


def test_states_and_weights_of_a_loaded_artifact(tmp_path: Path) -> None:
    weight = drawn("bfloat16", 3, 7)
    seen = tw.State("seen", (7,), "int8", value=np.arange(7, dtype=np.int8))

    def model(x: Any) -> Any:
        seen.value = seen.value + (x > 0).astype("int8")
        return tw.Tensor(weight) * x, seen.value

    x = drawn("bfloat16", 7)
    library = compiled(model, (x,))
    loaded = tw.load(library.save(tmp_path / "m.tar"))
    product = (weight.astype(np.float32) * x.astype(np.float32)).astype(ml_dtypes.bfloat16)
    for runner in (library, loaded):
        for run in (1, 2):
            found, counted = runner(x)
            np.testing.assert_array_equal(found, product)
            np.testing.assert_array_equal(counted, np.arange(7) + run * (x > 0))
        np.testing.assert_array_equal(runner.state["seen"], counted)
        runner.state.reset()
        np.testing.assert_array_equal(runner.state["seen"], np.arange(7))


def test_memory_is_that_of_the_types() -> None:
    """Buffers have one byte or two an element, rounded up to whole words."""
    x = drawn("int8", 1001)
    library = compiled(lambda x: x + 1, (x,))
    np.testing.assert_array_equal(library(x), x + np.int8(1))
    assert {place.buffer.size for place in library._memory.values()} == {1004}


def test_a_loop_ends_by_a_byte() -> None:
    """Conditions of loops and branches are bytes in buffers."""

    def model(x: Any) -> Any:
        return tw.while_loop(lambda x: tnp.sum(x) < 100, lambda x: x * 2, x)

    x = np.array([1, 2, 3], np.int32)
    np.testing.assert_array_equal(np.ravel(compiled(model, (x,))(x)), 32 * x)

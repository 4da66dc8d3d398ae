"""Host programs of WebGPU: memory that kernels share, states of sessions, inputs that a model changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.devices import lacks

import tilewright as tw
import tilewright.numpy as tnp

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def adapter() -> None:
    if reason := lacks("webgpu"):
        pytest.skip(reason)


def compiled(model: Any, args: tuple[Any, ...], **options: Any) -> Any:
    return tw.compile(model, args, target="webgpu", cache=False, **options)


def test_a_loop_reads_and_writes_slices_of_one_buffer() -> None:
    """A step reads the slice that the step before it wrote, which WebGPU forbids in one dispatch."""
    weight = tw.Tensor(RNG.standard_normal((6, 6)).astype(np.float32) / 3)

    def model(x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            new = tnp.tanh(h @ weight + row)
            return new, new

        return tw.scan(step, tnp.zeros((6,), dtype="float32"), x)

    x = RNG.standard_normal((9, 6)).astype(np.float32)
    wanted = tw.compile(model, (x,), cache=False)(x)
    for found, value in zip(compiled(model, (x,))(x), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def test_sessions_have_states_of_their_own(tmp_path: Path) -> None:
    total = tw.State("total", (3,), "float32", value=[1, 2, 3])

    def add(x: Any) -> Any:
        total.value = total.value + x
        return total.value * 2

    one = np.ones(3, np.float32)
    library = compiled(add, (one,))
    loaded = tw.load(library.save(tmp_path / "adder.tar"))
    for runner in (library, loaded):
        np.testing.assert_array_equal(runner(one), [4, 6, 8])
        other = runner.session()
        np.testing.assert_array_equal(other(2 * one), [6, 8, 10])
        np.testing.assert_array_equal(runner(one), [6, 8, 10])
        np.testing.assert_array_equal(other.state["total"], [3, 4, 5])
        runner.state.reset()
        np.testing.assert_array_equal(runner.state["total"], [1, 2, 3])


def test_inputs_that_the_model_changes() -> None:
    torch = pytest.importorskip("torch")

    class Counting(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, total: Any) -> Any:
            total += x
            return total * 2

    x, total = torch.ones(4), torch.arange(4.0)
    library = compiled(Counting(), (x, total.clone()))
    for runs in (1, 2):
        np.testing.assert_array_equal(library(x, total).numpy(), 2 * (np.arange(4) + runs))
        np.testing.assert_array_equal(total.numpy(), np.arange(4) + runs)


def test_runs_of_several_sizes_share_buffers() -> None:
    """Buffers grow with the sizes and are used again for smaller ones."""
    library = compiled(
        lambda x: tw.nn.functional.softmax(x @ tnp.transpose(x, (1, 0)), -1),
        (np.ones((2, 8), np.float32),),
        dims={"x": {0: "n<=300"}},
    )
    for n in (2, 300, 1, 77):
        x = RNG.standard_normal((n, 8)).astype(np.float32)
        e = np.exp(x @ x.T - (x @ x.T).max(-1, keepdims=True))
        np.testing.assert_allclose(library(x), e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("front", "dtype"), [(0, "float32"), (3, "float32"), (0, "float16")])
def test_a_kernel_writes_parts_of_one_buffer_that_lie_between_each_other(front: int, dtype: str) -> None:
    """As where Swin merges patches; with images in `front` of them, they begin inside of the buffer."""

    def merged(xp: Any, x: Any) -> Any:
        return xp.concatenate([x[:, i::2, k::2] for k in range(2) for i in range(2)], -1)

    def model(x: Any, y: Any) -> Any:
        return tnp.concatenate([y, merged(tnp, x)], 0) if front else merged(tnp, x)

    x = RNG.standard_normal((2, 16, 16, 16)).astype(dtype)
    y = RNG.standard_normal((front, 8, 8, 64)).astype(dtype)
    library = compiled(model, (x, y))
    np.testing.assert_array_equal(library(x, y), np.concatenate([y, merged(np, x)]))


def test_a_loop_gives_one_kernel_parts_that_it_reads_and_writes() -> None:
    """The rows that a step writes lie in the buffer that holds those of all steps."""

    def model(x: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            new = tnp.concatenate([total[3:] + row[:3], total[:3] * row[3:]], 0)
            return new, tnp.concatenate([new[::2], new[1::2]], 0)

        return tw.scan(step, tnp.ones((6,), dtype="float32"), x)

    x = RNG.standard_normal((5, 6)).astype(np.float32)
    wanted = tw.compile(model, (x,), cache=False)(x)
    for found, value in zip(compiled(model, (x,))(x), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_state_is_updated_where_it_lies(dtype: str) -> None:
    """A step writes a row of the cache and copies nothing: neither the program nor the device has a copy."""
    cache = tw.State("cache", (50, 6), dtype)

    def step(row: Any, at: Any) -> Any:
        cache.value = cache.value.at[at].set(row)
        return tnp.sum(cache.value.astype("float32"), axis=1)

    rows = RNG.integers(-9, 9, (4, 6)).astype(dtype)
    library = compiled(step, (rows[0], np.array(3)))
    wanted = np.zeros((50, 6), np.float32)
    for row, at in zip(rows, (3, 49, 0, 3), strict=True):
        wanted[at] = row
        np.testing.assert_array_equal(library(row, np.array(at)), wanted.sum(1))
    np.testing.assert_array_equal(library.state["cache"], wanted.astype(dtype))
    (function,) = library._program["functions"].values()
    assert not any("copy" in step for step in function["steps"])
    assert not library._device._aside


def test_results_overwrite_what_is_not_read_again() -> None:
    """A chain of rows has one buffer of its own; kernels that overwrite their input bind it once."""
    weight = tw.Tensor(RNG.standard_normal((40, 40)).astype(np.float32) / 6)

    def model(x: Any) -> Any:
        for _ in range(3):
            x = tw.nn.functional.softmax(x @ weight, -1)
        return x @ weight

    x = RNG.standard_normal((9, 40)).astype(np.float32)
    library = compiled(model, (x,))
    wanted = tw.compile(model, (x,), cache=False)(x)
    np.testing.assert_allclose(library(x), wanted, rtol=1e-4, atol=1e-5)
    assert not library._device._aside

"""Outputs of users' kernels that are the new value of an input: written over it, or over a copy where the old
value is still needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.errors import KernelError

rng = np.random.default_rng(0)

CACHE = {"cache": tw.f32["n", "d"], "row": tw.f32["d"], "at": tw.i32[()]}


def put(cache: Any, row: Any, at: Any) -> Any:
    cache = cache.copy()
    cache[at] = row
    return cache


C_SOURCE = """
void put(int64_t n, int64_t d, const float *row, const int32_t *at, float *cache) {
    for (int64_t j = 0; j < d; j++) cache[*at * d + j] = row[j];
}
"""
CUDA_SOURCE = """
__global__ void put(float* cache, const float* row, const int* at, int d) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < d) cache[*at * d + j] = row[j];
}
"""
put_row = tw.c_kernel(
    "put",
    source=C_SOURCE,
    inputs=CACHE,
    outputs={"cache": tw.f32["n", "d"]},
    reference=put,
    gpu=[tw.gpu_source("cuda", CUDA_SOURCE, grid="ceildiv(d, 32)", block=32)],
)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def runner(library: Any, target: str) -> Callable[..., Any]:
    return library if target == "cpu" else library.simulated(checked=True)


def copies(library: Any) -> int:
    """The kernels that copy a tensor."""
    return sum("copy" in name for name in library.kernels)


TARGETS = pytest.mark.parametrize("target", ["cpu", "cuda"])


@TARGETS
def test_a_tensor_that_dies_is_written_over(target: str) -> None:
    x, row, at = normal(6, 5), normal(5), np.int32(4)
    library = tw.compile(lambda x, row, at: put_row(tnp.tanh(x), row, at) + 1, (x, row, at), target=target)
    assert copies(library) == 0
    np.testing.assert_allclose(
        runner(library, target)(x, row, at), put(np.tanh(x), row, 4) + 1, rtol=1e-5, atol=1e-6
    )


@TARGETS
def test_an_input_and_a_constant_are_copied(target: str) -> None:
    x, row, at = normal(6, 5), normal(5), np.int32(4)
    library = tw.compile(lambda *args: put_row(*args), (x, row, at), target=target)
    assert copies(library) == 1
    before = x.copy()
    np.testing.assert_array_equal(runner(library, target)(x, row, at), put(x, row, 4))
    np.testing.assert_array_equal(x, before)
    library = tw.compile(lambda row, at: put_row(tw.Tensor(x), row, at), (row, at), target=target)
    run = runner(library, target)
    np.testing.assert_array_equal(run(row, np.int32(1)), put(x, row, 1))
    np.testing.assert_array_equal(run(row, np.int32(3)), put(x, row, 3))


@TARGETS
def test_a_value_that_is_read_later_is_copied(target: str) -> None:
    x, row, at = normal(6, 5), normal(5), np.int32(2)

    def model(x: tw.Tensor, row: tw.Tensor, at: tw.Tensor) -> Any:
        old = tnp.tanh(x)
        new = put_row(old, row, at)
        return old @ tnp.swapaxes(new, 0, 1), new

    library = tw.compile(model, (x, row, at), target=target)
    old = np.tanh(x)
    product, new = runner(library, target)(x, row, at)
    np.testing.assert_allclose(new, put(old, row, 2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(product, old @ put(old, row, 2).T, rtol=1e-4, atol=1e-5)


@TARGETS
def test_several_changes_share_one_buffer(target: str) -> None:
    x, row, at = normal(6, 5), normal(5), np.int32(0)

    def model(x: tw.Tensor, row: tw.Tensor, at: tw.Tensor) -> Any:
        for k in range(3):
            x = put_row(x, row * k, at + k)
        return x

    library = tw.compile(model, (x, row, at), target=target)
    wanted = x
    for k in range(3):
        wanted = put(wanted, row * k, k)
    np.testing.assert_array_equal(runner(library, target)(x, row, at), wanted)
    (launches,) = [k.launches for k in library.kernels.values() if "copy" in k.name] or [0]
    assert launches == 1


@TARGETS
def test_a_state_is_written_where_it_lies(target: str) -> None:
    cache = tw.State("cache", (4, 3))

    def model(row: tw.Tensor, at: tw.Tensor) -> tw.Tensor:
        cache.value = put_row(cache.value, row, at)
        return tnp.sum(cache.value, 0)

    library = tw.compile(model, (normal(3), np.int32(0)), target=target)
    assert copies(library) == 0
    run = runner(library, target)
    total = np.zeros(3, np.float32)
    for at in range(4):
        row = normal(3)
        total += row
        np.testing.assert_allclose(run(row, np.int32(at)), total, rtol=1e-5, atol=1e-5)


both = tw.c_kernel(
    "both",
    source="""
void both(int64_t n, const float *other, float *b, float *a) {
    for (int64_t i = 0; i < n; i++) { a[i] += other[i]; b[i] *= 2; }
}
""",
    inputs={"a": tw.f32["n"], "b": tw.f32["n"], "other": tw.f32["n"]},
    outputs={"b": tw.f32["n"], "a": tw.f32["n"]},
    reference=lambda a, b, other: (2 * b, a + other),
    gpu=[
        tw.gpu_source(
            "cuda",
            """
__global__ void both(float* a, float* b, const float* other, int n) {
    int i = threadIdx.x;
    if (i < n) { a[i] += other[i]; b[i] *= 2; }
}
""",
            grid=1,
            block=64,
        )
    ],
)


@TARGETS
def test_one_tensor_in_all_places(target: str) -> None:
    """Each of the two outputs, and the input that stays, needs memory of its own."""
    x = normal(17)
    library = tw.compile(lambda x: both(tnp.tanh(x), tnp.tanh(x), tnp.tanh(x)), (x,), target=target)
    y = np.tanh(x)
    doubled, total = runner(library, target)(x)
    np.testing.assert_allclose(doubled, 2 * y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, 2 * y, rtol=1e-5, atol=1e-6)


@TARGETS
def test_results_of_a_concatenation(target: str) -> None:
    a, b, other = normal(8), normal(8), normal(8)
    library = tw.compile(lambda *x: tnp.concatenate(both(*x)), (a, b, other), target=target)
    wanted = np.concatenate([2 * b, a + other])
    np.testing.assert_allclose(runner(library, target)(a, b, other), wanted, rtol=1e-6)


@TARGETS
def test_states_of_two_outputs_that_trade_places(target: str) -> None:
    """Neither state can be written where it lies: each becomes what the other's memory holds."""
    one, two = tw.State("one", (8,)), tw.State("two", (8,))

    def model(x: tw.Tensor) -> tw.Tensor:
        doubled, total = both(one.value, two.value, x)
        one.value, two.value = doubled, total
        return doubled + total

    library = tw.compile(model, (normal(8),), target=target)
    run = runner(library, target)
    a = b = np.zeros(8, np.float32)
    for _ in range(4):
        x = normal(8)
        a, b = 2 * b, a + x
        np.testing.assert_allclose(run(x), a + b, rtol=1e-5, atol=1e-5)


@TARGETS
def test_in_a_loop(target: str) -> None:
    """A value that is carried from step to step."""
    rows = normal(4, 5)

    def model(rows: tw.Tensor) -> Any:
        def step(carry: Any, row: tw.Tensor) -> Any:
            cache, at = carry
            cache = put_row(cache, row, at)
            return (cache, at + 1), tnp.sum(cache)

        return tw.scan(step, (tnp.zeros((4, 5), np.float32), tnp.asarray(np.int32(0))), rows)

    library = tw.compile(model, (rows,), target=target)
    cache, at, sums = runner(library, target)(rows)
    np.testing.assert_array_equal(cache, rows)
    assert int(at) == 4
    np.testing.assert_allclose(sums, np.cumsum(rows.sum(1)), rtol=1e-4, atol=1e-5)


def test_check() -> None:
    both.check()
    wrong = tw.c_kernel(
        "wrong",
        source="void wrong(int64_t n, float *x) { for (int64_t i = 1; i < n; i++) x[i] *= 2; }",
        inputs={"x": tw.f32["n"]},
        outputs={"x": tw.f32["n"]},
        reference=lambda x: 2 * x,
    )
    with pytest.raises(KernelError, match="differs from its reference in 1 of 1 elements of 'x', with n = 1"):
        wrong.check()


def test_the_declaration_has_one_pointer() -> None:
    assert "float *__restrict cache" in put_row.header and put_row.header.count("cache") == 2
    assert "in, out cache: float32 [n, d]" in put_row.header


def test_descriptions_that_do_not_fit() -> None:
    def kernel(outputs: Any, source: str = CUDA_SOURCE) -> Any:
        return tw.gpu_kernel(
            "put",
            sources=[tw.gpu_source("cuda", source, grid=1, block=32)],
            inputs=CACHE,
            outputs=outputs,
            reference=put,
        )

    with pytest.raises(KernelError, match="'cache' has the name of an input, so it is the input's new value"):
        kernel({"cache": tw.f32["d", "n"]})
    constant = CUDA_SOURCE.replace("float* cache", "const float* cache")
    with pytest.raises(KernelError, match="cache"):
        kernel({"cache": tw.f32["n", "d"]}, constant)


def test_the_operator_of_torch_returns_a_new_tensor() -> None:
    torch = pytest.importorskip("torch")
    cache, row = torch.zeros(3, 2), torch.ones(2)
    result = put_row.torch(cache, row, torch.tensor(1, dtype=torch.int32))
    assert cache.sum() == 0 and result.sum() == 2 and result[1].sum() == 2

"""Loop programs compared with NumPy: run as Python, interpreted, and compiled for static and dynamic sizes
and for several targets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tests.devices import lacks
from tilewright.errors import OutOfRangeError, ShapeError
from tilewright.kernels.loops import language

from .loop_programs import EXAMPLES, Example, normal

CASES = [pytest.param(e, sizes, id=f"{n}-{sizes}") for n, e in EXAMPLES.items() for sizes in e.sizes]
NAMES = [pytest.param(e, id=n) for n, e in EXAMPLES.items()]


def compare(example: Example, got: Any, args: tuple[Any, ...]) -> None:
    expected = example.reference(*args)
    got = got if isinstance(got, (tuple, list)) else (got,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for y, p, wanted in zip(got, example.kernel.outputs, expected, strict=True):
        y = np.asarray(y)
        assert y.dtype == p.dtype.numpy and y.shape == wanted.shape
        np.testing.assert_allclose(
            y.astype(np.float64), wanted.astype(np.float64), rtol=example.tolerance, atol=example.tolerance
        )


@pytest.mark.parametrize(("example", "sizes"), CASES)
def test_values(example: Example, sizes: tuple[int, ...]) -> None:
    args = example.inputs(*sizes)
    if sum(x.size for x in args) < 200:
        compare(example, example.kernel.plain(*args), args)
    compare(example, example.kernel(*map(tw.Tensor, args)), args)
    compare(example, example.kernel.run(args), args)


@pytest.mark.every_isa
@pytest.mark.parametrize("example", NAMES)
def test_static_sizes(example: Example) -> None:
    args = example.inputs(*example.sizes[-1])
    compare(example, tw.compile(lambda *x: example.kernel(*x), args)(*args), args)


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "wasm32"])
@pytest.mark.parametrize("example", NAMES)
def test_targets(example: Example, target: str) -> None:
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    args = example.inputs(*example.sizes[0])
    compare(example, tw.compile(lambda *x: example.kernel(*x), args, target=target)(*args), args)


@pytest.mark.parametrize("target", ["aarch64-linux", "webgpu"])
@pytest.mark.parametrize("example", NAMES)
def test_targets_of_other_machines(example: Example, target: str) -> None:
    args = example.inputs(*example.sizes[0])
    library = tw.compile(lambda *x: example.kernel(*x), args, target=target)
    if target == "webgpu" and not lacks(target):
        compare(example, library(*args), args)


def test_a_naive_matmul_is_a_contraction() -> None:
    for name in ("matmul", "matmul_relu"):
        (kernel,) = EXAMPLES[name].kernel.library().metadata["kernels"]
        assert kernel["kind"] == "contraction" and kernel["operators"] == [name]


def test_kernels_are_fused_with_their_neighbours() -> None:
    rms = EXAMPLES["rms_norm"].kernel
    x = normal(6, 32)
    library = tw.compile(lambda x: tnp.tanh(rms(x * 2, eps=1e-3)) + 1, (x,), dims={"x": {0: "n"}}, check=True)
    (kernel,) = library.metadata["kernels"]
    assert kernel["operators"][:1] == ["rms_norm"]
    expected = np.tanh(2 * x / np.sqrt(np.square(2 * x).mean(1, keepdims=True) + 1e-3)) + 1
    np.testing.assert_allclose(library(x), expected, rtol=1e-5, atol=1e-5)


def test_a_schedule_of_ones_own() -> None:
    matmul = EXAMPLES["matmul"].kernel
    a, b = normal(64, 48), normal(48, 80)

    @tw.schedule_kernel("matmul")
    def mine(s: Any) -> None:
        i, j, k = s.loops("matmul")
        s.reorder(i, k, j)
        s.vectorize(j)

    library = tw.compile(lambda a, b: matmul(a, b), (a, b), schedules=[mine])
    np.testing.assert_allclose(library(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert "simd.brgemm" not in library.ir("loop")


def test_leading_dimensions() -> None:
    softmax = EXAMPLES["softmax"].kernel
    x = normal(2, 3, 17)
    library = tw.compile(lambda x: softmax(x), (x,), dims={"x": {0: "batch", 1: "seq"}})
    compare(EXAMPLES["softmax"], library(x), (x,))


def test_indices_outside_end_the_run(tmp_path: Path) -> None:
    gather = EXAMPLES["gather_rows"].kernel
    table = normal(4, 3)
    library = tw.compile(lambda t, i: gather(t, i), (table, np.zeros(2, np.int64)))
    loaded = tw.load(library.save(tmp_path / "gather.so"))
    for wrong in ([0, 4], [-1, 0]):
        index = np.array(wrong)
        for run in (gather.plain, library, loaded, lambda t, i: gather(tw.Tensor(t), tw.Tensor(i))):
            with pytest.raises(OutOfRangeError, match="outside of 0"):
                run(table, index)
    unchecked = tw.compile(lambda t, i: gather(t, i), (table, np.zeros(2, np.int64)), checks=False)
    np.testing.assert_array_equal(unchecked(table, np.array([3, 1])), table[[3, 1]])
    assert "tensor.check" not in unchecked.ir("tensor") and "check" in library.ir("tensor")


def claimed(table: Any, index: Any, y: Any) -> None:
    for i in tw.axis(index.m):
        k = index[i]
        tw.claim(k >= 0)
        tw.claim(k < table.n)
        y[i] = table[k]


TYPES = {"table": tw.f32["n"], "index": tw.i64["m"], "y": tw.f32["m"]}


def test_claims_leave_the_check_out() -> None:
    kernel = tw.kernel(types=TYPES)(claimed)
    assert "check" not in kernel.library().ir("tensor")
    table = normal(5)
    np.testing.assert_array_equal(kernel.run([table, np.array([4, 0])])[0], table[[4, 0]])
    with pytest.raises(tw.KernelError, match="a condition that the kernel claims does not hold"):
        kernel.plain(table, np.array([5]))


def test_closures_are_constants_and_part_of_the_digest() -> None:
    def window(width: int) -> tw.Kernel:
        @tw.kernel(types={"x": tw.f32["n"], "y": tw.f32[f"n - {width - 1}"]})
        def sums(x: Any, y: Any) -> None:
            for i in tw.axis(x.n - width + 1):
                y[i] = tw.sum(x[i + k] for k in tw.axis(width))

        return sums

    two, three = window(2), window(3)
    assert two.digest != three.digest
    x = normal(9)
    for kernel, width in ((two, 2), (three, 3)):
        np.testing.assert_allclose(
            kernel.run([x])[0], np.convolve(x, np.ones(width), "valid"), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(ShapeError, match="negative"):
        three(tw.Tensor(normal(1)))


def doubled(x: Any, y: Any, quiet: bool = True) -> None:
    for i in tw.axis(x.n):
        y[i] = x[i] * 2
        if not quiet:
            print("element", i)


def test_plain_python_prints(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tw.kernel(types={"x": tw.f32["n"], "y": tw.f32["n"]})(doubled)
    x = normal(3)
    np.testing.assert_array_equal(kernel.plain(x, quiet=False), 2 * x)
    assert capsys.readouterr().out == "element 0\nelement 1\nelement 2\n"


def test_narrow_floats_are_summed_in_float32() -> None:
    def total(x: Any, w: Any, y: Any) -> None:
        for i in tw.axis(x.n):
            y[i] = tw.sum(x[i, k] * w[k] for k in tw.axis(x.d))

    for dtype in (tw.bf16, tw.f16):
        kernel = tw.kernel(types={"x": dtype["n", "d"], "w": dtype["d"], "y": dtype["n"]})(total)
        x, w = normal(5, 300).astype(dtype.numpy), normal(300).astype(dtype.numpy)
        expected = x.astype(np.float32) @ w.astype(np.float32)
        (y,) = kernel.run([x, w])
        np.testing.assert_allclose(y.astype(np.float32), expected, rtol=1e-2, atol=1e-2)


def test_empty_sizes() -> None:
    for name in ("rms_norm", "cumulative_sum", "gather_rows"):
        kernel = EXAMPLES[name].kernel
        args = EXAMPLES[name].inputs(*EXAMPLES[name].sizes[0])
        empty = [x[:0] if k == len(args) - 1 else x for k, x in enumerate(args)]
        assert kernel.run(empty)[0].shape[0] == 0


def test_check_compares_with_python_and_the_reference() -> None:
    EXAMPLES["rms_norm"].kernel.check(4, eps=0.5)
    EXAMPLES["interleave"].kernel.check([{"n": 9}])
    EXAMPLES["gather_rows"].kernel.check(
        3,
        inputs=lambda sizes, rng: (
            rng.standard_normal((sizes["n"], sizes["d"])).astype(np.float32),
            rng.integers(0, sizes["n"], sizes["m"]),
        ),
    )
    kernel = tw.kernel(types={"x": tw.f32["n"], "y": tw.f32["n"]}, reference=lambda x, quiet: 3 * x)(doubled)
    with pytest.raises(tw.KernelError, match="differs from its reference in 1 of 1 elements of 'y'"):
        kernel.check(1)


def test_in_place_of_a_subgraph() -> None:
    def scaled(x: Any, y: Any, factor: float = 2.0) -> None:
        for i in tw.axis(x.n):
            y[i] = x[i] * tw.sigmoid(x[i]) * factor

    kernel = tw.kernel(
        types={"x": tw.f32["*n"], "y": tw.f32["*n"]},
        pattern=lambda x, factor: x / (1 + tnp.exp(-x)) * factor,
    )(scaled)
    x = normal(5, 7)
    library = tw.compile(lambda x: tnp.tanh(x) / (1 + tnp.exp(-tnp.tanh(x))) * 3.0, (x,), replace=[kernel])
    assert library.report.replaced == {"scaled": 1} and "scaled" in library.ir("graph")
    t = np.tanh(x)
    np.testing.assert_allclose(library(x), 3 * t / (1 + np.exp(-t)), rtol=1e-5, atol=1e-6)
    library = tw.compile(lambda x: x / (1 + tnp.exp(-x)) * 3.0, (x,), replace=[kernel], target="webgpu")
    assert library.report.replaced == {"scaled": 1}


def test_the_package_has_the_language() -> None:
    for name in language.__all__:
        assert getattr(tw, name) is getattr(language, name)
        assert name not in tw.__all__, "`import *` would hide Python's own"


T = tw.element_type("T", tw.f32, tw.bf16)


def normed(x: Any, y: Any, top: Any) -> None:
    for i in tw.axis(x.n):
        m = tw.max(abs(tw.cast(x[i, k], tw.f32)) for k in tw.axis(x.d))
        top[i] = m
        for j in tw.axis(x.d):
            y[i, j] = tw.cast(tw.cast(x[i, j], tw.f32) / m, T)


def test_several_element_types() -> None:
    family = tw.kernel(types={"x": T["n", "d"], "y": T["n", "d"], "top": tw.f32["n"]})(normed)
    assert isinstance(family, tw.KernelFamily) and repr(family) == "KernelFamily(normed_f32, normed_bf16)"
    family.check(3)
    for dtype, tolerance in ((tw.f32, 1e-6), (tw.bf16, 1e-2)):
        x = normal(4, 5).astype(dtype.numpy)
        y, top = tw.compile(lambda x: family(x), (x,))(x)
        assert y.dtype == dtype.numpy and top.dtype == np.float32
        wide = x.astype(np.float32)
        expected = wide / np.abs(wide).max(1, keepdims=True)
        np.testing.assert_allclose(y.astype(np.float32), expected, rtol=tolerance)
    with pytest.raises(ShapeError, match=r"the inputs are \(float16\); it takes \(float32\); \(bfloat16\)"):
        family(normal(4, 5).astype(np.float16))
    with pytest.raises(tw.KernelError, match="the element type 'U' has the choices"):
        tw.element_type("U")


def test_a_border_is_a_guard() -> None:
    """``x[i] if inside else 0`` is one guarded read, without a selection."""
    kernel = EXAMPLES["convolution"].kernel
    text = kernel.library().ir("tensor")
    assert "scalar.select" not in text and "guard = [" in text

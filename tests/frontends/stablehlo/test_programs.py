"""Small JAX programs, imported and interpreted, against JAX itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

import tilewright as tw  # noqa: E402
from tilewright.frontends.stablehlo import import_stablehlo  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402
from tilewright.ir.verifier import verify  # noqa: E402

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
RANDOM = np.random.default_rng(0)


def f(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def prog(*args: Any) -> Callable[..., Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, args
        return function

    return register


def exported(function: Callable[..., Any], *args: Any) -> Any:
    return jax.export.export(jax.jit(function), platforms=["cpu"])(*args)


def same(got: Any, wanted: Any) -> None:
    for x, y in zip(got, jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, 1e-5, 1e-5)


@prog(f(3, 8), f(8, 16), f(16, 4))
def mlp(x, w, v):
    return jax.nn.softmax(jax.nn.gelu(x @ w) @ v)


@prog(f(2, 8, 8, 3), f(3, 3, 3, 5))
def cnn(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.nn.relu(y)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return y.mean((1, 2))


@prog(f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8))
def attention(q, k, v):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5
    m = jnp.tril(jnp.ones((6, 6), bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(m, s, -1e9)), v)


@prog(f(5, 2, 3), f(3, 4), f(4, 4))
def rnn(x, w, u):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros((2, 4)), x)


@prog(f(5, 2, 3), f(3, 4), f(4, 4))
def rnn_reverse(x, w, u):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros((2, 4)), x, reverse=True)


@prog(f(5))
def whl(x):
    return lax.while_loop(lambda s: s[1].sum() < 100, lambda s: (s[0] + 1, s[1] * 1.5 + 1), (0, x))


@prog(f(4, 7))
def sort(x):
    return jnp.sort(x, 1), jnp.argsort(x, 1), -jnp.sort(-x)


@prog(f(4, 7))
def sortd(x):
    return lax.sort((jnp.round(x), x * 2), dimension=1, num_keys=2)


@prog(f(6, 3), np.array([0, 2, 2, 7, -1], np.int32), f(5, 3))
def scatter(x, i, u):
    return x.at[i].add(u), x.at[i[:2]].set(u[:2]), x.at[i, 1].max(u[:, 0])


@prog(f(6, 3), np.array([0, 2, 2, 7, -1], np.int32))
def gather(x, i):
    return (
        x[i],
        x[:, i % 3],
        x[i % 5, i % 3],
        jnp.take(x, i, axis=0, mode="clip"),
        jnp.take_along_axis(x, i[:3][None] % 3, 1),
    )


@prog(f(4, 7))
def cums(x):
    return jnp.cumsum(x, 1), lax.cummax(x, 1), jnp.cumprod(x, 0), lax.cumsum(x, 1, reverse=True), lax.cumlogsumexp(x, 1)


@prog(f(2, 5, 8))
def rope(x):
    p = jnp.arange(5)[:, None]
    w = 10000 ** (-jnp.arange(4) / 4)
    c, s = jnp.cos(p * w), jnp.sin(p * w)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1)


@prog(f(3, 8), f(8, 16), f(16, 4))
def mlp_grad(x, w, v):
    return jax.grad(lambda w, v: mlp(x, w, v)[:, 0].sum(), (0, 1))(w, v)


@prog(f(2, 8, 8, 3), f(3, 3, 3, 5))
def cnn_grad(x, w):
    return jax.grad(lambda x, w: (cnn(x, w) ** 2).sum(), (0, 1))(x, w)


@prog(f(5, 2, 3), f(3, 4), f(4, 4))
def rnn_grad(x, w, u):
    return jax.grad(lambda w, u: rnn(x, w, u)[1].sum(), (0, 1))(w, u)


@prog(f(4, 7))
def argm(x):
    return jnp.argmax(x, 1), jnp.argmin(x, 0), x.max(), jnp.argmax(x)


@prog(f(4, 7), np.int32(2))
def dyn(x, i):
    return (
        lax.dynamic_slice(x, (i, 1), (2, 3)),
        lax.dynamic_update_slice(x, x[:2, :3] * 2, (i, 9)),
        lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x - 1], x),
        lax.cond(i > 1, lambda x: x, lambda x: -x, x),
    )


@prog(np.array([0, 42], np.uint32))
def rng(k):
    return (
        jax.random.normal(k, (4, 5)),
        jax.random.uniform(k, (3,)),
        jax.random.randint(k, (4,), 0, 10),
        jax.random.permutation(k, jnp.arange(6)),
    )


@prog(f(3, 4))
def ele(x):
    return (
        jnp.round(x),
        jnp.cbrt(x),
        lax.round(x * 2),
        jnp.log1p(jnp.abs(x)),
        lax.erf(x),
        jnp.isfinite(x),
        jnp.mod(x, 0.7),
        jnp.arctan2(x, x + 1),
        lax.population_count(jnp.int32(77) + x.astype(jnp.int32)),
        lax.clz(jnp.abs(x * 100).astype(jnp.int32)),
        lax.erf_inv(jnp.tanh(x)),
        jnp.floor_divide(x, 0.3),
        jnp.sinh(x),
    )


@prog(f(3, 4))
def topk(x):
    return lax.top_k(x, 2)


@prog(f(2, 9, 4))
def padi(x):
    return (
        lax.pad(x, 0.5, ((1, 0, 0), (-1, 2, 1), (0, -1, 2))),
        jnp.flip(x, 1),
        jnp.roll(x, 2, 1),
        lax.reduce(x, 0.0, lambda a, b: a + b, (0, 2)),
    )


@prog(f(2, 9, 6), f(3, 3, 8))
def convt(x, w):
    return lax.conv_general_dilated(
        x,
        w,
        (2,),
        ((2, 1),),
        lhs_dilation=(2,),
        rhs_dilation=(2,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=2,
    )


@prog(f(12, 20))
def fori(x):
    return lax.fori_loop(0, 5, lambda i, s: s + x[i] * i, jnp.zeros(20))


@prog(f(12, 20))
def var(x):
    return jnp.var(x, 0), jnp.linalg.norm(x), jnp.median(x, 1), jnp.prod(x, 1), (x > 0).all(1), (x > 2).any()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, args = PROGRAMS[name]
    module = import_stablehlo(exported(function, *args))
    verify(module)
    same(Interpreter(module).run("main", list(args)), jax.jit(function)(*args))


def test_a_scan_over_rows_scans_and_stacks() -> None:
    function, args = PROGRAMS["rnn"]
    names = [op.name for op in import_stablehlo(exported(function, *args)).walk()]
    assert names.count("graph.scan") == 1
    assert "graph.while" not in names and "graph.gather" not in names


@pytest.mark.parametrize("binary", [False, True])
def test_file(binary: bool, tmp_path: Path) -> None:
    function, args = PROGRAMS["mlp"]
    program = exported(function, *args)
    path = tmp_path / "model.mlir"
    path.write_bytes(program.mlir_module_serialized if binary else program.mlir_module().encode())
    same(Interpreter(import_stablehlo(path)).run("main", list(args)), function(*args))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: jax.nn.softmax(x @ w), [("b", 8), (8, 4)]),
        (lambda x: x.reshape(-1, x.shape[0] * 2).sum(0) + jnp.arange(2 * x.shape[0]), [("b", 8)]),
        (lambda x: jnp.concatenate([x, x], 0)[: x.shape[0]].mean(0), [("b", 6)]),
        (lambda x, y: jnp.einsum("bsd,btd->bst", x, y), [("b", 3, 8), ("b", "t", 8)]),
        (lambda x: lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(x.shape[1]), x), [("b", "t")]),
        (lambda x: x[:, -1] + lax.dynamic_slice_in_dim(x, x.shape[1] // 2, 1, 1)[:, 0], [("b", "t")]),
        (lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), 1), (1, x.shape[1] - 1)), [("b", "t")]),
    ],
)
def test_symbolic_shapes(function: Any, shapes: Any) -> None:
    scope = jax.export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(map(str, s)), scope=scope), np.float32) for s in shapes
    ]
    module = import_stablehlo(jax.export.export(jax.jit(function), platforms=["cpu"])(*specs))
    sizes = {"b": 4, "t": 5}
    args = [f(*(sizes.get(d, d) for d in s)) for s in shapes]
    same(Interpreter(module).run("main", args), function(*args))


def test_compiled() -> None:
    function, args = PROGRAMS["mlp"]
    np.testing.assert_allclose(tw.compile(exported(function, *args))(*args), function(*args), 1e-5, 1e-5)


def test_what_is_unsupported_is_named() -> None:
    with pytest.raises(tw.UnsupportedOperatorError, match="lapack_sgesdd_ffi"):
        import_stablehlo(exported(jnp.linalg.svd, f(3, 3)))
    with pytest.raises(tw.UnsupportedOperatorError, match="lapack_cpotrf_ffi"):
        import_stablehlo(exported(lambda x: jax.scipy.linalg.cho_factor(x)[0], f(3, 3).astype(np.complex64)))


def test_complex_numbers_at_the_border() -> None:
    x, y = f(3, 4) + 1j * f(3, 4), f(4)
    program = exported(lambda x, y: (x * y, jnp.abs(x), x.T @ x), x.astype(np.complex64), y)
    library = tw.compile(program)
    got = library(x.astype(np.complex64), y)
    same_closely(got, (x * y, np.abs(x), x.T @ x))
    with pytest.raises(tw.ShapeError, match="complex"):
        library(f(3, 4), y)


def same_closely(got: Any, wanted: Any) -> None:
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-5)


@pytest.mark.parametrize("length", [7, 512, 521, 1536, 4099])
def test_fourier_transforms(length: int) -> None:
    """Directly, by factors, and of a length that is prime."""
    x = f(2, length)
    module = import_stablehlo(exported(lambda x: jnp.fft.irfft(jnp.fft.rfft(x), x.shape[1]), x))
    (back,) = Interpreter(module).run("main", [x])
    np.testing.assert_allclose(back, x, atol=2e-5)
    module = import_stablehlo(exported(lambda x: jnp.abs(jnp.fft.fft(x)), x))
    (size,) = Interpreter(module).run("main", [x])
    np.testing.assert_allclose(size, np.abs(np.fft.fft(x)), atol=1e-4 * np.sqrt(length))


def test_not_a_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.mlir"
    for content in (b"module {", b"ML\xefR", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(tw.CompileError, match="not StableHLO"):
            import_stablehlo(path)

"""Small JAX programs, imported and interpreted, compared with JAX."""

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
from tilewright.runtime.nested import Nested  # noqa: E402

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
    return (
        jnp.cumsum(x, 1),
        lax.cummax(x, 1),
        jnp.cumprod(x, 0),
        lax.cumsum(x, 1, reverse=True),
        lax.cumlogsumexp(x, 1),
    )


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
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(map(str, s)), scope=scope), np.float32)
        for s in shapes
    ]
    module = import_stablehlo(jax.export.export(jax.jit(function), platforms=["cpu"])(*specs))
    sizes = {"b": 4, "t": 5}
    args = [f(*(sizes.get(d, d) for d in s)) for s in shapes]
    same(Interpreter(module).run("main", args), function(*args))


def test_compiled() -> None:
    function, args = PROGRAMS["mlp"]
    np.testing.assert_allclose(tw.compile(exported(function, *args))(*args), function(*args), 1e-5, 1e-5)


def test_errors_name_unsupported_operations() -> None:
    with pytest.raises(tw.UnsupportedOperatorError, match="lapack_sgeev_ffi"):
        import_stablehlo(exported(jnp.linalg.eigvals, f(3, 3)))
    with pytest.raises(tw.UnsupportedOperatorError, match="lapack_cgeqrf_ffi"):
        import_stablehlo(exported(jnp.linalg.qr, f(3, 3).astype(np.complex64)))


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
    """Transforms of every length agree with NumPy: lengths computed directly, lengths with factors, and
    primes.
    """
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


BATCH_NORM = """
!x = tensor<4x3x5xf32>
!c = tensor<3xf32>
func.func @main(%x: !x, %scale: !c, %shift: !c, %dy: !x) -> (!x, !x, !c, !c, !x) {
  %0:3 = "stablehlo.batch_norm_training"(%x, %scale, %shift) {epsilon = 1.0e-5 : f32, feature_index = 1 :
      i64} : (!x, !c, !c) -> (!x, !c, !c)
  %1:3 = "stablehlo.batch_norm_grad"(%x, %scale, %0#1, %0#2, %dy) {epsilon = 1.0e-5 : f32, feature_index =
      1 : i64}
    : (!x, !c, !c, !c, !x) -> (!x, !c, !c)
  %2 = "stablehlo.batch_norm_inference"(%x, %scale, %shift, %0#1, %0#2) {epsilon = 1.0e-5 : f32,
      feature_index = 1 : i64}
    : (!x, !c, !c, !c, !c) -> !x
  return %0#0, %1#0, %1#1, %1#2, %2 : !x, !x, !c, !c, !x
}
"""


def test_batch_normalization(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "norm.mlir").write_text(BATCH_NORM)
    args = [f(4, 3, 5), f(3), f(3), f(4, 3, 5)]
    x, scale, shift = (torch.tensor(a, requires_grad=True) for a in args[:3])
    y = torch.nn.functional.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5)
    y.backward(torch.tensor(args[3]))
    wanted = [v.detach().numpy() for v in (y, x.grad, scale.grad, shift.grad, y)]
    found = Interpreter(import_stablehlo(tmp_path / "norm.mlir")).run("main", args)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


PRODUCTS = """
func.func @main(%v: tensor<5xf32>, %m: tensor<5x4xf32>) -> (tensor<4xf32>, tensor<f32>, tensor<5x5xf32>,
    tensor<2x5xf32>) {
  %0 = stablehlo.dot %v, %m : (tensor<5xf32>, tensor<5x4xf32>) -> tensor<4xf32>
  %1 = stablehlo.dot %v, %v : (tensor<5xf32>, tensor<5xf32>) -> tensor<f32>
  %2 = stablehlo.einsum %m, %m, config = "ab,cb->ac" : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x5xf32>
  %3 = stablehlo.broadcast %v, sizes = [2] : (tensor<5xf32>) -> tensor<2x5xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<f32>, tensor<5x5xf32>, tensor<2x5xf32>
}
"""


def test_products_of_older_programs(tmp_path: Path) -> None:
    (tmp_path / "products.mlir").write_text(PRODUCTS)
    v, m = f(5), f(5, 4)
    same_closely(
        Interpreter(import_stablehlo(tmp_path / "products.mlir")).run("main", [v, m]),
        (v @ m, v @ v, m @ m.T, np.stack([v, v])),
    )


REVERSE_SCAN = """
func.func @main(%x: tensor<2x4xf32>, %start: tensor<2xf32>) -> (tensor<2x4xf32>, tensor<2xf32>) {
  %0:2 = chlo.scan(%x) inits (%start) dimension=1 attributes {is_reverse = true} {
  ^bb0(%value: tensor<2xf32>, %sum: tensor<2xf32>):
    %1 = stablehlo.add %value, %sum : tensor<2xf32>
    stablehlo.return %1, %1 : tensor<2xf32>, tensor<2xf32>
  } : (tensor<2x4xf32>, tensor<2xf32>) -> (tensor<2x4xf32>, tensor<2xf32>)
  return %0#0, %0#1 : tensor<2x4xf32>, tensor<2xf32>
}
"""


def test_a_scan_with_a_body(tmp_path: Path) -> None:
    (tmp_path / "scan.mlir").write_text(REVERSE_SCAN)
    x, start = f(2, 4), f(2)
    sums = start[:, None] + np.cumsum(x[:, ::-1], 1)[:, ::-1]
    found = Interpreter(import_stablehlo(tmp_path / "scan.mlir")).run("main", [x, start])
    same_closely(found, (sums, sums[:, 0]))


def test_a_comparator_of_any_form() -> None:
    x = f(3, 6) + 1j * np.round(f(3, 6))
    x = x.astype(np.complex64)
    x.real = np.round(x.real)
    module = import_stablehlo(exported(lambda x: jnp.sort(x, 1), x))
    entries = module.symbol("main").attributes["nested"]
    found = Nested(*entries).unflatten(Interpreter(module).run("main", [x.real.copy(), x.imag.copy()]))
    np.testing.assert_array_equal(found, np.sort(x, 1))


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5)])
def test_factorizations(shape: tuple[int, ...]) -> None:
    """The products of the factors agree with JAX's. The factors themselves may differ in their signs."""
    x = f(*shape)

    def products(x: Any) -> Any:
        q, r = jnp.linalg.qr(x)
        u, s, v = jnp.linalg.svd(x, full_matrices=False)
        values, vectors = jnp.linalg.eigh(x @ x.mT)
        return q @ r, q.mT @ q, (u * s[..., None, :]) @ v, s, (vectors * values[..., None, :]) @ vectors.mT

    module = import_stablehlo(exported(products, x))
    for got, want in zip(Interpreter(module).run("main", [x]), products(x), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()))


def test_complex_numbers_in_loops_and_branches() -> None:
    def run(z: Any, w: Any) -> Any:
        total, rows = lax.scan(lambda s, row: (s * w + row, s - row), z[0], z)
        grown = lax.while_loop(lambda s: jnp.abs(s).sum() < 50, lambda s: s * (1.5 + 0.5j) + 1, total)
        picked = lax.cond(jnp.real(w) > 0, lambda s: s.conj(), lambda s: s * 1j, grown)
        return (
            rows,
            grown,
            picked,
            lax.dynamic_slice(z, (jnp.argmax(z[:, 0].real), 1), (2, 2)),
            z.at[jnp.array([1, 1])].add(w),
        )

    z, w = (f(4, 3) + 1j * f(4, 3)).astype(np.complex64), np.complex64(0.5 - 0.25j)
    library = tw.compile(exported(run, z, w))
    same_closely(library(z, np.asarray(w)), run(jnp.asarray(z), w))


def test_a_jitted_function_is_exported_with_the_shapes_of_its_examples() -> None:
    jitted = jax.jit(lambda x, y: jnp.tanh(x) @ y)
    x, y = f(3, 4), f(4, 2)
    with tw.compile(jitted, (x, y), cache=False) as library:
        np.testing.assert_allclose(library(x, y), jitted(x, y), rtol=1e-5, atol=1e-6)
    with pytest.raises(tw.CompileError, match="jax.jit has no shapes: give examples"):
        tw.compile(jitted)

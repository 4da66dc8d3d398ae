"""JAX programs, with those of `jax_library`, and their gradients are exported, compiled, run and compared
with JAX.

    python -m tests.conformance.jax_programs                    # all; updates jax_programs.json
    python -m tests.conformance.jax_programs --interpret --only attention

A gradient is that of the sum of the squared magnitudes of all results with respect to the program's float
inputs. A program whose results are integers has none.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tilewright as tw
from tilewright.errors import CompileError
from tilewright.frontends.stablehlo import import_stablehlo
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify
from tilewright.runtime.nested import Nested

from . import jax_library  # noqa: F401  (registers its programs)
from .jax_table import FORWARD_ONLY, PROGRAMS, normal, program

DATA = Path(__file__).with_suffix(".json")
TOLERANCE = 2e-5
"""The allowed error, relative to the largest number of a result."""


# -- Networks ------------------------------------------------------------------------------------------------


@program(normal(3, 8), normal(8, 16), normal(16, 4))
def mlp(x, w, v):
    return jax.nn.softmax(jax.nn.gelu(x @ w) @ v)


@program({"w": normal(8, 8), "b": normal(8)}, normal(5, 8))
def residual_blocks(params, x):
    for _ in range(3):
        x = x + jax.nn.silu(x @ params["w"] + params["b"])
    return x


@program(normal(2, 8, 8, 3), normal(3, 3, 3, 5))
def cnn(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return y.mean((1, 2))


@program(normal(2, 9, 6), normal(3, 3, 8))
def dilated_grouped_convolution(x, w):
    return lax.conv_general_dilated(
        x, w, (2,), ((2, 1),), (2,), (2,), dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
    )


@program(normal(1, 5, 5, 4), normal(3, 3, 2, 4))
def transposed_convolution(x, w):
    return lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True)


@program(normal(2, 6, 8))
def average_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 2), (1, 2, 2), "SAME") / 6


@program(normal(2, 4, 6, 8), normal(2, 4, 6, 8), normal(2, 4, 6, 8))
def causal_attention(q, k, v):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5
    mask = jnp.tril(jnp.ones((6, 6), bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(mask, s, -1e9)), v)


@program(normal(2, 5, 2, 8))
def rope(x):
    place = jnp.arange(5)[:, None, None]
    angle = place * 10000 ** (-jnp.arange(4) / 4)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1
    )


@program(normal(4, 6), normal(6), normal(6))
def layer_norm(x, scale, shift):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-5) * scale + shift


@program(normal(10, 6), np.array([[1, 3, 9], [0, 0, 2]], np.int32))
def embedding(table, ids):
    return table[ids].sum(1)


@program(normal(4, 7), np.array([0, 6, 2, 2], np.int32))
def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@program(normal(6, 8), normal(8, 3), normal(3, 8, 8))
def mixture_of_experts(x, router, experts):
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    return jnp.einsum("tk,tkd->td", weights, jnp.einsum("td,tkde->tke", x, experts[chosen]))


# -- Loops and branches --------------------------------------------------------------------------------------


@program(normal(5, 2, 3), normal(3, 4), normal(4, 4))
def scan_rnn(x, w, u):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros((2, 4)), x)


@program(normal(5, 2, 3), normal(7, 16))
def scan_lstm_backward(x, w):
    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (jnp.zeros((2, 4)), jnp.zeros((2, 4))), x, reverse=True)[1]


@program(normal(5), backward=False)  # JAX has no gradient of a loop with an unknown number of steps
def while_loop(x):
    return lax.while_loop(lambda s: jnp.abs(s[1]).sum() < 100, lambda s: (s[0] + 1, s[1] * 1.5 + 1), (0, x))


@program(normal(6, 5))
def fori_loop(x):
    return lax.fori_loop(0, 6, lambda i, s: jnp.sin(s) + x[i] * i, jnp.zeros(5))


@program(normal(4), np.int32(1))
def branches(x, k):
    y = lax.switch(k, [jnp.sin, jnp.exp, lambda x: x * x], x)
    return lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: -y, y)


@program(normal(6, 3))
def map_over_rows(x):
    return lax.map(lambda row: jnp.outer(row, row).sum(0), x)


@program(normal(9, 4))
def associative_scan(x):
    return lax.associative_scan(lambda a, b: a * 0.5 + b, x)


@program(normal(4, 4))
def checkpointed(x):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ x)))(x)


# -- Order, places -------------------------------------------------------------------------------------------


@program(normal(4, 7))
def sort_and_search(x):
    y = jnp.sort(x, 1)
    return y, jnp.argsort(x, 1), jnp.searchsorted(y[0], x[1])


@program(normal(4, 7))
def sort_by_two_keys(x):
    return lax.sort((jnp.round(x), x * 2), dimension=1, num_keys=2)


@program(normal(6, 3), np.array([0, 2, 2, 7, -1], np.int32), normal(5, 3))
def scatter(x, i, u):
    return x.at[i].add(u), x.at[i[:2]].set(u[:2]), x.at[i[:2], 1].multiply(u[:2, 0], unique_indices=True)


@program(normal(6, 3), np.array([0, 2, 2, 7, -1], np.int32))
def gather(x, i):
    return x[i], x[:, i % 3], x[i % 5, i % 3], jnp.take(x, i, axis=0, mode="clip")


@program(normal(6, 3), np.array([0, 2, 2, 1, 0, 1], np.int32))
def segment_sums(x, segments):
    return jax.ops.segment_sum(x, segments, 3), jax.ops.segment_max(x, segments, 3)


@program(normal(5, 6), np.int32(2))
def dynamic_slices(x, i):
    return lax.dynamic_slice(x, (i, 1), (2, 3)), lax.dynamic_update_slice(x, x[:2, :3] * 2, (i, 9))


@program(normal(4, 7))
def running(x):
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cumlogsumexp(x, 1, reverse=True)


@program(normal(4, 7))
def extremes(x):
    return x.max(0), jnp.argmin(x, 1), jnp.median(x, 1), jnp.quantile(x, 0.3, axis=0), lax.top_k(x, 3)


@program(normal(12, 5))
def statistics(x):
    return jnp.var(x, 0), jnp.linalg.norm(x, axis=1), jnp.cov(x.T), jnp.prod(x, 1)


@program(normal(4, 5))
def movement(x):
    padded = lax.pad(x, 0.5, ((1, 0, 1), (-1, 2, 0)))
    return padded, jnp.roll(x, 2, 1), jnp.flip(x, 0), jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 1), jnp.tril(x)


# -- Numbers -------------------------------------------------------------------------------------------------


@program(normal(3, 4))
def special_functions(x):
    y = jnp.abs(x) + 0.5
    return lax.erf(x), lax.erf_inv(jnp.tanh(x)), lax.lgamma(y), lax.digamma(y), jnp.cbrt(y), jnp.arctan2(x, y)


@program(normal(3, 4))
def hyperbolic(x):
    return jnp.sinh(x), jnp.arcsinh(x), jnp.arctanh(jnp.tanh(x)), jnp.log1p(jnp.abs(x)), jnp.logaddexp(x, 1.0)


@program(np.array([0, 42], np.uint32), normal(6))
def random_numbers(key, x):
    a, b = jax.random.split(key)
    kept = jax.random.bernoulli(b, 0.7, (4, 6))
    return (
        jax.random.normal(a, (4, 6)) * x + kept * x,
        jax.random.randint(a, (4,), 0, 10),
        jax.random.permutation(b, x),
    )


@program(normal(3, 16))
def fourier(x):
    spectrum = jnp.fft.rfft(x)
    return jnp.fft.irfft(spectrum * jnp.exp(-jnp.arange(9) / 4)), jnp.abs(jnp.fft.fft2(x))


@program(normal(4, 4), normal(4, 4))
def complex_numbers(a, b):
    z = lax.complex(a, b)
    return jnp.exp(z) @ z, jnp.angle(z), (z / (1 + z * z.conj())).imag


@program(np.array([1, 77, 2**31 - 1, -5], np.int32))
def bits(x):
    return lax.population_count(x), lax.clz(x), x >> 3, x ^ (x << 7), lax.bitcast_convert_type(x, jnp.float32)


# -- Linear algebra ------------------------------------------------------------------------------------------


@program(normal(2, 5, 5))
def cholesky(x):
    a = x @ x.swapaxes(1, 2) + 3 * jnp.eye(5)
    return jnp.linalg.cholesky(a)


@program(normal(4, 4), normal(4, 3))
def triangular_solves(a, b):
    a = a + 3 * jnp.eye(4)
    lower = jax.scipy.linalg.solve_triangular(a, b, lower=True)
    return lower, jax.scipy.linalg.solve_triangular(a, b, trans=1, unit_diagonal=True)


@program(normal(5, 5), normal(5, 2))
def solve(a, b):
    return jnp.linalg.solve(a + 2 * jnp.eye(5), b)


@program(normal(5, 5))
def determinant(a):
    return jnp.linalg.slogdet(a + 2 * jnp.eye(5)), jnp.linalg.inv(a + 4 * jnp.eye(5))


# -- Running them --------------------------------------------------------------------------------------------


def gradient(name: str) -> Callable[..., Any] | None:
    """The gradient of a program with respect to its float inputs, or None if it has none."""
    function, args = PROGRAMS[name]
    leaves = [jax.tree.leaves(a)[0] for a in args]
    by = tuple(k for k, a in enumerate(leaves) if a.dtype.kind == "f")
    if not by or name in FORWARD_ONLY:
        return None

    def total(*args: Any) -> Any:
        parts = [x for x in jax.tree.leaves(function(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(jnp.square(jnp.abs(x)).sum() for x in parts)

    return jax.grad(total, by)


def outcome(function: Callable[..., Any], args: tuple[Any, ...], native: bool) -> str:
    """``pass``, ``refused: ...`` with the reason, or a description of the error."""
    wanted = jax.tree.leaves(jax.jit(function)(*args))
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*args)
    try:
        found = (_compiled if native else _interpreted)(exported, jax.tree.leaves(args))
    except CompileError as error:
        return f"refused: {' '.join(str(error).split())}"
    except Exception as error:  # every exception is recorded as the outcome
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    for got, want in zip(found, wanted, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"wrong: got {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        scale = max(1.0, np.abs(want).max(initial=0)) if want.dtype.kind in "fc" else 0
        if not np.allclose(got, want, 0, TOLERANCE * scale, equal_nan=True):
            return f"wrong: differs by up to {np.abs(got - want).max():.1e}"
    return "pass"


def _compiled(exported: Any, inputs: list[Any]) -> list[Any]:
    with tw.compile(exported, cache=False) as library:
        results = library(*inputs)
    return list(results) if isinstance(results, tuple) else [results]


def _interpreted(exported: Any, inputs: list[Any]) -> list[Any]:
    module = import_stablehlo(exported)
    verify(module)
    entries = module.symbol("main").attributes["nested"]
    nested = Nested(*entries) if entries else None
    results = Interpreter(module).run("main", list(nested.flatten(inputs, {})) if nested else inputs)
    found = nested.unflatten(results) if nested else results
    return list(found) if isinstance(found, (tuple, list)) else [found]


def outcomes(only: str, native: bool) -> Iterator[tuple[str, str]]:
    """Names and outcomes of the programs whose names contain `only`, and of their gradients."""
    for name, (function, args) in PROGRAMS.items():
        if only in name:
            yield name, outcome(function, args, native)
            backward = gradient(name)
            if backward is not None:
                yield f"{name}, gradient", outcome(backward, args, native)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="programs whose name contains this; the results file is not written"
    )
    parser.add_argument("--interpret", action="store_true", help="interpret instead of compiling")
    options = parser.parse_args()
    found = {}
    for name, result in outcomes(options.only, not options.interpret):
        found[name] = result
        print(f"{name}: {result}", flush=True)
    if not options.only and not options.interpret:
        document = {
            "programs": len(PROGRAMS),
            "cases": len(found),
            "passed": sum(r == "pass" for r in found.values()),
            "not_passed": {n: r for n, r in found.items() if r != "pass"},
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}",
            "jax": jax.__version__,
        }
        DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

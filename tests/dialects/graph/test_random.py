"""Random bits agree with the published generator, and the numbers drawn from them with jax.random and with
their distributions.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.frontends.random import Random
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, f64, i64, u32


def test_threefry_known_answers() -> None:
    """The generator gives the results of its authors' test vectors."""
    mask = 0xFFFFFFFF
    cases = [
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((mask, mask, mask, mask), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    module = Module()
    main = func.Func(sym_name="main", arg_names=tuple("abcd"), result_names=("x", "y"))
    module.body.append(main)
    words = [main.body.add_arg(TensorType(u32, ())) for _ in range(4)]
    b = Builder(main.body)
    b.insert(func.Return(list(b.insert(graph.Threefry(*words)).results)))
    for given, expected in cases:
        found = Interpreter(module).run("main", [np.array(x, np.uint32) for x in given])
        assert tuple(int(x) for x in found) == expected


def drawn(draw: Any, shape: tuple[Any, ...]) -> Module:
    """A module whose function takes a seed and, if `shape` has a symbol, a vector of that size."""
    module = Module()
    sizes = [d for d in shape if not isinstance(d, int)][:1]
    main = func.Func(sym_name="main", arg_names=("seed", "like")[: 1 + len(sizes)], result_names=("y",))
    module.body.append(main)
    seed = main.body.add_arg(TensorType(i64, ()))
    for d in sizes:
        main.body.add_arg(TensorType(f32, (d,)))
    b = Builder(main.body)
    random = Random(b, lambda op: tuple(b.insert(op).results))
    b.insert(func.Return([draw(random, random.key(seed), shape)]))
    return module


def both(module: Module, *inputs: Any) -> Any:
    """The interpreter's results, after a check that the compiled module gives the same."""
    (expected,) = Interpreter(module).run("main", [np.asarray(x) for x in inputs])
    with tw.compile(module, cache=False) as library:
        found = library(*(np.asarray(x) for x in inputs))
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
    else:
        wide = found.astype(np.float64), expected.astype(np.float64)
        step = float(np.finfo(np.float16).eps) if found.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(*wide, rtol=step, atol=step)
    return expected


@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16], ids=lambda d: d.label)
def test_uniform_numbers_are_those_of_jax(dtype: DType) -> None:
    seed = 0x1234567890AB
    with jax.enable_x64(True):
        key = jax.random.key(seed, impl="threefry2x32")
        expected = np.asarray(jax.random.uniform(key, (33, 70), dtype.numpy, -1.0, 1.0))
    found = both(
        drawn(lambda r, key, shape: r.uniform(key, shape, dtype, -1.0, 1.0), (33, 70)), np.int64(seed)
    )
    np.testing.assert_array_equal(found, expected)


def test_keys_and_sizes_of_the_run() -> None:
    n = symbol("n")
    module = drawn(lambda r, key, shape: r.bits(r.fold_in(key, 7), shape), (n, 3))
    found = both(module, np.int64(-3), np.zeros(50, np.float32))
    with jax.enable_x64(True):
        key = jax.random.fold_in(jax.random.key(-3, impl="threefry2x32"), 7)
        np.testing.assert_array_equal(found, np.asarray(jax.random.bits(key, (50, 3), np.uint32)))


@pytest.mark.parametrize("dtype", [f32, f64, f16], ids=lambda d: d.label)
def test_normal_numbers(dtype: DType) -> None:
    found = both(drawn(lambda r, key, shape: r.normal(key, shape, dtype, 2.0, 3.0), (200, 500)), np.int64(5))
    x = (found.astype(np.float64) - 2) / 3
    moments = [np.mean(x**k) for k in range(1, 5)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.06)
    assert np.mean(np.abs(x) < 1) == pytest.approx(0.6827, abs=0.006)


def test_chances() -> None:
    chances = np.array([[0.1, 0.0, 0.6, 0.3], [0.25, 0.25, 0.5, 0.0]], np.float32)

    def draw(r: Random, key: Any, shape: Any) -> Any:
        return r.categorical(key, r.constant(np.log(np.maximum(chances, 1e-30)) + 4, f32), 20000)

    found = both(drawn(draw, ()), np.int64(8))
    shares = [np.bincount(row, minlength=4) / 20000 for row in found]
    np.testing.assert_allclose(shares, chances, atol=0.012)
    assert shares[0][1] == shares[1][3] == 0
    flags = both(
        drawn(lambda r, key, shape: r.bernoulli(key, r.constant(np.full(20000, 0.3), f32)), ()), np.int64(8)
    )
    assert flags.mean() == pytest.approx(0.3, abs=0.012)

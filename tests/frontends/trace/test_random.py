"""`tw.random`: the numbers of `jax.random` under the same keys, at once and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import random

jax = pytest.importorskip("jax")
EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "split": (lambda k: random.split(k, 5), lambda k: jax.random.split(k, 5)),
    "fold_in": (lambda k: random.fold_in(k, 7), lambda k: jax.random.fold_in(k, 7)),
    "bits": (lambda k: random.bits(k, (3, 4)), lambda k: jax.random.bits(k, (3, 4))),
    "bits8": (lambda k: random.bits(k, 9, "uint8"), lambda k: jax.random.bits(k, (9,), np.uint8)),
    "uniform": (lambda k: random.uniform(k, (3, 4)), lambda k: jax.random.uniform(k, (3, 4))),
    "scalar": (lambda k: random.uniform(k), lambda k: jax.random.uniform(k)),
    "bfloat16": (
        lambda k: random.uniform(k, (20,), "bfloat16").astype("float32"),
        lambda k: jax.random.uniform(k, (20,), "bfloat16").astype("float32"),
    ),
    "bernoulli": (lambda k: random.bernoulli(k, 0.3, (40,)), lambda k: jax.random.bernoulli(k, 0.3, (40,))),
    "randint": (
        lambda k: random.randint(k, (50,), -5, 1000, "int32"),
        lambda k: jax.random.randint(k, (50,), -5, 1000),
    ),
    "permutation": (lambda k: random.permutation(k, 50), lambda k: jax.random.permutation(k, 50)),
    "permuted rows": (
        lambda k: random.permutation(k, np.arange(12).reshape(6, 2)),
        lambda k: jax.random.permutation(k, np.arange(12).reshape(6, 2)),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_equal_to_jax(name: str) -> None:
    ours, theirs = EXACT[name]
    expected = np.asarray(theirs(jax.random.PRNGKey(42)))
    np.testing.assert_array_equal(random.key(42), np.asarray(jax.random.PRNGKey(42)))
    np.testing.assert_array_equal(ours(random.key(42)), expected)
    np.testing.assert_array_equal(tw.jit(lambda key: ours(key))(random.key(42)), expected)


def test_choices_equal_jax() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for axis, shape in ((-1, None), (0, None), (-1, (3, 4)), (0, (2, 6))):
        expected = np.asarray(jax.random.categorical(jax.random.PRNGKey(1), logits, axis, shape))
        ours = lambda key, axis=axis, shape=shape: random.categorical(key, logits, axis, shape)  # noqa: E731
        np.testing.assert_array_equal(ours(random.key(1)), expected)
        np.testing.assert_array_equal(tw.jit(ours)(random.key(1)), expected)
    expected = np.asarray(jax.random.gumbel(jax.random.PRNGKey(1), (100,)))
    np.testing.assert_allclose(random.gumbel(random.key(1), (100,)), expected, rtol=1e-5, atol=1e-6)
    expected = np.asarray(jax.random.uniform(jax.random.PRNGKey(1), (100,), minval=-2.0, maxval=3.0))
    found = random.uniform(random.key(1), (100,), minval=-2.0, maxval=3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-7)
    expected = np.asarray(jax.random.truncated_normal(jax.random.PRNGKey(1), -1.0, 2.0, (100,)))
    found = random.truncated_normal(random.key(1), -1.0, 2.0, (100,))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_distributions() -> None:
    x = random.normal(random.key(0), (40000,)).numpy()
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    assert abs((abs(x) < 1).mean() - 0.6827) < 0.01
    compiled = tw.jit(lambda key: random.normal(key, (40000,), "float64"))(random.key(0))
    np.testing.assert_allclose(random.normal(random.key(0), (40000,), "float64"), compiled, rtol=1e-9)
    t = random.truncated_normal(random.key(2), -0.5, 1.5, (40000,)).numpy()
    assert -0.5 <= t.min() < -0.49 and 1.49 < t.max() <= 1.5
    assert sorted(random.permutation(random.key(3), 1000).tolist()) == list(range(1000))
    seen = np.bincount(random.randint(random.key(4), (30000,), 0, 3).numpy())
    assert (abs(seen / 30000 - 1 / 3) < 0.02).all()


def test_seeds_and_sizes_of_a_run() -> None:
    def f(x: tw.Tensor, seed: tw.Tensor) -> tw.Tensor:
        return random.uniform(random.key(seed), x.shape)

    library = tw.compile(f, [np.zeros((4, 3), np.float32), np.int64(0)], dims={"x": {0: "n<=9"}})
    for n, seed in ((2, 5), (7, 1 << 40)):
        expected = random.uniform(random.key(seed), (n, 3))
        np.testing.assert_array_equal(library(np.zeros((n, 3), np.float32), np.int64(seed)), expected)


def test_what_is_no_key_is_named() -> None:
    for wrong in (7, np.zeros(2, np.int32), np.zeros(3, np.uint32)):
        with pytest.raises(tw.ShapeError, match=r"tw\.random\.key\(seed\)"):
            random.uniform(wrong)
    with pytest.raises(tw.ShapeError, match="integer scalar"):
        random.key(np.zeros(3, np.int32))
    with pytest.raises(tw.ShapeError, match="integer scalar"):
        random.fold_in(random.key(0), 1.5)
    with pytest.raises(ValueError, match="no integers from 3 to 2"):
        random.randint(random.key(0), (), 3, 3)
    with pytest.raises(tw.ShapeError, match="floating point of 16 bits"):
        random.normal(random.key(0), (), "int32")
    with pytest.raises(tw.ShapeError, match="unsigned integers"):
        random.bits(random.key(0), (), "int32")
    with pytest.raises(tw.ShapeError, match="no rows"):
        random.permutation(random.key(0), tw.tensor(1.0))
    with pytest.raises(tw.ShapeError, match="do not end with"):
        random.categorical(random.key(0), np.zeros((2, 3), np.float32), -1, (3,))

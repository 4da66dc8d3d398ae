"""The random bits of XLA's generators equal JAX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tilewright.frontends.stablehlo import import_stablehlo  # noqa: E402
from tilewright.ir.interpreter import Interpreter  # noqa: E402


def same_as_jax(function: Any, *args: Any) -> None:
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*args)
    found = Interpreter(import_stablehlo(exported)).run("main", list(args))
    for got, wanted in zip(found, jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("algorithm", ["RNG_THREE_FRY", "RNG_PHILOX", "RNG_DEFAULT"])
@pytest.mark.parametrize("shape", [(), (11,), (3, 5), (4, 3), (3, 2, 4)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_generators(algorithm: str, shape: tuple[int, ...], dtype: Any) -> None:
    with jax.enable_x64(True):
        state = np.array([5 << 33 | 3, 2**64 - 2], np.uint64)  # A state whose counter overflows.
        kind = getattr(jax.lax.RandomAlgorithm, algorithm)
        same_as_jax(lambda s: jax.lax.rng_bit_generator(s, shape, dtype, algorithm=kind), state)


def test_keys_of_the_generator_of_the_hardware() -> None:
    def draw(number: Any) -> Any:
        first, second = jax.random.split(jax.random.key(number, impl="rbg"))
        return jax.random.uniform(first, (3, 5)), jax.random.permutation(second, 15)

    same_as_jax(draw, np.int32(3))

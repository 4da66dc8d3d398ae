"""Rounding to the nearest integral number where it is no instruction, in QEMU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

from .emulators import NoEmulator, command_of, run_model

ANOTHER_LIBRARY = pytest.param("armv7-linux-musl", marks=pytest.mark.slow)
"""The same code with a C library that zig would have to build for this test alone."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", ["armv7-linux", "armv7-android", ANOTHER_LIBRARY])
def test_halves_are_rounded_to_even(target: str, dtype: type) -> None:
    """Signs of zeros, large numbers, infinity and NaN are those of NumPy."""
    large = 2.0 ** (23 if dtype is np.float32 else 52)
    plain = [0.0, 0.3, 0.5, np.nextafter(dtype(0.5), dtype(1)), 1.5, 2.5, 7.7, large - 0.5, large, 3 * large]
    x = np.array([*plain, *(-v for v in plain), np.inf, -np.inf, np.nan], dtype)
    try:
        command_of(target)
    except NoEmulator as error:
        pytest.skip(str(error))
    library = tw.compile(lambda x: tw.numpy.round(x), (x,), target=target, cache=False)
    ((actual,),) = run_model(library, target, [[x]])
    np.testing.assert_array_equal(actual, np.round(x))
    np.testing.assert_array_equal(np.signbit(actual[:-1]), np.signbit(np.round(x)[:-1]))

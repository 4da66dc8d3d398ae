"""Arguments of compiled models: tensors that share memory, lists of numbers, masked arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ShapeError


@pytest.fixture(scope="module")
def shifted() -> Any:
    """A model in which an element's result depends on another element, so that writing an output into an
    input's memory would change later reads.
    """
    return tw.compile(lambda x: (x - np.flip(x, 0), x + 1), (np.zeros(8, np.float32),))


@pytest.fixture(scope="module")
def doubled() -> Any:
    return tw.compile(lambda x: x * 2, (np.zeros(3, np.int64),))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_out_in_the_memory_of_an_input(shifted: Any, kind: str, offset: int) -> None:
    for _ in range(2):  # The second call repeats the types and shapes of the first.
        memory, other = np.arange(16, dtype=np.float32) ** 2, np.empty(8, np.float32)
        x, out = memory[:8], memory[offset : offset + 8]
        wanted = x - x[::-1], x + 1
        if kind == "torch":
            torch = pytest.importorskip("torch")
            x, out, other = map(torch.from_numpy, (x, out, other))
        assert shifted(x, out=(out, other))[0] is out
        np.testing.assert_array_equal(out, wanted[0])
        np.testing.assert_array_equal(other, wanted[1])


def test_out_that_overlaps_out(shifted: Any) -> None:
    memory, x = np.empty(12, np.float32), np.ones(8, np.float32)
    apart = np.empty(8, np.float32)
    for _ in range(2):
        shifted(x, out=(memory[:8], apart))
        with pytest.raises(ShapeError, match="'out' overlaps that of output"):
            shifted(x, out=(memory[:8], memory[4:]))


def test_numbers_that_the_type_does_not_hold(doubled: Any) -> None:
    np.testing.assert_array_equal(doubled([1, 2, 3]), [2, 4, 6])
    np.testing.assert_array_equal(doubled([True, False, True]), [2, 0, 2])
    for wrong in ([1.5, 2, 3], [1.0, 2.0, 3.0], ["1", "2", "3"], [1, 2, 1 << 70], [None, 1, 2], [1j, 2, 3]):
        with pytest.raises(ShapeError, match="input 'x'"):
            doubled(wrong)
    narrow = tw.compile(lambda x: x + 1, (np.zeros(2, np.uint8),))
    for wrong in ([1, 300], [-1, 2], [np.int64(300), np.int64(1)]):
        with pytest.raises(ShapeError, match="input 'x'"):
            narrow(wrong)
    floats = tw.compile(lambda x: x + 1, (np.zeros(2, np.float32),))
    np.testing.assert_array_equal(floats([1, 2.5]), [2, 3.5])
    for wrong in (["1.5", "2"], [None, 1]):
        with pytest.raises(ShapeError, match="input 'x'"):
            floats(wrong)


def test_masked_arrays(doubled: Any) -> None:
    data = np.array([1, 2, 3])
    np.testing.assert_array_equal(doubled(np.ma.masked_array(data)), 2 * data)
    masked = np.ma.masked_array(data, mask=[False, True, False])
    with pytest.raises(ShapeError, match=r"input 'x'.*hidden elements"):
        doubled(masked)
    np.testing.assert_array_equal(doubled(masked.filled(0)), [2, 0, 6])
    with pytest.raises(ShapeError, match="'out' is a masked array"):
        doubled(data, out=np.ma.masked_array(np.empty(3, np.int64), mask=True))

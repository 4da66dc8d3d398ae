"""The memory of large results is used again once no tensor refers to it, and not before."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.result_memory import LEAST_BYTES, ResultMemory

COUNT = LEAST_BYTES // 4


@pytest.fixture(scope="module")
def model() -> Any:
    """A model with a large and a small result."""
    return tw.compile(lambda x: (x * 2, x[:3] + 1), (np.zeros(COUNT, np.float32),), dims={"x": {0: "3<=n"}})


def address(x: Any) -> int:
    return x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_released_memory_is_used_again(model: Any, kind: str) -> None:
    x: Any = np.arange(COUNT, dtype=np.float32)
    if kind == "torch":
        x = pytest.importorskip("torch").from_numpy(x)
    model(x)
    seen = set()
    for _ in range(4):
        y, small = model(x)
        seen.add(address(y))
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(small, [1, 2, 3])
        del y
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_memory_in_use_is_left_alone(model: Any, kind: str) -> None:
    """A view keeps the memory of a result, in the caller's library and across several calls."""
    x: Any = np.arange(COUNT, dtype=np.float32)
    if kind == "torch":
        x = pytest.importorskip("torch").from_numpy(x)
    view = model(x)[0].reshape(4, -1)[1:2]
    wanted = np.array(view)
    others = [model(x + k)[0] for k in range(3)]
    np.testing.assert_array_equal(view, wanted)
    for k, other in enumerate(others):
        np.testing.assert_array_equal(other, 2 * (x + k))
    assert len({address(y) for y in others}) == 3


def test_other_sizes(model: Any) -> None:
    for count in (COUNT, 2 * COUNT, COUNT + 5, 3):
        x = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(model(x)[0], 2 * x)


def test_one_block_is_kept_for_a_result() -> None:
    memory, shape, dtype = ResultMemory(), (COUNT,), np.dtype(np.float32)
    arrays = [memory.empty(0, shape, dtype) for _ in range(3)]
    del arrays
    assert len(memory._released) == 1
    again = memory.empty(0, shape, dtype)
    assert again is not None and not memory._released
    assert memory.empty(0, (3,), dtype) is None
    bits = memory.empty(1, (COUNT, 2), np.dtype(ml_dtypes.bfloat16))
    assert bits is not None and bits.dtype == ml_dtypes.bfloat16 and bits.shape == (COUNT, 2)


def test_a_type_that_torch_lacks() -> None:
    """A large result of such a type is converted, as a small one is."""
    torch = pytest.importorskip("torch")
    x = np.linspace(-2, 2, 4 * COUNT).astype(np.float32)
    narrow = ml_dtypes.float8_e3m4
    fast = tw.compile(lambda x: x.astype(narrow), (x,))
    for _ in range(2):
        y = fast(torch.from_numpy(x))
        np.testing.assert_array_equal(y.numpy(), x.astype(narrow).astype(np.float32))

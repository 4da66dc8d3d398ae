"""Random inputs respect bounds, limits and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.driver.random_inputs import (
    LARGEST_SIZE,
    default_sizes,
    random_inputs,
    sample_sizes,
    symbol_bounds,
)
from tilewright.errors import ShapeError

METADATA: dict[str, Any] = {
    "inputs": [
        {"name": "ids", "dtype": "int64", "shape": ["batch", "2*seq"], "limit": 7},
        {"name": "attention_mask", "dtype": "int64", "shape": ["batch", "2*seq"]},
        {"name": "scale", "dtype": "float32", "shape": ["batch", 3]},
        {"name": "flag", "dtype": "bool", "shape": []},
    ],
    "symbols": {"batch": [1, 8], "seq": [4, None]},
}


def test_sizes_lie_within_bounds() -> None:
    assert symbol_bounds(METADATA) == {"batch": (1, 8), "seq": (4, None)}
    sizes = sample_sizes(METADATA, count=5)
    assert sizes[0] == {"batch": 1, "seq": 4}
    assert sizes[1] == {"batch": 8, "seq": LARGEST_SIZE}
    assert len(sizes) == 5
    assert all(1 <= s["batch"] <= 8 and s["seq"] >= 4 for s in sizes)
    assert sample_sizes({"inputs": []}) == [{}]


def test_inputs() -> None:
    for seed in range(5):
        inputs = random_inputs(METADATA, {"batch": 8, "seq": 50}, seed)
        assert {name: (x.dtype.name, x.shape) for name, x in inputs.items()} == {
            "ids": ("int64", (8, 100)),
            "attention_mask": ("int64", (8, 100)),
            "scale": ("float32", (8, 3)),
            "flag": ("bool", ()),
        }
        assert set(np.unique(inputs["ids"])) == set(range(7))
        assert set(np.unique(inputs["attention_mask"])) == {0, 1}
        assert inputs["attention_mask"][:, 0].all()


def test_default_sizes() -> None:
    assert default_sizes(METADATA, {"seq": 9}) == {"batch": 1, "seq": 9}
    with pytest.raises(ShapeError, match="'batch' = 9 is outside its bounds 1..8"):
        default_sizes(METADATA, {"batch": 9})
    with pytest.raises(ShapeError, match="no dynamic dimension 'length'; it has: batch, seq"):
        default_sizes(METADATA, {"length": 9})

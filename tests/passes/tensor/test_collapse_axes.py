"""Axes that all accesses of a group use as one become one loop."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw


@pytest.mark.parametrize("shape", [(32, 1, 64), (1, 32, 64), (4, 8, 64), (1, 32, 1, 64)])
def test_rows_of_a_product_are_one_axis(shape: tuple[int, ...]) -> None:
    """The rows of a product are one loop, however many axes they have in the model, also with a residual sum
    after the product. An axis of size 1 in the middle does not make it a loop over single rows.
    """
    rng = np.random.default_rng(0)
    weight, scale, x = (rng.standard_normal(s).astype(np.float32) for s in ((64, 64), (64,), shape))

    def block(x: Any) -> Any:
        x = x * scale
        mean = x.mean(axis=-1, keepdims=True)
        x = x / (x - mean).std(axis=-1, keepdims=True)
        return x @ weight + x

    with tw.compile(block, (x,), cache=False) as library:
        groups = re.split(r"\n(?=    \S.* = tensor\.group)", library.ir("tensor"))
        (contraction,) = [g for g in groups if 'kind = "contraction"' in g]
        for axes in re.findall(r"{axes = \[([^]]*)\]", contraction):
            assert re.findall(r"0\.\.(\d+)", axes)[-2:] == ["31", "63"]
        y = x * scale
        y = y / (y - y.mean(-1, keepdims=True)).std(-1, keepdims=True)
        np.testing.assert_allclose(library(x), y @ weight + y, rtol=1e-4, atol=1e-4)

"""Products of float32 by ordinary instructions: large and small tiles, factors of both layouts, odd sizes,
run by OpenCL and by the simulator, which finds races and misaligned accesses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.devices import need

import tilewright as tw
from tilewright.schedule.kernel_schedule import pin

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize(
    ("rows", "columns", "shape", "transposed"),
    [
        (8, 8, (130, 36, 140), False),
        (8, 4, (70, 20, 68), True),
        (4, 8, (33, 7, 45), False),
        (2, 2, (40, 16, 33), True),
    ],
)
def test_tiles(target: str, rows: int, columns: int, shape: tuple[int, int, int], transposed: bool) -> None:
    need(target)
    m, k, n = shape
    x, w = drawn(m, k), drawn(n, k) if transposed else drawn(k, n)

    def product(x: Any, w: Any) -> Any:
        return tnp.maximum(x @ (w.T if transposed else w), 0)

    knobs = {"rows_of_thread": rows, "columns_of_thread": columns, "threads_of_side": 8}
    with tw.compile(
        product, (x, w), target=target, schedules=[pin("matmul*", **knobs)], cache=False
    ) as library:
        run = library.simulated(checked=True) if target == "cuda" else library
        found = np.asarray(run(x, w))
    np.testing.assert_allclose(found, np.maximum(x @ (w.T if transposed else w), 0), rtol=1e-4, atol=1e-4)

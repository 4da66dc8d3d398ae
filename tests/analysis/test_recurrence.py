"""Which loops over time become one kernel, for several forms of carried, stacked and scanned values, and
which loops do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.trace import scan

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


def selective(h: Any, x: Any, rate: Any, taken: Any) -> Any:
    """A selective state-space step. The carried value is [batch, state, channels]; its columns are the first
    and the last axis.
    """

    def step(h: Any, now: Any) -> Any:
        x, rate, taken = now
        h = h * tnp.exp(-abs(rate))[:, None] + x[:, None] * taken[..., None]
        return h, (h * taken[..., None]).sum(1)

    return scan(step, h, (x, rate, taken))


def rows(h: Any, x: Any) -> Any:
    """A step with independent columns along the first axis only: the vector lanes lie along the axis within a
    column.
    """

    def step(h: Any, x: Any) -> Any:
        h = h * x[:, None] + 1
        return h, (tnp.max(h, -1), h[:, ::-1])

    return scan(step, h, x)


def exchanged(a: Any, b: Any, x: Any) -> Any:
    """A scan in reverse order whose two carried values each take the other's old value; an old value is
    stacked, too.
    """

    def step(carried: Any, x: Any) -> Any:
        a, b = carried
        return (b + x, a * x), (a, a - b)

    return scan(step, (a, b), x, reverse=True)


def stacked_twice(h: Any, x: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = tnp.maximum(h, x)
        return h, (h, h, x * h)

    return scan(step, h, x)


def stacked_alike(h: Any, x: Any) -> Any:
    """A step that stacks one value twice. Only one of the two stacks can hold the value where it is computed;
    the other is a copy.
    """

    def step(h: Any, x: Any) -> Any:
        y = h * x
        return tnp.maximum(h, x), (y, y)

    return scan(step, h, x)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "selective": (selective, lambda n: (drawn(2, 5, 70), drawn(n, 2, 70), drawn(n, 2, 70), drawn(n, 2, 5))),
    "rows": (rows, lambda n: (drawn(90, 7), drawn(n, 90))),
    "exchanged": (exchanged, lambda n: (drawn(3, 33), drawn(3, 33), drawn(n, 3, 33))),
    "stacked alike": (stacked_alike, lambda n: (drawn(200), drawn(n, 200))),
    "stacked twice": (stacked_twice, lambda n: (drawn(200), drawn(n, 200))),
}


def flat(found: Any) -> list[Any]:
    return [np.asarray(y) for x in found for y in (flat(x) if isinstance(x, tuple) else [x])]


@pytest.mark.parametrize("precision", (None, "bf16"))
@pytest.mark.parametrize("case", CASES)
def test_one_kernel(case: str, precision: str | None) -> None:
    """Each case compiles to one recurrence kernel, is correct for several sequence lengths, and keeps its
    carried values in float32 in lower precision.
    """
    function, inputs = CASES[case]
    scanned = {name: {0: "n<=40"} for name in ("x", "rate", "taken") if name in function.__code__.co_varnames}
    library = tw.compile(
        function, inputs(3), dims=scanned, cache=False, precision=precision, check=precision is None
    )
    assert '"recurrence"' in library.ir("tensor") and "host.for" not in library.ir("host")
    for n in (1, 2, 40):
        given = inputs(n)
        wanted = flat(function(*map(tw.Tensor, given)))
        for found, expected in zip(flat(library(*given)), wanted, strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


def test_threads_take_columns() -> None:
    function, inputs = CASES["selective"]
    given = inputs(300)
    one, two = (tw.compile(function, given, cache=False, threads=n) for n in (1, 2))
    for a, b in zip(flat(one(*given)), flat(two(*given)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_cells_with_matrices_are_many_kernels() -> None:
    """A cell with a matrix product does not become a recurrence kernel, because each element of the next
    value depends on all elements of the previous one.
    """

    def cell(h: Any, x: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = tnp.tanh(h @ w + x)
            return h, h

        return scan(step, h, x)

    library = tw.compile(cell, (drawn(2, 80), drawn(6, 2, 80), drawn(80, 80)), cache=False)
    assert '"recurrence"' not in library.ir("tensor")

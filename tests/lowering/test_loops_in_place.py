"""Values that loops carry are written over the previous step's where nothing reads these later.

All loops here carry a product, which needs two buffers, and a sum of products, which needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

X = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
A = X[0]


def mix(x: Any, y: Any) -> Any:
    """A product, which no step computes in the memory of `x`."""
    return (x @ y) * 0.5


def sum_of(first: Any, m: Any, x: Any, term: Callable[[Any], Any] = lambda m: m) -> Any:
    return tw.scan(lambda s, row: ((s[0] + term(s[1]), mix(s[1], row)), None), (first, m), x)[0]


def total(a: Any, x: Any) -> Any:
    return sum_of(mix(a, a), a, x)


def given(a: Any, x: Any) -> Any:
    """A sum that begins with the caller's input, which must not change."""
    return sum_of(a, a * 2, x), a + 1


def read_later(a: Any, x: Any) -> Any:
    """A first value that is read behind the loop."""
    first = mix(a, a)
    last, _ = sum_of(first, a, x)
    return last, mix(first, last)


def read_inside(a: Any, x: Any) -> Any:
    """A first value that every step reads."""
    first = mix(a, a)
    return sum_of(first, a, x, lambda m: mix(m, first))


def shared(a: Any, x: Any) -> Any:
    """Two sums that begin with the same value."""
    first = mix(a, a)

    def step(s: Any, row: Any) -> Any:
        return (s[0] + s[2], s[1] - s[2], mix(s[2], row)), None

    return tw.scan(step, (first, first, a), x)[0]


def shared_with_product(a: Any, x: Any) -> Any:
    """A sum that begins with the same value as the product."""
    first = mix(a, a)
    return sum_of(first, first, x)


def exchanged(a: Any, x: Any) -> Any:
    """Two values that change places: the second needs the old first one, which the first then overwrites."""

    def step(s: Any, row: Any) -> Any:
        return (s[1] + s[2], s[0] * 0.5, mix(s[2], row)), None

    return tw.scan(step, (a * 2, a * 3, a), x)[0]


def stacked(a: Any, x: Any) -> Any:
    """The old value of each step, and the new one of another, are results as well."""

    def step(s: Any, row: Any) -> Any:
        new = s[1] + s[2]
        return (s[0] - s[2], new, mix(s[2], row)), (s[0], new)

    return tw.scan(step, (a * 2, a * 3, a), x)


def transposed(a: Any, x: Any) -> Any:
    """A new value whose elements need others of the old one."""
    return tw.scan(lambda s, row: ((s[0].T + s[1], mix(s[1], row)), None), (a * 2, a), x)[0]


def until(a: Any, x: Any) -> Any:
    """A loop with a condition."""

    def step(s: Any) -> Any:
        return s[0] + s[1], mix(s[1], x[1]), s[2] + 1

    return tw.while_loop(lambda s: s[2] < 4, step, (a * 2, a, tw.Tensor(np.int64(0))))


def grown(a: Any, x: Any) -> Any:
    """Rows that each step writes into a carried matrix."""

    def step(s: Any, row: Any) -> Any:
        rows, m, k = s
        return (tw.numpy.where(tw.numpy.arange(8)[:, None] == k, m[0], rows), mix(m, row), k + 1), None

    return tw.scan(step, (a * 2, a, tw.Tensor(np.int64(0))), x)[0]


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "total": (total, 3),
    "given": (given, 3),
    "read later": (read_later, 3),
    "read inside": (read_inside, 3),
    "shared": (shared, 3),
    "shared with product": (shared_with_product, 3),
    "exchanged": (exchanged, 6),
    "stacked": (stacked, 3 + 3 + 1),
    "transposed": (transposed, 6),
    "until": (until, 3 + 1),
    "grown": (grown, 3),
}
"""Functions of a matrix and a stack of matrices, and the buffers that a step passes on: three for a value
with two buffers of its own, one for a value that is passed on where it is stacked, and for a condition.
"""


def leaves(x: Any) -> list[Any]:
    return [v for y in x for v in leaves(y)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_at_once(name: str) -> None:
    function, _ = CASES[name]
    library = tw.compile(function, (A, X), check=True)
    before = A.copy()
    got = leaves(library(A, X))
    np.testing.assert_array_equal(A, before)
    for x, y in zip(got, leaves(function(tw.Tensor(A), tw.Tensor(X))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_step_passes_on_only_values_with_two_buffers(name: str) -> None:
    function, passed = CASES[name]
    lines = tw.compile(function, (A, X)).ir("host").splitlines()
    assert [line.count("%") for line in lines if "host.yield" in line] == [passed]


def copies(function: Callable[..., Any]) -> int:
    return tw.compile(function, (A, X)).ir("host").count("host.copy")


def test_a_first_value_is_copied_only_where_something_else_reads_its_memory() -> None:
    results = {total: 2, read_later: 1, shared: 3}  # carried values are copied to the results of a run
    assert [copies(f) - n for f, n in results.items()] == [0, 1, 1]

"""Symbolic integers agree with Python's arithmetic: simplification keeps values, and no false statement is
proved.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import substitution, symbolic_text
from tilewright.ir.substitution import evaluate, linear_in, substitute
from tilewright.ir.symbolic import (
    Dim,
    Expr,
    bounds,
    ceildiv,
    free_symbols,
    prove_divisible,
    prove_eq,
    prove_le,
    prove_lt,
    smax,
    smin,
    symbol,
)

N = symbol("n", 1, 40)
SEQ = symbol("seq", 0, None)
M8 = symbol("m8", 0, 64, multiple_of=8)
NEGATIVE = symbol("z", -7, 5)
I = symbol("i", 0, N - 1)
TAIL = symbol("t", 0, smin(31, 39 - I))
SYMBOLS = (N, SEQ, M8, NEGATIVE, I, TAIL)


@st.composite
def assignments(draw: Any) -> dict[str, int]:
    n = draw(st.integers(1, 40))
    i = draw(st.integers(0, n - 1))
    return {
        "n": n,
        "seq": draw(st.integers(0, 100)),
        "m8": 8 * draw(st.integers(0, 8)),
        "z": draw(st.integers(-7, 5)),
        "i": i,
        "t": draw(st.integers(0, min(31, 39 - i))),
    }


@dataclass
class Tree:
    """An expression that Python evaluates without simplification, and from which a symbolic one is built."""

    op: str
    args: tuple[Any, ...]

    def build(self) -> Dim:
        if self.op == "leaf":
            leaf: Dim = self.args[0]
            return leaf
        a, b = (x.build() for x in self.args)
        return {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "//": lambda: a // b,
            "%": lambda: a % b,
            "min": lambda: smin(a, b),
            "max": lambda: smax(a, b),
        }[self.op]()

    def run(self, values: dict[str, int]) -> int:
        if self.op == "leaf":
            leaf = self.args[0]
            return leaf if isinstance(leaf, int) else values[leaf.name]
        a, b = (x.run(values) for x in self.args)
        return {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "//": lambda: a // b,
            "%": lambda: a % b,
            "min": lambda: min(a, b),
            "max": lambda: max(a, b),
        }[self.op]()


def leaf(value: Dim) -> Tree:
    return Tree("leaf", (value,))


leaves = st.one_of(st.integers(-12, 12), st.sampled_from(SYMBOLS)).map(leaf)
divisors = st.one_of(st.sampled_from([-8, -3, -1, 1, 2, 3, 4, 6, 8, 12, 32]), st.just(N)).map(leaf)


def extend(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    arithmetic = st.builds(
        lambda op, a, b: Tree(op, (a, b)), st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner
    )
    division = st.builds(lambda op, a, b: Tree(op, (a, b)), st.sampled_from(["//", "%"]), inner, divisors)
    return st.one_of(arithmetic, division)


trees = st.recursive(leaves, extend, max_leaves=8)


@settings(max_examples=600, deadline=None)
@given(trees, st.lists(assignments(), min_size=1, max_size=6))
def test_simplification_keeps_the_value(tree: Tree, values: list[dict[str, int]]) -> None:
    e = tree.build()
    for v in values:
        assert evaluate(e, v) == tree.run(v), f"{e} at {v}"


@settings(max_examples=400, deadline=None)
@given(trees, st.lists(assignments(), min_size=1, max_size=6))
def test_bounds_hold(tree: Tree, values: list[dict[str, int]]) -> None:
    low, high = bounds(tree.build())
    for v in values:
        x = tree.run(v)
        assert low is None or low <= x
        assert high is None or x <= high


@settings(max_examples=500, deadline=None)
@given(trees, trees, st.lists(assignments(), min_size=1, max_size=8))
def test_nothing_false_is_proved(left: Tree, right: Tree, values: list[dict[str, int]]) -> None:
    a, b = left.build(), right.build()
    le, lt, eq = prove_le(a, b), prove_lt(a, b), prove_eq(a, b)
    divisible = {k: prove_divisible(a, k) for k in (2, 3, 8)}
    for v in values:
        x, y = left.run(v), right.run(v)
        assert not le or x <= y, f"{a} <= {b} at {v}"
        assert not lt or x < y, f"{a} < {b} at {v}"
        assert not eq or x == y, f"{a} == {b} at {v}"
        for k, proved in divisible.items():
            assert not proved or x % k == 0, f"{k} | {a} at {v}"


@settings(max_examples=300, deadline=None)
@given(trees)
def test_text_reads_back_as_the_same_object(tree: Tree) -> None:
    e = tree.build()
    known = {s.name: s for s in SYMBOLS}
    assert symbolic_text.parse(str(e), known) is e or symbolic_text.parse(str(e), known) == e
    assert pickle.loads(pickle.dumps(e)) == e
    assert copy.deepcopy(e) is e or isinstance(e, int)


@settings(max_examples=300, deadline=None)
@given(trees, trees, st.sampled_from([N, SEQ, NEGATIVE]), assignments())
def test_substitute_is_evaluation_in_two_steps(tree: Tree, by: Tree, s: Expr, values: dict[str, int]) -> None:
    inner = by.run(values)
    # Simplification relies on the bounds of symbols, so a value outside of them may give another result.
    if (s.lower is not None and inner < s.lower) or (s.upper is not None and inner > s.upper) or s is N:
        return
    e = substitute(tree.build(), {s: by.build()})
    assert evaluate(e, values) == evaluate(tree.build(), {**values, s.name: inner})


@settings(max_examples=300, deadline=None)
@given(trees, st.sampled_from(SYMBOLS), assignments())
def test_linear_in(tree: Tree, s: Expr, values: dict[str, int]) -> None:
    e = tree.build()
    parts = linear_in(e, s)
    if parts is not None:
        coefficient, rest = parts
        for part in parts:
            assert isinstance(part, int) or s not in free_symbols(part)
        assert evaluate(coefficient, values) * values[s.name] + evaluate(rest, values) == tree.run(values)


@settings(max_examples=100, deadline=None)
@given(trees, st.lists(assignments(), min_size=2, max_size=5))
def test_evaluate_on_arrays(tree: Tree, values: list[dict[str, int]]) -> None:
    columns = {k: np.array([v[k] for v in values]) for k in values[0]}
    got = np.broadcast_to(evaluate(tree.build(), columns), len(values))
    assert got.tolist() == [tree.run(v) for v in values]


@settings(max_examples=100, deadline=None)
@given(trees, st.lists(assignments(), min_size=2, max_size=5))
def test_functions_of_expressions_give_their_values(tree: Tree, values: list[dict[str, int]]) -> None:
    """An expression that is evaluated often becomes a function, of numbers and of arrays."""
    e = tree.build()
    if isinstance(e, int):
        return
    function = substitution._compiled(e)
    assert [function(v) for v in values] == [tree.run(v) for v in values]
    columns = {k: np.array([v[k] for v in values]) for k in values[0]}
    assert np.broadcast_to(function(columns), len(values)).tolist() == [tree.run(v) for v in values]


def test_an_expression_that_is_evaluated_often_becomes_a_function() -> None:
    e = (3 * N - 5) // 4 + N % 7
    assert [evaluate(e, {"n": n}) for n in range(200)] == [(3 * n - 5) // 4 + n % 7 for n in range(200)]
    assert callable(e._function)
    x = np.arange(5)
    assert evaluate(N + 0, {"n": x}) is not x
    with pytest.raises(KeyError, match="n"):
        evaluate(e, {})


def test_equal_expressions_are_one_object() -> None:
    assert (N + 1) * 2 is 2 * N + 2
    assert N * SEQ is SEQ * N
    assert N - N == 0
    assert symbol("n", 1, 40) is N
    assert symbol("n", 1, 41) is not N


def test_known_simplifications() -> None:
    assert (4 * N) // 4 is N
    assert (4 * N + 3) % 4 == 3
    assert M8 % 8 == 0
    assert 32 * (SEQ // 32) + SEQ % 32 is SEQ
    assert 64 * (SEQ % 64 // 4) + 16 * (SEQ % 4) is 16 * (SEQ % 64)
    assert 64 * (SEQ % 62 // 4) + 16 * (SEQ % 4) is not 16 * (SEQ % 62)
    assert I // N == 0
    assert I % N is I
    fine = symbol("fine", 0, 11)  # too small to reach the next multiple of the other terms
    assert (24 * N + 12 * SEQ + fine) // 24 is N + SEQ // 2
    assert (12 * SEQ + fine) % 24 is 12 * (SEQ % 2) + fine
    assert (12 * SEQ + fine + 1) // 24 is not SEQ // 2
    assert (SEQ // 4) // 8 is SEQ // 32
    assert ceildiv(N, 8) is (N + 7) // 8
    assert smin(N, 41) is N
    assert smax(SEQ, 0) is SEQ
    assert prove_le(I + 1, N)
    assert prove_lt(TAIL + I, 40)
    assert prove_le(8 * (SEQ // 8), SEQ)
    assert not prove_le(N, SEQ)


def test_what_was_taken_apart_before_a_split_is_put_together_after_it() -> None:
    """Parts of an index combine to the index even if one of them was simplified by its bounds: `row % 24`
    becomes `i % 24`, and the sum of the parts still becomes `row`.
    """
    i, j = symbol("i", 0, 767), symbol("j", 0, 5)
    row = i + 768 * j
    assert row % 24 is i % 24
    assert 64 * (i % 24) + 1536 * ((row % 576) // 24) + 36864 * (row // 576) is 64 * row
    assert 24 * ((row % 576) // 24) + i % 24 is row % 576


def test_symbols_refuse_comparison() -> None:
    with pytest.raises(TypeError, match="prove_le"):
        _ = N < 3  # type: ignore[operator]
    with pytest.raises(TypeError, match="not known at compile time"):
        bool(N - 1)
    with pytest.raises(ZeroDivisionError, match="n"):
        _ = N // 0


@pytest.mark.parametrize("name", ["", "1x", "a b", "for", "min", "nan", "true"])
def test_names_that_the_text_could_not_hold(name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a symbolic dimension"):
        symbol(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n +", "column"),
        ("n + m", "unknown symbol 'm'"),
        ("n // 0", "division by zero"),
        ("n ** 2", "cannot read"),
        ("n.x", "cannot read"),
    ],
)
def test_parse_errors_name_the_column(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        symbolic_text.parse(text, {"n": N})
    assert "column" in str(caught.value)


def test_long_sums_take_few_steps() -> None:
    """Proofs about long sums of run-time sizes that cannot succeed end quickly, without substituting bounds
    in every order.
    """
    sizes = [symbol(f"size_{k}", 0, None) for k in range(40)]
    total: Dim = sum(sizes[1:], sizes[0])
    assert prove_le(0, total) and prove_le(sizes[3], total)
    assert not prove_le(100, total)
    assert not prove_le(total, symbol("rows", 0, 64))


def test_a_product_of_minima_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof does not try the same expression again when its atoms are replaced in another order."""
    from tilewright.ir import symbolic

    tried = 0
    real = symbolic._non_negative

    def counted(e: Expr, depth: int) -> bool:
        nonlocal tried
        tried += 1
        return real(e, depth)

    monkeypatch.setattr(symbolic, "_non_negative", counted)
    i, j, k = symbol("row_a", 0, 111), symbol("col_a", 0, 6), symbol("col_b", 0, 3)
    height = smin(3, 29 - i // 4) - smax(0, 1 - i // 4)
    width = smin(3, 29 - j - 7 * k) - smax(0, 1 - j - 7 * k)
    assert not prove_le(2, height * width)
    assert tried < 5000


def test_limits_in_a_row_do_not_nest() -> None:
    n = symbol("n", 1)
    shorter: Dim = n
    for _ in range(500):
        shorter = smax(shorter - 1, 0)
    assert shorter is smax(n - 500, 0)
    assert smin(smin(n, 9) + 2, 7) is smin(n + 2, 7)
    assert smax(smax(n - 1, 3) - 1, 1) is smax(n - 1, 3) - 1  # the outer maximum has no effect

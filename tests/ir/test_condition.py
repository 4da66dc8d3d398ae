"""Conditions on sizes."""

from __future__ import annotations

import itertools

import pytest

from tilewright.ir.condition import check_condition, parse_condition
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import symbol

B, N = symbol("b", 0, 8), symbol("n", 1, 64)
SYMBOLS = {"b": B, "n": N}
CONDITIONS = (
    "n <= 16",
    "16 < n <= 33",
    "b*n > 64 and n % 8 == 0",
    "b == 3 and n >= 2",
    "n // 4 < b",
    "min(b, n) >= 4",
    "b + 2*n - 7 >= 0 and (b <= 3)",
)


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_holds_where_python_says_so(text: str) -> None:
    condition = parse_condition(text, SYMBOLS)
    assert condition.text == text
    for b, n in itertools.product(range(9), range(1, 65)):
        holds = all(evaluate(e, {"b": b, "n": n}) >= 0 for e in condition.guards)
        assert holds == eval(text, {"min": min}, {"b": b, "n": n})


def test_bounds_show_that_a_condition_never_holds() -> None:
    for text in ("n > 64", "n <= 8 and n > 8", "b*n > 512"):
        assert parse_condition(text, SYMBOLS).never_holds
    for text in ("n >= 1 and b <= 8", "n <= 8", "n <= 8 and b > 2"):
        assert not parse_condition(text, SYMBOLS).never_holds


@pytest.mark.parametrize(
    ("first", "second", "implied"),
    [
        ("n <= 8", "n <= 16", True),
        ("n <= 16", "n <= 8", False),
        ("n <= 8 and b > 2", "n <= 8", True),
        ("n <= 8", "n <= 8 and b > 2", False),
        ("b*n <= 8", "b*n <= 9", True),
        ("n == 4", "2 < n <= 4", True),
        ("b > 3", "n >= 1", True),
    ],
)
def test_one_condition_implies_another(first: str, second: str, implied: bool) -> None:
    assert parse_condition(first, SYMBOLS).implies(parse_condition(second, SYMBOLS)) is implied


def test_a_condition_is_checked_without_symbols() -> None:
    for text in CONDITIONS:
        check_condition(text)
    with pytest.raises(ValueError, match="unknown symbol 'm'"):
        parse_condition("m <= 3", SYMBOLS)
    with pytest.raises(ValueError, match="division by zero"):
        check_condition("n // 0 > 3")

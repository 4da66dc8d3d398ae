"""Runs samples of torch's operator database; `python -m tests.conformance.opinfo_suite` runs all of it."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from ..processes import Limits
from .opinfo_suite import outcomes, run_all, summary

OPERATORS = (
    "cummax",
    "kthvalue",
    "masked_select",
    "nonzero",
    "scatter_reduce.mean",
    "lgamma",
    "index_put",
    "searchsorted",
)


@pytest.mark.parametrize("name", OPERATORS)
def test_interpreted(name: str) -> None:
    found = list(outcomes(name, 0, "float32", 3, native=False))
    assert found and set(found) == {"pass"}


@pytest.mark.parametrize("name", ("cummin", "masked_select"))
def test_compiled(name: str) -> None:
    found = list(outcomes(name, 0, "float32", 1, native=True))
    assert found and set(found) == {"pass"}


def test_a_process_for_each_operator() -> None:
    judge = partial(outcomes, dtype="float32", samples=1, native=False)
    assert dict(run_all(["abs", "add"], judge, 2, Limits(60.0))) == {"abs": ["pass"], "add": ["pass"]}


def test_counts() -> None:
    rows = {"a": ["pass", "pass"], "b": ["pass", "wrong: x"], "c": ["not exported: E"]}
    found = summary(rows)
    assert (found["operators"], found["whole"], found["samples"], found["passed"]) == (2, 1, 4, 3)
    assert found["not exported"] == 1 and set(found["not_passed"]) == {"b", "c"}

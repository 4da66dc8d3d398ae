"""If a schedule rule does not fit a kernel, the kernel gets the next slower form. The report says so, and the
results stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.analysis.test_recurrence import selective

import tilewright as tw
from tilewright.dialects.tensor import GroupKind
from tilewright.errors import InternalError
from tilewright.ir.debug import STRICT_SCHEDULES, VARIABLE
from tilewright.schedule import Schedule, ScheduleError
from tilewright.schedule.rules import ScheduleRule
from tilewright.targets.llvm import rules

tnp = tw.numpy
DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(-1, 1, shape).astype(np.float32)


W = drawn(40, 70)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "contraction": (lambda x: tnp.tanh(x @ tnp.asarray(W)), (drawn(9, 40),)),
    "batches": (lambda x, y: x @ y, (drawn(3, 9, 40), drawn(3, 40, 33))),
    "rows": (lambda x: tnp.exp(x - tnp.max(x, -1, keepdims=True)), (drawn(9, 40),)),
    "chain": (
        lambda q, k, v: tw.nn.functional.softmax(q @ k.swapaxes(-1, -2)) @ v,
        (drawn(2, 9, 16), drawn(2, 40, 16), drawn(2, 40, 16)),
    ),
    "scatter": (lambda x: x.at[np.array([1, 1, 4])].add(1.5), (drawn(9, 40),)),
    "cumulative": (lambda x: tnp.cumsum(x, 1), (drawn(9, 40),)),
    "argsort": (lambda x: tnp.sort(x, -1), (drawn(9, 40),)),
    "recurrence": (selective, (drawn(2, 5, 70), drawn(9, 2, 70), drawn(9, 2, 70), drawn(9, 2, 5))),
}
KINDS = {"batches": "contraction"}


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes the rules of some kinds, or of all but some, fail as if they did not fit."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def failing(kind: str, rule: ScheduleRule) -> ScheduleRule:
        def schedule(s: Schedule, leading: int) -> None:
            rule(s, leading)
            raise ScheduleError(f"made to fail for {kind}")

        return schedule

    def refuse(*kinds: str, all_but: tuple[str, ...] | None = None) -> None:
        for kind, rule in rules.RULES.items():
            if kind in kinds or (all_but is not None and kind not in all_but):
                monkeypatch.setitem(rules.RULES, kind, failing(kind, rule))

    return refuse


def results(name: str) -> tuple[list[Any], Any]:
    function, inputs = PROGRAMS[name]
    with tw.compile(function, inputs, cache=False) as library:
        found = library(*inputs)
    return list(found) if isinstance(found, tuple) else [found], library.report


@pytest.mark.parametrize("left", [(GroupKind.PLAIN,), ()], ids=["plain rule", "unscheduled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kind_has_a_slower_form(name: str, left: tuple[str, ...], refuse: Callable[..., None]) -> None:
    wanted, report = results(name)
    assert not report.slower
    refuse(all_but=left)
    found, report = results(name)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert f"made to fail for {KINDS.get(name, name)}" in report.slower.values()
    assert "has a slower form: made to fail" in str(report)


def test_a_contraction_is_computed_row_by_row_before_it_is_plain(refuse: Callable[..., None]) -> None:
    refuse("contraction", GroupKind.PLAIN)
    found, report = results("contraction")
    np.testing.assert_allclose(found[0], np.tanh(PROGRAMS["contraction"][1][0] @ W), rtol=1e-5, atol=1e-6)
    assert list(report.slower.values()) == ["made to fail for contraction"]


def test_strict_compilation_fails(refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse("rows")
    monkeypatch.setenv(VARIABLE, STRICT_SCHEDULES)
    with pytest.raises(InternalError, match="made to fail for rows"):
        results("rows")

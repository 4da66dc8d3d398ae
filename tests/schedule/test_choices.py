"""Knobs of schedule rules: defaults, other choices, refusals, and their form in the metadata."""

from __future__ import annotations

import json

import pytest

from tilewright.artifact.choices import Choice
from tilewright.schedule import Schedule, ScheduleError

from .kernels import KERNELS


def begun(**choices: int | bool | str) -> Schedule:
    return Schedule(KERNELS["matmul"][0](), choices=choices)


def test_a_rule_gets_its_default_and_the_knob_is_recorded() -> None:
    s = begun()
    assert s.choose("rows", 24, range(8, 65, 8)) == 24
    assert s.choose("lead", False, (False, True)) is False
    assert s.choices == [
        Choice("rows", 24, 24, (8, 16, 24, 32, 40, 48, 56, 64)),
        Choice("lead", False, False, (False, True)),
    ]


def test_another_choice_replaces_the_default() -> None:
    s = begun(rows=64, lead=True, loop="b0_r0")
    assert s.choose("rows", 24, range(8, 65, 8), reorders_sums=True) == 64
    assert s.choose("lead", False, (False, True)) is True
    assert s.choose("loop", "b0_i1", ["b0_i0", "b0_i1", "b0_r0"]) == "b0_r0"
    assert [c.value for c in s.choices] == [64, True, "b0_r0"]
    assert s.choices[0].reorders_sums and not s.choices[1].reorders_sums
    assert s.unknown_choices() == []


def test_a_default_outside_of_the_domain_joins_it() -> None:
    s = begun()
    assert s.choose("rows", 20, (8, 32)) == 20
    assert s.choices[0].domain == (8, 20, 32)


def test_a_knob_of_one_value_is_not_recorded() -> None:
    s = begun()
    assert s.choose("rows", 8, (8,)) == 8
    assert s.choices == []


@pytest.mark.parametrize("value", [9, True, "8", 0])
def test_a_choice_outside_of_the_domain_is_refused(value: int | bool | str) -> None:
    with pytest.raises(ScheduleError, match=f"choose: rows cannot be {value!r}; its values are 8, 16, 24"):
        begun(rows=value).choose("rows", 24, (8, 16, 24))


def test_a_number_is_no_flag() -> None:
    with pytest.raises(ScheduleError, match="lead cannot be 1; its values are False, True"):
        begun(lead=1).choose("lead", False, (False, True))


def test_a_knob_is_asked_for_once() -> None:
    s = begun()
    s.choose("rows", 8, (8, 16))
    with pytest.raises(ScheduleError, match="the rule asks for 'rows' twice"):
        s.choose("rows", 8, (8, 16))


def test_choices_that_nothing_asked_for_are_listed() -> None:
    s = begun(rows=8, depth=3)
    s.choose("rows", 8, (8, 16))
    assert s.unknown_choices() == ["depth"]


@pytest.mark.parametrize(
    "domain",
    [
        (0, 12, 24, 36, 48),
        (0, 1),
        (3, 4, 9),
        ("a", "b"),
        (False, True),
        (0, 5, 6, 7, 8, 9, 20),
        tuple(range(0, 400, 6)),
    ],
    ids=str,
)
def test_the_metadata_holds_a_choice(domain: tuple[int | bool | str, ...]) -> None:
    choice = Choice("k", domain[0], domain[-1], domain, reorders_sums=True)
    entry = json.loads(json.dumps(choice.to_metadata()))
    read = Choice.from_metadata(entry)
    assert read == choice
    assert [type(x) for x in read.domain] == [type(x) for x in domain]
    assert len(json.dumps(entry)) < 150

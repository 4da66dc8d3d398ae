"""Search spaces: points, conditional knobs, refusals, neighbours, features."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.artifact.choices import Choice as Knob
from tilewright.schedule.core import ScheduleError
from tilewright.tuning.space import Point, Space, Values


def rule(choices: Values) -> list[Knob]:
    """A rule with a conditional knob, a default that depends on another knob, and a refusal."""
    recorded: list[Knob] = []

    def choose(name: str, default, among, reorders_sums: bool = False):
        value = choices.get(name, default)
        if value not in among:
            raise ScheduleError(f"{name} must be one of {among}")
        recorded.append(Knob(name, value, default, among, reorders_sums))
        return value

    rows = choose("rows", 96, range(32, 161, 32))
    choose("columns", 2 * rows, (64, 128, 192, 256, 320))
    if choose("pack", False, (False, True)):
        choose("order", "rows", ("rows", "columns", "both"))
    if choose("depth", 512, (128, 256, 512), True) == 128 and rows > 96:
        raise ScheduleError("depth 128 needs fewer rows")
    return recorded


@pytest.fixture
def space() -> Space:
    return Space(rule)


def reached(space: Space, overrides: Values) -> Point:
    point = space.point(overrides)
    assert point is not None
    return point


def test_the_default_is_the_rule_without_choices(space: Space) -> None:
    assert space.default.values == {"rows": 96, "columns": 192, "pack": False, "depth": 512}
    assert space.default.overrides == {} and not space.default.reorders_sums


def test_a_choice_reveals_knobs(space: Space) -> None:
    assert "order" not in space.default.values
    packed = reached(space, {"pack": True})
    assert packed.values["order"] == "rows"
    assert {"pack": True, "order": "both"} in space.neighbours(packed)


def test_choices_of_knobs_that_are_not_asked_for_have_no_effect(space: Space) -> None:
    assert reached(space, {"order": "both"}).key == space.default.key


def test_a_refusal_is_an_infeasible_point(space: Space) -> None:
    assert space.point({"rows": 128, "depth": 128}) is None
    assert space.point({"rows": 5}) is None


def test_only_refusals_are_infeasible() -> None:
    def broken(choices: Values) -> list[Knob]:
        if choices:
            raise KeyError("a mistake in the rule")
        return []

    with pytest.raises(KeyError):
        Space(broken).point({"rows": 1})


def test_a_rule_must_accept_its_defaults() -> None:
    def refuse(choices: Values) -> list[Knob]:
        raise ScheduleError("never")

    with pytest.raises(ScheduleError, match="refuses its own defaults"):
        Space(refuse)


def test_neighbours_change_one_knob_by_one_place(space: Space) -> None:
    assert space.neighbours(space.default) == [
        {"rows": 64},
        {"rows": 128},
        {"columns": 128},
        {"columns": 256},
        {"pack": True},
        {"depth": 256},
    ]


def test_defaults_follow_the_knobs_on_which_they_depend(space: Space) -> None:
    assert reached(space, {"rows": 64}).values["columns"] == 128
    assert reached(space, {"rows": 64, "columns": 192}).values["columns"] == 192


def test_an_override_equal_to_the_default_is_the_default(space: Space) -> None:
    assert Space.changed(reached(space, {"rows": 64}), {"rows": 96}) == {}
    assert reached(space, {"rows": 96}).key == space.default.key


def test_the_order_of_sums_is_known(space: Space) -> None:
    assert reached(space, {"depth": 256}).reorders_sums
    assert not reached(space, {"rows": 64}).reorders_sums


def test_each_combination_runs_once(space: Space) -> None:
    before = space.runs
    for _ in range(3):
        space.point({"rows": 64})
    assert space.runs == before + 1


def test_random_choices_repeat_with_the_seed(space: Space) -> None:
    def draw(seed: int) -> list[dict]:
        rng = np.random.default_rng(seed)
        return [space.scattered(space.default, rng) for _ in range(20)] + [
            space.nearby(space.default, rng) for _ in range(20)
        ]

    assert draw(1) == draw(1) != draw(2)
    assert len({repr(sorted(p.items())) for p in draw(1)}) > 15


def test_features_describe_points_of_different_knobs(space: Space) -> None:
    points = [space.default.values, reached(space, {"pack": True}).values]
    features = space.features(points)
    assert features.shape[0] == 2 and np.isfinite(features).all()
    assert (features[0] != features[1]).any()
    assert (space.features(points[:1])[0] == features[0]).all()


def test_all_points_are_enumerated(space: Space) -> None:
    keys = {p.key for p in space.enumerate()}
    without_refused = 5 * 5 * 4 * 3 - 2 * 5 * 4
    assert len(keys) == without_refused
    assert len(list(space.enumerate(10))) == 10

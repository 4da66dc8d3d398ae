"""The search, replayed on exhaustive tables: the gain that it finds, and what it never accepts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tilewright.artifact.choices import Choice as Knob
from tilewright.tuning.search import Request, Result, Search, Settings
from tilewright.tuning.space import Space, Values
from tilewright.tuning.statistics import estimate

from .tables import Table, tables

pytest.importorskip("sklearn")


class Noise:
    """Simulated measuring: blocks with heavy tails, bursts of load, and an error that a process's samples
    share.
    """

    def __init__(self, seed: int, shared: float = 0.003) -> None:
        self._rng = np.random.default_rng([77, seed])
        self._shared = shared

    def samples(self, speedup: float, blocks: int) -> tuple[float, ...]:
        """The log speedups of a process's blocks."""
        rng = self._rng
        noise = rng.normal(0, self._shared) + 0.012 * rng.standard_t(3, blocks)
        burst = rng.random(blocks) < 0.05
        return tuple(math.log(speedup) + noise + burst * rng.normal(0, 0.2, blocks))


def replay(table: Table, seed: int, settings: Settings | None = None) -> Search:
    """A search served from a table."""
    settings = settings or Settings()
    search, noise = Search(table.space(), seed=seed, settings=settings, prior=table.prior), Noise(seed)
    while requests := search.ask():
        for request in requests:
            speedup = table.default / table.time(request.point.values)
            search.tell(request, Result(noise.samples(speedup, request.blocks)))
    return search


def regret(table: Table, search: Search) -> float:
    """How much slower the chosen point is than the table's best."""
    assert search.outcome is not None
    return table.time(search.outcome.point.values) / table.best - 1


def gain(table: Table, search: Search) -> float:
    """The share of the attainable gain, in logarithms of time."""
    return 1 - math.log1p(regret(table, search)) / math.log(table.default / table.best)


def test_one_hundred_trials_find_the_gain() -> None:
    """One seed for each of the twelve tables; the slow test below has ten."""
    searches = [(table, replay(table, 0)) for table in tables()]
    assert all(search.trials <= 100 for _, search in searches)
    assert float(np.mean([gain(*pair) for pair in searches])) >= 0.95
    assert float(np.mean([regret(*pair) for pair in searches])) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("table", tables(), ids=lambda table: table.name)
def test_ten_seeds(table: Table) -> None:
    searches = [replay(table, seed) for seed in range(10)]
    print(
        f"{table.name}: mean gain {np.mean([gain(table, s) for s in searches]):.3f}, worst regret "
        f"{max(regret(table, s) for s in searches):.3f}"
    )
    assert float(np.mean([gain(table, s) for s in searches])) >= 0.95
    assert max(regret(table, s) for s in searches) <= 0.08


def knobs(choices: Values) -> list[Knob]:
    """A rule of two knobs."""
    sizes, kinds = tuple(range(8)), ("a", "b", "c")
    return [
        Knob("size", choices.get("size", 0), 0, sizes),
        Knob("kind", choices.get("kind", "a"), "a", kinds),
    ]


SMALL = Settings(trials=8, batch=8)


def small_search(seed: int = 0) -> Search:
    return Search(Space(knobs), seed=seed, settings=SMALL)


@pytest.mark.parametrize("shared", [0.003, 0.05], ids=["quiet", "under load"])
def test_defaults_measured_against_themselves_are_kept(shared: float) -> None:
    """All candidates are as fast as the default: at most 1 % of the searches may choose another."""
    chosen = 0
    for seed in range(200):
        search, noise = small_search(seed), Noise(seed, shared)
        while requests := search.ask():
            for request in requests:
                search.tell(request, Result(noise.samples(1.0, request.blocks)))
        assert search.outcome is not None
        chosen += search.outcome.point.key != search.space.default.key
    assert chosen <= 2


def test_a_real_improvement_is_accepted() -> None:
    search, noise = small_search(), Noise(0)
    while requests := search.ask():
        for request in requests:
            fast = 1.05 if request.point.values["size"] == 1 else 0.97
            search.tell(request, Result(noise.samples(fast, request.blocks)))
    assert search.outcome is not None
    assert search.outcome.point.values["size"] == 1
    assert 0.02 < search.outcome.estimate.median < 0.08


def test_the_order_of_results_and_repetitions_do_not_matter() -> None:
    def run(reverse: bool) -> tuple[list[tuple], object]:
        search, log = small_search(), []
        while requests := search.ask():
            for request in reversed(requests) if reverse else requests:
                speedup = 1 + 0.01 * float(request.point.values["size"])
                result = Result((math.log(speedup),) * request.blocks)
                search.tell(request, result)
                search.tell(request, Result(failure="crash"))
            log.append(tuple((r.number, r.point.key, r.blocks, r.stage) for r in requests))
        return log, search.outcome

    assert run(False) == run(True)


def test_asking_again_gives_the_open_requests() -> None:
    search = small_search()
    first = search.ask()
    assert search.ask() == first
    search.tell(first[0], Result(failure="hang"))
    assert search.ask() == first[1:]


def test_candidates_that_fail_are_out() -> None:
    search = small_search()
    failed: set = set()
    while requests := search.ask():
        for request in requests:
            assert request.point.key not in failed
            if float(request.point.values["size"]) >= 1:
                failed.add(request.point.key)
                search.tell(request, Result(failure="wrong"))
            else:
                search.tell(request, Result((0.05,) * request.blocks))
    assert search.outcome is not None and search.failures == len(failed) > 0
    assert search.outcome.point.values["size"] == 0 and search.outcome.point.values["kind"] != "a"


def test_nothing_that_works_leaves_the_default() -> None:
    search = small_search()
    while requests := search.ask():
        for request in requests:
            search.tell(request, Result(failure="crash"))
    assert search.outcome is not None
    assert search.outcome.point == search.space.default and search.outcome.failures == search.trials


def test_a_space_without_knobs_ends_at_once() -> None:
    search = Search(Space(lambda choices: []))
    assert search.ask() == []
    assert search.outcome is not None and search.outcome.trials == 0


def test_equal_code_is_one_candidate() -> None:
    search = small_search()
    while requests := search.ask():
        for request in requests:
            digest = f"size {request.point.values['size']}"
            search.tell(request, Result((0.1,) * request.blocks, digest=digest))
    assert search.trials <= 8
    known = search.known("size 1")
    assert known is not None and known.samples[0] == 0.1
    assert search.known("size 99") is None


def test_seeds_come_first() -> None:
    search = Search(Space(knobs), settings=SMALL, seeds=[{"size": 7, "kind": "c"}, {"size": 99}])
    first: Request = search.ask()[0]
    assert first.point.values == {"size": 7, "kind": "c"}


def test_bounds_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    groups = [[rng.standard_t(3, 10) for _ in range(3)] for _ in range(300)]
    missed = sum(estimate(g, 0.95, 300).lower > 0 for g in groups)
    assert missed <= 0.12 * len(groups)
    assert estimate([]).count == 0 and estimate([[1.0, 2.0]]).lower == -math.inf
    assert estimate([[1.0] * 9]) == estimate([[1.0] * 9])


def test_a_missing_scikit_learn_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tilewright.errors import missing_package

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.ensemble", raising=False)
    with pytest.raises(ImportError) as caught:
        small_search()
    assert "tilewright[tune]" in (missing_package(caught.value) or "")

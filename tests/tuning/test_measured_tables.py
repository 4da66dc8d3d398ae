"""The search, replayed on measured tables of real kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.tuning.search import Result, Search, Settings

from .measured import PATH, MeasuredTable, contents, measured_tables
from .test_search import Noise

pytest.importorskip("sklearn")


def replay(table: MeasuredTable, seed: int) -> Search:
    """A search of at most 100 trials, served from a table."""
    search, noise = Search(table.space(), seed=seed, settings=Settings()), Noise(seed)
    while requests := search.ask():
        for request in requests:
            values = request.point.values
            samples = noise.samples(table.speedup(values), request.blocks)
            search.tell(request, Result(samples, digest=str(table.code(values))))
    return search


def found(table: MeasuredTable, seed: int) -> float:
    """The speedup of the point that a search chooses."""
    search = replay(table, seed)
    assert search.outcome is not None and search.trials <= 100
    return table.speedup(search.outcome.point.values)


def test_the_tables_are_whole() -> None:
    assert PATH.stat().st_size < 1 << 20
    assert contents()["date"] and contents()["machine"]["threads"] == 2
    tables = measured_tables()
    assert len(tables) >= 12 and sum(len(t.points) for t in tables) > 2000
    for table in tables:
        codes = set()
        for point in table.points:
            values = {n: v[point[k]] for k, (n, v) in enumerate(table.values.items()) if point[k] >= 0}
            code, choices = table.code(values), table.rule(values)
            assert code == point[-1] and {c.name: c.value for c in choices} == values
            codes.add(code)
        assert codes == set(range(len(table.log_speedup)))
        assert all(c.value == c.default for c in table.space().default.choices)
        # The default, measured beside itself.
        assert abs(table.log_speedup[table.code({})]) < 0.03, table.name


def test_searches_find_the_gain_on_measured_tables() -> None:
    """Four of the tables, from a default of the median time; the slow test below has all."""
    tables = [measured_tables()[k].slow() for k in (0, 2, 4, 7)]
    speedups = [(found(table, 0), table.attainable) for table in tables]
    gains = [math.log(speedup) / math.log(best) for speedup, best in speedups]
    assert float(np.mean(gains)) >= 0.95
    assert max(best / speedup - 1 for speedup, best in speedups) <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("median", [False, True], ids=["default", "median point"])
@pytest.mark.parametrize("number", range(len(measured_tables())))
def test_ten_seeds_on_measured_tables(number: int, median: bool) -> None:
    table = measured_tables()[number].slow() if median else measured_tables()[number]
    regrets = [table.attainable / found(table, seed) - 1 for seed in range(10)]
    print(f"{table.name}: attainable {table.attainable:.3f}, worst regret {max(regrets):.3f}")
    assert float(np.mean(regrets)) <= 0.03
    assert max(regrets) <= 0.08

"""The choice of variants for ranges of sizes, on tables of times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tuning.tables import Table, chain, matmul
from tilewright.ir.condition import check_condition, parse_condition
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import symbol
from tilewright.tuning.size_ranges import (
    SAME,
    Sizes,
    Variant,
    choose_variants,
    formulas_of,
    sample_sizes,
    variant_at,
)

BOUNDS = {"b": (1, 8), "n": (4, 512)}


def test_one_candidate_is_no_variant() -> None:
    sizes = sample_sizes(BOUNDS, 16)
    assert choose_variants(np.ones((3, 16)), sizes) == [Variant(0, "")]
    assert choose_variants(np.ones((3, 16)), sizes, default=2) == [Variant(2, "")]
    noise = np.exp(np.random.default_rng(0).normal(0, 0.005, (20, 16)))
    assert choose_variants(noise, sizes) == [Variant(0, "")]


def test_thresholds_lie_where_times_cross() -> None:
    sizes = [{"n": n} for n in (1, 4, 16, 40, 64, 256)]
    n = np.array([s["n"] for s in sizes], float)
    times = np.array([n, np.sqrt(30 * n)])  # equal at 30
    assert choose_variants(times, sizes) == [Variant(0, "n <= 30"), Variant(1, "")]


def test_two_formulas_make_a_tree() -> None:
    sizes = [{"b": b, "n": n} for b in (1, 2, 4, 8) for n in (4, 16, 64, 256)]
    wanted = [0 if s["n"] <= 16 else 1 if s["b"] <= 2 else 2 for s in sizes]
    times = np.full((3, 16), 2.0)
    times[wanted, np.arange(16)] = 1.0
    found = choose_variants(times, sizes)
    assert len(found) == 3 and [variant_at(found, s).candidate for s in sizes] == wanted


def test_failed_candidates_are_not_chosen() -> None:
    sizes = [{"n": n} for n in (1, 2, 3)]
    times = np.array([[3.0, 3, 3], [1, 1, np.inf], [2, 2, 2]])
    assert choose_variants(times, sizes) == [Variant(2, "")]
    with pytest.raises(ValueError, match="no candidate"):
        choose_variants(times[1:2], sizes)
    with pytest.raises(ValueError, match="times of 3 sizes for 2"):
        choose_variants(times, sizes[:2])


@pytest.mark.parametrize("seed", range(20))
def test_conditions_choose_as_the_list_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = sample_sizes(BOUNDS, 16)
    found = choose_variants(np.exp(rng.normal(0, 0.3, (6, 16))), sizes)
    assert 1 < len(found) <= 4 and found[-1].when == "" and all(v.when for v in found[:-1])
    symbols = {name: symbol(name, *limits) for name, limits in BOUNDS.items()}
    conditions = [parse_condition(v.when, symbols) for v in found[:-1]]
    for v in found[:-1]:
        check_condition(v.when)
    for s in sample_sizes(BOUNDS, 200):
        holding = (k for k, c in enumerate(conditions) if all(evaluate(e, s) >= 0 for e in c.guards))
        assert variant_at(found, s) is found[next(holding, -1)]


def test_the_division_is_the_best_one() -> None:
    """No other tree of thresholds is better: compared with all of two leaves."""
    rng = np.random.default_rng(0)
    sizes = sample_sizes(BOUNDS, 10)
    times = np.exp(rng.normal(0, 0.3, (5, 10)))
    losses = np.maximum(np.log(times / times.min(axis=0)) - SAME, 0) ** 2

    def cost(found: list[Variant]) -> float:
        return float(sum(losses[variant_at(found, s).candidate, k] for k, s in enumerate(sizes)))

    ours = cost(choose_variants(times, sizes, most=2))
    for formula, names in formulas_of(list(BOUNDS)).items():
        for s in sizes:
            test = f"{formula} <= {math.prod(s[x] for x in names)}"
            for a in range(5):
                for b in range(5):
                    assert ours <= cost([Variant(a, test), Variant(b, "")]) + 1e-9


def test_sizes_are_spread_between_their_bounds() -> None:
    sizes = sample_sizes({"b": (1, 8), "n": (3, 509)}, 16, {"n": 4})
    assert sizes[0] == {"b": 1, "n": 4} and sizes[1] == {"b": 8, "n": 508}
    assert len({tuple(s.items()) for s in sizes}) == 16
    assert all(1 <= s["b"] <= 8 and 4 <= s["n"] <= 508 and s["n"] % 4 == 0 for s in sizes)
    for low in (4, 16, 64):
        assert any(low <= s["n"] < 4 * low for s in sizes)
    assert sample_sizes({"b": (1, 3)}, 16) == [{"b": 1}, {"b": 3}, {"b": 2}]
    assert sample_sizes({"b": (5, 5)}, 16) == [{"b": 5}]


def study(make: Callable[[Sizes], Table], bounds: dict[str, tuple[int, int]], seed: int) -> np.ndarray:
    """How much slower than the best candidate of each size the variants are at 16 sizes that were not
    measured.

    The candidates are the default, the best point of each measured size, and a good one beside it.
    """
    rng = np.random.default_rng(seed)
    train = sample_sizes(bounds, 16)
    held_out = [
        {k: round(math.exp(rng.uniform(math.log(low), math.log(high)))) for k, (low, high) in bounds.items()}
        for _ in range(16)
    ]
    tables = [make(s) for s in (*train, *held_out)]
    times = np.array([t.seconds.reshape(-1) for t in tables]).T
    times[~np.isfinite(times).all(axis=1)] = np.inf
    order = np.argsort(times, axis=0)
    first = tables[0]
    default = np.ravel_multi_index(
        tuple(d.index(first.defaults[n]) for n, d in first.domains.items()), first.seconds.shape
    )
    points = [default, *order[0, :16], *(order[rng.integers(1, 50), k] for k in range(16))]
    chosen = list(dict.fromkeys(map(int, points)))[:32]
    measured = times[chosen, :16] * np.exp(rng.normal(0, 0.005, (len(chosen), 16)))
    found = choose_variants(measured, train)
    assert len(found) <= 4
    at = [variant_at(found, s).candidate for s in held_out]
    rest: Any = times[chosen, 16:]
    return rest[at, np.arange(16)] / rest.min(axis=0)


def test_variants_are_near_the_best_candidate_at_sizes_that_were_not_measured() -> None:
    k = 1 << 10
    ratios = []
    for seed in range(2):
        for make, bounds in (
            (lambda s: matmul("", s["b"] * s["n"], 768, 768, 2, 48 * k, 1024 * k, 7), BOUNDS),
            (lambda s: matmul("", s["n"], 1024, 1024, 8, 32 * k, 512 * k, 8), {"n": (1, 4096)}),
        ):
            ratios.append(study(make, bounds, seed))
    assert max(r.mean() for r in ratios) < 1.015
    assert np.mean(np.concatenate(ratios) < 1.03) > 0.9


def test_attention_is_divided_by_the_length() -> None:
    """A synthetic attention whose balance jumps from size to size: four variants cannot follow each jump."""
    ratios = np.concatenate(
        [
            study(
                lambda s: chain("", s["n"], 64, 12 * s["b"], 2, 1 << 20, 9),
                {"b": (1, 8), "n": (8, 512)},
                seed,
            )
            for seed in range(2)
        ]
    )
    assert ratios.mean() < 1.05

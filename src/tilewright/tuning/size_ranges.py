"""Variants for ranges of sizes: which candidates serve a kernel of dynamic sizes, and under which conditions.

Candidates are measured at some sizes. `choose_variants` divides the sizes by comparisons of formulas with
thresholds into few parts, each with one candidate, so that every size is served about as well as by the
candidate that is best there. The result is a list of conditions, of which the first that holds counts, as
`tilewright.pin(..., when=...)` has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

Sizes = Mapping[str, int]
"""The value of each symbol."""

MOST_VARIANTS = 4
"""Upper bound on the variants of a kernel. A larger value follows the best candidate more closely, with more
code to compile and to keep in caches.
"""
SAME = 0.01
"""Difference of two candidates' times up to which they are taken for equal, as a share. Measurements differ
by as much without a reason. A larger value gives fewer variants.
"""
WORTH_A_VARIANT = 0.02
"""Loss of time at one measured size, beyond `SAME`, from which on it is worth a variant of its own. A larger
value gives fewer variants.
"""


@dataclass(frozen=True)
class Variant:
    """A candidate and the condition under which it runs."""

    candidate: int
    when: str
    """The condition, as `tilewright.pin` takes it; "" for the last variant, which serves all other sizes."""


@dataclass(frozen=True)
class _Split:
    """A test of a tree: sizes where `formula` is at most `threshold` go to `low`."""

    formula: int
    threshold: int
    low: _Tree
    high: _Tree


_Tree = _Split | int
"""A division of sizes; a leaf is a candidate."""


def formulas_of(symbols: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The formulas on which conditions are set: the product of all symbols first, then of two, then each
    symbol; by text, with the symbols that are multiplied.
    """
    products = [
        names for count in range(len(symbols), 0, -1) for names in itertools.combinations(symbols, count)
    ]
    few = [names for names in products if len(names) in (1, 2, len(symbols))]
    return {"*".join(names): names for names in few}


def choose_variants(
    seconds: np.ndarray, sizes: Sequence[Sizes], most: int = MOST_VARIANTS, default: int = 0
) -> list[Variant]:
    """The variants that serve all sizes best.

    The squares of the losses at the measured sizes are minimized, a loss being the logarithm of a variant's
    time over the best candidate's, less `SAME`; every variant but one costs the square of `WORTH_A_VARIANT`.
    Conditions are a tree of at most `most` leaves, the best of all such trees. A threshold between two
    measured sizes lies where the times of the candidates on its sides cross.

    Args:
        seconds: The time of each candidate (row) at each size (column); not finite where it failed.
        sizes: The sizes that were measured.
        most: The most variants.
        default: The candidate to take where others are no better.

    Returns:
        The variants in the order in which their conditions are tested; the last has no condition.

    Raises:
        ValueError: The shapes of the arguments differ, or no candidate served all sizes.
    """
    count, columns = seconds.shape
    if columns != len(sizes) or not sizes:
        raise ValueError(f"times of {columns} sizes for {len(sizes)} sizes")
    formulas = formulas_of(list(sizes[0]))
    values = np.array([[math.prod(s[x] for x in names) for s in sizes] for names in formulas.values()])
    usable = np.isfinite(seconds).all(axis=1)
    if not usable.any():
        raise ValueError("no candidate has a time at every size")
    logs = np.log(np.where(usable[:, None], seconds, 1.0))
    beyond = np.maximum(logs - logs[usable].min(axis=0) - SAME, 0)
    losses = np.where(usable[:, None], beyond, np.inf) ** 2
    # The default comes first, and argmin takes the first of equal ones.
    order = np.array([default, *(c for c in range(count) if c != default)])
    price = WORTH_A_VARIANT**2

    @cache
    def leaf(part: int) -> tuple[float, int]:
        """The least sum of losses in a set of sizes (bits), and its candidate."""
        sums = losses[:, _bits(part, columns)].sum(axis=1)
        if sums[default] <= sums.min() + price / 4:
            return float(sums[default]), default
        best = int(order[np.argmin(sums[order])])
        return float(sums[best]), best

    @cache
    def best(part: int, leaves: int) -> tuple[float, _Tree]:
        """The least cost of a set of sizes with at most so many leaves, and its tree."""
        cost, tree = leaf(part)
        found: tuple[float, _Tree] = (cost, tree)
        if leaves == 1 or cost <= price:
            return found
        inside = _bits(part, columns)
        for formula, row in enumerate(values):
            steps = np.unique(row[inside])
            for below in steps[:-1]:
                low = sum(1 << int(k) for k in np.flatnonzero(inside & (row <= below)))
                for share in range(1, leaves):
                    (first, low_tree), (second, high_tree) = (
                        best(low, share),
                        best(part & ~low, leaves - share),
                    )
                    if first + second + price < found[0] - 1e-12:
                        found = first + second + price, _Split(formula, int(below), low_tree, high_tree)
        return found

    tree = best((1 << columns) - 1, most)[1]
    texts = list(formulas)
    fitted = _fitted(tree, values, np.arange(columns), logs)
    return _listed(fitted, texts)


def _bits(part: int, count: int) -> np.ndarray:
    return np.array([bool(part >> k & 1) for k in range(count)])


def _fitted(tree: _Tree, values: np.ndarray, inside: np.ndarray, logs: np.ndarray) -> _Tree:
    """The tree with each threshold moved between its two neighbours to where the candidates' times cross."""
    if isinstance(tree, int):
        return tree
    row = values[tree.formula]
    low, high = inside[row[inside] <= tree.threshold], inside[row[inside] > tree.threshold]
    below, above = int(row[low].max()), int(row[high].min())
    one, other = _last(tree.low), _first(tree.high)
    # How much slower the low side's candidate is, next to the threshold on both sides.
    gaps = [
        float((logs[one] - logs[other])[part[row[part] == v]].mean())
        for part, v in ((low, below), (high, above))
    ]
    share = 0.5 if not gaps[0] < 0 < gaps[1] else gaps[0] / (gaps[0] - gaps[1])
    start, end = math.log(max(below, 1)), math.log(max(above, 1))
    threshold = min(max(int(math.exp(start + share * (end - start))), below), above - 1)
    return _Split(
        tree.formula, threshold, _fitted(tree.low, values, low, logs), _fitted(tree.high, values, high, logs)
    )


def _first(tree: _Tree) -> int:
    return tree if isinstance(tree, int) else _first(tree.low)


def _last(tree: _Tree) -> int:
    return tree if isinstance(tree, int) else _last(tree.high)


def _listed(tree: _Tree, formulas: Sequence[str], tests: tuple[tuple[int, int], ...] = ()) -> list[Variant]:
    """The leaves, lower sides first.

    A leaf needs only the tests whose lower side it is on: all sizes of the other side of a test have been
    taken by the leaves before it.
    """
    if isinstance(tree, _Split):
        low = _listed(tree.low, formulas, (*tests, (tree.formula, tree.threshold)))
        return [*low, *_listed(tree.high, formulas, tests)]
    least: dict[int, int] = {}
    for formula, threshold in tests:
        least[formula] = min(threshold, least.get(formula, threshold))
    return [Variant(tree, " and ".join(f"{formulas[f]} <= {t}" for f, t in least.items()))]


def variant_at(variants: Sequence[Variant], sizes: Sizes) -> Variant:
    """The variant that runs at the given sizes."""
    for variant in variants:
        tests = [test.split(" <= ") for test in variant.when.split(" and ")] if variant.when else []
        if all(math.prod(sizes[s] for s in formula.split("*")) <= int(limit) for formula, limit in tests):
            return variant
    raise ValueError("the last variant has a condition")


def sample_sizes(
    bounds: Mapping[str, tuple[int, int]], count: int, multiples: Mapping[str, int] | None = None
) -> list[dict[str, int]]:
    """Sizes to measure: the smallest and the largest, then `count` - 2 between them, evenly spread by their
    logarithms.

    Args:
        bounds: The least and the largest value of each symbol.
        count: How many.
        multiples: Numbers that divide symbols.
    """
    names = list(bounds)
    unit = {name: (multiples or {}).get(name, 1) for name in names}
    limits = {name: (-(-low // unit[name]), high // unit[name]) for name, (low, high) in bounds.items()}
    # Multiples of the powers of a number's inverse, without their whole parts, cover a cube evenly: the
    # number is the root of x^(d+1) = x + 1 (Roberts, "The unreasonable effectiveness of quasirandom
    # sequences", 2018).
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / (len(names) + 1))
    found: list[dict[str, int]] = []
    for point in itertools.chain(([0.0] * len(names), [1.0] * len(names)), _points(root, len(names))):
        sizes = {}
        for x, name in zip(point, names, strict=True):
            low, high = limits[name]
            start, end = math.log(max(low, 1)), math.log(max(high, 1))
            sizes[name] = min(max(round(math.exp(start + x * (end - start))), low), high) * unit[name]
        if sizes not in found:
            found.append(sizes)
        if len(found) >= min(count, math.prod(high - low + 1 for low, high in limits.values())):
            return found
    raise AssertionError("the sequence does not end")


def _points(root: float, dimensions: int) -> Iterator[list[float]]:
    return ([(0.5 + k * root ** -(d + 1)) % 1 for d in range(dimensions)] for k in itertools.count(1))


__all__ = [
    "MOST_VARIANTS",
    "SAME",
    "WORTH_A_VARIANT",
    "Sizes",
    "Variant",
    "choose_variants",
    "formulas_of",
    "sample_sizes",
    "variant_at",
]

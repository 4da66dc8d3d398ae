"""Candidates of one kernel at several sizes: what they take, and the verdict with variants.

Each candidate is measured beside the default at each size, in any order. `size_ranges` then chooses the
candidates that serve the sizes together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, prod

import numpy as np

from ..driver.tuning_database import Database, Trial, hash_of
from ..errors import CompileError, TilewrightError
from ..lowering.kernel_forms import sizes_of
from .execution import Executor, Task
from .kernels import ModelKernel
from .measure import Built, MeasureError
from .size_ranges import MOST_VARIANTS, Sizes, Variant, choose_variants, sample_sizes, variant_at
from .space import Point
from .statistics import estimate

SHAPES = 16
"""Sizes that are measured, unless the caller says how many. A larger value places thresholds better."""
CANDIDATES = 31
"""The most candidates beside the default. A larger value finds better variants and takes longer."""
BLOCKS = 5
"""Samples of a candidate at a size."""
WORTH = 0.01
"""The least mean improvement over the default, at the measured sizes, for which a verdict is not the
default."""
BuildAt = Callable[[ModelKernel, Sequence[Point]], Sequence[Built | TilewrightError]]
"""Compiles points of a kernel that is to be measured at the sizes that it has."""


def shapes_to_measure(
    shapes: int | Sequence[Mapping[str, int]], bounds: Mapping[str, tuple[int, int | None]]
) -> list[dict[str, int]]:
    """The option `shapes` of `tilewright.tune`, checked, for symbols with these bounds (inclusive; None: no
    upper one).

    Raises:
        CompileError: The model has no symbol; `shapes` is a number and a symbol has no upper bound; or
            `shapes` is neither a number nor sizes within the bounds.
    """
    if not bounds:
        raise CompileError("tune: shapes are for dynamic dimensions, and this model has none; give dims")
    example = ", ".join(f"{name!r}: {low}" for name, (low, _) in bounds.items())
    if isinstance(shapes, (int, np.integer)) and not isinstance(shapes, bool):
        if shapes < 2:
            raise CompileError(f"tune: shapes={shapes}: give at least 2, or a list of sizes")
        limits = {name: (low, high) for name, (low, high) in bounds.items() if high is not None}
        if unbounded := next((name for name in bounds if name not in limits), None):
            raise CompileError(
                f"tune: shapes={shapes}: dimension {unbounded!r} has no upper bound below which sizes could "
                f"be spread; give it one in dims, such as '{unbounded}<=512', or list the sizes: "
                f"shapes=[{{{example}}}, ...]"
            )
        return sample_sizes(limits, int(shapes))
    if not isinstance(shapes, (list, tuple)):
        raise CompileError(
            f"tune: shapes is {shapes!r}: give a number of sizes, or a list of at least 2: "
            f"[{{{example}}}, ...]"
        )
    found = [_sizes_of(sizes, number, bounds) for number, sizes in enumerate(shapes)]
    if len(found) < 2:
        raise CompileError(f"tune: shapes lists {len(found)} sizes: give at least 2, or leave shapes out")
    return found


def _sizes_of(sizes: object, number: int, bounds: Mapping[str, tuple[int, int | None]]) -> dict[str, int]:
    """One entry of the option `shapes`, checked."""
    if not isinstance(sizes, Mapping) or set(sizes) != set(bounds):
        raise CompileError(
            f"tune: shapes[{number}] is {sizes!r}: give the size of each of {', '.join(bounds)}"
        )
    for name, (low, high) in bounds.items():
        size = sizes[name]
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
            raise CompileError(
                f"tune: shapes[{number}]: {name} = {size!r} is of type {type(size).__name__}; give an integer"
            )
        if size < low or (high is not None and size > high):
            within = f"at least {low}" if high is None else f"between {low} and {high}"
            raise CompileError(f"tune: shapes[{number}]: {name} = {size} is not {within}")
    return {name: int(sizes[name]) for name in bounds}


def sample_evenly(shapes: Sequence[dict[str, int]], count: int) -> list[dict[str, int]]:
    """At most `count` of the shapes, evenly spread by the number of elements."""
    ordered = sorted(shapes, key=lambda s: prod(s.values()))
    few = min(count, len(ordered))
    return [ordered[(2 * k + 1) * len(ordered) // (2 * few)] for k in range(few)]


def candidates_for(database: Database, kernel: ModelKernel, most: int = CANDIDATES) -> list[Point]:
    """The default, then the points that searches found the fastest, whatever the size; none that adds the
    terms of a sum in another order, so that all variants have equal results.
    """
    space = kernel.space()
    speed: dict[str, tuple[float, Mapping[str, object]]] = {}
    failed: set[str] = set()
    for trial in database.of(kernel.key):
        if trial.stage not in ("race", "final"):
            continue
        if trial.failure is not None:
            failed.add(trial.digest)
        elif trial.speedup is not None and trial.speedup > speed.get(trial.digest, (0.0, {}))[0]:
            speed[trial.digest] = trial.speedup, trial.choices
    found = [space.default]
    for digest, (_, choices) in sorted(speed.items(), key=lambda item: -item[1][0]):
        point = None if digest in failed else space.point(choices)  # type: ignore[arg-type]
        if point is not None and not point.reorders_sums and point.key != space.default.key:
            found.append(point)
        if len(found) > most:
            break
    return found


def measure_shapes(
    kernels: Sequence[ModelKernel],
    points: Sequence[Point],
    build: BuildAt,
    executor: Executor,
    end: float = inf,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[np.ndarray, list[str]]:
    """The time of each point (row) at each size (column) as a share of the default's there, and the digests.

    Args:
        kernels: One kernel at each size.
        points: The default first.
        build: Compiles.
        executor: Measures.
        end: When to stop; points that have not been measured everywhere then count as failed.
        clock: Seconds from any start.

    Returns:
        The shares, infinite where a point fails, and the digest of each point's code.

    Raises:
        MeasureError: The default fails.
        TilewrightError: The default cannot be built.
    """
    shares = np.full((len(points), len(kernels)), np.inf)
    digests = [""] * len(points)
    places: dict[str, tuple[int, int]] = {}
    defaults: list[Built] = []
    for column, kernel in enumerate(kernels):
        if isinstance(default := build(kernel, points[:1])[0], TilewrightError):
            raise default
        defaults.append(default)
        digests[0], shares[0, column] = default.digest, 1.0
    for row in range(1, len(points)):
        # A point is built and measured at all sizes before the next one begins.
        for column, kernel in enumerate(kernels):
            candidate = build(kernel, points[row : row + 1])[0]
            if isinstance(candidate, TilewrightError):
                continue
            digests[row] = candidate.digest
            if candidate.digest == defaults[column].digest:
                shares[row, column] = 1.0
                continue
            what = [kernel.key.kernel, kernel.key.threads, sorted(kernel.sizes.items()), candidate.digest]
            task = Task(hash_of([*what, "shapes"]), kernel.key, defaults[column], candidate, BLOCKS)
            places[task.id] = row, column
            executor.submit(task)
        while places:
            for answer in executor.completed():
                if answer.error:
                    raise MeasureError(answer.error)
                if (place := places.pop(answer.id, None)) is not None and not answer.measurement.failure:
                    shares[place] = exp(-estimate([answer.measurement.samples]).median)
        if clock() >= end:
            break
    return shares, digests


def verdict_of(
    kernel: ModelKernel,
    sizes: Sequence[Sizes],
    points: Sequence[Point],
    shares: np.ndarray,
    digests: Sequence[str],
    most: int = MOST_VARIANTS,
) -> tuple[Trial, list[Variant]]:
    """The verdict for the database, and the variants that it holds, by conditions over the model's sizes.

    Both are the default if the variants are not faster by `WORTH` on average at the measured sizes.
    """
    found = choose_variants(shares, sizes, most)
    served = np.array([shares[variant_at(found, s).candidate, k] for k, s in enumerate(sizes)])
    speedup = float(exp(-np.log(served).mean()))
    if speedup < 1 + WORTH:
        found, speedup = [Variant(0, "")], 1.0
    names = {name: f"size_{k}" for k, name in enumerate(sizes_of(kernel.form.group))}

    def renamed(when: str) -> str:
        parts = (test.split(" <= ") for test in when.split(" and "))
        return " and ".join(
            f"{'*'.join(names[s] for s in formula.split('*'))} <= {limit}" for formula, limit in parts
        )

    variants = tuple(
        {
            "when": renamed(v.when),
            "choices": points[v.candidate].overrides,
            "digest": digests[v.candidate],
        }
        for v in found[:-1]
    )
    last = found[-1].candidate
    trial = Trial(
        kernel.key,
        points[last].overrides,
        digests[last],
        "chosen",
        speedup=round(speedup, 6),
        lower=round(1 / float(served.max()), 6) if len(found) > 1 or last else 1.0,
        upper=round(1 / float(served.min()), 6) if len(found) > 1 or last else 1.0,
        variants=variants or None,
    )
    return trial, found


__all__ = ["SHAPES", "candidates_for", "measure_shapes", "sample_evenly", "shapes_to_measure", "verdict_of"]

"""Which products of a model are faster by a vendor's library: measured, and recorded in a database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.driver.compile import compile
from tilewright.driver.options import thread_count
from tilewright.driver.tuned import keys_for
from tilewright.driver.tuning_database import Database, Trial, hash_of
from tilewright.frontends.trace import Tensor
from tilewright.passes.graph.use_libraries import Shape
from tilewright.targets.registry import resolve
from tilewright.targets.vendor.products import Product, structure_of, takes

ROUNDS = 9
"""Turns of each candidate; the medians are compared."""
LEAST = 0.004
"""Seconds of a turn at least."""
MARGIN = 1.02
"""A library is chosen if it is faster by this factor."""


@dataclass(frozen=True)
class Measured:
    """The times of one product."""

    structure: str
    """The measured product, in words."""
    seconds: Mapping[str, float]
    """The median time of a run, in seconds, by library; "" stands for generated code."""
    library: str
    """The choice; empty for generated code."""


def measure_libraries(
    model: object,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    libraries: Sequence[str],
    database: Database | str | Path,
    target: str = "cpu",
    threads: int | None = None,
    **options: Any,
) -> list[Measured]:
    """Measure the products of a model by libraries of vendors and by generated code, and record the choices.

    ``tilewright.compile(model, ..., libraries=..., tuned=database)`` then takes the faster code for each
    product. Products whose sizes are known at run time only are not measured, and neither are those that have
    a record.

    Args:
        model: As of `tilewright.compile`.
        args: As of `tilewright.compile`.
        libraries: The names of the libraries.
        database: The database of `tilewright.tune`, or the path of one, which need not exist.
        target: A target that runs on this machine.
        threads: The most threads of a run; None: all cores.
        **options: Further options of `tilewright.compile`.

    Raises:
        CompileError: See `tilewright.compile`.
        ArtifactError: A library is missing; the message names it.
    """
    names = [libraries] if isinstance(libraries, str) else list(libraries)
    found = database if isinstance(database, Database) else Database(database)
    key = keys_for(resolve(target), thread_count(threads))
    compiled = compile(model, args, libraries=names, target=target, threads=threads, cache=False, **options)
    results = []
    for product, shape in dict.fromkeys(compiled.report.products):
        structure = structure_of(product, shape)
        if None in (shape.batch, shape.rows, shape.columns, shape.terms) or found.chosen(key(structure)):
            continue
        able = ["", *(n for n in names if takes(n, product))]
        seconds = _race({n: _run_of(product, shape, n, target, threads) for n in able})
        best = min(able, key=seconds.__getitem__)
        best = best if seconds[""] > MARGIN * seconds[best] else ""
        found.add(
            Trial(
                key(structure),
                {"library": best},
                hash_of([product.label, best]),
                stage="chosen",
                speedup=seconds[""] / seconds[best],
                seconds=seconds[best],
            )
        )
        results.append(Measured(structure, seconds, best))
    return results


def _run_of(product: Product, shape: Shape, name: str, target: str, threads: int | None) -> Any:
    """A function that runs the product once."""
    rng = np.random.default_rng(0)
    assert shape.batch is not None and shape.rows is not None
    assert shape.columns is not None and shape.terms is not None
    lead = (shape.batch,) if product.batched else ()
    right = (shape.columns, shape.terms) if product.transposed else (shape.terms, shape.columns)
    dtype = product.dtype.numpy
    x, y = (rng.standard_normal((*lead, *s)).astype(dtype) for s in ((shape.rows, shape.terms), right))
    bias = [rng.standard_normal(shape.columns).astype(dtype)] if product.epilogue else []

    def multiply(x: Any, *others: Any) -> Any:
        y_, *bias_ = [Tensor(y), *others] if shape.constant else others
        z = x @ (y_.swapaxes(-1, -2) if product.transposed else y_)
        return z + bias_[0] if bias_ else z

    inputs = [x, *([] if shape.constant else [y]), *bias]
    library = compile(
        multiply, tuple(inputs), target=target, threads=threads, libraries=[name] if name else []
    )
    return lambda: library(*inputs)


def _race(runs: Mapping[str, Any]) -> dict[str, float]:
    """The median time of each run in seconds; the candidates take turns."""
    counts = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = max(1, int(LEAST / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                run()
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(values) for name, values in times.items()}


__all__ = ["Measured", "measure_libraries"]

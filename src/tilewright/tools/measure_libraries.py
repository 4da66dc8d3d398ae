"""Which products and convolutions of a model are faster by a vendor's library: measured, and recorded in a
database.
"""

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
from tilewright.frontends.nn.functional import conv
from tilewright.frontends.trace import Tensor
from tilewright.passes.graph.library_forms import Convolution, Form, Product, Shape, structure_of
from tilewright.targets.registry import resolve
from tilewright.targets.vendor.choice import computes

ROUNDS = 9
"""Turns of each candidate; the medians are compared."""
LEAST = 0.004
"""Seconds of a turn at least."""
MARGIN = 1.02
"""A library is chosen if it is faster by this factor."""


@dataclass(frozen=True)
class Measured:
    """The times of one product or convolution."""

    structure: str
    """The measured operator, in words."""
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
    """Measure the products and convolutions of a model by libraries of vendors and by generated code, and
    record the choices.

    ``tilewright.compile(model, ..., libraries=..., tuned=database)`` then takes the faster code for each
    operator. Operators whose sizes are known at run time only are not measured, and neither are those that
    have a record.

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
    for form, shape in dict.fromkeys(compiled.report.offered):
        structure = structure_of(form, shape)
        if None in shape.sizes or found.chosen(key(structure)):
            continue
        able = ["", *(n for n in names if computes(n, form))]
        seconds = _race({n: _run_of(form, shape, n, target, threads) for n in able})
        best = min(able, key=seconds.__getitem__)
        best = best if seconds[""] > MARGIN * seconds[best] else ""
        found.add(
            Trial(
                key(structure),
                {"library": best},
                hash_of([form.label, best]),
                stage="chosen",
                speedup=seconds[""] / seconds[best],
                seconds=seconds[best],
            )
        )
        results.append(Measured(structure, seconds, best))
    return results


def _run_of(form: Form, shape: Shape, name: str, target: str, threads: int | None) -> Any:
    """A function that runs an operator once."""
    rng = np.random.default_rng(0)
    sizes = [n for n in shape.sizes if n is not None]
    function, shapes = _product(form, sizes) if isinstance(form, Product) else _convolution(form, sizes)
    x, second, *others = (rng.standard_normal(s).astype(form.dtype.numpy) for s in shapes)

    def run(x: Any, *given: Any) -> Any:
        return function(x, Tensor(second), *given) if shape.constant else function(x, *given)

    inputs = (x, *others) if shape.constant else (x, second, *others)
    library = compile(run, inputs, target=target, threads=threads, libraries=[name] if name else [])
    return lambda: library(*inputs)


def _product(form: Product, sizes: Sequence[int]) -> tuple[Any, list[tuple[int, ...]]]:
    """A function that computes a product, and the shapes of its arguments."""
    batch, rows, columns, terms = sizes
    lead = (batch,) if form.batched else ()
    right = (columns, terms) if form.transposed else (terms, columns)

    def multiply(x: Any, y: Any, *bias: Any) -> Any:
        z = x @ (y.swapaxes(-1, -2) if form.transposed else y)
        return z + bias[0] if bias else z

    return multiply, [(*lead, rows, terms), (*lead, *right), *([(columns,)] if form.epilogue else [])]


def _convolution(form: Convolution, sizes: Sequence[int]) -> tuple[Any, list[tuple[int, ...]]]:
    """A function that computes a convolution of a tensor with channels first, and the shapes of its
    arguments. The compiler chooses the order of dimensions, as in the model.
    """
    images, *spatial, channels, filters = sizes

    def convolve(x: Any, w: Any) -> Any:
        return conv(x, w, None, form.strides, form.padding, form.dilations, form.groups)

    return convolve, [(images, channels, *spatial), (filters, channels // form.groups, *form.kernel)]


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

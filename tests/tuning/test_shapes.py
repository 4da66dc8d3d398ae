"""Tuning for several sizes of dynamic dimensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.tuned import keys_for
from tilewright.driver.tuning_database import Database, Trial
from tilewright.errors import CompileError, TilewrightError
from tilewright.tuning import tune as tune_module
from tilewright.tuning.confirm import Confirmation
from tilewright.tuning.execution import Answer, Task
from tilewright.tuning.kernels import ModelKernel, kernels_of
from tilewright.tuning.measure import Built, Measurement
from tilewright.tuning.search import Settings
from tilewright.tuning.shapes import (
    candidates_for,
    measure_shapes,
    sample_evenly,
    shapes_to_measure,
    verdict_of,
)
from tilewright.tuning.space import Point

RNG = np.random.default_rng(0)
W = RNG.standard_normal((96, 160), dtype=np.float32)
DIMS = {"x": {0: "batch<=8", 1: "n<=64"}}
BOUNDS = {"batch": (1, 8), "n": (1, 64)}
SIZES = [{"batch": b, "n": n} for b in (1, 8) for n in (1, 4, 16, 64)]


def model(x: tw.Tensor) -> tw.Tensor:
    return tw.where(x @ W > 0, x @ W, 0.0)


def data(batch: int, n: int) -> Any:
    return RNG.standard_normal((batch, n, 96), dtype=np.float32)


def compiled(**options: Any) -> Any:
    return tw.compile(model, (data(2, 5),), dims=DIMS, cache=False, **options)


def kernels() -> list[ModelKernel]:
    """The model's kernel at each size."""
    origin = compiled().origin
    return [kernels_of(origin, keys_for(origin.target, None), sizes)[0][0] for sizes in SIZES]


class Formula:
    """An executor that answers by a formula, the last task first."""

    width = 2

    def __init__(self, shares: dict[str, Any]) -> None:
        self.shares, self.open = shares, deque[Task]()

    def submit(self, task: Task) -> None:
        self.open.append(task)

    def completed(self, timeout: float | None = None) -> list[Answer]:
        if not self.open:
            return []
        task = self.open.pop()
        share = self.shares[task.candidate.digest](*task.candidate.kernel.dims)
        if share is None:
            return [Answer(task.id, Measurement(failure="crash"))]
        return [Answer(task.id, Measurement((-log(share),) * 5))]

    def close(self) -> None:
        self.open.clear()


def build(kernel: ModelKernel, points: Sequence[Point]) -> list[Built | TilewrightError]:
    """Libraries that nothing runs; the digest is the choice of rows."""

    def built(point: Point) -> Built:
        from tilewright.tuning.harness import KernelDescription

        description = KernelDescription("f", (), 1, 1, tuple(kernel.sizes[n] for n in sorted(kernel.sizes)))
        return Built(Path("none"), description, f"rows {point.overrides.get('rows', '')}")

    return [built(p) if p.overrides.get("rows") != 240 else TilewrightError("no") for p in points]


def database(key: Any) -> Database:
    found = Database()
    for rows, speedup in ((120, 1.2), (60, 1.3), (240, 1.1), (180, 0.9)):
        found.add(Trial(key, {"rows": rows}, f"rows {rows}", speedup=speedup))
    found.add(Trial(key, {"rows": 300}, "rows 300", failure="wrong"))
    return found


def test_measured_shapes_become_a_verdict_that_compile_uses() -> None:
    here = kernels()
    points = candidates_for(database(here[0].key), here[0])
    assert [p.overrides for p in points] == [{}, *({"rows": r} for r in (60, 120, 240, 180))]
    executor = Formula(
        {
            "rows 60": lambda b, n: 0.5 if b * n <= 16 else 2.0,
            "rows 120": lambda b, n: 0.8 if b * n > 16 else 1.0,
            "rows 180": lambda b, n: None if b == 8 else 0.1,
        }
    )
    shares, digests = measure_shapes(here, points, build, executor)
    assert np.isfinite(shares).all(axis=1).tolist() == [True, True, True, False, False]
    trial, found = verdict_of(here[0], SIZES, points, shares, digests)
    assert [(points[v.candidate].overrides, v.when) for v in found] == [
        ({"rows": 60}, "batch*n <= 21"),
        ({"rows": 120}, ""),
    ]
    assert trial.speedup == pytest.approx((0.5**4 * 0.8**4) ** (-1 / 8), abs=1e-5)
    assert trial.variants is not None and trial.variants[0]["when"] in (
        "size_0*size_1 <= 21",
        "size_1*size_0 <= 21",
    )


def test_no_time_left_keeps_what_was_measured_everywhere() -> None:
    here = kernels()
    points = candidates_for(database(here[0].key), here[0])
    executor = Formula({"rows 60": lambda b, n: 0.5})
    shares, digests = measure_shapes(here, points, build, executor, end=0.0)
    assert np.isfinite(shares).all(axis=1).tolist() == [True, True, False, False, False]
    trial, found = verdict_of(here[0], SIZES, points, shares, digests)
    assert trial.choices == {"rows": 60} and trial.variants is None and len(found) == 1


def test_a_small_improvement_is_none() -> None:
    here = kernels()
    points = candidates_for(database(here[0].key), here[0])[:2]
    shares, digests = measure_shapes(here, points, build, Formula({"rows 60": lambda b, n: 0.995}))
    trial, _ = verdict_of(here[0], SIZES, points, shares, digests)
    assert not trial.choices and trial.variants is None and trial.speedup == 1.0


def test_shapes_are_checked() -> None:
    assert shapes_to_measure(SIZES, BOUNDS) == SIZES
    assert len(shapes_to_measure(16, BOUNDS)) == 16
    wrong: Any
    for wrong, message in (
        (1, "give at least 2"),
        ([{"batch": 1, "n": 2}], "lists 1 sizes: give at least 2"),
        ([], "lists 0 sizes: give at least 2"),
        ([{"batch": 1}, {"batch": 2}], r"shapes\[0\] is .*: give the size of each of batch, n"),
        ([{"batch": 1, "n": 65}], r"shapes\[0\]: n = 65 is not between 1 and 64"),
        ([*SIZES, {"batch": "1", "n": 2}], r"shapes\[8\]: batch = '1' is of type str; give an integer"),
        ([{"batch": 1, "n": None}], r"n = None is of type NoneType; give an integer"),
        ([{"batch": 1, "n": 2.5}], r"n = 2.5 is of type float; give an integer"),
        ([16, 32], r"shapes\[0\] is 16: give the size of each of batch, n"),
        (
            "many",
            r"shapes is 'many': give a number of sizes, or a list of at least 2: \[{'batch': 1, 'n': 1}",
        ),
        (2.5, "shapes is 2.5: give a number of sizes"),
        (True, "shapes is True: give a number of sizes"),
        ({"batch": 1, "n": 2}, "shapes is {'batch': 1, 'n': 2}: give a number of sizes"),
    ):
        with pytest.raises(CompileError, match=message):
            shapes_to_measure(wrong, BOUNDS)
    with pytest.raises(CompileError, match="this model has none; give dims"):
        shapes_to_measure(16, {})


def test_sizes_are_spread_between_bounds_only() -> None:
    """A number of sizes needs upper bounds: none is assumed. Listed sizes do not."""
    with pytest.raises(
        CompileError, match="dimension 'n' has no upper bound .* in dims, such as 'n<=512', or"
    ):
        tw.tune(model, (data(2, 5),), dims={"x": {0: "batch<=8", 1: "n"}}, shapes=4, database=Database())
    sizes = [{"batch": 1, "n": 1}, {"batch": 8, "n": 5000}]
    assert shapes_to_measure(sizes, {"batch": (1, 8), "n": (1, None)}) == sizes
    with pytest.raises(CompileError, match=r"shapes\[1\]: n = 1 is not at least 2"):
        shapes_to_measure([{"n": 2}, {"n": 1}], {"n": (2, None)})


def test_few_shapes_are_spread() -> None:
    assert [s["batch"] * s["n"] for s in sample_evenly(SIZES, 4)] == [4, 16, 64, 512]
    assert sample_evenly(SIZES[:1], 4) == SIZES[:1]


def test_variants_that_the_model_does_not_confirm_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement within the model keeps the variants, so that it counts for this verdict only."""
    pytest.importorskip("sklearn")

    class Divided:
        """Every candidate is faster at small sizes or at large ones, by its code."""

        def __getitem__(self, digest: str) -> Any:
            small = int(digest, 16) % 2
            return lambda batch, n: 0.5 if (batch * n <= 16) == small else 2.0

    def compare(default: Any, tuned: Any, inputs: Any, names: Sequence[str], *_: Any) -> Confirmation:
        return Confirmation(dict.fromkeys(names, (-0.1, -0.11) * 4), (0.0,) * 8)

    monkeypatch.setattr(tune_module, "compare", compare)
    monkeypatch.setattr(tune_module, "SETTINGS", Settings(trials=16, batch=8, finalists=2))
    found = Database()
    options: dict[str, Any] = {"budget": 30, "executor": Formula(Divided())}  # type: ignore[arg-type]
    tw.tune(model, (data(2, 5),), dims=DIMS, database=found, shapes=SIZES, **options)
    (verdict,) = (t for t in found if t.stage == "chosen" and t.variants)
    (inside,) = (t for t in found if t.stage == "model")
    assert inside.variants == verdict.variants and inside.codes == verdict.codes
    assert found.chosen(verdict.key) is None


def test_tune_for_shapes_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    few = Settings(trials=8, trees=5, most_blocks=5, final_processes=3, final_blocks=5, finalists=2)
    monkeypatch.setattr(tune_module, "SETTINGS", few)
    notes: list[Any] = []
    found = tw.tune(
        model,
        (data(2, 5),),
        dims=DIMS,
        budget=20,
        database=tmp_path / "tuned.jsonl",
        shapes=4,
        progress=lambda p: notes.append(p),
    )
    assert any(trial.stage == "chosen" for trial in found) and notes[-1].stage == "done"
    library, plain = compiled(tuned=found), compiled()
    for batch, n in ((1, 1), (2, 9), (8, 64)):
        x = data(batch, n)
        np.testing.assert_array_equal(library(x), plain(x))

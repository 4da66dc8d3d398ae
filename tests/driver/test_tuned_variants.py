"""Measured choices for ranges of sizes, as the option `tuned` uses them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.tuned import digest_of, keys_for
from tilewright.driver.tuning_database import Database, Trial
from tilewright.errors import TunedWarning
from tilewright.lowering.groups_to_kernels import kernel_names
from tilewright.lowering.kernel_forms import forms, sizes_of, structure_of
from tilewright.lowering.pipeline import tensor_passes

RNG = np.random.default_rng(0)
W = RNG.standard_normal((96, 160), dtype=np.float32)
DIMS = {"x": {0: "batch<=8", 1: "n<=64"}}


def model(x: tw.Tensor) -> tw.Tensor:
    return tw.where(x @ W > 0, x @ W, 0.0)


def data(batch: int, n: int) -> Any:
    return RNG.standard_normal((batch, n, 96), dtype=np.float32)


def verdict(ranges: list[tuple[str, dict[str, Any]]], rest: dict[str, Any]) -> tuple[str, Trial]:
    """The name of the kernel of the model, and a verdict that gives it choices for ranges of sizes."""
    origin = tw.compile(model, (data(2, 5),), dims=DIMS, cache=False).origin
    module = origin.graph.clone()
    for step in tensor_passes(origin.target.lowering):
        step(module)
    ((group, name),) = kernel_names(module).items()
    form = next(forms(group, name, origin.target.info, origin.target.lowering.rules))
    names = sizes_of(group)

    def digest(choices: dict[str, Any]) -> str:
        return digest_of(origin.target, form.scheduled(choices).kernel)

    variants = []
    for when, choices in ranges:
        for number, size in enumerate(names):
            when = when.replace(size, f"size_{number}")
        variants.append({"when": when, "choices": choices, "digest": digest(choices)})
    key = keys_for(origin.target, None)(structure_of(group))
    return name, Trial(key, rest, digest(rest), "chosen", speedup=1.1, variants=tuple(variants))


RANGES = [("batch*n <= 6", {"rows": 0}), ("n <= 9", {"rows": 120})]


@pytest.mark.parametrize("rest", [{}, {"rows": 240}])
def test_a_verdict_for_ranges_of_sizes_gives_variants(rest: dict[str, Any], tmp_path: Path) -> None:
    name, trial = verdict(RANGES, rest)
    path = tmp_path / "tuned.jsonl"
    Database(path).add(trial)
    assert next(iter(Database(path))) == trial and not Database(path).damages
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        library = tw.compile(model, (data(2, 5),), dims=DIMS, tuned=path, cache=False)
    kernel = library.kernels[name]
    assert [(v.name, v.when) for v in kernel.variants] == [
        (f"{name}.1", "batch*n <= 6"),
        (f"{name}.2", "n <= 9"),
    ]
    assert library.report.tuned == {name: "measured choices"}
    plain = tw.compile(model, (data(2, 5),), dims=DIMS)
    for batch, n, number in ((2, 3, 1), (8, 9, 2), (1, 9, 2), (1, 10, 0), (8, 64, 0)):
        x = data(batch, n)
        np.testing.assert_array_equal(library(x), plain(x))
        (row,) = library.profile(x, repeat=1)
        assert row.name == (f"{name}.{number}" if number else name)


@pytest.mark.parametrize("names", [("n", "batch"), ("b", "bb"), ("i0", "matmul_i0"), ("size_1", "size_0")])
def test_a_model_with_other_names_of_its_sizes_uses_the_choices(names: tuple[str, str]) -> None:
    """Equal kernels have one structure, whatever the order of the names of their sizes: also names that begin
    with each other, and those of loops and of the structure's own sizes.
    """
    name, trial = verdict(RANGES, {"rows": 240})
    database = Database()
    database.add(trial)
    dims = {"x": {0: f"{names[0]}<=8", 1: f"{names[1]}<=64"}}
    library = tw.compile(model, (data(2, 5),), dims=dims, tuned=database, cache=False)
    assert library.report.tuned == {name: "measured choices"}
    plain = tw.compile(model, (data(2, 5),), dims=dims, cache=False)
    for batch, n, number in ((2, 3, 1), (6, 1, 1), (1, 6, 1), (8, 9, 2), (1, 9, 2), (1, 10, 0), (8, 64, 0)):
        x = data(batch, n)
        np.testing.assert_array_equal(library(x), plain(x))
        (row,) = library.profile(x, repeat=1)
        assert row.name == (f"{name}.{number}" if number else name)


def test_own_schedules_take_the_place_of_measured_variants() -> None:
    name, trial = verdict(RANGES, {})
    database = Database()
    database.add(trial)
    own = [tw.pin(name, when="n > 60", rows=120)]
    library = tw.compile(model, (data(2, 5),), dims=DIMS, tuned=database, schedules=own, cache=False)
    assert [v.when for v in library.kernels[name].variants] == ["n > 60"]


def test_sizes_that_the_bounds_rule_out_have_no_variant() -> None:
    name, trial = verdict([*RANGES, ("n > 64", {"rows": 120})], {})
    database = Database()
    database.add(trial)
    library = tw.compile(model, (data(2, 5),), dims=DIMS, tuned=database, cache=False)
    assert len(library.kernels[name].variants) == 2


def test_a_variant_of_another_compiler_is_not_used() -> None:
    name, trial = verdict(RANGES, {})
    database = Database()
    variants = ({**(trial.variants or ())[0], "digest": "0"},)
    database.add(Trial(trial.key, {}, trial.digest, "chosen", speedup=1.1, variants=variants))
    with pytest.warns(TunedWarning, match="other code than was measured; tune again"):
        library = tw.compile(model, (data(2, 5),), dims=DIMS, tuned=database, cache=False)
    assert library.kernels[name].variants == ()

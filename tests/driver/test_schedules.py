"""Schedules of a user's own for kernels of a model: pinned knobs, functions, files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache

import tilewright as tw
from tilewright import nn
from tilewright.errors import CompileError
from tilewright.schedule import Schedule

RNG = np.random.default_rng(0)
X = RNG.standard_normal((70, 96), dtype=np.float32)
W, V = (RNG.standard_normal(shape, dtype=np.float32) / 16 for shape in ((96, 160), (160, 48)))


def model(x: tw.Tensor) -> tw.Tensor:
    return nn.functional.softmax(nn.functional.relu(x @ W) @ V, axis=-1)


def expected(x: Any) -> Any:
    y = np.maximum(x @ W, 0) @ V
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def compiled(schedules: Any = (), **options: Any) -> Any:
    return tw.compile(model, (X,), schedules=schedules, **options)


def test_kernels_tell_how_they_were_scheduled() -> None:
    library = compiled()
    assert [k.launches for k in library.kernels.values()] == [1] * len(library.kernels)
    matmul = library.kernels["matmul_relu"]
    assert {"rows", "depth"} <= {choice.name for choice in matmul.choices}
    assert (
        "@tw.schedule_kernel('matmul_relu')" in matmul.schedule and "s.tensorize('matmul'" in matmul.schedule
    )


def test_the_printed_schedule_is_code_that_makes_the_same_kernel() -> None:
    library = compiled()
    for name, kernel in library.kernels.items():
        names: dict[str, Any] = {"tw": tw}
        exec(kernel.schedule, names)
        again = compiled([names["own"]], cache=False)
        assert again.kernels[name].trace == kernel.trace
        assert again.ir("llvm") == library.ir("llvm")


@pytest.mark.parametrize("seed", range(12))
def test_any_choice_computes_the_same(seed: int) -> None:
    r = random.Random(seed)
    pins = []
    for kernel in compiled().kernels.values():
        chosen = {c.name: r.choice(c.domain) for c in kernel.choices if r.random() < 0.7}
        pins.append(tw.pin(kernel.name, **chosen))
    library = compiled(pins, cache=False)
    for own in pins:
        values = {c.name: c.value for c in library.kernels[own.kernel].choices}
        assert dict(own.choices).items() <= values.items()
    np.testing.assert_allclose(library(X), expected(X), rtol=2e-5, atol=1e-6)


def test_a_pattern_names_several_kernels_and_the_first_schedule_counts() -> None:
    first = compiled([tw.pin("matmul_relu", rows=0), tw.pin("matmul*", cache_resident=True)])
    values = {k: {c.name: c.value for c in v.choices} for k, v in first.kernels.items()}
    assert values["matmul_relu"]["rows"] == 0
    assert values["matmul_relu"]["cache_resident"] is False


def test_a_schedule_of_ones_own() -> None:
    calls = []

    @tw.schedule_kernel("matmul_relu")
    def mine(s: Schedule) -> None:
        calls.append(s.info.name)
        rows, columns = s.loops("relu")
        outer, _ = s.split(rows, s.choose("rows", 10, (5, 10)))
        s.parallel(outer)
        s.compute_at("matmul", outer)
        s.vectorize(columns)

    library = compiled([mine])
    assert calls == ["cpu"]
    assert "tensorize" not in library.kernels["matmul_relu"].schedule
    np.testing.assert_allclose(library(X), expected(X), rtol=2e-5, atol=1e-6)


def test_an_illegal_schedule_is_refused_with_both_accesses() -> None:
    @tw.schedule_kernel("matmul_relu")
    def racing(s: Schedule) -> None:
        s.reorder("matmul_r0", "matmul_i0", "matmul_i1")
        s.parallel("matmul_r0")

    with pytest.raises(CompileError, match="matmul_relu.* parallel: .* the accumulation into") as e:
        compiled([racing])
    assert "matmul_r0=0" in str(e.value) and "matmul_r0=1" in str(e.value)


def test_a_mistake_in_ones_own_schedule_is_no_bug_of_the_compiler() -> None:
    @tw.schedule_kernel("matmul_relu")
    def mistaken(s: Schedule) -> None:
        s.loops("relu")[7]

    with pytest.raises(CompileError, match="the schedule of kernel 'matmul_relu' raised IndexError") as e:
        compiled([mistaken])
    assert "bug" not in str(e.value)


def test_schedules_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    library = compiled([tw.pin("matmul_relu", rows=12)])
    tw.save_schedules(library, path)
    again = compiled(tw.load_schedules(path), cache=False)
    assert {k: v.trace for k, v in again.kernels.items()} == {k: v.trace for k, v in library.kernels.items()}
    tw.save_schedules([tw.pin("matmul*", depth=0)], path)
    assert tw.load_schedules(path) == [tw.pin("matmul*", depth=0)]


def test_saved_libraries_keep_their_schedules(tmp_path: Path) -> None:
    library = compiled([tw.pin("matmul_relu", rows=12)])
    library.save(tmp_path / "model.so")
    assert tw.load(tmp_path / "model.so").kernels == library.kernels


def test_the_cache_knows_schedules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new_cache(monkeypatch, tmp_path)
    rows = []
    for value in (6, 12, 6):
        library = compiled([tw.pin("matmul_relu", rows=value)])
        rows.append(next(c.value for c in library.kernels["matmul_relu"].choices if c.name == "rows"))
    assert rows == [6, 12, 6]
    assert library.report.cached


BAD: dict[str, tuple[Any, str]] = {
    "no kernel": ([tw.pin("conv", rows=1)], "no kernel is called 'conv'; the kernels are .*matmul_relu"),
    "no knob": (
        [tw.pin("matmul_relu", rowz=1)],
        "there is no choice 'rowz'; the choices of this kernel are rows",
    ),
    "no value": ([tw.pin("matmul_relu", rows=7)], "rows cannot be 7; its values are 0, "),
    "a number": (3, "schedules is of type int: give a list"),
    "a function": ([len], r"schedules\[0\] is of type .* \(decorate the function"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_schedules_are_named(case: str) -> None:
    with pytest.raises(CompileError, match=BAD[case][1]):
        compiled(BAD[case][0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", 'has no list "schedules"'),
        ('{"version": 9, "schedules": []}', "has version 9; this version reads 1"),
        ('{"version": 1, "schedules": [{}]}', 'entry 0 of .* has no "kernel"'),
        ('{"version": 1, "schedules": [{"kernel": "a", "rows": 1}]}', "unknown key 'rows'"),
        ('{"version": 1, "schedules": [{"kernel": "a", "choices": [1]}]}', '"choices" must be'),
        ('{"version": 1, "schedules": [{"kernel": "a", "trace": [["jump", [], {}]]}]}', "primitive 'jump'"),
        ('{"version": 1, "schedules": [{"kernel": "a", "trace": 3}]}', '"trace" is no list of primitives'),
    ],
)
def test_wrong_files_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    path.write_text(text)
    with pytest.raises(CompileError, match=message):
        tw.load_schedules(path)
    with pytest.raises(CompileError, match="cannot be read"):
        tw.load_schedules(tmp_path / "none.json")


def test_a_function_goes_into_no_file(tmp_path: Path) -> None:
    own = tw.schedule_kernel("a")(lambda s: None)
    with pytest.raises(CompileError, match="the schedule of 'a' is a function"):
        tw.save_schedules([own], tmp_path / "schedules.json")
    assert json.dumps(own.kernel) == '"a"'

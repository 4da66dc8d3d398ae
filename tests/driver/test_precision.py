"""`precision` of `tw.compile`: accepted values, the report, the metadata of artifacts and the key of the
cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.caches import new_cache
from tests.devices import need
from tests.passes.graph.graphs import BATCH, build
from tests.passes.tensor.test_lower_precision import mlp

import tilewright as tw

pytestmark = pytest.mark.every_isa


def compiled(precision: str | None, **options: Any) -> Any:
    return tw.compile(build({"x": (BATCH, 24)}, mlp), precision=precision, **{"cache": False, **options})


@pytest.mark.parametrize("precision, expected", [("bf16", 1e-2), ("f16", 2e-3)])
def test_results_and_report(precision: str, expected: float) -> None:
    x = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    plain, low = compiled(None), compiled(precision)
    wanted, found = plain(x), low(x)
    assert found.dtype == np.float32
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    assert 0 < error < expected
    report = low.report
    assert report.precision == precision and report.contractions == {precision: 2} and report.conversions == 1
    assert report.error is not None and 0 < report.error.largest < expected
    assert "output error against float32" in str(report) and f"2 of {precision}" in str(report)
    assert plain.report.error is None and "output error" not in str(plain.report)
    assert low.metadata["precision"] == precision and plain.metadata["precision"] is None


def test_weights_take_half_the_memory() -> None:
    plain, low = (compiled(p).metadata["memory"]["weights_bytes"] for p in (None, "bf16"))
    assert low < 0.6 * plain


def test_precisions_have_separate_cache_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_cache(monkeypatch, tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 24)).astype(np.float32)
    first = {p: compiled(p, cache=True) for p in (None, "bf16")}
    again = {p: compiled(p, cache=True) for p in (None, "bf16")}
    for p in first:
        assert not first[p].report.cached and again[p].report.cached
        assert again[p].metadata["precision"] == p
        np.testing.assert_array_equal(first[p](x), again[p](x))
    assert not np.array_equal(first[None](x), first["bf16"](x))
    assert again["bf16"].report.error is not None


@pytest.mark.parametrize(
    "precision, target, message",
    [
        ("int8", "cpu", "not available yet"),
        ("int4", "cpu", "not available yet"),
        ("fp16", "cpu", "unknown precision 'fp16'"),
        ("f16", "cpu:x86-64-v2", "does not compute in f16; it has: 'bf16'"),
    ],
)
def test_what_is_refused(precision: str, target: str, message: str) -> None:
    with pytest.raises(tw.CompileError, match=message):
        compiled(precision, target=target)


def test_checked_passes() -> None:
    compiled("bf16", check=True)


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "wasm32", "webgpu"])
def test_other_instruction_sets(target: str) -> None:
    if target == "wasm32":
        pytest.importorskip("wasmtime")
    if target == "webgpu":
        need(target)
    x = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    np.testing.assert_allclose(compiled("bf16", target=target)(x), compiled("bf16")(x), rtol=1e-2, atol=2e-2)

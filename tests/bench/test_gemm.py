"""The benchmark of matrix products: its shapes, one short measurement and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from bench.gemm import SHAPES, Shape

from bench import gemm


def test_shapes_differ() -> None:
    assert len(SHAPES) == len(set(SHAPES)) == 40


def test_shape_counts_flops_and_bytes() -> None:
    shape = Shape("batched", 2, 3, 5, 7, False)
    assert shape.flops == 2 * 7 * 2 * 3 * 5
    assert shape.bytes(4) == 4 * 7 * (2 * 5 + 5 * 3 + 2 * 3)
    assert shape.bytes(1, 4) == 7 * (2 * 5 + 5 * 3 + 4 * 2 * 3)
    assert Shape("square", 2, 3, 5).bytes(2) == 2 * (2 * 5 + 5 * 3 + 2 * 3)


def test_sweep_writes_a_row_for_each_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(shape: Shape) -> bool:
        return shape in (Shape("square", 64, 64, 64), Shape("batched", 16, 16, 16, 512, False))

    monkeypatch.setattr(gemm, "SHAPES", [s for s in SHAPES if chosen(s)])
    path = tmp_path / "gemm.json"
    for precision in ("int8", "float32"):
        gemm.main(["-p", precision, "-t", "1", "-s", "0.1", "--results", str(path)])
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    assert [(row["precision"], row["kind"]) for row in rows] == [
        (p, kind) for p in ("float32", "int8") for kind in ("square", "batched")
    ]
    for row in rows:
        assert row["error"] < (1e-5 if row["precision"] == "float32" else 1e-30) and row["floor_seconds"] > 0
        assert ("torch" in row) == (row["precision"] == "float32" or row["kind"] == "square")
        assert (
            row["tilewright"]["min_seconds"]
            <= row["tilewright"]["seconds"]
            <= row["tilewright"]["max_seconds"]
        )
    text = path.with_suffix(".md").read_text()
    assert "| batched | 512 × 16 × 16 × 16 |" in text and "geometric mean" in text

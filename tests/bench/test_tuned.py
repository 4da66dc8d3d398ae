"""The comparison of engines that search by measuring."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from bench.__main__ import main
from bench.case import Case
from bench.compilers import TvmTuned
from bench.engines import TilewrightTuned
from bench.roofline import Roof
from bench.start import Starter

from bench import metaschedule, overview, report, results, tuned
from tilewright.driver.tuning_database import Database

CASE = Case("mobilenet_v2", "float32", 1, 2)
ROOF = Roof(2, {"float32": 1e11, "bf16": 1e12}, 1e10)


def figure(milliseconds: float, ours: float, **others: Any) -> dict[str, Any]:
    return {
        "milliseconds": milliseconds,
        "ratio": milliseconds / ours,
        "error": 1e-7,
        "version": "x 1",
        **others,
    }


def searched(milliseconds: float, ours: float, trials: int) -> dict[str, Any]:
    return figure(milliseconds, ours, search_seconds=600, trials=trials)


def test_table_has_ratios_and_searches(tmp_path: Path) -> None:
    path = tmp_path / "tuned-avx2.json"
    figures = {
        "tilewright": figure(2, 2),
        "tilewright-tuned": searched(1, 2, 90),
        "tvm-tuned": searched(12, 2, 800),
    }
    results.merge(path, CASE, figures, ROOF)
    tuned.write(path)
    text = path.with_suffix(".md").read_text()
    row = (
        "| mobilenet_v2 | 2.00 | 1.00 | 12.0 | 6.00 | 12.00 | 600 s, 90 trials | 600 s, 800 trials | 1e-07 |"
    )
    assert row in text and "## float32, batch 1, 2 threads" in text
    text = overview.markdown(tmp_path)
    assert "| tvm-tuned ÷ tilewright | 6.00 (mobilenet_v2 6.00) |" in text
    assert "| tvm-tuned ÷ tilewright-tuned | 12.00 (mobilenet_v2 12.00) |" in text


def test_times_of_another_run_have_no_ratio(tmp_path: Path) -> None:
    path = tmp_path / "tuned-avx2.json"
    results.merge(path, CASE, {"tilewright": figure(2, 2), "tvm-tuned": searched(12, 2, 800)}, ROOF)
    results.merge(path, CASE, {"tilewright": figure(3, 3)}, ROOF)
    rows = results.read(path)
    assert tuned.ratios(rows) == tuned.ratios(rows, tuned.OWN) == {}
    assert "| mobilenet_v2 | 3.00 |  | 12.0 |  |  |  | 600 s, 800 trials | 1e-07 |" in tuned.markdown(rows)


def test_tuned_tilewright_is_no_peer() -> None:
    figures = {"tilewright": figure(2, 2), "tilewright-tuned": searched(1, 2, 90), "torch": figure(5, 2)}
    assert report.best_peer({"engines": figures}) == ("torch", 2.5)


def test_engines_that_search_run_only_if_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[tuple[str, float]]]] = []

    def measure(case: Case, engines: list[Any], *_: Any) -> dict[str, Any]:
        asked.append((case.model, [(engine.name, engine.search_seconds) for engine in engines]))
        return {engine.name: {"failed": "not asked"} for engine in engines}

    monkeypatch.setattr("bench.__main__.measure", measure)
    monkeypatch.setattr("bench.__main__.prepare", lambda *_: None)
    monkeypatch.setattr("bench.__main__.measure_roof", lambda *_: ROOF)
    row = ["-p", "float32", "-b", "1", "-t", "2", "--results", str(tmp_path / "x.json")]
    main(["--tuned", "-m", "bert", "--search", "30", *row])
    main(["-m", "mlp", *row])
    assert asked[0] == ("bert", [("tilewright", 0), ("tilewright-tuned", 30), ("tvm-tuned", 30)])
    assert {"tilewright", "tvm"} <= {name for name, _ in asked[1][1]}
    assert all(seconds == 0 for _, seconds in asked[1][1])


def test_builds_of_other_budgets_are_kept_apart() -> None:
    class Engine(TilewrightTuned):
        search_seconds = 5

    folders = {Starter(60)._folder(engine, CASE) for engine in (TilewrightTuned(), Engine())}
    assert len(folders) == 2


@dataclass(frozen=True)
class OwnCase(Case):
    """A small network in a folder of its own."""

    root: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.root)

    def write(self) -> None:
        """Make the ONNX file, the inputs and the outputs."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        random = np.random.default_rng(0)
        x, w = (random.standard_normal(shape, np.float32) for shape in ((1, 8, 14, 14), (16, 8, 3, 3)))
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ]
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, n, 14, 14))
            for name, n in (("x", 8), ("y", 16))
        ]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(w, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), self.onnx)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        expected = np.maximum(np.einsum("bchwij,ocij->bohw", windows, w), 0)
        np.savez(self.folder / "inputs.npz", x=x)
        np.savez(self.folder / "expected.npz", expected)


def run(engine: Any, case: OwnCase) -> dict[str, Any]:
    """The figures of the engine after a build and one inference."""
    children, figures = Starter(300).start(case, [engine])
    for child in children.values():
        child.close()
    return figures[engine.name]


def test_tilewright_is_tuned(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    case = OwnCase("mlp", "float32", 1, 1, str(tmp_path))
    case.write()
    engine = TilewrightTuned()
    engine.search_seconds = 2
    found = run(engine, case)
    assert found.get("failed") is None and found["error"] < 1e-5
    (database,) = tmp_path.glob("*/tuned.jsonl")
    assert found["search_seconds"] == 2 and found["trials"] == len(Database(database))


@pytest.mark.slow
def test_tvm_is_tuned(tmp_path: Path) -> None:
    for package in ("tvm", "xgboost"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install 'tilewright[bench]'")
    case = OwnCase("mlp", "float32", 1, 1, str(tmp_path))
    case.write()
    engine = TvmTuned()
    engine.search_seconds = 40
    found = run(engine, case)
    assert found.get("failed") is None and found["error"] < 1e-5
    assert found["search_seconds"] == 40 and found["trials"] >= metaschedule.TRIALS

"""The benchmark of models: engines in processes of their own, merging of results and the report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from bench.__main__ import main
from bench.case import Case, largest_error
from bench.engines import Engine, Loaded
from bench.machines import class_of, machine, results_files
from bench.measure import left_behind
from bench.roofline import Roof
from bench.start import Starter
from bench.worker import Child, EngineError, holding

from bench import overview, report, results

ROOF = Roof(2, {"float32": 1e11, "bf16": 1e12}, 1e10)
CASE = Case("mlp", "float32", 1, 2)


def figure(milliseconds: float, **others: Any) -> dict[str, Any]:
    common = {
        "min_milliseconds": milliseconds / 2,
        "max_milliseconds": milliseconds * 2,
        "error": 1e-7,
        "load_seconds": 0.5,
    }
    return {"milliseconds": milliseconds, "peak_bytes": 1 << 20, "version": "x 1", **common, **others}


def test_rows_merge(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    results.merge(path, CASE, {"tilewright": figure(1), "torch": figure(3)}, ROOF)
    results.merge(path, Case("lstm", "float32", 1, 2), {"torch": figure(5)}, ROOF)
    results.merge(path, CASE, {"torch": figure(2, ratio=2.0), "tvm": {"failed": "not installed"}}, ROOF)
    rows = results.read(path)
    assert [row["case"]["model"] for row in rows] == ["mlp", "lstm"]
    assert report.milliseconds(rows[0]) == {"tilewright": 1, "torch": 2}
    assert results.complete(path, CASE, ["tilewright", "tvm"])
    assert not results.complete(path, CASE, ["openvino"])
    assert not results.complete(path, Case("mlp", "bf16", 1, 2), ["torch"])
    text = report.markdown(report.ordered(rows))
    assert "| mlp | 1.00 | 0.500–2.00 | **2.00** | 2.00 |" in text
    assert "not yet" in text  # the LSTM, which was run by torch only
    assert "- tvm: mlp: not installed" in text


def test_classes_of_machines_stand_beside_each_other(tmp_path: Path) -> None:
    flags = {
        "amx": ["avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16"],
        "avx512-avx-vnni": ["avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni"],  # Zen 5
        "avx512-bf16": ["avx512f", "avx512_vnni", "avx512_bf16"],  # Zen 4
        "avx2": ["avx", "avx2"],
    }
    assert [class_of(found) for found in flags.values()] == list(flags)
    for number, name in enumerate(["zen", "avx2", "amx"], 1):
        path = tmp_path / f"models-{name}.json"
        results.merge(path, CASE, {"tilewright": figure(1), "torch": figure(number, ratio=number)}, ROOF)
    assert list(results_files("models", tmp_path)) == ["amx", "avx2", "zen"]
    text = overview.markdown(tmp_path)
    assert "| AVX-512 with AMX | AVX2 | zen |" in text and "](models-zen.md)" in text
    assert "| float32, batch 1, 2 threads | 3.00 (mlp 3.00) | 2.00 (mlp 2.00) | 1.00 (mlp 1.00) |" in text


def test_only_peers_of_our_latest_run_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    results.merge(path, CASE, {"tilewright": figure(4, ratio=1.0), "tvm": figure(5, ratio=1.25)}, ROOF)
    results.merge(path, CASE, {"tilewright": figure(1, ratio=1.0), "torch": figure(3, ratio=3.0)}, ROOF)
    (row,) = results.read(path)
    assert report.ratios(row) == {"torch": 3.0} and report.best_peer(row) == ("torch", 3.0)
    assert "| **3.00** | (5.00) | 3.00 |" in report.markdown([row])


def test_rows_of_other_sources_are_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "models.json"
    results.merge(path, CASE, {"torch": figure(1)}, ROOF)
    monkeypatch.setattr(results, "source", lambda: "another")
    assert not results.complete(path, CASE, ["torch"])


def test_compilers_that_failed_or_were_slow_are_left_out_later(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    figures = {
        "tilewright": figure(10),
        "torch": figure(500),
        "tvm": figure(120),
        "iree": {"failed": "not compiled in 9 s"},
        "inductor": figure(40),
    }
    results.merge(path, CASE, figures, ROOF)
    assert results.left_out(path, CASE) == {}
    assert results.left_out(path, Case("mlp", "float32", 8, 1)) == {
        "tvm": "12 times the best time at batch 1 on two threads",
        "iree": "as at batch 1 on two threads (not compiled in 9 s)",
    }
    assert results.left_out(path, Case("lstm", "float32", 8, 1)) == {}


def test_memory_is_no_roof_of_what_caches_keep() -> None:
    kernels = [(1e9, 4000.0), (1e6, 3000.0)]
    assert replace(ROOF, cache=7000).floor_seconds("float32", kernels) == pytest.approx(1e-2 + 1e-5)
    assert replace(ROOF, bandwidth=1e6).floor_seconds("float32", kernels) == pytest.approx(1e-2 + 3e-3)


def test_the_slow_leave_early() -> None:
    times = {"tilewright": [9.0], "fast": [1.0, 1.0, 1.2], "slow": [6.0], "slower": [11.0]}
    assert left_behind(times, 1) == ["slower"]
    assert left_behind(times, 3) == ["slow", "slower"]  # Tilewright itself is never left out


class Compiler(Engine):
    """An engine that counts its compilations and fails on models in bf16."""

    name = "onnxruntime"
    packages = ("numpy",)
    modules = ("numpy",)
    settings = {"float32": "a", "bf16": "b"}
    builds = True

    def build(self, case: Case, folder: Path) -> dict[str, float]:
        with (folder / "times").open("a") as file:
            file.write("x")
        if case.precision == "bf16":
            raise ValueError("no bf16")
        return {"compile_seconds": 0.5}

    def load(self, case: Case, folder: Path) -> Loaded:
        return Loaded(lambda: case.expected(), lambda outputs: outputs)


@dataclass(frozen=True)
class OwnCase(Case):
    root: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.root)

    def expected(self) -> list[Any]:
        return [np.ones(3)]


def test_what_peers_build_is_kept(tmp_path: Path) -> None:
    case = OwnCase("mlp", "float32", 1, 1, str(tmp_path))
    for _ in range(2):
        children, figures = Starter(60).start(case, [Compiler()])
        (child,) = children.values()
        assert len(child.ask(("turn", 0.01), 60)) >= 1
        child.close()
        found = figures["onnxruntime"]
        assert found["compile_seconds"] == 0.5 and found["processor_seconds"] > 0
        assert found["error"] == 0 and found["peak_bytes"] >= found["baseline_bytes"] > 0
    assert [file.read_text() for file in tmp_path.glob("*/times")] == ["x"]


def test_why_a_peer_could_not_build_is_kept(tmp_path: Path) -> None:
    case = OwnCase("mlp", "bf16", 1, 1, str(tmp_path))
    for _ in range(2):
        children, figures = Starter(60).start(case, [Compiler()])
        assert children == {} and figures["onnxruntime"]["failed"] == "ValueError: no bf16"
    assert [file.read_text() for file in tmp_path.glob("*/times")] == ["x"]
    (record,) = tmp_path.glob("*/built.json")
    record.write_text('{"failed": "not compiled in 9 s", "timeout": 9}')
    assert Starter(9).build(case, [Compiler()])["onnxruntime"]["failed"] == "not compiled in 9 s"
    assert Starter(9, retry=True).build(case, [Compiler()])["onnxruntime"]["failed"] == "ValueError: no bf16"
    record.write_text('{"failed": "not compiled in 9 s", "timeout": 9}')
    assert (
        Starter(60).build(case, [Compiler()])["onnxruntime"]["failed"] == "ValueError: no bf16"
    )  # a failure within a shorter time limit is tried again


def test_summary_tells_what_misses_its_goal() -> None:
    rows = [
        {
            "case": {"model": "mlp", "precision": "float32", "batch": batch, "threads": 2},
            "engines": {
                "tilewright": figure(1, ratio=1, date=""),
                "openvino": figure(1.1, ratio=1.1, date=""),
            },
            "machine": machine(),
            "roof": asdict(ROOF),
        }
        for batch in (1, 8)
    ]
    assert "| mlp | **1.10** | 1.10 |" in report.markdown(rows)


def test_best_peer_is_never_our_own() -> None:
    figures = {"tilewright": figure(1, ratio=1), "torch": figure(4, ratio=4), "openvino": figure(2, ratio=2)}
    assert report.best_peer({"engines": figures}) == ("openvino", 2)
    assert report.best_peer({"engines": {"tilewright": figure(1)}}) is None


def test_error_of_other_shapes_and_nans_is_infinite() -> None:
    one = np.ones((2, 2), np.float32)
    assert largest_error([one], [one]) == 0
    assert largest_error([one * 1.5], [one]) == 0.5
    assert largest_error([one[0]], [one]) == float("inf")
    assert largest_error([one * np.nan], [one]) == float("inf")


def answers(what: str) -> Iterator[Any]:
    question = yield os.getpid()
    while True:
        if what == "raise":
            raise ValueError("the reason")
        if what == "die":
            os._exit(3)
        if what == "hang":
            time.sleep(60)
        question = yield question * 2


def test_child_answers_and_stands_still_meanwhile() -> None:
    child = Child(answers, "double", threads=1)
    pid = child.first(60)
    assert child.ask(21, 60) == 42
    deadline = time.time() + 10
    while (
        state := Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0]
    ) != "T" and time.time() < deadline:
        time.sleep(0.01)
    assert state == "T"
    child.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [("raise", "ValueError: the reason"), ("die", "exit code 3"), ("hang", "no answer in 1 s")],
)
def test_child_that_fails(what: str, message: str) -> None:
    child = Child(answers, what, threads=1)
    child.first(60)
    with pytest.raises(EngineError, match=message):
        child.ask(1, 1 if what == "hang" else 60)
    child.close()


def test_lock_is_held(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    with holding(path), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_row_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.json"
    main(
        [
            "-m",
            "mlp",
            "-p",
            "float32",
            "-t",
            "1",
            "-b",
            "1",
            "-e",
            "tilewright,onnxruntime,numpy",
            "-s",
            "0.5",
            "--results",
            str(path),
        ]
    )
    (row,) = results.read(path)
    assert row["case"] == {"model": "mlp", "precision": "float32", "batch": 1, "threads": 1}
    assert row["roof"]["flops"]["float32"] > 1e9 and row["roof"]["bandwidth"] > 1e8
    ours, peer = row["engines"]["tilewright"], row["engines"]["onnxruntime"]
    for found in (ours, peer):
        assert found["min_milliseconds"] <= found["milliseconds"] <= found["max_milliseconds"]
        assert found["error"] < 1e-5 and found["peak_bytes"] > 1 << 20 and found["samples"] >= 3
    assert ours["inside_milliseconds"] > 0 and ours["compile_seconds"] > 0 and ours["roofline_share"] > 0
    assert "no program of its kind" in row["engines"]["numpy"]["failed"]
    assert "| mlp |" in path.with_suffix(".md").read_text()
    assert "onnxruntime" in capsys.readouterr().out


def test_plot_has_a_panel_for_each_precision(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "models.json"
    for precision in ("float32", "bf16"):
        results.merge(
            path,
            Case("mlp", precision, 1, 2),
            {"tilewright": figure(1), "openvino": figure(3, ratio=3)},
            ROOF,
        )
    report.write(path)
    picture = path.with_suffix(".svg").read_text()
    assert picture.count('<g id="axes_') == 2

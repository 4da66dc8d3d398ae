"""The benchmark of language models: the model that it generates, the reference, one run of the small size and
the report.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.caches import new_cache

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from bench.llm import measure, model, reference, report
from bench.llm.__main__ import main
from bench.llm.engines import ENGINES
from bench.llm.measure import Case, with_ratios, workloads
from bench.llm.model import SIZES
from bench.roofline import Roof

from bench import results

TINY = SIZES["tiny"]
ROOF = Roof(2, {"float32": 1e11, "bf16": 4e12, "int8": 8e12}, 2e10)


def test_the_size_is_that_of_a_billion_parameters() -> None:
    size = SIZES["1b"]
    assert sum(m * n for m, n in size.matrices().values()) == pytest.approx(1.1e9, rel=0.01)
    assert size.step_bytes("bf16", 1, 0) == 2 * size.multiplied()
    tokens = size.step_bytes("int4", 8, 64) - size.step_bytes("int4", 0, 0)
    # two tensors (keys and values), layers, heads, head size, bytes of an element
    assert tokens == 8 * 64 * 2 * 16 * 8 * 64 * 2
    assert size.cached % 64 == 0 and size.cached >= 1024 + size.steps
    assert size.flops(256) > 256 * size.flops(1) * 0.9


def test_prompts_are_the_same_again_and_differ() -> None:
    assert model.prompts(TINY, 16, 2) == model.prompts(TINY, 16, 2)
    assert model.prompts(TINY, 16, 2, number=1) != model.prompts(TINY, 16, 2)
    assert all(2 <= t < TINY.vocabulary for prompt in model.prompts(TINY, 16, 4) for t in prompt)


def test_the_reference_computes_what_transformers_does(tmp_path: Path) -> None:
    """The reference and transformers give the same logits for a generated file, so tensor names, the order of
    rotary dimensions and the tokenizer are right.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tilewright.llm.weights import open_checkpoint

    path = tmp_path / "model.gguf"
    model.write(TINY, "bf16", path)
    checkpoint = open_checkpoint(path)
    config = transformers.LlamaConfig(**checkpoint.config | {"dtype": "float32"})
    module = transformers.LlamaForCausalLM(config).eval()
    module.load_state_dict({name: torch.tensor(np.float32(t.read())) for name, t in checkpoint.items()})
    (tokens,) = model.prompts(TINY, 12)
    with torch.no_grad():
        wanted = module(torch.tensor([tokens])).logits[0].numpy()
    found = reference.logits(TINY, path, tokens)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(wanted).max() > 1  # logits near zero would pass in any case


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the cache in which the small models are stored. The bandwidth of memory is measured
    briefly.
    """
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        new_cache(patch, folder)
        patch.setattr(measure, "TURN", 0.01)
        yield folder / "bench-llm" / "tiny"


def run(path: Path, *options: str) -> None:
    common = [
        "--size",
        "tiny",
        "-p",
        "int4",
        "-t",
        "1",
        "-s",
        "0.1",
        "--environments",
        str(path.parent / "none"),
    ]
    main([*common, "--results", str(path), *options])


@pytest.mark.parametrize(("precision", "error"), [("q4_k", 0.09), ("q6_k", 0.025)])
def test_k_quants_are_decoded_as_they_are_meant(precision: str, error: float) -> None:
    gguf = pytest.importorskip("gguf")
    form = model.FORMATS[precision]
    values = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    values[0, :32] = 0  # a group without a scale
    values[1, 32:64] = np.abs(values[1, 32:64])  # and one without a minimum
    assert form.encode is not None
    data = form.encode(values)
    assert data.nbytes == values.size * form.size
    decoded = gguf.dequantize(data, gguf.GGMLQuantizationType[form.name])
    assert np.sqrt(np.mean((decoded - values) ** 2)) < error
    assert not decoded[0, :32].any()


def test_a_run_of_the_small_size(tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llm.json"
    run(path)
    rows = results.read(path)
    assert [row["case"]["workload"] for row in rows] == [*workloads(TINY), "start"]
    for row in rows:
        ours = row["engines"]["tilewright"]
        assert "failed" not in ours
        if row["case"]["workload"] == "start":
            assert 0 < ours["prefill_error"] < 0.05 and 0 < ours["decode_error"] < 0.05
            assert ours["same_greedy_tokens"] == ours["greedy_tokens"] == TINY.steps
            assert ours["load_seconds"] > 0 and ours["peak_bytes"] > ours["own_bytes"] > 1 << 20
        else:
            assert ours["min_milliseconds"] <= ours["milliseconds"] <= ours["max_milliseconds"]
            assert ours["samples"] >= 3 and ours["roofline_share"] > 0 and row["roof"]["bandwidth"] > 1e8
            flops = row["roof"]["flops"]
            assert min(flops["bf16"], flops["int8"]) >= flops["float32"] > 1e8
    peaks = {row["roof"]["flops"]["float32"] for row in rows}
    assert len(peaks) == len(rows)  # measured in the turns of each workload
    text = path.with_suffix(".md").read_text()
    assert "| prefill of 32 tokens |" in text and "batch 4 |" in text
    told = capsys.readouterr().out
    for name in ENGINES.keys() - {"tilewright"}:
        assert f"{name} is left out" in told and f"--install -e {name}" in told


def test_an_engine_that_computes_something_else_is_told(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose logits differ from the reference's is reported as failed, without times. The test
    replaces the reference, which has the same effect as a wrong engine.
    """
    for kept in models.rglob("*.npy"):
        kept.unlink()
    monkeypatch.setattr(
        measure.reference, "logits", lambda size, file, tokens: np.ones((len(tokens), size.vocabulary))
    )
    path = tmp_path / "llm.json"
    run(path, "-e", "tilewright", "-w", "decode")
    (decode, start) = results.read(path)
    assert "its logits differ" in start["engines"]["tilewright"]["failed"]
    assert "milliseconds" not in decode["engines"]["tilewright"]
    assert "its logits differ" in path.with_suffix(".md").read_text()
    run(path, "--delete")
    assert not models.exists()


def rows_of(path: Path, precision: str, times: dict[str, dict[str, float]]) -> None:
    """Write results of the model with a billion parameters: milliseconds by workload and engine, and figures
    of each engine's start.
    """
    case = Case("1b", precision, "start", 2)
    size = SIZES["1b"]
    for name, found in times.items():
        floor = workloads(size)[name].floor_seconds(size, precision, ROOF)
        figures: dict[str, dict[str, Any]] = {
            engine: {"milliseconds": ms, "min_milliseconds": ms / 2, "max_milliseconds": ms * 2, "samples": 3}
            for engine, ms in found.items()
        }
        results.merge(path, replace(case, workload=name), with_ratios(figures, floor), ROOF)
    common = {
        "settings": "s",
        "version": "v 1",
        "first_seconds": 1.0,
        "baseline_bytes": 1,
        "own_bytes": 1,
        "mapped_bytes": 1,
    }
    starts = {"tilewright": (0.5, 300), "llama.cpp": (2.0, 200)}
    figures = {
        n: {**common, "load_seconds": load, "peak_bytes": peak << 20} for n, (load, peak) in starts.items()
    }
    results.merge(path, case, figures | {"openvino-genai": {"settings": "s", "failed": "no memory"}}, ROOF)


def sleeping(path: Path) -> Iterator[int]:
    """Body of a child process: it yields its process id and then sleeps."""
    yield os.getpid()
    time.sleep(600)


PARENT = """
import sys
from pathlib import Path
from bench.llm.process import Elsewhere
from tests.bench.test_llm import sleeping
print(Elsewhere(Path(sys.executable), sleeping, Path(), threads=1).first(60), flush=True)
sys.stdin.read()
"""


def test_processes_end_with_the_one_that_started_them() -> None:
    """A child process ends when its parent is killed, even if the child is stopped and the parent had no time
    to end it.
    """
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True
    ) as parent:
        number = int(parent.stdout.readline())  # type: ignore[union-attr]
        wait_for(number, "T")
        parent.kill()
    wait_for(number, "Z", "")


def wait_for(process: int, *states: str) -> None:
    """Wait until a process is in one of the states, in the letters of ps; "" means that there is no such
    process.
    """

    def state() -> str:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    end = time.monotonic() + 30
    while (found := state()) not in states and time.monotonic() < end:
        time.sleep(0.01)
    assert found in states


def test_installing_builds_with_flags_that_arrive_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bench.llm import engines

    calls: list[tuple[list[Any], dict[str, str]]] = []
    monkeypatch.setattr(engines.subprocess, "run", lambda c, check, env=None: calls.append((c, env or {})))
    main(
        [
            "--install",
            "-e",
            "tilewright,llama.cpp-amx,llama.cpp,openvino-genai",
            "--environments",
            str(tmp_path),
        ]
    )
    installs = [(command, env.get("CMAKE_ARGS", "")) for command, env in calls if "pip" in command]
    assert [str(command[0]) for command, _ in installs] == [
        f"{tmp_path}/{name}/bin/python" for name in ("llama.cpp-amx", "llama.cpp", "openvino-genai")
    ]
    amx, plain, other = (shlex.split(flags) for _, flags in installs)
    assert set(amx) - set(plain) == {
        "-DGGML_AMX_TILE=ON",
        "-DGGML_AMX_INT8=ON",
        "-DGGML_AMX_BF16=ON",
        "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse",
    }
    assert "-DGGML_NATIVE=OFF" in plain and "-DGGML_AVX512_VNNI=ON" in plain
    assert not other and "--no-binary" in installs[0][0] and "--no-binary" not in installs[2][0]


def test_report_tells_goals_and_misses(tmp_path: Path) -> None:
    path = tmp_path / "llm.json"
    times = {
        "decode-batch": {"tilewright": 100.0, "llama.cpp": 300.0},
        "prefill": {"tilewright": 100.0, "llama.cpp": 600.0, "llama.cpp-amx": 140.0},
        "decode": {"tilewright": 40.0, "llama.cpp": 80.0, "llama.cpp-amx": 70.0},
    }
    rows_of(path, "int4", times)
    report.write(path)
    text = path.with_suffix(".md").read_text()
    assert "| int4 decode ÷ llama.cpp without AMX | 2.00 | ≥ 1.8 |" in text
    assert "| int4 decode ÷ llama.cpp with AMX | **1.75** | ≥ 1.8 |" in text
    assert "| int4 prefill ÷ llama.cpp without AMX | 6.00 | ≥ 5 |" in text
    assert "| int4 prefill ÷ best of all | **1.40** | ≥ 1.5 |" in text
    assert "| bf16 prefill ÷ llama.cpp |  | ≥ 5 |" in text
    assert "| int4 batch 8 ÷ batch 1, tokens a second | **3.20** | ≥ 4 |" in text
    assert "| int4, seconds to load | 0.50 | ≤ 1 |" in text
    assert "| int4 peak memory ÷ llama.cpp's least | **1.50** | ≤ 1 |" in text
    assert (
        text.index("prefill of 256 tokens") < text.index("decode after 64 tokens |") < text.index("batch 8 |")
    )
    assert "| 25.0 | 12.5–50.0 | **14.3** | 12.5 | 1.75 |" in text  # tokens per second
    assert "- openvino-genai: no memory" in text


def test_report_draws_a_panel_for_each_precision(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "llm.json"
    for precision in ("int4", "bf16"):
        rows_of(path, precision, {"decode": {"tilewright": 40.0, "llama.cpp": 80.0}})
    report.write(path)
    assert path.with_suffix(".svg").read_text().count('<g id="axes_') == 2


def test_figures_of_earlier_runs_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "llm.json"
    rows_of(path, "int4", {"decode": {"tilewright": 40.0, "llama.cpp": 80.0}})
    rows_of(path, "int4", {"decode": {"tilewright": 20.0, "openvino-genai": 50.0}})
    report.write(path)
    assert "| 50.0 | 25.0–100 | (12.5) | **20.0** | 2.50 |" in path.with_suffix(".md").read_text()

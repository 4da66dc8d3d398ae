"""A language model in two processes against one process, on two cores of this machine.

    python -m bench.llm.processes             # bf16 and int4
    python -m bench.llm.processes -p int4 -s 60

The model is a Llama of 0.3 billion parameters with random weights (`model.SIZES`). It is compiled for one
process, for two that share each matrix (tensor parallel, one thread each), and for two stages (pipeline
parallel), which take turns and have two threads each. One step of decoding, for one sequence and for eight,
and a prompt of 256 tokens are measured in turns; loss is the time of the processes over that of one process,
minus 1. Medians go to bench/results/llm_processes-CLASS.json and .md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import numpy as np  # noqa: E402

from tilewright.artifact.disk_cache import cache_folder  # noqa: E402

from ..machines import features, machine, results_file  # noqa: E402
from ..report import table  # noqa: E402
from .model import SIZES, write  # noqa: E402

WAYS = {"one": (1, 1), "tensor": (2, 1), "pipeline": (1, 2)}
"""The numbers of processes of each way: for tensor and for pipeline parallel."""
SIZE = SIZES["300m"]
HELD, WARM = 128, 3
"""Tokens of each sequence before a measured step, and steps that do not count."""


def made(folder: Path, precision: str, way: str) -> Path:
    """The library of a way, compiled unless it exists."""
    from dataclasses import replace

    from tilewright.llm.library import LibraryOptions, compile_library, save_library
    from tilewright.llm.weights import open_checkpoint

    source, path = folder / f"{precision}.gguf", folder / f"{precision}-{way}.so"
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        write(SIZE, precision, source)
    if not path.exists():
        tensor, pipeline = WAYS[way]
        checkpoint = open_checkpoint(source)
        options = LibraryOptions(context=512, tensor_parallel=tensor, pipeline_parallel=pipeline)
        for rank in reversed(range(options.place.size)):
            save_library(compile_library(checkpoint, replace(options, rank=rank)), checkpoint, path)
    return path


def calls(runner: Any) -> dict[str, Callable[[], Any]]:
    """The measured calls of a runner."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, runner.vocabulary, 256).astype(np.int32)
    pages = np.arange(64, dtype=np.int32).reshape(8, 8)
    for row in range(8):
        runner.prefill(tokens[:HELD], 0, pages[row], row)

    def decode(rows: int) -> Callable[[], Any]:
        lengths, slots = np.full(rows, HELD, np.int32), np.arange(rows, dtype=np.int32)
        return lambda: runner.decode(tokens[:rows], lengths, pages[:rows, : HELD // 64 + 1], slots)

    return {
        "decode": decode(1),
        "decode, 8 sequences": decode(8),
        "prefill": lambda: runner.prefill(tokens, 0, pages[0, :4], 0),
    }


def measure(folder: Path, precision: str, seconds: float) -> dict[str, dict[str, float]]:
    """Median milliseconds of each call, by call and way."""
    from tilewright.driver.load import load
    from tilewright.llm.library import LibraryRunner
    from tilewright.llm.parallel.launch import open_parallel
    from tilewright.llm.parallel.runner import Leader

    runners: dict[str, LibraryRunner] = {}
    for way in WAYS:
        path = made(folder, precision, way)
        runners[way] = (
            LibraryRunner(load(path, threads=2)) if way == "one" else open_parallel(load(path), path)
        )
    found = {way: calls(runner) for way, runner in runners.items()}
    times: dict[str, dict[str, list[float]]] = {c: {w: [] for w in WAYS} for c in found["one"]}
    for call, by_way in times.items():
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(by_way["one"]) < 2 * WARM:
            for way, values in by_way.items():
                for k in range(4):  # the first one finds the caches of the processor with another's data
                    start = time.perf_counter()
                    found[way][call]()
                    if k:
                        values.append(1e3 * (time.perf_counter() - start))
    for runner in runners.values():
        if isinstance(runner, Leader):
            runner.close()
    return {c: {w: statistics.median(v[WARM:]) for w, v in by.items()} for c, by in times.items()}


def markdown(result: dict[str, Any]) -> str:
    """The table of a file of results."""
    info, rows = result["machine"], result["rows"]
    head = ["precision", "call", *WAYS, "loss of tensor", "loss of pipeline"]
    lines = [
        [
            r["precision"],
            r["call"],
            *(f"{r[way]:.3g}" for way in WAYS),
            *(f"{100 * (r[way] / r['one'] - 1):.0f} %" for way in ("tensor", "pipeline")),
        ]
        for r in rows
    ]
    return (
        f"{max(r['date'] for r in rows)}, {info['processor']} ({features(info['flags'])}), {info['cores']} "
        "cores; `python -m bench.llm.processes`. A Llama of 0.3 billion parameters with random weights: "
        "median milliseconds of a step of decoding after 128 tokens, and of a prompt of 256 tokens, in one "
        "process of two threads, in two of one thread that share each matrix (tensor), and in two of two "
        "threads that have half of the layers and take turns (pipeline). Loss is the time over that of one "
        "process, minus 1.\n\n" + table(head, lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-p", "--precision", type=lambda s: s.split(","), default=["bf16", "int4"])
    parser.add_argument("-s", "--seconds", type=float, default=30.0, help="for each call (default: 30)")
    parser.add_argument("--build", action="store_true", help="only compile the libraries")
    parser.add_argument("--results", type=Path, default=None)
    options = parser.parse_args()
    folder = cache_folder() / "bench-llm" / "processes"
    if options.build:
        for precision in options.precision:
            for way in WAYS:
                print(made(folder, precision, way), flush=True)
        return
    path = options.results or results_file("llm_processes")
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    for precision in options.precision:
        figures = measure(folder, precision, options.seconds)
        kept = [r for r in kept if r["precision"] != precision]
        for call, by_way in figures.items():
            row = {"precision": precision, "call": call, **by_way, "date": datetime.date.today().isoformat()}
            print(row, flush=True)
            kept.append(row)
        path.write_text(json.dumps({"machine": machine(), "rows": kept}, indent=1) + "\n")
        path.with_suffix(".md").write_text(markdown({"machine": machine(), "rows": kept}))


if __name__ == "__main__":
    main()

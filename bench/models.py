"""The zoo's models at their published sizes: Tilewright against PyTorch eager and ONNX Runtime, batch 1.

    python bench/models.py                       # all models; writes bench/results/models.json and models.md
    python bench/models.py bert vit --seconds 5

Each model runs in a process of its own, the engines taking turns in it; medians and ratios are reported. PyTorch runs the module in
eager mode under `torch.no_grad`, ONNX Runtime its default session (all graph optimizations) on the same ONNX file that Tilewright
compiles, all with the same number of threads. The floor is max(flops / peak,
bytes / bandwidth) summed over Tilewright's kernels; peak and bandwidth are measured in the same run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "bench" / "results"
LEFT_OUT = {"llama": "1.2 billion parameters: its ONNX export alone needs more memory than the machine has"}
SEQUENCE = 128


def measure(name: str, seconds: float, threads: int) -> dict[str, Any]:
    """Times, differences and compile times of one model."""
    import onnxruntime
    import torch
    from tests.zoo.models import MINILM, MODELS

    import tilewright as tw
    from tilewright.cli.bench import interleaved
    from tilewright.machine import machine

    model = MINILM if name == "minilm" else MODELS[name]
    path = model.onnx_model("full", dynamic=True)
    start = time.perf_counter()
    library = tw.compile(path, dims=model.dims, threads=threads, cache=False)
    cold = time.perf_counter() - start
    tw.compile(path, dims=model.dims, threads=threads)  # fills the cache
    start = time.perf_counter()
    tw.compile(path, dims=model.dims, threads=threads)
    warm = time.perf_counter() - start

    torch.set_num_threads(threads)
    module = model.torch_model("full")
    inputs = model.inputs("full", batch=1, seq=SEQUENCE)
    arrays = [v.numpy() for v in inputs.values()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = dict(zip([i.name for i in session.get_inputs()], arrays, strict=True))

    def eager() -> Any:
        with torch.no_grad():
            return module(*inputs.values())

    calls = {"tilewright": lambda: library(*arrays), "torch": eager, "onnxruntime": lambda: session.run(None, feed)}
    wanted = eager().numpy()
    found = library(*arrays)
    error = float(abs((found[0] if isinstance(found, tuple) else found) - wanted).max() / abs(wanted).max())
    times = interleaved(calls, seconds)
    milliseconds = {engine: statistics.median(t) * 1e3 for engine, t in times.items()}
    rows = library.profile(*arrays, repeat=3)
    here = machine(threads)
    floor = sum(here.floor_seconds(r.flops, r.bytes) for r in rows)
    return {
        "model": name,
        "milliseconds": milliseconds,
        "range": {engine: [min(t) * 1e3, max(t) * 1e3] for engine, t in times.items()},
        "runs": {engine: len(t) for engine, t in times.items()},
        "error": error,
        "floor_milliseconds": floor * 1e3,
        "compile_seconds": {"cold": cold, "cached": warm},
        "kernels": {"launches": sum(r.calls for r in rows), "distinct": len(rows)},
        "memory": library.metadata["memory"],
    }


def table(results: list[dict[str, Any]], note: str) -> str:
    """The results in Markdown, with the geometric means of the ratios."""
    lines = [
        note,
        "",
        "| model | Tilewright ms | torch ms | ONNX Runtime ms | torch ÷ ours | ONNX Runtime ÷ ours | floor ÷ ours | compile s (cached) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"torch": [], "onnxruntime": []}
    for r in results:
        ms = r["milliseconds"]
        ours = ms["tilewright"]
        for engine, values in ratios.items():
            values.append(ms[engine] / ours)
        lines.append(
            f"| {r['model']} | {ours:.1f} | {ms['torch']:.1f} | {ms['onnxruntime']:.1f} | {ms['torch'] / ours:.2f} | "
            f"{ms['onnxruntime'] / ours:.2f} | {r['floor_milliseconds'] / ours:.2f} | "
            f"{r['compile_seconds']['cold']:.1f} ({r['compile_seconds']['cached']:.2f}) |"
        )
    if results:
        means = {engine: statistics.geometric_mean(values) for engine, values in ratios.items()}
        lines.append(f"| geometric mean | | | | {means['torch']:.2f} | {means['onnxruntime']:.2f} | | |")
    lines += ["", *(f"Left out: {name}: {why}." for name, why in LEFT_OUT.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    from tests.zoo.models import MODELS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("models", nargs="*", help="names of zoo models (default: all that fit)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time to spend on each model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.seconds, options.threads)))
        return
    results = []
    for name in options.models or ["minilm", *(n for n in MODELS if n not in LEFT_OUT)]:
        command = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--seconds",
            str(options.seconds),
            "--threads",
            str(options.threads),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: failed\n{done.stderr[-2000:]}", file=sys.stderr)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        results.append(result)
        print(
            name,
            {k: round(v, 2) for k, v in result["milliseconds"].items()},
            f"error {result['error']:.1e}",
            flush=True,
        )
    note = f"{datetime.date.today()}, {cpu_name()}, {options.threads} threads, float32, batch 1, {SEQUENCE} tokens; medians."
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "models.json").write_text(json.dumps({"note": note, "results": results}, indent=1) + "\n")
    (RESULTS / "models.md").write_text(table(results, note))
    print(table(results, note))


def cpu_name() -> str:
    """The processor's name and the widest vectors it has."""
    from tilewright.machine import machine
    from tilewright.targets.cpu.isa import host_isa

    return f"{machine().processor} ({host_isa().vector_bits}-bit vectors)"


if __name__ == "__main__":
    main()

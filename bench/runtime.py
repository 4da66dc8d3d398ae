"""Measures the runtime: a launch by the thread pool, one run of a small model from C, one call from Python.

python -m bench.runtime           # one line per figure: minimum, median and 99th percentile in microseconds
python -m bench.runtime --json
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.artifact import link
from tilewright.artifact.sources import COMPILE_FLAGS, INCLUDE_DIR, runtime_sources
from tilewright.targets.cpu.isa import host_isa

from .inside import native_call

SOURCE = Path(__file__).with_suffix(".c")
MLP = (64, 64, 64, 10)
MEET = -1


def build(folder: Path) -> ctypes.CDLL:
    """The benchmark's functions in C, linked with the runtime."""
    target = host_isa()
    objects = link.compile_c([*runtime_sources(), SOURCE], [INCLUDE_DIR], target, COMPILE_FLAGS)
    path = folder / "bench.so"
    link.link_shared(objects, path, target, ["bench_launches", "bench_runs"])
    return ctypes.CDLL(str(path))


def launches(
    native: ctypes.CDLL, threads: int, items: int, pauses: int, gap: int, rounds: int = 5000
) -> np.ndarray:
    """Microseconds of each launch of `items` items of `pauses` pauses, `gap` nanoseconds after the one
    before.
    """
    times = np.zeros(rounds, np.uint64)
    where = times.ctypes.data_as(ctypes.c_void_p)
    count = ctypes.c_int64
    if native.bench_launches(threads, count(items), count(pauses), count(gap), count(rounds), where):
        raise MemoryError("no pool")
    return times[rounds // 10 :] / 1e3


def runs(
    native: ctypes.CDLL, library: Any, array: np.ndarray, inner: int = 100, rounds: int = 300
) -> np.ndarray:
    """Microseconds of a run of `library` in a loop of C."""
    bound = library.bind(array)
    times = np.zeros(rounds, np.uint64)
    native.bench_runs.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
    status = native.bench_runs(*native_call(bound), inner, rounds, times.ctypes.data)
    if status:
        raise RuntimeError(f"the model failed with status {status}")
    return times[rounds // 10 :] / 1e3


def calls(call: Callable[[], object], inner: int = 100, rounds: int = 100) -> np.ndarray:
    """Microseconds of a call from Python."""
    times = []
    for _ in range(rounds):
        before = time.perf_counter_ns()
        for _ in range(inner):
            call()
        times.append((time.perf_counter_ns() - before) / inner)
    return np.array(times[rounds // 10 :]) / 1e3


def measure() -> dict[str, np.ndarray]:
    """All figures, in microseconds."""
    import torch

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        native = build(Path(folder))
        found["launch, alone"] = launches(native, 1, 1, 0, 0)
        found["launch, 2 threads"] = launches(native, 2, 2, 0, 0)
        found["launch, 2 threads that must meet"] = launches(native, 2, 2, MEET, 0)
        found["the same, 20 us apart"] = launches(native, 2, 2, MEET, 20_000)
        found["the same, 1 ms apart"] = launches(native, 2, 2, MEET, 1_000_000, rounds=500)
        layers: list[Any] = []
        for k, n in itertools.pairwise(MLP):
            layers += [torch.nn.Linear(k, n), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1]).eval()
        x = torch.randn(1, MLP[0])
        array = x.numpy()
        for threads in (1, 2):
            library = tw.compile(model, (x,), threads=threads)
            found[f"MLP in C, {threads} threads"] = runs(native, library, array)
            found[f"MLP from NumPy, {threads} threads"] = calls(lambda library=library: library(array))
            found[f"MLP from NumPy, bound, {threads} threads"] = calls(library.bind(array))
            found[f"MLP from torch, {threads} threads"] = calls(lambda library=library: library(x))
        with torch.no_grad():
            found["MLP in torch eager"] = calls(lambda: model(x))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    rows = {
        name: {"least": float(t.min()), "median": float(np.median(t)), "p99": float(np.percentile(t, 99))}
        for name, t in measure().items()
    }
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        print(f"{name:34} " + "  ".join(f"{key} {value:8.2f}" for key, value in row.items()))


if __name__ == "__main__":
    main()

"""Memory-bound operators: Tilewright against PyTorch eager and the bandwidth of this machine.

    python bench/memory_ops.py                     # all operators
    python bench/memory_ops.py sort topk --threads 1 --sizes L2

Writes bench/results/memory_ops-CLASS.json and .md, CLASS being this machine's class.

Each operator runs at two sizes, one that fits a core's second-level cache and one that does not, with the
engines interleaved. The best time of each is kept, since disturbances only lengthen a run. The lower bound is
the time in which this machine reads every input and writes every output once, measured with `memcpy` for the
cache and by `tilewright.tools.roofline` for memory. Tilewright is called through its C interface with
existing result arrays; PyTorch allocates its results in a heap that keeps freed memory, so without page
faults. Neither gets huge pages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench.machines import results_file  # noqa: E402

SIZES = ("L2", "memory")
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""Freed memory stays with the process, so that the first access to a result costs nothing. All engines have
the same setting for huge pages.
"""


def operators(size: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Name -> (function on torch tensors, makers of its arguments) at a size."""
    import torch
    import torch.nn.functional as F

    small = size == "L2"
    n, m = (256, 512) if small else (4096, 4096)
    side = 64 if small else 512  # Side of images with 32 channels.
    g = torch.Generator().manual_seed(0)

    def rand(*shape: int, dtype: Any = torch.float32) -> Any:
        if dtype is torch.bool:
            return torch.rand(shape, generator=g) < 0.001
        if not dtype.is_floating_point:
            return torch.randint(0, 100, shape, generator=g, dtype=dtype)
        return torch.randn(shape, generator=g).to(dtype)

    def ids(*shape: int, upto: int) -> Any:
        return torch.randint(0, upto, shape, generator=g)

    def x(dtype: Any = torch.float32) -> Callable[[], Any]:
        return lambda: rand(n, m, dtype=dtype)

    def make(*shape: int, dtype: Any = torch.float32) -> Callable[[], Any]:
        return lambda: rand(*shape, dtype=dtype)

    def image(channels: int = 32) -> Callable[[], Any]:
        return make(1, channels, side, side)

    bf16, f16, f64, i8, u8, i32, i64 = (
        torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    )  # fmt: skip
    table = 2000 if small else 50000
    vocabulary = 4096 if small else 32000
    return {
        "sum last": (lambda a: a.sum(-1), (x(),)),
        "sum first": (lambda a: a.sum(0), (x(),)),
        "mean middle": (lambda a: a.mean(1), (make(8, n // 8, m),)),
        "sum all": (lambda a: a.sum(), (x(),)),
        "max all": (lambda a: a.amax(), (x(),)),
        "max last": (lambda a: a.amax(-1), (x(),)),
        "prod first": (lambda a: a.prod(0), (x(),)),
        "argmax last": (lambda a: a.argmax(-1), (x(),)),
        "argmax first": (lambda a: a.argmax(0), (x(),)),
        "any last": (lambda a: a.any(-1), (x(torch.bool),)),
        "sum last bf16": (lambda a: a.sum(-1), (x(bf16),)),
        "sum last i64": (lambda a: a.sum(-1), (x(i64),)),
        "sum of few rows": (lambda a: a.sum(-1), (make(2, n * m // 2),)),
        "cumsum last": (lambda a: a.cumsum(-1), (x(),)),
        "cumsum first": (lambda a: a.cumsum(0), (x(),)),
        "transpose": (lambda a: a.t().contiguous(), (x(),)),
        "transpose f64": (lambda a: a.t().contiguous(), (make(n // 2, m, dtype=f64),)),
        "transpose i8": (lambda a: a.t().contiguous(), (x(i8),)),
        "transpose bf16": (lambda a: a.t().contiguous(), (x(bf16),)),
        "heads to front": (lambda a: a.permute(0, 2, 1, 3).contiguous(), (make(1, n * m // 768, 12, 64),)),
        "NCHW to NHWC": (lambda a: a.permute(0, 2, 3, 1).contiguous(), (image(),)),
        "embedding": (
            lambda i, w: F.embedding(i, w),
            (lambda: ids(n * m // 256, upto=table), make(table, 256)),
        ),
        "select columns": (lambda a, i: a.index_select(1, i), (x(), lambda: ids(m, upto=m))),
        "gather last": (lambda a, i: a.gather(1, i), (x(), lambda: ids(n, m, upto=m))),
        "scatter add rows": (
            lambda a, i, u: a.index_add(0, i, u),
            (x(), lambda: ids(n // 2, upto=n), make(n // 2, m)),
        ),
        "one-hot": (lambda i: F.one_hot(i, 64), (lambda: ids(n * m // 128, upto=64),)),
        "concat first": (lambda a, b: torch.cat([a, b], 0), (make(n // 2, m), make(n // 2, m))),
        "concat last": (lambda a, b: torch.cat([a, b], 1), (make(n, m // 2), make(n, m // 2))),
        "concat KV cache": (
            lambda a, b: torch.cat([a, b], 2),
            (make(1, 8, n * m // 512 - 1, 64), make(1, 8, 1, 64)),
        ),
        "concat of results": (
            lambda a, b: torch.cat([torch.relu(a), b * 2 + 1], 1),
            (make(n, m // 2), make(n, m // 2)),
        ),
        "stack": (lambda a, b: torch.stack([a, b], -1), (make(n, m // 2), make(n, m // 2))),
        "chunk and gate": (lambda a: torch.sigmoid(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], (x(),)),
        "pad": (lambda a: F.pad(a, (1, 1, 1, 1)), (image(),)),
        "topk 8": (lambda a: a.topk(8), (make(n * m // vocabulary, vocabulary),)),
        "sort": (lambda a: a.sort()[0], (x(),)),
        "argsort stable": (lambda a: a.argsort(stable=True), (x(),)),
        "max pool 3x3/2": (lambda a: F.max_pool2d(a, 3, 2, 1), (image(),)),
        "average pool 2x2": (lambda a: F.avg_pool2d(a, 2), (image(),)),
        "adaptive pool 7x7": (lambda a: F.adaptive_avg_pool2d(a, 7), (image(),)),
        "resize nearest": (lambda a: F.interpolate(a, scale_factor=2.0), (image(8),)),
        "resize linear": (lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"), (image(8),)),
        "resize cubic": (lambda a: F.interpolate(a, scale_factor=2.0, mode="bicubic"), (image(8),)),
        "roll": (lambda a: torch.roll(a, (3, 5), (0, 1)), (x(),)),
        "flip": (lambda a: a.flip(-1), (x(),)),
        "tril": (lambda a: a.tril(), (x(),)),
        "add": (lambda a, b: a + b, (x(), x())),
        "add row": (lambda a, b: a + b, (x(), make(m))),
        "add column": (lambda a, b: a + b, (x(), make(n, 1))),
        "clip chain": (lambda a, b: torch.where(a > 0, (a * b + 1).clamp(-2, 2), b), (x(), x())),
        "u8 to f32": (lambda a: a.to(torch.float32) / 255 - 0.5, (x(u8),)),
        "f32 to i8": (lambda a: (a * 20).round().clamp(-128, 127).to(i8), (x(),)),
        "add bf16": (lambda a, b: a + b, (x(bf16), x(bf16))),
        "add f16": (lambda a, b: a + b, (x(f16), x(f16))),
        "add i8": (lambda a, b: a + b, (x(i8), x(i8))),
        "compare i64": (lambda a, b: (a > b) & (a != 3), (x(i64), x(i64))),
        "divide i32": (lambda a: a // 7, (x(i32),)),
        "modulo i64": (lambda a: a % 10, (x(i64),)),
    }


def measure(name: str, size: str, threads: int, seconds: float) -> dict[str, Any]:
    """Best times of one operator at one size."""
    import torch

    import tilewright as tw
    from tilewright.tools.roofline import machine

    torch.set_num_threads(threads)
    function, makers = operators(size)[name]

    class Model(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    arguments = tuple(make() for make in makers)
    module = Model()
    start = time.perf_counter()
    library = tw.compile(module, arguments, threads=threads)
    compile_seconds = time.perf_counter() - start
    wanted = function(*arguments)
    results = library(*arguments)
    pairs = zip(*(v if isinstance(v, tuple | list) else (v,) for v in (results, wanted)), strict=True)
    error = 0.0
    count = sum(a.nbytes for a in arguments)
    for ours, theirs in pairs:
        ours, theirs = ours.double(), theirs.double()
        error = max(error, float((ours - theirs).abs().max() / max(float(theirs.abs().max()), 1e-30)))
    count += sum(v.nbytes for v in (results if isinstance(results, tuple) else (results,)))
    # Only the rows that are read count, not the whole table.
    count = min(count, sum(k["bytes"] * k["launches"] for k in library.metadata["kernels"]))
    calls: dict[str, Callable[[], Any]] = {
        "tilewright": c_call(library, arguments),
        "torch": lambda: function(*arguments),
    }
    if size == "L2":
        source = torch.zeros(count // 8)
        target = torch.zeros(count // 8)
        calls["copy"] = lambda: target.copy_(source)
    best = {engine: min(times) * 1e6 for engine, times in take_turns(calls, seconds).items()}
    floor = best.pop("copy") if size == "L2" else count / machine(threads).bandwidth * 1e6
    del results, wanted
    return {
        "operator": name,
        "size": size,
        "threads": threads,
        "bytes": count,
        "microseconds": best,
        "floor": floor,
        "error": error,
        "compile_seconds": compile_seconds,
        "kernels": len(library.metadata["kernels"]),
    }


def c_call(library: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """A bound call with existing result arrays, without the checks and conversions of a call from Python."""
    from tilewright.runtime.tensors import to_numpy

    given = zip(arguments, library._names, library._dtypes, strict=True)
    return library.bind(*[to_numpy(value, name, dtype) for value, name, dtype in given])  # type: ignore[no-any-return]


def take_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Seconds of single calls; the engines alternate every few calls."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        begin = time.perf_counter()
        turns = 0
        while turns < 3 or time.perf_counter() - begin < seconds:
            for name, call in calls.items():
                for _ in range(5 if turns else 2):
                    start = time.perf_counter()
                    call()
                    times[name].append(time.perf_counter() - start)
            turns += 1
    return times


def table(results: list[dict[str, Any]], note: str) -> str:
    """The results in Markdown, a row for each operator."""
    columns = sorted({(r["size"], r["threads"]) for r in results})
    found = {(r["operator"], r["size"], r["threads"]): r for r in results}
    head = "".join(f" {s}, {t} thread{'s' * (t > 1)}: µs | torch ÷ ours | floor ÷ ours |" for s, t in columns)
    lines = [note, "", f"| operator |{head}", "|---|" + "---|" * 3 * len(columns)]
    for name in dict.fromkeys(r["operator"] for r in results):
        cells = []
        for s, t in columns:
            r = found.get((name, s, t))
            if r is None:
                cells += ["", "", ""]
                continue
            ours = r["microseconds"]["tilewright"]
            cells += [f"{ours:.0f}", f"{r['microseconds']['torch'] / ours:.2f}", f"{r['floor'] / ours:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = []
    for s, t in columns:
        rows = [r for r in results if (r["size"], r["threads"]) == (s, t)]
        ratios = [r["microseconds"]["torch"] / r["microseconds"]["tilewright"] for r in rows]
        shares = [r["floor"] / r["microseconds"]["tilewright"] for r in rows]
        means += ["", f"{statistics.geometric_mean(ratios):.2f}", f"{statistics.geometric_mean(shares):.2f}"]
    return "\n".join([*lines, f"| geometric mean | {' | '.join(means)} |"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("operators", nargs="*", help="names, or parts of names (default: all)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time to spend on each measurement")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument(
        "--write", action="store_true", help="write bench/results (done anyway when all operators run)"
    )
    options = parser.parse_args()
    if any(os.environ.get(k) != v for k, v in ENVIRONMENT.items()):
        sys.exit(subprocess.call([sys.executable, *sys.argv], env={**os.environ, **ENVIRONMENT}))
    results: list[dict[str, Any]] = []
    for name in operators("L2"):
        if options.operators and not any(part in name for part in options.operators):
            continue
        for size in options.sizes:
            for threads in options.threads:
                try:
                    r = measure(name, size, threads, options.seconds)
                except Exception as error:
                    print(f"{name}, {size}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                results.append(r)
                us = r["microseconds"]
                print(
                    f"{name:20} {size:6} {threads}  ours {us['tilewright']:9.1f} us  torch "
                    f"{us['torch']:9.1f}  "
                    f"torch/ours {us['torch'] / us['tilewright']:6.2f}  floor/ours "
                    f"{r['floor'] / us['tilewright']:5.2f}  "
                    f"error {r['error']:.0e}  kernels {r['kernels']}",
                    flush=True,
                )
    from tilewright.targets.cpu.isa import host_isa
    from tilewright.tools.roofline import machine

    note = (
        f"{datetime.date.today()}, {machine(1).processor} ({host_isa().vector_bits}-bit vectors); best times."
    )
    text = table(results, note)
    if options.write or not options.operators:
        file = results_file("memory_ops")
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"note": note, "results": results}, indent=1) + "\n")
        file.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()

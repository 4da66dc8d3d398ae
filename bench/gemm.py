"""`python -m bench.gemm`: single products of matrices, Tilewright beside MKL and oneDNN as torch calls them.

Forty shapes (rows x depth x columns, a batch before them) in float32 and bf16: square ones, BERT's, a language model's decoding,
skinny ones, batches of small ones. The right operand is a constant where it is a weight (`nn.Linear`), an input where it is not.
Both engines run in this process and take turns; writes bench/results/gemm.json and gemm.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from .results import machine  # noqa: E402
from .roofline import Roof, measure_roof  # noqa: E402
from .worker import holding, prioritize  # noqa: E402

_PAUSE = 0.005  # seconds between turns, in which the other's threads stop spinning


@dataclass(frozen=True)
class Shape:
    """(batch, m, k) @ (k, n) with a weight, or (batch, m, k) @ (batch, k, n)."""

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1
    weight: bool = True

    def __str__(self) -> str:
        return f"{f'{self.batch} × ' if self.batch > 1 else ''}{self.m} × {self.k} × {self.n}"

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes(self, element: int) -> float:
        """Operands read once, the result written once."""
        right = self.k * self.n * (1 if self.weight else self.batch)
        return element * (self.batch * self.m * (self.k + self.n) + right)


SHAPES = [
    *[Shape("square", n, n, n) for n in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)],
    *[Shape("BERT", m, n, k) for m in (128, 384) for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))],
    *[Shape("decode", m, n, k) for m in (1, 4, 8) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008))],
    Shape("decode", 1, 32000, 2048),
    *[
        Shape("skinny", *s)
        for s in ((4096, 16, 256), (4096, 64, 64), (16, 4096, 256), (32, 32, 8192), (2048, 8, 2048), (1, 1000, 2048))
    ],
    Shape("batched", 128, 128, 64, 12, False),
    Shape("batched", 128, 64, 128, 12, False),
    Shape("batched", 384, 384, 64, 12, False),
    Shape("batched", 49, 49, 32, 192, False),
    Shape("batched", 49, 32, 49, 192, False),
    Shape("batched", 16, 16, 16, 512, False),
    Shape("batched", 32, 32, 32, 256, False),
]


def calls(shape: Shape, precision: str, threads: int) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """Tilewright's and torch's call, and the largest difference of their results over the largest magnitude."""
    import torch

    import tilewright as tw

    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    lead = (shape.batch,) if shape.batch > 1 else ()
    left = torch.randn(*lead, shape.m, shape.k, generator=generator).to(dtype)
    if shape.weight:
        linear = torch.nn.Linear(shape.k, shape.n, bias=False).to(dtype)
        module, inputs = linear, (left,)
    else:

        class Product(torch.nn.Module):
            def forward(self, a: Any, b: Any) -> Any:
                return a @ b

        module, inputs = Product(), (left, torch.randn(*lead, shape.k, shape.n, generator=generator).to(dtype))
    library = tw.compile(module.eval(), inputs, threads=threads)
    wanted, found = module(*inputs).detach().float(), library(*inputs).float()
    return (
        lambda: library(*inputs),
        lambda: module(*inputs),
        float((wanted - found).abs().max() / wanted.abs().max()),
    )


def measure(
    shape: Shape, precision: str, roof: Roof, seconds: float, lock: Path | None = None, nice: int | None = None
) -> dict[str, Any]:
    """Median seconds of both, their share of the peak, and of what the roofline allows."""
    row: dict[str, Any] = {**asdict(shape), "precision": precision}
    try:
        ours, theirs, error = calls(shape, precision, roof.threads)
    except Exception as problem:
        return {**row, "failed": f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"}
    row["error"] = error
    row["floor_seconds"] = roof.floor_seconds(precision, shape.flops, shape.bytes(4 if precision == "float32" else 2))
    with holding(lock):
        prioritize(os.getpid(), nice)
        times = _take_turns(ours, theirs, seconds)
        prioritize(os.getpid(), None if nice is None else 0)
    for name, values in times.items():
        median = statistics.median(values)
        row[name] = {
            "seconds": median,
            "min_seconds": min(values),
            "max_seconds": max(values),
            "samples": len(values),
            "share_of_peak": shape.flops / median / roof.flops[precision],
        }
    return row


def _take_turns(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> dict[str, list[float]]:
    import torch

    times: dict[str, list[float]] = {"tilewright": [], "torch": []}
    end = time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < end or len(times["torch"]) < 3:
            for name, call in (("tilewright", ours), ("torch", theirs)):
                time.sleep(_PAUSE)
                times[name] += _turn(call, seconds / 20)
    return times


def _turn(call: Callable[[], Any], seconds: float) -> list[float]:
    clock = time.perf_counter
    call()
    start = clock()
    call()
    group = max(1, int(1e-4 / (clock() - start)))
    times = []
    end = clock() + seconds
    while not times or clock() < end:
        start = clock()
        for _ in range(group):
            call()
        times.append((clock() - start) / group)
    return times


def markdown(result: dict[str, Any]) -> str:
    """A table for each precision."""
    roof = result["roof"]
    peaks = ", ".join(f"{p} {v / 1e9:.0f} GFLOP/s" for p, v in roof["flops"].items())
    lines = [
        f"{result['date']}, {result['machine']['processor']}, {roof['threads']} threads; measured peaks: {peaks}, "
        f"{roof['bandwidth'] / 1e9:.0f} GB/s. Medians; torch {result['torch']}. Rows × depth × columns. Operands stay in the caches "
        "where they fit, so a product bound by memory can be faster than the roofline of memory."
    ]
    for precision in roof["flops"]:
        rows = [r for r in result["rows"] if r["precision"] == precision]
        if not rows:
            continue
        lines += ["", f"## {precision}", ""]
        lines += [
            "| kind | shape | Tilewright µs | torch µs | share of peak | torch's | torch ÷ ours | floor ÷ ours | error |"
        ]
        lines += ["|---" * 9 + "|"]
        ratios = []
        for r in rows:
            shape = Shape(**{k: r[k] for k in ("kind", "m", "n", "k", "batch", "weight")})
            if "failed" in r:
                lines.append(f"| {r['kind']} | {shape} | {r['failed']} | | | | | | |")
                continue
            ours, theirs = r["tilewright"], r["torch"]
            ratio = theirs["seconds"] / ours["seconds"]
            ratios.append(ratio)
            lines.append(
                f"| {r['kind']} | {shape} | {ours['seconds'] * 1e6:.1f} | {theirs['seconds'] * 1e6:.1f} | {ours['share_of_peak']:.0%} | "
                f"{theirs['share_of_peak']:.0%} | {ratio:.2f} | {r['floor_seconds'] / ours['seconds']:.2f} | {r['error']:.0e} |"
            )
        if ratios:
            lines.append(f"| | geometric mean | | | | | {statistics.geometric_mean(ratios):.2f} | | |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gemm", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("-p", "--precision", choices=["float32", "bf16"], nargs="+", default=["float32", "bf16"])
    add("-k", "--kinds", nargs="+", choices=sorted({s.kind for s in SHAPES}), help="only these kinds of shapes")
    add("-t", "--threads", type=int, default=2)
    add("-s", "--seconds", type=float, default=1.0, help="of measuring, for each shape and precision")
    add("--lock", type=Path, help="hold this lock file while measuring")
    add("--nice", type=int, help="scheduling priority while measuring, on a machine that does other work as well")
    add("--results", type=Path, default=ROOT / "bench" / "results" / "gemm.json")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(options.threads)
    roof = measure_roof(options.threads, options.lock, options.nice)
    rows = []
    for precision in options.precision:
        for shape in SHAPES:
            if options.kinds and shape.kind not in options.kinds:
                continue
            row = measure(shape, precision, roof, options.seconds, options.lock, options.nice)
            rows.append(row)
            print(f"{precision} {shape.kind} {shape}:", _line(row), flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "torch": torch.__version__,
        "roof": asdict(roof),
        "rows": rows,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    options.results.with_suffix(".md").write_text(markdown(result))


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    ours, theirs = row["tilewright"], row["torch"]
    return f"{ours['share_of_peak']:.0%} of peak, torch {theirs['share_of_peak']:.0%}, ratio {theirs['seconds'] / ours['seconds']:.2f}"


if __name__ == "__main__":
    main()

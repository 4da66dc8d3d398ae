"""The error of every float32 function on all 2**32 arguments, in units in the last place, against PyTorch in
float64.

Functions of two operands are evaluated on 2**27 pairs: all pairs of special numbers, random bit patterns, and
for pow results of every exponent.

    python bench/vector_math_errors.py            # all functions; one or two minutes each on one core
    python bench/vector_math_errors.py exp tanh --isa generic
    python bench/vector_math_errors.py --stride 17      # every 17th argument

Writes bench/results/vector_math_errors.json and .md: the greatest error, its argument, and how many results
are not the nearest float32 number; functions measured before keep their entry. A result that is the nearest
number counts as an error of 0. `--isa` is ``avx512``, or ``generic`` for the formulas of instruction sets
without tables in registers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.targets.llvm.jit import WIDE  # noqa: E402
from tests.targets.llvm.test_mathlib import FLUSHED, Array, call, ulps  # noqa: E402

from tilewright.targets.llvm.isa import Isa  # noqa: E402
from tilewright.targets.llvm.mathlib import FUNCTIONS  # noqa: E402
from tilewright.tools.roofline import machine  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "vector_math_errors.json"
ISAS = {"avx512": replace(WIDE, name="avx512", avx512=True), "generic": WIDE}
CHUNK = 1 << 20
PAIRS = 1 << 27
BINARY = ("pow", "atan2")


def arguments(name: str, stride: int) -> Iterator[tuple[Array, ...]]:
    """All arguments, or every `stride`th, in arrays of up to a million."""
    if name in BINARY:
        yield from pairs(name, stride)
        return
    for start in range(0, 1 << 32, CHUNK * stride):
        end = min(start + CHUNK * stride, 1 << 32)
        x = np.arange(start, end, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
        yield (x,)


def pairs(name: str, stride: int) -> Iterator[tuple[Array, ...]]:
    special = np.asarray(
        [0, 1e-45, 1e-40, 2**-126, 0.5, 1 - 2**-24, 1, 1 + 2**-23, 1.5, 2, 3, 2**24 - 1, 2**24, 3e38, np.inf]
    )
    special = np.concatenate([special, -special, [np.nan]]).astype(np.float32)
    yield np.repeat(special, special.size), np.tile(special, special.size)
    rng = np.random.default_rng(0)
    for _ in range(PAIRS // CHUNK // stride):
        x, y = rng.integers(0, 1 << 32, (2, CHUNK), dtype=np.uint32).view(np.float32)
        if name == "pow":
            # Mostly bases and exponents whose power is a number, a quarter of the bases near 1.
            x = np.where(
                rng.random(CHUNK) < 0.25, 1 + rng.normal(0, 1e-3, CHUNK).astype(np.float32), np.abs(x)
            )
            with np.errstate(all="ignore"):
                finite = rng.uniform(-150, 128.1, CHUNK) / np.log2(x)
            y = np.where(rng.random(CHUNK) < 0.9, finite.astype(np.float32), y)
        yield x, y


def sweep(name: str, isa: Isa, stride: int) -> dict[str, Any]:
    """The greatest error of a function, over all arguments or every `stride`th."""
    worst, where, inexact, total = 0.0, [0.0], 0, 0
    reference = getattr(torch, name)
    for operands in arguments(name, stride):
        if not operands[0].size:
            continue
        with np.errstate(all="ignore"):
            want = reference(*(torch.from_numpy(x).double() for x in operands)).numpy()
            got = call(name, *operands, isa=isa, lanes=16)
            differs = np.flatnonzero((got != want.astype(np.float32)) & ~(np.isnan(got) & np.isnan(want)))
        total += got.size
        inexact += differs.size
        if differs.size:
            error = ulps(got[differs], want[differs], FLUSHED.get(name, 0.0))
            k = int(np.argmax(error))
            if error[k] > worst:
                worst, where = float(error[k]), [float(x[differs[k]]) for x in operands]
    return {
        "max_ulp": round(worst, 4),
        "at": where,
        "not_nearest": round(inexact / total, 6),
        "arguments": total,
    }


def table(known: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| function | instructions | greatest error, ulp | at | not the nearest | arguments |",
        "|---|---|---|---|---|---|",
    ]
    for isa, rows in known.items():
        for name, row in sorted(rows.items()):
            where = ", ".join(f"{x:.9g}" for x in row["at"])
            share = f"{row['not_nearest']:.4%} | {row['arguments']:,}"
            lines.append(
                f"| {name} | {isa} | {row['max_ulp'] or '0 (always the nearest)'} | {where} | {share} |"
            )
    return "\n".join(
        [
            "# Errors of the float32 vector functions",
            "",
            __doc__.split("\n    python")[0].strip(),
            "",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", choices=[*FUNCTIONS, []])
    parser.add_argument("--isa", choices=list(ISAS), default="avx512")
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.functions or FUNCTIONS:
        row = sweep(name, ISAS[options.isa], options.stride)
        row |= {"date": datetime.date.today().isoformat(), "processor": machine(1).processor}
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known.setdefault(options.isa, {})[name] = row
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(known))
        print(f"{name:<10}{row['max_ulp']:>8.3f} ulp at {row['at']!r}", flush=True)


if __name__ == "__main__":
    main()

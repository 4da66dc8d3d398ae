"""The error of every float32 function on all 2**32 arguments, in units in the last place, against PyTorch in float64.

    python bench/vector_math_errors.py            # all functions of one operand; about a minute each on one core
    python bench/vector_math_errors.py exp tanh --isa generic
    python bench/vector_math_errors.py --stride 17      # every 17th argument

Writes bench/results/vector_math_errors.json: the greatest error, where, and how many results are not the nearest float32 number; functions
measured before keep their entry. `--isa`: ``avx512``, or ``generic`` for the formulas of instruction sets without tables in registers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.targets.llvm.jit import WIDE  # noqa: E402
from tests.targets.llvm.test_mathlib import ANGLE_LIMIT, FLUSHED, UNARY_NAMES, call, ulps  # noqa: E402

from tilewright.machine import machine  # noqa: E402
from tilewright.targets.llvm.isa import Isa  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "vector_math_errors.json"
ISAS = {"avx512": replace(WIDE, name="avx512", avx512=True), "generic": WIDE}
CHUNK = 1 << 20


def sweep(name: str, isa: Isa, stride: int) -> dict[str, Any]:
    """The greatest error of a function, over all arguments or every `stride`th."""
    worst, where, inexact, total = 0.0, 0.0, 0, 0
    reference = getattr(torch, name)
    for start in range(0, 1 << 32, CHUNK * stride):
        end = min(start + CHUNK * stride, 1 << 32)
        x = np.arange(start, end, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)
        if name in ("sin", "cos", "tan"):
            x = x[~(np.abs(x) > ANGLE_LIMIT)]
            if not x.size:
                continue
        with np.errstate(all="ignore"):
            want = reference(torch.from_numpy(x).double()).numpy()
            got = call(name, x, isa=isa, lanes=16)
            differs = np.flatnonzero((got != want.astype(np.float32)) & ~(np.isnan(got) & np.isnan(want)))
        total += x.size
        inexact += differs.size
        if differs.size:
            error = ulps(got[differs], want[differs], FLUSHED.get(name, 0.0))
            k = int(np.argmax(error))
            if error[k] > worst:
                worst, where = float(error[k]), float(x[differs[k]])
    return {"max_ulp": round(worst, 4), "at": where, "not_nearest": round(inexact / total, 4), "arguments": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", choices=[*UNARY_NAMES, []])
    parser.add_argument("--isa", choices=list(ISAS), default="avx512")
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.functions or UNARY_NAMES:
        row = sweep(name, ISAS[options.isa], options.stride)
        row |= {"date": datetime.date.today().isoformat(), "processor": machine(1).processor}
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known.setdefault(options.isa, {})[name] = row
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{name:<10}{row['max_ulp']:>8.3f} ulp at {row['at']!r}", flush=True)


if __name__ == "__main__":
    main()

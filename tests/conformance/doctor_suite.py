"""Whether `tilewright doctor` is right: its prediction for each case of ONNX's suite against what compiling
it gives.

    python -m tests.conformance.doctor_suite        # brings doctor_suite.json up to date

A prediction that agrees with the suite's own data (onnx_suite.json) counts as right; where they differ, the
case is compiled again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from tilewright.tools.model_support import examine

from ..processes import Limits, in_processes
from . import onnx_suite
from .onnx_suite import CHUNK, Case, cases, outcome

DATA = Path(__file__).with_suffix(".json")


def predicted(case: Case) -> bool:
    """Whether doctor says that the case will compile, for its first inputs as for the suite."""
    return examine(case.model, case.data_sets[0][0] if case.data_sets else None).ok


def compiles(result: str) -> bool:
    """Whether an outcome of the suite is that of a model that was compiled: right or wrong, it ran."""
    kind = result.partition(":")[0]
    return kind in ("pass", "drawn", "ShapeError") or not (kind == "refused" or kind.endswith("Error"))


def verdict(case: Case, known: dict[str, str]) -> str:
    """right, or in which way not."""
    said = predicted(case)
    if said != compiles(known.get(case.full_name, "pass")) and said != compiles(outcome(case, native=True)):
        return "said to compile" if said else "said not to compile"
    return "right"


def _verdicts(numbers: Sequence[int], first: int) -> Iterator[str]:
    known = json.loads(onnx_suite.DATA.read_text())["not_passed"]
    return (verdict(cases()[number], known) for number in numbers[first:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    processes = parser.parse_args().processes
    found: dict[str, str] = {}
    every = range(len(cases()))
    chunks = [every[k : k + CHUNK] for k in range(0, len(every), CHUNK)]
    for numbers, results in in_processes(chunks, _verdicts, processes, Limits(60.0)):
        for case, result in zip((cases()[k] for k in numbers), results, strict=True):
            found[case.full_name] = result
            if result != "right":
                print(f"{case.name}: {result}", flush=True)
        print(f"{len(found)} cases", flush=True)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
        "onnx": onnx.__version__,
        "cases": len(found),
        "right": sum(result == "right" for result in found.values()),
        "not_right": {name: result for name, result in found.items() if result != "right"},
    }
    print(f"{document['right']} of {document['cases']} predictions are right")
    DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

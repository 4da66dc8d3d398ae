"""Compares the predictions of `tilewright doctor` for the cases of ONNX's suite with the outcomes of
compiling them.

    python -m tests.conformance.doctor_suite        # updates doctor_suite.json

A prediction that agrees with the suite's committed outcomes (onnx_suite.json) counts as right. Where they
differ, the case is compiled again.
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
from .onnx_suite import CHUNK, Case, cases, compiled, outcome

DATA = Path(__file__).with_suffix(".json")


def predicted(case: Case) -> bool:
    """Whether doctor predicts that the case will compile, with the case's first inputs as examples."""
    return examine(case.model, case.data_sets[0][0] if case.data_sets else None).ok


def compiles(result: str) -> bool:
    """Whether an outcome of the suite means that the model was compiled and ran, even with wrong results."""
    kind = result.partition(":")[0]
    return kind in ("pass", "drawn", "ShapeError") or not (kind == "refused" or kind.endswith("Error"))


def verdict(case: Case, known: dict[str, str]) -> str:
    """ "right", or the prediction if it was wrong."""
    said = predicted(case)
    if said != compiles(known.get(case.full_name, "pass")) and said != compiles(outcome(case, compiled)):
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

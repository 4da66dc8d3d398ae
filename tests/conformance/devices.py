"""Models, ONNX's tests and random programs on a device: OpenCL and Vulkan by this machine's driver, CUDA, HIP
and Metal simulated.

    python -m tests.conformance.devices --target opencl
    python -m tests.conformance.devices --target cuda --checked --models bert minilm deberta_v2
    python -m tests.conformance.devices --target cuda --checked --onnx --programs 400

Without ``--models``, ``--onnx`` and ``--programs`` all models run: the thirteen architectures of the zoo and
MiniLM in small configurations with fixed and dynamic sizes, and eight more of `hf_sweep`, against eager
PyTorch. ``--onnx`` runs the tests that the CPU passes; ``--programs`` runs random programs against the
interpreter. With ``--checked`` simulated kernels are searched for accesses out of bounds, races, values that
were never written, and barriers that not all threads reach.

Outcomes are written to ``devices.json`` after each model, and after each few tests or programs, so that an
interrupted run loses nothing: the next one goes on after the last recorded test. ``--again`` runs what did
not pass.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tilewright as tw

from ..devices import lacks, running
from ..processes import Limits, in_processes

DATA = Path(__file__).with_suffix(".json")
OTHERS = ("deberta_v2", "modernbert", "gemma3", "mixtral", "t5", "segformer", "wav2vec2", "clip")
"""Architectures of `hf_sweep`: an encoder with relative positions, one with local attention, a decoder, a
mixture of experts, a decoder beside an encoder, and models of images, sound, and images with text.
"""
SPREAD = 16
"""Every `SPREAD`-th test of ONNX runs first, so that a run that ends early has tried all operators."""
BATCH = 40
"""Tests or programs that one process runs, after which their outcomes are written."""
MODEL_SECONDS = 600.0
"""Processor seconds that a model may take."""
SECONDS = 180.0
"""Processor seconds that a test or a random program may take."""

Document = dict[str, Any]


class Results:
    """The outcomes of a target in `DATA`. Several processes may write the file, one after another."""

    def __init__(self, target: str, checked: bool) -> None:
        self.name = f"{target}, checked" if checked else target

    def read(self, part: str) -> Document:
        """A part of the target's outcomes."""
        document = json.loads(DATA.read_text()) if DATA.exists() else {}
        found: Document = document.get(self.name, {}).get(part, {})
        return found

    def write(self, part: str, content: Document) -> None:
        """Replace a part of the target's outcomes."""
        document = json.loads(DATA.read_text()) if DATA.exists() else {}
        stamp = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
        }
        document.setdefault(self.name, {})[part] = stamp | content
        DATA.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


# -- Models ------------------------------------------------------------------------------------------------


def check_zoo(name: str, report: Callable[[Document], None], target: str, checked: bool, fixed: bool) -> None:
    """Report the outcome of an architecture of the zoo: ``right``, or the difference from PyTorch."""
    from ..models.compare import SIZES, assert_matches, compiled

    start = time.perf_counter()
    library = compiled(name, "torch", dynamic=not fixed, target=target)
    report({"seconds": round(time.perf_counter() - start, 1), "kernels": len(library.kernels)})
    runs = running(library, checked)
    for batch, seq in SIZES[:1] if fixed else SIZES:
        try:
            assert_matches(runs, name, batch, seq)
        except AssertionError as error:
            text = [line.strip() for line in str(error).splitlines() if "difference" in line]
            report({"outcome": f"wrong at {(batch, seq)}: {', '.join(text)}"})
            return
    report({"outcome": "right"})


def check_other(
    name: str, report: Callable[[Document], None], target: str, checked: bool, fixed: bool
) -> None:
    """Report the outcome of an architecture of `hf_sweep`."""
    from .hf_sweep import check

    def make(program: Any) -> Any:
        return running(tw.compile(program, target=target, cache=False), checked)

    check(name, report, make, fixed)


def models(target: str, checked: bool, names: Sequence[str], again: bool) -> int:
    """Run models, record their outcomes, and return how many are not right."""
    from ..zoo.models import MODELS
    from . import hf_sweep

    results, wrong = Results(target, checked), 0
    for name in names or (*MODELS, "minilm", *OTHERS):
        for fixed in (True, False):
            rows = results.read("models")
            key = f"{name}, {'fixed' if fixed else 'dynamic'} sizes"
            if not names and key in rows and not (again and rows[key]["outcome"] != "right"):
                continue
            work = check_other if name in OTHERS else check_zoo
            work = partial(work, target=target, checked=checked, fixed=fixed)
            row = hf_sweep.run(name, work, MODEL_SECONDS)
            row.pop("peak_mb", None)
            print(key, json.dumps(row), flush=True)
            wrong += row.get("outcome") != "right"
            results.write("models", results.read("models") | {key: row})
    return wrong


# -- Tests of ONNX and random programs -----------------------------------------------------------------------


def on_target(
    model: Any, inputs: list[Any], examples: list[Any] | None, target: str, checked: bool
) -> list[Any]:
    """Compile an ONNX model and run it on the device."""
    with tw.compile(model, examples, target=target, cache=False) as library:
        found = running(library, checked)(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def onnx_tests(target: str, checked: bool, again: bool, only: str) -> int:
    """Run ONNX's tests that the CPU passes, record their outcomes, and return how many are wrong."""
    import onnx

    from . import onnx_suite

    not_on_cpu = json.loads(onnx_suite.DATA.read_text())["not_passed"]
    cases = onnx_suite.cases()
    numbers = [k for k, case in enumerate(cases) if case.full_name not in not_on_cpu and not case.in_python]
    numbers.sort(key=lambda k: (k % SPREAD, k))
    results = Results(target, checked)
    known = {} if only else results.read("onnx")
    if known.get("onnx") != onnx.__version__:
        known = {"onnx": onnx.__version__, "cases": 0, "not_passed": {}}
    done, left = known["cases"], dict(known["not_passed"])
    if only:
        chosen = [k for k in numbers if only in cases[k].full_name]
    elif again:
        chosen = [k for k in numbers[:done] if cases[k].full_name in left]
    else:
        chosen = numbers[done:]

    def run(batch: Sequence[int], first: int) -> Iterator[str]:
        warnings.simplefilter("ignore")
        on_device = partial(on_target, target=target, checked=checked)
        return onnx_suite.outcomes(batch, first, on_device)

    for batch, found in in_processes(_batches(chosen), run, 1, Limits(SECONDS)):
        for number, outcome in zip(batch, found, strict=True):
            name = cases[number].full_name
            left.pop(name, None)
            if outcome != "pass":
                left[name] = outcome
                print(f"{name}: {outcome}", flush=True)
        done += 0 if again else len(batch)
        if not only:
            counts = Counter(_kind(x) for x in left.values())
            summary = {"cases": done, "of": len(numbers), "passed": done - len(left), **counts}
            results.write("onnx", {"onnx": onnx.__version__, **summary, "not_passed": left})
    return sum(_kind(x) == "wrong" for x in left.values())


def _kind(outcome: str) -> str:
    """Whether a test that did not pass was refused with a reason, or is wrong."""
    return "refused" if outcome.startswith("refused: ") else "wrong"


def programs(target: str, checked: bool, count: int, first: int) -> int:
    """Run random programs beyond those recorded, record the outcomes, and return how many are wrong."""
    from ..differential.__main__ import results as outcomes
    from ..differential.check import LACKING, check, compiled_for

    results = Results(target, checked)
    known = results.read("programs") or {"seeds": [first, first], "wrong": {}}
    begin, end = known["seeds"]
    work = partial(check, run=compiled_for(target, checked=checked), without=LACKING.get(target, ()))
    wrong = dict(known["wrong"])
    for start in range(end, begin + count, BATCH):
        seeds = range(start, min(start + BATCH, begin + count))
        for seed, reason in outcomes(work, seeds, 1):
            if reason:
                print(reason, "\n", flush=True)
                wrong[str(seed)] = reason.splitlines()[0][:300]
        results.write("programs", {"seeds": [begin, seeds.stop], "wrong": wrong})
    return len(wrong)


def _batches(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[k : k + BATCH] for k in range(0, len(numbers), BATCH)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", required=True, help="opencl, cuda, hip:gfx942, ...")
    parser.add_argument("--checked", action="store_true", help="search simulated kernels for faults")
    parser.add_argument("--models", nargs="*", help="run these models; without names, all that are left")
    parser.add_argument(
        "--onnx", nargs="?", const="", help="run ONNX's tests, or those with this in their names"
    )
    parser.add_argument("--programs", type=int, default=0, help="random programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the random programs")
    parser.add_argument("--again", action="store_true", help="run what did not pass")
    options = parser.parse_args()
    if reason := lacks(options.target):
        parser.error(reason)
    every = options.models is None and options.onnx is None and not options.programs
    wrong = 0
    if every or options.models is not None:
        wrong += models(options.target, options.checked, options.models or (), options.again)
    if options.onnx is not None:
        wrong += onnx_tests(options.target, options.checked, options.again, options.onnx)
    if options.programs:
        wrong += programs(options.target, options.checked, options.programs, options.first)
    print(f"{wrong} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

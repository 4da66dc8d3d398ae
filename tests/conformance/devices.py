"""Models, ONNX's tests and random programs on a device: OpenCL and Vulkan by this machine's driver, CUDA, HIP
and Metal simulated.

    python -m tests.conformance.devices --target opencl
    python -m tests.conformance.devices --target cuda --checked --models bert minilm deberta_v2
    python -m tests.conformance.devices --target cuda --checked --onnx --programs 400

Without ``--models``, ``--onnx`` and ``--programs`` all models run: the thirteen architectures of the zoo and
MiniLM in small configurations with fixed and dynamic sizes, and eight more of `hf_sweep`, against eager
PyTorch. ``--onnx`` runs the tests that the CPU passes; ``--programs`` runs random programs against the
interpreter; ``--layers`` runs a layer of the published width of each architecture of the zoo. With
``--checked`` simulated kernels are searched for accesses out of bounds, races, values that
were never written, and barriers that not all threads reach.

Outcomes are written to a file of ``devices/`` for each target and kind of test, after each model, and after
each few tests or programs, so that an interrupted run loses nothing: the next one goes on after the last
recorded test. ``--again`` runs what did not pass.
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
from functools import cache, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright.ir.core import Module

from ..devices import SIMULATED, lacks, running, sources_only
from ..processes import Limits, in_processes

FOLDER = Path(__file__).with_suffix("")
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
    """The outcomes of one kind of tests on a target, in a file of `FOLDER` (``cuda-checked.onnx.json``)."""

    def __init__(self, target: str, checked: bool, part: str) -> None:
        simulated = target.partition(":")[0] in SIMULATED
        name = target.replace(":", "-") + ("-checked" if checked and simulated else "")
        self.path = FOLDER / f"{name}.{part}.json"

    def read(self) -> Document:
        """The recorded outcomes; empty before the first run."""
        found: Document = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def write(self, content: Document) -> None:
        """Replace the recorded outcomes."""
        stamp = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
        }
        FOLDER.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(content | stamp, indent=1, sort_keys=True) + "\n")


# -- Models ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def imported(name: str, fixed: bool, size: str = "tiny") -> Module:
    """The graph of an architecture of the zoo. The last one is kept, for the processes of all targets."""
    from tilewright.frontends.torch import import_torch

    from ..models.compare import torch_model, zoo

    batch, seq = _sizes(size)[0]
    args = tuple(zoo(name).inputs(size, batch=batch, seq=seq).values())
    return import_torch(torch_model(name, size), args, None if fixed else zoo(name).dims)


def _sizes(size: str) -> Sequence[tuple[int, int]]:
    """Batches with numbers of tokens. A layer of full width has one, as simulated devices are slow."""
    from ..models.compare import SIZES

    return SIZES if size == "tiny" else ((1, 16),)


def check_zoo(
    name: str,
    report: Callable[[Document], None],
    target: str,
    checked: bool,
    fixed: bool = True,
    size: str = "tiny",
) -> None:
    """Report the outcome of an architecture of the zoo: ``right``, or the difference from PyTorch."""
    from ..models.compare import assert_matches

    start = time.process_time()
    library = tw.compile(imported(name, fixed, size).clone(), target=target, cache=False)
    report({"seconds": round(time.process_time() - start, 1), "kernels": len(library.kernels)})
    runs = running(library, checked)
    for batch, seq in _sizes(size)[:1] if fixed else _sizes(size):
        try:
            assert_matches(runs, name, batch, seq, size)
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


def models(targets: Sequence[str], checked: bool, names: Sequence[str], again: bool) -> int:
    """Run models on each of the targets, record their outcomes, and return how many are not right. A model is
    imported once, and runs in a process for each target.
    """
    from ..zoo.models import MODELS
    from . import hf_sweep

    wrong = 0
    for name, fixed in product(names or (*MODELS, "minilm", *OTHERS), (True, False)):
        other = name in OTHERS
        prepare = partial(hf_sweep.prepared if other else imported, name, fixed)
        work = partial(check_other if other else check_zoo, fixed=fixed)
        key = f"{name}, {'fixed' if fixed else 'dynamic'} sizes"
        for target in targets:
            results = Results(target, checked, "models")
            wrong += _model(results, key, prepare, work, target, checked, again, bool(names))
    return wrong


def layers(targets: Sequence[str], checked: bool, names: Sequence[str], again: bool) -> int:
    """Run a layer of the published width of each architecture of the zoo, as `models` does."""
    from ..zoo.models import MODELS

    wrong = 0
    for name, target in product(names or MODELS, targets):
        prepare, work = partial(imported, name, True, "layer"), partial(check_zoo, size="layer")
        results = Results(target, checked, "layers")
        wrong += _model(results, name, prepare, work, target, checked, again, bool(names))
    return wrong


def _model(
    results: Results,
    key: str,
    prepare: Callable[[], object],
    work: Callable[..., None],
    target: str,
    checked: bool,
    again: bool,
    named: bool,
) -> bool:
    """Run a model in a process unless its outcome is recorded. Returns whether it is not right."""
    import torch

    from . import hf_sweep

    known = results.read().get(key, {}).get("outcome")
    if known and not named and not (again and known != "right"):
        return False
    torch.set_num_threads(1)  # processes that are forked do not have torch's threads
    with torch.no_grad():
        prepare()
    name = key.partition(",")[0]
    row = hf_sweep.run(name, partial(work, target=target, checked=checked), MODEL_SECONDS)
    row.pop("peak_mb", None)
    print(f"{target}: {key}", json.dumps(row), flush=True)
    results.write(results.read() | {key: row})
    return row.get("outcome") != "right"


# -- Tests of ONNX and random programs -----------------------------------------------------------------------


def on_target(
    model: Any, inputs: list[Any], examples: list[Any] | None, target: str, checked: bool
) -> list[Any]:
    """Compile an ONNX model and run it on the device.

    The text of kernels for ``cuda`` is that for ``cuda:sm_80``; to see that NVRTC takes it, the machine code
    of one GPU is enough.
    """
    _held(target)
    name = "cuda:sm_80" if target == "cuda" else target
    with tw.compile(model, examples, target=name, cache=False) as library:
        found = running(library, checked)(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def onnx_tests(target: str, checked: bool, again: bool, only: str) -> int:
    """Run ONNX's tests that the CPU passes, record their outcomes, and return how many are wrong."""
    import onnx

    from tilewright.targets.cuda import sass

    from . import onnx_suite

    not_on_cpu = json.loads(onnx_suite.DATA.read_text())["not_passed"]
    cases = onnx_suite.cases()
    numbers = [k for k, case in enumerate(cases) if case.full_name not in not_on_cpu and not case.in_python]
    numbers.sort(key=lambda k: (k % SPREAD, k))
    results = Results(target, checked, "onnx")
    known = {} if only else results.read()
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
        # Instructions are counted for `tilewright inspect` alone.
        with mock.patch.object(sass, "missing", lambda: "not needed"):
            yield from onnx_suite.outcomes(batch, first, on_device)

    _small(target)  # so that the processes below need not import the compiler each

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
            results.write({"onnx": onnx.__version__, **summary, "not_passed": left})
    return sum(_kind(x) == "wrong" for x in left.values())


@cache
def _held(target: str) -> Any:
    """A library that holds a context for the rest of the process: PoCL loads its functions anew if none is
    left. None for other targets.
    """
    if target != "opencl":
        return None
    library = _small(target)
    library(np.ones(1, np.float32))
    return library


def _small(target: str) -> Any:
    """A library of one small kernel."""
    return tw.compile(lambda x: x + 1, (np.ones(1, np.float32),), target=target, cache=False)


def _kind(outcome: str) -> str:
    """Whether a test that did not pass was refused with a reason, or is wrong."""
    return "refused" if outcome.startswith("refused: ") else "wrong"


def programs(target: str, checked: bool, count: int, first: int, again: bool) -> int:
    """Run random programs beyond those recorded, after those that were wrong if they run `again`; record the
    outcomes, and return how many are wrong.
    """
    from ..differential.__main__ import results as outcomes
    from ..differential.check import LACKING, check, compiled_for

    results = Results(target, checked, "programs")
    known = results.read() or {"seeds": [first, first], "wrong": {}}
    begin, end = known["seeds"]
    run, lacking = compiled_for(target, checked=checked), LACKING.get(target, ())
    wrong = dict(known["wrong"])

    def work(seed: int) -> Any:
        _held(target)
        return check(seed, run, without=lacking)

    _small(target)  # so that the processes below need not import the compiler each
    repeated = [range(int(seed), int(seed) + 1) for seed in wrong] if again else []
    left = [range(k, min(k + BATCH, begin + count)) for k in range(end, begin + count, BATCH)]
    for seeds in (*repeated, *left):
        for seed, reason in outcomes(work, seeds, 1):
            wrong.pop(str(seed), None)
            if reason:
                print(reason, "\n", flush=True)
                wrong[str(seed)] = reason.splitlines()[0][:300]
        end = max(end, seeds.stop)
        results.write({"seeds": [begin, end], "wrong": wrong})
    return len(wrong)


def _lacks(target: str, first: int) -> Iterator[str]:
    """Why a target does not run here. A process of its own tries it: those that are forked later would wait
    for threads of its driver that they do not have.
    """
    yield lacks(target)


def _batches(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[k : k + BATCH] for k in range(0, len(numbers), BATCH)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", nargs="+", required=True, help="opencl, cuda, hip:gfx942, ...")
    parser.add_argument("--checked", action="store_true", help="search simulated kernels for faults")
    parser.add_argument("--models", nargs="*", help="run these models; without names, all that are left")
    parser.add_argument("--layers", nargs="*", help="run layers of full width, of these models or of all")
    parser.add_argument(
        "--onnx", nargs="?", const="", help="run ONNX's tests, or those with this in their names"
    )
    parser.add_argument("--programs", type=int, default=0, help="random programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the random programs")
    parser.add_argument("--again", action="store_true", help="run what did not pass")
    options = parser.parse_args()
    for target, reasons in in_processes(options.target, _lacks, 1, Limits(SECONDS)):
        if reasons[0]:
            parser.error(f"{target}: {reasons[0]}")
    chosen = options.models, options.layers, options.onnx, options.programs or None
    every = all(x is None for x in chosen)
    wrong = 0
    with sources_only():
        if every or options.models is not None:
            wrong += models(options.target, options.checked, options.models or (), options.again)
        if options.layers is not None:
            wrong += layers(options.target, options.checked, options.layers, options.again)
    for target in options.target:
        if options.onnx is not None:
            wrong += onnx_tests(target, options.checked, options.again, options.onnx)
        if options.programs:
            wrong += programs(target, options.checked, options.programs, options.first, options.again)
    print(f"{wrong} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Models and random programs on other processors and systems, in emulators.

    python -m tests.ports --targets aarch64-linux riscv64-linux:v --models mlp lstm
    python -m tests.ports --programs 200

Each model runs compiled for the target and for ``cpu``, on the same inputs: float results agree to 1e-5 of
the largest, others exactly. Random programs run against the interpreter. Outcomes are written to
``results.json`` beside this file, after each model and each few programs, so that a run that ends early loses
nothing; programs go on after the last seed that is recorded. ``--again`` begins with seed 0.
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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..differential.check import check
from ..processes import Limits, in_processes
from .emulators import NoEmulator, command_of, run_for, version_of
from .models import MODELS, difference

RESULTS = Path(__file__).with_name("results.json")
TARGETS = (
    "aarch64-android",
    "aarch64-linux",
    "aarch64-linux:dotprod+i8mm+bf16",
    "aarch64-linux:sve256",
    "aarch64-linux:sve512",
    "aarch64-linux-musl",
    "armv7-android",
    "armv7-linux",
    "armv7-linux:vfp4",
    "armv7-linux-musl",
    "hexagon-linux",
    "hexagon-linux:hvx",
    "riscv64-linux",
    "riscv64-linux:v",
    "riscv64-linux:zvl256b",
    "riscv64-linux-musl",
    "x86_64-android",
    "x86_64-linux",
    "x86_64-linux-musl",
    "x86_64-windows",
)
BATCH = 10
"""Programs that one process runs, after which their outcomes are written."""
LIMITS = Limits(seconds=200)


def _write(target: str, kind: str, outcome: dict[str, Any]) -> None:
    document: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    document["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    document["machine"] = f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores"
    row = document.setdefault("targets", {}).setdefault(target, {})
    row.setdefault(kind, {}).update(outcome)
    row.setdefault("emulators", {})[kind] = version_of(target)
    document["targets"] = dict(sorted(document["targets"].items()))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def _known(target: str) -> dict[str, Any]:
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found: dict[str, Any] = document.get("targets", {}).get(target, {})
    return found


def _model_outcome(task: tuple[str, str], first: int) -> Iterator[str]:
    warnings.simplefilter("ignore")
    target, name = task
    if first == 0:
        try:
            yield difference(name, target)
        except Exception as error:
            yield f"{type(error).__name__}: {str(error)[:300]}"


def _program_outcomes(task: tuple[str, range], first: int) -> Iterator[str]:
    warnings.simplefilter("ignore")
    target, seeds = task
    for seed in seeds[first:]:
        try:
            # LLVM may load whole vectors of Hexagon for parts of them.
            failure = check(seed, run_for(target, guarded=target.startswith("hexagon")))
        except Exception as error:  # raised by the generator
            failure = f"seed {seed}: {type(error).__name__}: {error}"
        yield str(failure) if failure is not None else ""


def _run_models(targets: list[str], names: list[str], processes: int) -> bool:
    tasks = [(target, name) for target in targets for name in names]
    sound = True
    for (target, name), (outcome,) in in_processes(tasks, _model_outcome, processes, LIMITS):
        wrong = not outcome.startswith("ok")
        sound = sound and not wrong
        print(f"{target} {name}: {outcome}", flush=True)
        _write(target, "models", {name: outcome})
    return sound


def _run_programs(target: str, count: int, again: bool, processes: int) -> bool:
    known = {} if again else _known(target).get("programs", {})
    done, wrong = known.get("seeds", 0), dict(known.get("wrong", {}))
    for start in range(done, count, BATCH * processes):
        end = min(start + BATCH * processes, count)
        tasks = [(target, range(k, min(k + BATCH, end))) for k in range(start, end, BATCH)]
        for (_, seeds), outcomes in in_processes(tasks, partial(_program_outcomes), processes, LIMITS):
            for seed, outcome in zip(seeds, outcomes, strict=True):
                if outcome:
                    wrong[str(seed)] = outcome.splitlines()[0][:300]
                    print(f"{target}: {outcome}\n", flush=True)
        _write(target, "programs", {"seeds": end, "wrong": wrong})
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.ports",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument(
        "--models", nargs="*", choices=list(MODELS), help="the models to run; all without names"
    )
    parser.add_argument("--programs", type=int, default=0, help="random programs for each target")
    parser.add_argument("--again", action="store_true", help="run programs from the first seed on")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    targets = []
    for target in given.targets:
        try:
            command_of(target)
            targets.append(target)
        except NoEmulator as error:
            print(f"left out: {error}")
    sound, begin = True, time.monotonic()
    if given.models is not None or not given.programs:
        sound = _run_models(targets, given.models or list(MODELS), given.processes)
    for target in targets if given.programs else ():
        sound = _run_programs(target, given.programs, given.again, given.processes) and sound
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.targets.mcu.random_programs --count 50 --record` runs random programs on QEMU's boards and
compares every output with the interpreter's.

Programs with sizes that have no upper bound, or that are known at run time only, need memory that a
microcontroller does not give, and are passed over. The outcomes are in ``random_programs.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.differential.check import Run, judge
from tests.differential.generator import generate
from tests.targets.mcu.boards import MACHINES
from tests.targets.mcu.run_library import run_library

import tilewright as tw
from tilewright.ir.core import Module

DATA = Path(__file__).with_name("random_programs.json")


class PassedOver(Exception):
    """The program is not one for static memory."""


def on_board(name: str) -> Run:
    """A `Run` on the processor `name`."""

    def run(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        lib = tw.compile(module.clone(), target=name, cache=False)
        if lib.metadata["static"]["refused"]:
            raise PassedOver(lib.metadata["static"]["refused"])
        return run_library(lib, name, inputs)

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="programs to run on each processor")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processor", choices=[*MACHINES], help="this one only")
    parser.add_argument("--record", action="store_true", help="write the outcome to random_programs.json")
    options = parser.parse_args()
    outcome: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    failed = 0
    for name in [options.processor] if options.processor else MACHINES:
        done, wrong, seed = 0, [], options.first
        while done < options.count:
            failure = judge(generate(seed), on_board(name))
            if failure is None or PassedOver.__name__ not in failure.reason:
                done += 1
            if failure is not None and PassedOver.__name__ not in failure.reason:
                wrong.append(seed)
                print(f"{name}: {failure}", flush=True)
            seed += 1
        print(f"{name}: {done} programs from {options.first} to {seed - 1}, {len(wrong)} wrong", flush=True)
        failed += len(wrong)
        outcome[name] = {
            "programs": done,
            "first": options.first,
            "last": seed - 1,
            "wrong": wrong,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"QEMU's {MACHINES[name].machine}, on {platform.machine()}",
        }
    if options.record:
        DATA.write_text(json.dumps(outcome, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.differential --count 1000 --target cpu` runs many random programs and exits with 1 if any
result is wrong.

    python -m tests.differential --every-operator --count 10000 --processes 2 --record

is the long run over all graph operators. Its outcomes are committed: ``random_programs.json`` beside this
file lists the seeds that have run and the failures. The file is updated after each batch, and the next run
continues after the last recorded seed. Programs run in processes of their own, so that a crash or a hang is
recorded as the outcome of one program. ``--isa every`` compiles each program for all instruction sets that
this machine can run.
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.ir.debug import STRICT_SCHEDULES, VARIABLE
from tilewright.ir.types import DType
from tilewright.targets.cpu.isa import runs_here
from tilewright.targets.cpu.ports import LEVELS as X86_LEVELS

from ..processes import CRASHED, LATE, Limits, in_processes
from . import conditions
from .check import LACKING, LEVELS, check, check_every_operator, compiled_for, on_each
from .every_operator import cases

DATA = Path(__file__).with_name("random_programs.json")
EDGES = Path(__file__).with_name("edge_programs.json")
BATCH = 25
"""The number of seeds that one process runs."""
LIMITS = Limits(seconds=120)
Check = Callable[[int], Any]


X86 = [name for name in X86_LEVELS if name.startswith("x86")]


def _cpus(isas: list[str]) -> list[str]:
    """The targets of those of the named instruction sets that this machine can run."""
    names = ["host", *X86] if "every" in isas else isas
    return [
        "cpu" if name == "host" else f"cpu:{name}"
        for name in names
        if name == "host" or runs_here(X86_LEVELS[name])
    ]


def results(check: Check, seeds: range, processes: int) -> Iterator[tuple[int, str]]:
    """Each seed with a description of what is wrong with its program, or "". The order is that in which
    batches finish.
    """
    batches = [seeds[k : k + BATCH] for k in range(0, len(seeds), BATCH)]
    for batch, found in in_processes(batches, partial(_reasons, check), processes, LIMITS):
        for seed, reason in zip(batch, found, strict=True):
            yield seed, f"seed {seed}: {reason}" if reason.startswith((CRASHED, LATE)) else reason


def _reasons(check: Check, batch: range, first: int) -> Iterator[str]:
    warnings.simplefilter("ignore")
    for seed in batch[first:]:
        try:
            failure = check(seed)
        except Exception as error:  # raised by the generator
            failure = f"seed {seed}: {type(error).__name__}: {error}"
        yield str(failure) if failure is not None else ""


def check_edges(seed: int) -> Any:
    """Check a PyTorch program for an even seed, a graph under random conditions for an odd one."""
    if seed % 2:
        return conditions.check(seed // 2)
    from . import torch_programs

    return torch_programs.check_compiled(seed // 2)


def record(check: Check, first: int, count: int, processes: int, path: Path) -> int:
    """Run the seeds that `path` does not have yet and add their outcomes. Returns the number of failures in
    the file.
    """
    document = json.loads(path.read_text()) if path.exists() else {"seeds": [first, first], "wrong": {}}
    begin, end = document["seeds"]
    for start in range(end, first + count, 4 * BATCH):
        seeds = range(start, min(start + 4 * BATCH, first + count))
        for seed, reason in results(check, seeds, processes):
            if reason:
                document["wrong"][str(seed)] = reason.splitlines()[0][:300]
                print(reason, "\n", flush=True)
        document |= {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
            "seeds": [begin, seeds.stop],
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
    return len(document["wrong"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=100, help="programs to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--target",
        default="cpu",
        help="a compilation target, or a level to interpret: tensor, fused, loop, blocks (of GPUs)",
    )
    parser.add_argument(
        "--isa",
        nargs="+",
        choices=["host", "every", *X86],
        help=(
            "for the target cpu: each program on each of these instruction "
            "sets; those that this machine cannot run are left out"
        ),
    )
    parser.add_argument("--precision", choices=["bf16", "f16"], help="compile with this precision")
    parser.add_argument("--steps", type=int, default=14, help="operators per program, at most")
    parser.add_argument("--stop-after", type=int, default=10, help="stop after this many failures")
    parser.add_argument(
        "--every-operator", action="store_true", help="programs made of all operators' test cases"
    )
    parser.add_argument(
        "--edges", action="store_true", help="programs with limits of types, under random conditions"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write the outcomes to a file beside this one")
    options = parser.parse_args()
    precision = DType.named(options.precision) if options.precision else None
    if options.isa and options.target != "cpu":
        parser.error("--isa is for the target cpu")
    targets = _cpus(options.isa) if options.isa else [options.target]
    os.environ.setdefault(VARIABLE, STRICT_SCHEDULES)  # a schedule rule that does not fit is an error
    run = LEVELS.get(options.target) or on_each(
        *(compiled_for(target, precision=precision) for target in targets)
    )
    work: Check
    if options.edges:
        import torch  # noqa: F401  (once, before processes fork)

        work = check_edges
    elif options.every_operator:
        cases()  # imports torch, once, before processes fork
        work = partial(check_every_operator, run=run, max_steps=options.steps)
    else:
        lacking = LACKING.get(options.target, ())
        work = partial(check, run=run, max_steps=options.steps, without=lacking, precision=precision)
    begin, failed, done = time.perf_counter(), 0, 0
    if options.record:
        failed = record(
            work, options.first, options.count, options.processes, EDGES if options.edges else DATA
        )
        done = options.count
    else:
        for _, reason in results(
            work, range(options.first, options.first + options.count), options.processes
        ):
            done += 1
            if reason:
                failed += 1
                print(reason, "\n", flush=True)
                if failed >= options.stop_after:
                    break
    print(f"{done} programs, {failed} wrong, {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.differential --count 1000 --target cpu`: many random programs; exits with 1 when any comes out wrong."""

from __future__ import annotations

import argparse
import sys
import time

from tilewright.ir.types import DType

from .check import LACKING, LEVELS, check, compiled_for


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="programs to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--target", default="cpu", help="a compilation target, or a level to interpret: tensor, fused, loop"
    )
    parser.add_argument("--precision", choices=["bf16", "f16"], help="compile with this precision")
    parser.add_argument("--steps", type=int, default=14, help="operators per program, at most")
    parser.add_argument("--stop-after", type=int, default=10, help="stop after this many failures")
    options = parser.parse_args()
    precision = DType.named(options.precision) if options.precision else None
    run = LEVELS.get(options.target) or compiled_for(options.target, precision=precision)
    begin, failed = time.perf_counter(), 0
    seed = options.first
    for seed in range(options.first, options.first + options.count):
        failure = check(seed, run, options.steps, LACKING.get(options.target, ()), precision)
        if failure is not None:
            failed += 1
            print(failure, "\n", flush=True)
            if failed >= options.stop_after:
                break
    done = seed - options.first + 1 if options.count else 0
    print(f"{done} programs, {failed} wrong, {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

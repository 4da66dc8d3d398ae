"""`python -m bench`: Tilewright against other engines on the benchmark models.

    python -m bench                                          # all models at 2 threads, batch 1, float32 and bf16
    python -m bench -m bert,vit -p bf16 -b 1,8 -t 1,2        # some of the rows
    python -m bench --report                                 # write table and plot again from the results there are

Every engine runs in a process of its own; the processes take turns, and the others are stopped meanwhile. Rows measured replace
those of the same case in bench/results/models.json, from which models.md and models.svg are written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from . import report, results  # noqa: E402
from .case import Case  # noqa: E402
from .measure import OURS, measure, prepare  # noqa: E402
from .models import BENCH_MODELS  # noqa: E402
from .registry import ENGINES  # noqa: E402
from .roofline import measure_roof  # noqa: E402
from .worker import EngineError  # noqa: E402


def _words(known: list[str]):  # type: ignore[no-untyped-def]
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [word for word in chosen if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return chosen

    return parse


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--models", type=_words(list(BENCH_MODELS)), default=list(BENCH_MODELS), metavar="NAME,...")
    add("-p", "--precision", type=_words(["float32", "bf16"]), default=["float32", "bf16"], metavar="NAME,...")
    add("-b", "--batch", type=_numbers, default=[1], metavar="N,...")
    add("-t", "--threads", type=_numbers, default=[2], metavar="N,...")
    add("-e", "--engines", type=_words(list(ENGINES)), default=list(ENGINES), metavar="NAME,...")
    add("-s", "--seconds", type=float, default=20, help="of measuring, for each row (default: 20)")
    add("--timeout", type=float, default=180, help="seconds an engine may take to build or load a model (default: 180)")
    add("--resume", action="store_true", help="leave out the other engines of a row whose figures are there")
    add("--lock", type=Path, help="hold this lock file while measuring")
    add(
        "--nice",
        type=int,
        help="scheduling priority of the measured processes, on a machine that does other work as well",
    )
    add(
        "--results",
        type=Path,
        default=ROOT / "bench" / "results" / "models.json",
        help="the file that is brought up to date",
    )
    add("--report", action="store_true", help="measure nothing, only write table and plot")
    options = parser.parse_args(arguments)
    if not options.report:
        _measure(options)
    report.write(options.results)


def _measure(options: argparse.Namespace) -> None:
    roofs = {threads: measure_roof(threads, options.lock, options.nice) for threads in options.threads}
    for case in _cases(options):
        names = options.engines
        if options.resume:
            there = results.engines_measured(options.results, case)
            names = [name for name in names if name not in there or name == OURS]
        if not names or (options.resume and names == [OURS] and OURS in there):
            continue
        print(f"{case}: ", end="", flush=True)
        try:
            prepare(case, options.timeout)
        except EngineError as error:
            print(f"not exported: {error}")
            continue
        engines = [ENGINES[name]() for name in names]
        roof = roofs[case.threads]
        figures = measure(
            case,
            engines,
            options.seconds,
            options.timeout,
            roof,
            options.lock,
            options.nice,
            lambda name: print(name, end=" ", flush=True),
        )
        results.merge(options.results, case, figures, roof)
        print()
        for name, figure in figures.items():
            print(f"    {name:12} {report.summary(figure)}", flush=True)


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(name, precision, batch, threads)
        for threads in options.threads
        for batch in options.batch
        for precision in options.precision
        for name in options.models
        if batch in BENCH_MODELS[name].batches and precision in BENCH_MODELS[name].precisions
    ]


if __name__ == "__main__":
    main()

"""`python -m bench`: Tilewright against other engines on the benchmark models.

    python -m bench                                # all models, precisions, batches and numbers of threads
    python -m bench -m bert,vit -p bf16 -b 1 -t 2  # some of the rows
    python -m bench --resume                       # continue an interrupted run
    python -m bench --build                        # only compile the files that peers keep between runs
    python -m bench --held-out -b 1 -t 2           # models that no optimization was developed for
    python -m bench --tuned -p float32 -b 1 -t 2   # engines that search by measuring, 10 minutes a model
    python -m bench --report                       # write all tables and plots again from existing results

Every engine runs in its own process. The processes take turns; all but one are stopped. A measured row
replaces the row of the same case in bench/results/models-CLASS.json, from which a table and a plot beside it
are written; CLASS is this machine's class, such as amx. bench/results/README.md sets the classes side by
side. The most important rows are measured first: two threads before one, batch 1 before 8. Files that
peers compile ahead of time are kept beside the exported models (`tests.zoo.models.cache_dir`), so that a
later run only measures.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from . import overview, report, results, tuned  # noqa: E402
from .case import Case  # noqa: E402
from .engines import Engine  # noqa: E402
from .held_out import HELD_OUT, KNOWN  # noqa: E402
from .machines import RESULTS, results_file, results_files  # noqa: E402
from .measure import measure, prepare  # noqa: E402
from .models import BENCH_MODELS  # noqa: E402
from .registry import ENGINES  # noqa: E402
from .roofline import measure_roof  # noqa: E402
from .start import OURS, Starter  # noqa: E402
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
    add("-m", "--models", type=_words(list(KNOWN)), metavar="NAME,...", help="default: the benchmark's")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--held-out", action="store_true", help="the held-out models, with results of their own"
    )
    kinds.add_argument(
        "--tuned",
        action="store_true",
        help="four models on the engines that search by measuring, with results of their own",
    )
    add("--search", type=float, metavar="SECONDS", help="of such an engine's search (default: 600)")
    add(
        "-p", "--precision", type=_words(["float32", "bf16"]), default=["float32", "bf16"], metavar="NAME,..."
    )
    add("-b", "--batch", type=_numbers, default=[1, 8], metavar="N,...")
    add("-t", "--threads", type=_numbers, default=[2, 1], metavar="N,...")
    add(
        "-e",
        "--engines",
        type=_words(list(ENGINES)),
        metavar="NAME,...",
        help="default: all that do not search; with --tuned, those that do and Tilewright",
    )
    add("-s", "--seconds", type=float, default=12, help="of measuring, for each row (default: 12)")
    add(
        "--timeout",
        type=float,
        default=300,
        help="seconds an engine may take to build or load a model (default: 300)",
    )
    add(
        "--resume", action="store_true", help="leave out rows that have been measured with this state of src/"
    )
    add("--build", action="store_true", help="measure nothing, only let peers compile ahead of time")
    add(
        "--retry",
        action="store_true",
        help="let peers compile again what they could not, or not in time, in an earlier run",
    )
    add("--lock", type=Path, help="hold this lock file while measuring")
    add(
        "--nice",
        type=int,
        help="scheduling priority of measured processes, on a machine that does other work as well",
    )
    add(
        "--results",
        type=Path,
        help="the file that is brought up to date (default: models-CLASS.json, held_out-CLASS.json or "
        "tuned-CLASS.json here)",
    )
    add("--report", action="store_true", help="measure nothing, only write tables, plots and overview")
    options = parser.parse_args(arguments)
    kind = "held_out" if options.held_out else "tuned" if options.tuned else "models"
    models = {"held_out": list(HELD_OUT), "tuned": list(tuned.MODELS), "models": list(BENCH_MODELS)}
    options.models = options.models or models[kind]
    usual = tuned.ENGINES if options.tuned else [n for n, e in ENGINES.items() if not e.search_seconds]
    options.engines = options.engines or list(usual)
    if options.report and not options.results:
        _report()
        return
    options.results = options.results or results_file(kind)
    if options.build:
        _build(options)
        return
    if not options.report:
        _measure(options)
    (tuned.write if options.tuned else report.write)(options.results)
    if options.results.parent == RESULTS:
        overview.write()


def _report() -> None:
    """Write the tables and plots of every class of machines, of all benchmarks that keep their rows."""
    from . import gemm
    from .llm import report as language_models

    for kind, write in (
        ("models", report.write),
        ("held_out", report.write),
        ("tuned", tuned.write),
        ("gemm", gemm.write),
        ("llm", language_models.write),
    ):
        for path in results_files(kind).values():
            write(path)
    overview.write()


def _measure(options: argparse.Namespace) -> None:
    roofs = {threads: measure_roof(threads, options.lock, options.nice) for threads in options.threads}
    starter = Starter(options.timeout, options.retry)
    cases = _cases(options)
    if options.resume:
        cases = [case for case in cases if not results.complete(options.results, case, options.engines)]
    start = time.perf_counter()
    for number, case in enumerate(cases):
        passed = (time.perf_counter() - start) / 60
        left = f"{passed / number * (len(cases) - number):.0f}" if number else "?"
        print(f"[{number + 1} of {len(cases)}, {passed:.0f} min, about {left} left] {case}", flush=True)
        try:
            prepare(case, options.timeout)
        except EngineError as error:
            print(f"    not exported: {error}")
            continue
        skipped = results.left_out(options.results, case)
        engines = [_engine(name, options) for name in options.engines if name not in skipped]
        roof = roofs[case.threads]
        figures = measure(case, engines, options.seconds, starter, roof, options.lock, options.nice)
        figures |= {name: {"failed": reason} for name, reason in skipped.items() if name in options.engines}
        results.merge(options.results, case, figures, roof)
        for name, figure in figures.items():
            print(f"    {name:12} {report.summary(figure)}", flush=True)


def _build(options: argparse.Namespace) -> None:
    starter = Starter(options.timeout, options.retry)
    for case in _cases(options):
        engines = [
            _engine(name, options) for name in options.engines if name != OURS and ENGINES[name].builds
        ]
        prepare(case, options.timeout)
        for name, figure in starter.build(case, engines).items():
            print(f"{case}: {name}: {figure.get('failed') or 'compiled'}", flush=True)


def _engine(name: str, options: argparse.Namespace) -> Engine:
    engine = ENGINES[name]()
    if engine.search_seconds and options.search:
        engine.search_seconds = options.search
    return engine


def _cases(options: argparse.Namespace) -> list[Case]:
    return [
        Case(name, precision, batch, threads)
        for threads in options.threads
        for batch in options.batch
        for precision in options.precision
        for name in options.models
        if batch in KNOWN[name].batches and precision in KNOWN[name].precisions
    ]


if __name__ == "__main__":
    main()

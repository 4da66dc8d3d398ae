"""`python -m bench.llm`: language models, Tilewright compared with llama.cpp and OpenVINO GenAI.

    python -m bench.llm --install                            # make the environments of the peers
    python -m bench.llm                                      # all rows
    python -m bench.llm -p int4 -w decode,decode-long -s 30  # some of the rows
    python -m bench.llm -p q4_k,q6_k,mxfp4 -w decode         # further formats of GGUF
    python -m bench.llm --size tiny -e tilewright            # a small model, to test the harness
    python -m bench.llm --build                              # only make the models
    python -m bench.llm --delete                             # delete them
    python -m bench.llm --report                             # write tables and plots from existing results

`--install` builds llama.cpp twice. A run takes some minutes to make the models, and some to measure.

The model is a Llama of a billion parameters with random weights, quantized to four bits in groups of 32
(Q4_0) and in bf16. Every engine loads the same numbers, in its own process, which is stopped during the turns
of the others; all get the same prompts. New measurements replace the corresponding ones in
bench/results/llm-CLASS.json, from which a table and a plot are written; CLASS is this machine's class. Models
are kept in a folder of Tilewright's cache: 2 GB for int4, 7 GB for bf16. `--tidy` deletes each precision's
models after their measurement.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tilewright.artifact.disk_cache import cache_folder  # noqa: E402

from .. import results  # noqa: E402
from ..machines import results_file, results_files  # noqa: E402
from ..roofline import measure_roof  # noqa: E402
from ..worker import holding  # noqa: E402
from . import report  # noqa: E402
from .build import build  # noqa: E402
from .engines import ENGINES, Engine, installed  # noqa: E402
from .measure import Case, Run, with_ratios, workloads  # noqa: E402
from .model import FORMATS, SIZES  # noqa: E402

NAMES = list(workloads(SIZES["1b"]))


def _words(known: list[str]):  # type: ignore[no-untyped-def]
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [word for word in chosen if word not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return chosen

    return parse


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.llm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="1b")
    precisions = [name for name in FORMATS if name != "f16"]
    add(
        "-p",
        "--precision",
        type=_words(precisions),
        default=["int4", "bf16"],
        metavar="NAME,...",
        help="formats of the GGUF file: int4 (Q4_0), bf16, q4_k, q6_k, mxfp4; default: int4,bf16",
    )
    add("-w", "--workloads", type=_words(NAMES), default=NAMES, metavar="NAME,...", help=", ".join(NAMES))
    add(
        "-e",
        "--engines",
        type=_words(list(ENGINES)),
        default=list(ENGINES),
        metavar="NAME,...",
        help=", ".join(ENGINES),
    )
    add("-t", "--threads", type=int, default=2)
    add("-s", "--seconds", type=float, default=30, help="of measuring, for each workload (default: 30)")
    add(
        "--timeout",
        type=float,
        default=1200,
        help="seconds an engine may take to make or load a model (default: 1200)",
    )
    add(
        "--environments",
        type=Path,
        default=cache_folder().with_name("tilewright-peers"),
        help="default: %(default)s",
    )
    add("--install", action="store_true", help="only install the peers among --engines there")
    add("--build", action="store_true", help="only make the models")
    add("--delete", action="store_true", help="only delete them")
    add("--tidy", action="store_true", help="delete a precision's models once it is measured")
    add("--lock", type=Path, help="hold this lock file while measuring")
    add(
        "--results",
        type=Path,
        help="the file that is brought up to date (default: llm-CLASS.json here)",
    )
    add("--report", action="store_true", help="only write table and plot")
    options = parser.parse_args(arguments)
    engines = [ENGINES[name] for name in options.engines]
    folder = cache_folder() / "bench-llm" / options.size
    if options.delete:
        shutil.rmtree(folder, ignore_errors=True)
    elif options.install:
        for engine in engines:
            if engine.requirements:
                engine.install(options.environments)
    else:
        if not options.report:
            _measure(options, installed(engines, options.environments, "bench.llm"), folder)
        if not options.build:
            chosen = [options.results] if options.results else []
            for path in chosen or (
                results_files("llm").values() if options.report else [results_file("llm")]
            ):
                report.write(path)


def _measure(options: argparse.Namespace, engines: list[Engine], folder: Path) -> None:
    size, file = SIZES[options.size], options.results or results_file("llm")
    pythons = {engine.name: engine.python(options.environments) for engine in engines}
    for precision in options.precision:
        case, here = Case(options.size, precision, "start", options.threads), folder / precision
        print(f"{case}: models in {here}", flush=True)
        for name, figure in build(engines, pythons, here, size, precision, options.threads, options.timeout):
            print(f"    {name}: {figure.get('failed') or 'made'}", flush=True)
        if options.build:
            continue
        with holding(options.lock):
            start = measure_roof(options.threads)
            run = Run(engines, pythons, here, case, options.timeout)
            try:
                run.check()
                print(report.lines(run.figures), flush=True)
                for name, workload in workloads(size).items():
                    if name not in options.workloads:
                        continue
                    figures, roof = run.turns(workload, options.seconds)
                    figures = with_ratios(figures, workload.floor_seconds(size, precision, roof))
                    results.merge(file, replace(case, workload=name), figures, roof)
                    peak = roof.flops["bf16" if precision == "bf16" else "int8"]
                    told = f"memory: {roof.bandwidth / 1e9:.1f} GB/s, peak: {peak / 1e12:.2f} TOP/s"
                    print(f"{name} ({told})\n{report.lines(figures)}", flush=True)
                results.merge(file, case, run.figures, start)
            finally:
                run.close()
        if options.tidy:
            shutil.rmtree(here)


if __name__ == "__main__":
    main()

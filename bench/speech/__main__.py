"""`python -m bench.speech`: speech to text, Tilewright compared with faster-whisper.

    python -m bench.speech --install               # make the environment of the peer
    python -m bench.speech                         # all rows
    python -m bench.speech -p int8 -w decode -s 20 # some of the rows
    python -m bench.speech --report                # write the table from existing results

The model is a Whisper of the shape of whisper-tiny with random weights. Engines get the same weights, the
same recording of 60 s, made by espeak-ng, and the same number of tokens: 112 for each window of 30 s, greedy,
without times, since no token that ends a text is allowed. Engines take turns, each in a process that is
stopped during those of the other. Medians go to bench/results/speech-CLASS.json and .md.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tilewright.artifact.disk_cache import cache_folder  # noqa: E402

from .. import results  # noqa: E402
from ..llm.measure import Case  # noqa: E402
from ..llm.process import Elsewhere  # noqa: E402
from ..machines import features, results_file, results_files  # noqa: E402
from ..measure import statistics_of, take_turns, with_ratios  # noqa: E402
from ..report import number, ratios_of, table  # noqa: E402
from ..roofline import Roof, measure_roof  # noqa: E402
from ..worker import Child, EngineError, holding  # noqa: E402
from .engines import ENGINES, PRECISIONS, SpeechEngine, installed, preparing  # noqa: E402
from .model import SAMPLES, SIZES, Size, suppressed, write  # noqa: E402
from .sessions import WORKLOADS, serving  # noqa: E402

Figures = dict[str, dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.speech",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="tiny")
    for letter, name, known in (
        ("-p", "--precision", PRECISIONS), ("-w", "--workloads", WORKLOADS), ("-e", "--engines", ENGINES)
    ):  # fmt: skip
        add(letter, name, type=lambda s: s.split(","), default=list(known), metavar="NAME,...",
            help=", ".join(known))  # fmt: skip
    add("-t", "--threads", type=int, default=2)
    add("-s", "--seconds", type=float, default=30, help="of measuring, for each row (default: 30)")
    add("--timeout", type=float, default=600, help="seconds an engine may take (default: 600)")
    add(
        "--environments", type=Path, default=cache_folder().with_name("tilewright-peers"),
        help="default: %(default)s",
    )  # fmt: skip
    add("--install", action="store_true", help="only install the peers among --engines there")
    add("--lock", type=Path, help="hold this lock file while measuring")
    add("--results", type=Path, help="the file that is brought up to date (default: speech-CLASS.json)")
    add("--report", action="store_true", help="only write the tables")
    options = parser.parse_args(arguments)
    for chosen, known in (
        (options.precision, PRECISIONS), (options.workloads, WORKLOADS), (options.engines, ENGINES)
    ):  # fmt: skip
        if unknown := set(chosen) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    engines = [ENGINES[name] for name in options.engines]
    if options.install:
        for engine in engines:
            if engine.requirements:
                engine.install(options.environments)
        return
    file = options.results or results_file("speech")
    if not options.report:
        _measure(options, installed(engines, options.environments, "bench.speech"), file)
    for path in results_files("speech").values() if options.report and not options.results else [file]:
        path.with_suffix(".md").write_text(markdown(results.read(path)))


def _measure(options: argparse.Namespace, engines: list[Any], file: Path) -> None:
    size = SIZES[options.size]
    folder = cache_folder() / "bench-speech" / options.size
    if not (folder / SAMPLES).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(size, folder)
    roof = measure_roof(options.threads, options.lock)
    for precision in options.precision:
        case = Case(options.size, precision, "text", options.threads)
        children: dict[str, Child] = {}
        figures: Figures = {}
        for engine in engines:
            python = engine.python(options.environments)
            figures[engine.name] = {"settings": engine.settings, "version": engine.version(python)}
            try:
                children[engine.name] = started(engine, python, folder, size, case, options.timeout)
            except EngineError as error:
                figures[engine.name]["failed"] = str(error)
                print(f"{case}: {engine.name}: {error}", flush=True)
        try:
            with holding(options.lock):
                _rows(options, file, case, children, figures, roof)
        finally:
            for child in children.values():
                child.close()


def started(
    engine: SpeechEngine, python: Path, folder: Path, size: Size, case: Case, timeout: float
) -> Child:
    """The process of an engine that has loaded the model.

    Raises:
        EngineError: It cannot make or load it.
    """
    threads, path = case.threads, engine.loaded(folder, case.precision)
    if not path.exists():
        arguments = folder, size, case.precision, threads, python
        making = Elsewhere(Path(sys.executable), preparing, engine.name, *arguments, threads=threads)
        try:
            making.first(timeout)
        finally:
            making.close()
    child = Elsewhere(
        python, serving, engine.session, path, folder / SAMPLES, case.precision, size.tokens, suppressed(),
        threads, threads=threads,
    )  # fmt: skip
    try:
        child.first(timeout)
    except EngineError:
        child.close()
        raise
    return child


def _rows(
    options: argparse.Namespace, file: Path, case: Case, children: dict[str, Child], figures: Figures,
    roof: Roof,
) -> None:  # fmt: skip
    """Compare the texts of the engines and measure them in turns."""
    texts = {name: child.ask(("heard",), options.timeout) for name, child in children.items()}
    first = next(iter(texts.values()), [])
    for name, text in texts.items():
        same = [a == b for a, b in zip(text, first, strict=False)]
        figures[name] |= {"tokens": len(text), "same_tokens": [*same, False].index(False)}
        print(f"{case}: {name}: {figures[name]}", flush=True)
    results.merge(file, case, figures, roof)
    for workload in options.workloads:
        found: Figures = {name: {} for name in children}
        times = take_turns(children, found, options.seconds, options.timeout, workload)
        found |= {name: statistics_of(seconds) for name, seconds in times.items()}
        found = with_ratios(found)
        results.merge(file, replace(case, workload=workload), found, roof)
        for name, figure in found.items():
            ratio = f", ratio {figure['ratio']:.2f}" if "ratio" in figure else ""
            print(f"    {workload}: {name}: {figure.get('milliseconds', 0):.2f} ms{ratio}", flush=True)


def markdown(rows: list[dict[str, Any]]) -> str:
    """The report: a line for each row, what the engines heard, and their settings."""
    if not rows:
        return "No results.\n"
    here, names = rows[-1]["machine"], list(ENGINES)
    ours, *peers = names
    dates = sorted({f["date"] for row in rows for f in row["engines"].values()})
    measured = [row for row in rows if row["case"]["workload"] in WORKLOADS]
    measured.sort(key=lambda row: (row["case"]["size"], list(WORKLOADS).index(row["case"]["workload"])))
    lines = []
    for row in measured:
        case, figures = row["case"], row["engines"]
        size = SIZES[case["size"]]
        times = {n: figures[n]["milliseconds"] for n in names if "milliseconds" in figures.get(n, {})}
        ratios = ratios_of(row, times)
        span = [figures[ours][f"{end}_milliseconds"] for end in ("min", "max")] if ours in times else []
        told = WORKLOADS[case["workload"]]
        if case["workload"] == "transcribe":
            told = f"{size.seconds} s of speech to {size.windows * size.tokens} tokens"
        best = min(ratios.values(), default=None)
        lines.append([
            case["size"], told, case["precision"], str(case["threads"]), number(times.get(ours)),
            "–".join(map(number, span)), *(number(times.get(n)) for n in peers),
            "" if best is None else f"{best:.2f}",
        ])  # fmt: skip
    head = ["size", "", "precision", "threads", f"{ours}, ms", "min–max", *(f"{n}, ms" for n in peers)]
    texts = [row for row in rows if row["case"]["workload"] == "text"]
    heard = [
        [row["case"]["size"], row["case"]["precision"], name, f"{f['same_tokens']} of {f['tokens']}"]
        for row in texts for name, f in row["engines"].items() if name != ours and "tokens" in f
    ]  # fmt: skip
    failed = [
        f"- {name}, {row['case']['precision']}: {f['failed']}"
        for row in rows for name, f in row["engines"].items() if "failed" in f
    ]  # fmt: skip
    settings = {n: [n, f.get("version", ""), f["settings"]] for r in texts for n, f in r["engines"].items()}
    sections = [
        f"{dates[-1]}, {here['processor']} ({features(here['flags'])}), {here['cores']} cores; "
        "`python -m bench.speech`.\n\nA Whisper with random weights (tiny: hidden 384, 4 and 4 layers, 6 "
        "heads, vocabulary 51,865), the same for all engines, and speech that espeak-ng made. Each window of "
        "30 s has 112 tokens, greedy, without times; no other attempt is made. Medians of milliseconds; "
        "every engine in a process of its own, all in turns, the others stopped. The ratio is the peer's "
        "time over Tilewright's in the same run.",
        table([*head, "peer ÷ ours"], lines),
        "The number of tokens until the first one that is not Tilewright's:",
        table(["size", "precision", "engine", "equal tokens"], heard),
        *(["Failed:\n\n" + "\n".join(failed)] if failed else []),
        "## Engines",
        table(["engine", "version", "configuration"], [settings[n] for n in names if n in settings]),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    main()

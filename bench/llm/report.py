"""The results of language models as Markdown and, by `bench.plot`, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import results
from ..machines import features
from ..report import draw, number, ratios_of, table
from .engines import ENGINES, OURS
from .measure import Workload, workloads
from .model import SIZES

Row = dict[str, Any]


def lines(figures: dict[str, dict[str, Any]]) -> str:
    """Each engine's figures in a line."""
    return "\n".join(f"    {name:16} {_line(figure)}" for name, figure in figures.items())


def _line(figure: dict[str, Any]) -> str:
    if "failed" in figure:
        return f"failed: {figure['failed']}"
    if "milliseconds" in figure:
        text = (
            f"{figure['milliseconds']:9.2f} ms "
            f"({figure['min_milliseconds']:.2f}-{figure['max_milliseconds']:.2f})"
        )
        text += f"  {figure['roofline_share']:.0%} of the floor"
        return text + (f"  ratio {figure['ratio']:.2f}" if "ratio" in figure else "")
    text = (
        f"load {figure['load_seconds']:.2f} s, first answer "
        f"{figure['first_seconds']:.2f} s, {_memory(figure)}"
    )
    if "prefill_error" in figure:
        text += f", error {figure['prefill_error']:.1e} (prefill) {figure['decode_error']:.1e} (decode)"
    return text


def write(path: Path) -> None:
    """Write the table and the plot beside the results file at `path`."""
    rows = results.read(path)
    path.with_suffix(".md").write_text(markdown(rows))
    panels = {
        _title(*key): {_label(row): ratios_of(row, _times(row)) for row in chosen if OURS in _times(row)}
        for key, chosen in _groups(rows).items()
    }
    draw({title: panel for title, panel in panels.items() if any(panel.values())}, path.with_suffix(".svg"))


def _groups(rows: list[Row]) -> dict[tuple[str, str, int], list[Row]]:
    """Rows of workloads by size, precision and threads."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        case = row["case"]
        groups.setdefault((case["size"], case["precision"], case["threads"]), [])
        if case["workload"] != "start":
            groups[case["size"], case["precision"], case["threads"]].append(row)
    for chosen in groups.values():
        chosen.sort(
            key=lambda row: list(workloads(SIZES[row["case"]["size"]])).index(row["case"]["workload"])
        )
    return groups


def _title(size: str, precision: str, threads: int) -> str:
    return f"{size}, {precision}, {threads} thread{'s' * (threads > 1)}"


def _workload(row: Row) -> Workload:
    return workloads(SIZES[row["case"]["size"]])[row["case"]["workload"]]


def _label(row: Row) -> str:
    workload = _workload(row)
    if workload.method == "prefill":
        return f"prefill of {workload.context} tokens"
    return f"decode after {workload.context} tokens{f', batch {workload.batch}' * (workload.batch > 1)}"


def _times(row: Row) -> dict[str, float]:
    """Median milliseconds of the engines that ran."""
    figures = row["engines"]
    return {
        name: figures[name]["milliseconds"] for name in ENGINES if "milliseconds" in figures.get(name, {})
    }


def markdown(rows: list[Row]) -> str:
    """The report: goals; a section for each size, precision and number of threads; settings."""
    if not rows:
        return "No results.\n"
    starts = {
        (c["size"], c["precision"], c["threads"]): row
        for row in rows
        if (c := row["case"])["workload"] == "start"
    }
    sections = [_heading(rows), _goals(rows)]
    for key, chosen in _groups(rows).items():
        start = starts.get(key)
        sections += [
            f"## {_title(*key)}",
            _speed(chosen),
            *([_start(start), _checks(start)] if start else []),
        ]
        sections.append(_absent([*chosen, *([start] if start else [])]))
    settings = {name: figure for row in starts.values() for name, figure in row["engines"].items()}
    listed = [[n, settings[n].get("version", ""), settings[n]["settings"]] for n in ENGINES if n in settings]
    sections += ["## Engines", table(["engine", "version", "configuration"], listed)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _heading(rows: list[Row]) -> str:
    here = rows[-1]["machine"]
    known = features(here["flags"])
    dates = sorted({f["date"] for r in rows for f in r["engines"].values()})
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        f"{span}, {here['processor']} ({known}), {here['cores']} cores; `python -m bench.llm`.\n\n"
        "Random weights in the shape of a Llama (1b: hidden 2048, 16 layers, 32 and 8 heads, FFN 8192, "
        "vocabulary 32,000), the same numbers for all engines; int4: codes of "
        "four bits in groups of 32 with a float16 scale (Q4_0), embeddings and head too; q4_k, q6_k and "
        "mxfp4: these formats of GGUF, kept by all engines. Medians of tokens a "
        "second; every engine in a process of its own, all in turns, "
        "the others stopped. A step of decoding is timed with the choice of the likeliest token; prefill is "
        "the time from the prompt's tokens to the first token. "
        "The ratio is the best peer's time over Tilewright's in the same run; times in brackets are of "
        "earlier runs and do not count. "
        "The share of the floor: of decoding, the time to read weights, keys and values once at the "
        "bandwidth that was measured in the same rounds (a buffer as large as "
        "the weights, at most 1 GiB, read by as many threads), over the time taken; of prefill, the "
        "arithmetic at the peak of products that was measured in the same rounds (medians; of int8 for int4, "
        "which bf16 products do not reach)."
    )


def _rate(row: Row, name: str) -> float | None:
    """Tokens a second."""
    milliseconds = _times(row).get(name)
    return _workload(row).tokens() / milliseconds * 1e3 if milliseconds else None


def _speed(rows: list[Row]) -> str:
    names = [name for name in ENGINES if any(name in _times(row) for row in rows)]
    peers = [name for name in names if name != OURS]
    head = [
        "tokens/s",
        OURS,
        "min–max",
        *peers,
        "best peer ÷ ours",
        "share of floor",
        *(f"{n}'s" for n in peers),
        "memory GB/s",
    ]
    body = []
    for row in rows:
        figures, ratios = row["engines"], ratios_of(row, _times(row))
        ours = figures.get(OURS, {})
        tokens = _workload(row).tokens() * 1e3
        span = [tokens / ours[f"{end}_milliseconds"] for end in ("max", "min")] if OURS in _times(row) else []
        best = min(ratios, key=ratios.__getitem__, default=None)
        cells = [_label(row), number(_rate(row, OURS)) or "not yet", "–".join(map(number, span))]
        for name in peers:
            text = number(_rate(row, name))
            cells.append(
                f"**{text}**" if name == best else f"({text})" if text and name not in ratios else text
            )
        shares = [figures.get(n, {}).get("roofline_share") for n in (OURS, *peers)]
        cells += [f"{ratios[best]:.2f}" if best else "", *("" if s is None else f"{s:.0%}" for s in shares)]
        body.append([*cells, f"{row['roof']['bandwidth'] / 1e9:.1f}"])
    return table(head, body)


def _memory(figure: dict[str, Any]) -> str:
    peak, own, mapped = (figure[f"{kind}_bytes"] / 2**20 for kind in ("peak", "own", "mapped"))
    return f"{peak:.0f} MiB at most, then {own:.0f} its own and {mapped:.0f} of files"


def _start(row: Row) -> str:
    body = []
    for name, figure in row["engines"].items():
        if "load_seconds" in figure:
            sizes = [
                f"{figure[f'{kind}_bytes'] / 2**20:.0f}" for kind in ("peak", "baseline", "own", "mapped")
            ]
            times = [f"{figure[f'{kind}_seconds']:.2f}" for kind in ("load", "first")]
            body.append(
                [
                    name,
                    *times,
                    *sizes,
                    f"{figure['compile_seconds']:.0f}" if "compile_seconds" in figure else "",
                ]
            )
    text = (
        "Starting, in a fresh process after its imports: seconds to load the model, and from there to the "
        "second token after a prompt. Memory in MiB after some steps of one sequence: peak of what is "
        "resident (VmHWM), of which the imports brought so much before; at the end, the process's own memory "
        "(RssAnon) and pages of mapped files (RssFile), libraries among them. Pages of "
        "mapped weights count as resident for every engine once they are touched, though the system can drop "
        "them at any time and processes share them; weights that an engine copies "
        "or packs anew are its own. Seconds to make the model ahead of time are those of an otherwise idle "
        "machine only where it was one."
    )
    head = ["engine", "load", "first tokens", "peak", "imports", "own", "of files", "made in s"]
    return f"{text}\n\n{table(head, body)}" if body else ""


def _checks(row: Row) -> str:
    body = []
    for name, figure in row["engines"].items():
        if "prefill_error" in figure or "greedy_tokens" in figure:
            errors = [
                f"{figure[f'{kind}_error']:.1e}" if f"{kind}_error" in figure else ""
                for kind in ("prefill", "decode")
            ]
            same = (
                f"{figure['same_greedy_tokens']} of {figure['greedy_tokens']}"
                if "greedy_tokens" in figure
                else ""
            )
            body.append([name, *errors, same])
    text = (
        "Logits beside NumPy's in float32 of the same weights: norm of the difference over the norm, after a "
        "prompt and, the largest, after tokens that follow one by one. "
        "And of a greedy answer, how many tokens until the first that is not Tilewright's (random weights "
        "make many tokens about as likely):"
    )
    return f"{text}\n\n{table(['engine', 'prefill', 'decode', 'same greedy tokens'], body)}" if body else ""


def _absent(rows: list[Row]) -> str:
    reasons = {
        (name, f["failed"]): None for row in rows for name, f in row["engines"].items() if "failed" in f
    }
    return "\n".join(["Failed:", "", *(f"- {name}: {why}" for name, why in reasons)]) if reasons else ""


def _goals(rows: list[Row]) -> str:
    """The goals for a billion parameters on two threads, and the results."""
    by_case = {
        (c["precision"], c["workload"]): row
        for row in rows
        if (c := row["case"])["size"] == "1b" and c["threads"] == 2
    }

    def ratio(precision: str, workload: str, *peers: str) -> float | None:
        row = by_case.get((precision, workload))
        found = ratios_of(row, _times(row)) if row else {}
        return min((found[p] for p in peers or found if p in found), default=None)

    def figure(precision: str, workload: str, name: str, key: str) -> Any:
        return by_case.get((precision, workload), {}).get("engines", {}).get(name, {}).get(key)

    def quotient(a: Any, b: Any) -> float | None:
        return a / b if a and b else None

    llama = ("llama.cpp-amx", "llama.cpp")
    peaks = [peak for name in llama if (peak := figure("int4", "start", name, "peak_bytes"))]
    single, batch = (by_case.get(("int4", name)) for name in ("decode", "decode-batch"))
    rates = [_rate(row, OURS) if row else None for row in (batch, single)]
    found: list[tuple[str, float | None, str, float]] = [
        ("int4 decode ÷ llama.cpp without AMX", ratio("int4", "decode", "llama.cpp"), ">=", 1.8),
        ("int4 decode ÷ llama.cpp with AMX", ratio("int4", "decode", "llama.cpp-amx"), ">=", 1.8),
        ("int4 decode ÷ best of all", ratio("int4", "decode"), ">=", 1),
        ("int4 decode, share of the floor", figure("int4", "decode", OURS, "roofline_share"), ">=", 0.85),
        ("int4 prefill ÷ llama.cpp without AMX", ratio("int4", "prefill", "llama.cpp"), ">=", 5),
        ("int4 prefill ÷ best of all", ratio("int4", "prefill"), ">=", 1.5),
        ("bf16 prefill ÷ llama.cpp", ratio("bf16", "prefill", *llama), ">=", 5),
        ("int4 batch 8 ÷ batch 1, tokens a second", quotient(*rates), ">=", 4),
        ("int4, seconds to load", figure("int4", "start", OURS, "load_seconds"), "<=", 1),
        (
            "int4 peak memory ÷ llama.cpp's least",
            quotient(figure("int4", "start", OURS, "peak_bytes"), min(peaks, default=None)),
            "<=",
            1,
        ),
    ]
    body = []
    for name, value, relation, goal in found:
        text = "" if value is None else f"{value:.2f}"
        met = value is None or (value >= goal if relation == ">=" else value <= goal)
        body.append([name, text if met else f"**{text}**", f"{'≥' if relation == '>=' else '≤'} {goal:g}"])
    return f"{table(['', 'found', 'goal'], body)}\n\nBold: missed." if any(line[1] for line in body) else ""

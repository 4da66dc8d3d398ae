"""The results file as Markdown and, by `plot`, as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from . import results
from .case import Case
from .engines import Tilewright
from .held_out import KNOWN
from .machines import features
from .registry import ENGINES
from .start import OURS
from .wanted import wanted

Row = dict[str, Any]


def summary(figure: dict[str, Any]) -> str:
    """One engine's figures in a line."""
    if "milliseconds" not in figure:
        return f"failed: {figure.get('failed')}"
    text = (
        f"{figure['milliseconds']:9.3f} ms "
        f"({figure['min_milliseconds']:.3f}-{figure['max_milliseconds']:.3f})"
    )
    own = figure["peak_bytes"] - figure.get("baseline_bytes", 0)
    text += f"  error {figure['error']:.1e}  {own / 2**20:.0f} MiB  load {figure['load_seconds']:.2f} s"
    for key, name in (("compile_seconds", "compile"), ("cached_seconds", "cached")):
        text += f"  {name} {figure[key]:.2f} s" if key in figure else ""
    if "roofline_share" in figure:
        text += f"  {figure['roofline_share']:.0%} of the roofline"
    if "inside_milliseconds" in figure:
        text += f"  inside {figure['inside_milliseconds'] * 1e3:.2f} µs"
    return text


def milliseconds(row: Row) -> dict[str, float]:
    """Median times of the engines that ran, in the registry's order."""
    figures = row["engines"]
    return {
        name: figures[name]["milliseconds"] for name in ENGINES if "milliseconds" in figures.get(name, {})
    }


def ratios(row: Row) -> dict[str, float]:
    """`ratios_of` the row's models."""
    return ratios_of(row, milliseconds(row))


def ratios_of(row: Row, times: dict[str, float]) -> dict[str, float]:
    """Median times of the peers divided by ours, for the peers that were measured in the same run as our
    latest figure.
    """
    found = {name: row["engines"][name].get("ratio") for name in times if name != OURS}
    return {
        name: ratio for name, ratio in found.items() if OURS in times and ratio == times[name] / times[OURS]
    }


def best_peer(row: Row) -> tuple[str, float] | None:
    """The fastest other engine and its median time over ours, both of one run."""
    peers = {name: ratio for name, ratio in ratios(row).items() if not issubclass(ENGINES[name], Tilewright)}
    return min(peers.items(), key=lambda item: item[1], default=None)


def write(path: Path) -> None:
    """Write the table and the plot beside the results file at `path`."""
    rows = ordered(results.read(path))
    path.with_suffix(".md").write_text(markdown(rows))
    draw(panels(rows), path.with_suffix(".svg"))


def draw(chosen: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Plot the panels, by their titles, if there are any and matplotlib is installed."""
    try:
        from .plot import plot
    except ModuleNotFoundError as error:
        print(f"no plot: {error}")
        return
    if chosen:
        plot(chosen, path)


def panels(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """The ratios at batch 1 on two threads by model, a panel for each precision."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for precision in ("float32", "bf16"):
        key = (2, 1, precision)
        chosen = {
            row["case"]["model"]: ratios(row)
            for row in rows
            if row_key(row) == key and OURS in milliseconds(row)
        }
        found |= {title(*key): chosen} if chosen else {}
    return found


def ordered(rows: list[Row]) -> list[Row]:
    """The rows of models that are still defined, in the order they are defined in."""
    models = list(KNOWN)
    known = [row for row in rows if row["case"]["model"] in models]
    return sorted(known, key=lambda row: models.index(row["case"]["model"]))


def markdown(rows: list[Row]) -> str:
    """A summary; a section for each precision, batch and number of threads; settings."""
    if not rows:
        return "No results.\n"
    keys = sorted({row_key(row) for row in rows}, key=order)
    sections = [f"{heading(rows)} {_COLUMNS}", "## Summary", _summary(rows, keys)]
    for key in keys:
        chosen = [row for row in rows if row_key(row) == key]
        sections += [f"## {title(*key)}", _times(chosen), _starts(chosen), absent(chosen)]
    sections += ["## Engines", settings(rows)]
    return "\n\n".join(section for section in sections if section) + "\n"


def row_key(row: Row) -> tuple[int, int, str]:
    case = row["case"]
    return case["threads"], case["batch"], case["precision"]


def title(threads: int, batch: int, precision: str) -> str:
    return f"{precision}, batch {batch}, {threads} thread{'s' * (threads > 1)}"


def order(key: tuple[int, int, str]) -> tuple[Any, ...]:
    threads, batch, precision = key
    return (-threads, batch, precision == "bf16")


def heading(rows: list[Row]) -> str:
    """Dates, the machine and how the figures were measured."""
    here = rows[-1]["machine"]
    known = features(here["flags"])
    dates = sorted({f["date"] for r in rows for f in r["engines"].values()})
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    roofs = "; ".join(
        f"{threads} thread{'s' * (threads > 1)}: {roof['flops']['float32'] / 1e9:.0f} GFLOP/s in float32, "
        f"{roof['flops']['bf16'] / 1e9:.0f} in bf16, {roof['bandwidth'] / 1e9:.0f} GB/s"
        for threads, roof in sorted({r["case"]["threads"]: r["roof"] for r in rows}.items(), reverse=True)
    )
    return (
        f"{span}, {here['processor']} ({known}), {here['cores']} cores. Measured peaks with {roofs}.\n\n"
        "Median milliseconds of one inference; the engines take turns, each in a process of its own, and one "
        "that is five times slower than the fastest leaves after three turns."
    )


_COLUMNS = (
    "The ratio is the best peer's time over Tilewright's in the same run, with the one that was set as a "
    "goal; times in brackets are of earlier runs and do not count. The error is the largest difference from "
    "float32 PyTorch over the output's largest magnitude. The share of the roofline is the time that the "
    "kernels' operations and bytes need at these peaks, over the time taken."
)


def _summary(rows: list[Row], keys: list[tuple[int, int, str]]) -> str:
    """The ratio to the best peer, models by kinds of rows; bold where it misses the goal."""
    models = list(dict.fromkeys(row["case"]["model"] for row in rows))
    by_case = {(row["case"]["model"], row_key(row)): row for row in rows}
    lines = []
    for model in models:
        found = [by_case.get((model, key)) for key in keys]
        lines.append([model, *[_ratio(row)[0] if row else "" for row in found]])
    means = [_mean([row for row in rows if row_key(row) == key]) for key in keys]
    lines.append(["geometric mean", *means])
    head = ["best peer ÷ ours", *[title(*key) for key in keys]]
    return table(head, lines) + "\n\nBold: less than the goal (batch 8: slower than a peer)."


def _ratio(row: Row) -> tuple[str, str]:
    """The ratio to the best peer, bold where it misses the goal, and the goal."""
    best, goal = best_peer(row), wanted(Case(**row["case"]))
    text = f"{best[1]:.2f}" if best else ""
    return f"**{text}**" if best and goal and best[1] < goal else text, f"{goal:g}" if goal else ""


def _mean(rows: list[Row]) -> str:
    ratios = [best[1] for row in rows if (best := best_peer(row))]
    return f"{statistics.geometric_mean(ratios):.2f}" if len(ratios) > 1 else ""


def _times(rows: list[Row]) -> str:
    names = [name for name in ENGINES if any(name in milliseconds(r) for r in rows)]
    peers = [name for name in names if name != OURS]
    head = ["model", OURS, "min–max", *peers, "best peer ÷ ours", "goal", "error", "share of roofline"]
    lines = []
    for row in rows:
        times, ours, best = milliseconds(row), row["engines"].get(OURS, {}), best_peer(row)
        span = (
            f"{number(ours['min_milliseconds'])}–{number(ours['max_milliseconds'])}" if OURS in times else ""
        )
        cells = [row["case"]["model"], number(times.get(OURS)) or "not yet", span]
        latest = ratios(row)
        for p in peers:
            text = number(times.get(p))
            cells.append(
                f"**{text}**" if best and p == best[0] else f"({text})" if text and p not in latest else text
            )
        cells += [*_ratio(row), f"{ours['error']:.0e}" if "error" in ours else ""]
        cells.append(f"{ours['roofline_share']:.0%}" if "roofline_share" in ours else "")
        lines.append(cells)
    if mean := _mean(rows):
        lines.append(["geometric mean", *[""] * (len(head) - 5), mean, "", "", ""])
    notes = []
    for row in rows:
        model, figures = row["case"]["model"], row["engines"]
        if "inside_milliseconds" in figures.get(OURS, {}):
            notes.append(
                f"{model}: {figures[OURS]['inside_milliseconds'] * 1e3:.2f} µs inside the artifact (called "
                "in a loop of machine code)."
            )
        if "numpy" in ratios(row):
            notes.append(
                f"{model}: NumPy takes {ratios(row)['numpy']:.0f} times as "
                f"long{' (goal: 23)' if row['case']['threads'] == 1 else ''}."
            )
    return "\n".join([table(head, lines), *(["", *notes] if notes else [])])


def _starts(rows: list[Row]) -> str:
    names = [name for name in ENGINES if any(name in milliseconds(r) for r in rows)]
    lines = []
    for row in rows:
        cells = [row["case"]["model"]]
        for name in names:
            figure = row["engines"].get(name, {})
            if "milliseconds" not in figure:
                cells.append("")
                continue
            compile_ = next(
                (figure[k] for k in ("processor_seconds", "compile_seconds") if k in figure), None
            )
            own = figure["peak_bytes"] - figure.get("baseline_bytes", 0)
            cells.append(
                f"{own / 2**20:.0f} / "
                f"{'' if compile_ is None else f'{compile_:.0f} + '}{figure['load_seconds']:.2f}"
            )
        lines.append(cells)
    title = (
        "Peak memory in MiB of a process that only loads and runs, less what Python and NumPy take; seconds "
        "of the processor to compile ahead of "
        "time, + seconds to load and run once after imports (PyTorch makes its random weights meanwhile, "
        "OpenVINO and ONNX Runtime compile):"
    )
    return f"{title}\n\n{table(['model', *names], lines)}"


def absent(rows: list[Row]) -> str:
    """Engines without a time, with the reason; models that share one in a line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, figure in row["engines"].items():
            if "milliseconds" not in figure:
                reasons.setdefault((name, figure.get("failed", "?")), []).append(row["case"]["model"])
    lines = [
        f"- {name}: {'all' if len(models) == len(rows) else ', '.join(models)}: {why}"
        for (name, why), models in reasons.items()
        if "no program of its kind" not in why
    ]
    return "\n".join(["Without a time:", "", *lines]) if lines else ""


def settings(rows: list[Row]) -> str:
    """A table of the engines that rows have, with versions and configurations."""
    lines = []
    for name, engine in ENGINES.items():
        if not any(name in row["engines"] for row in rows):
            continue
        versions = sorted(
            {r["engines"][name]["version"] for r in rows if "version" in r["engines"].get(name, {})}
        )
        text = "; ".join(f"{precision}: {settings}" for precision, settings in engine.settings.items())
        lines.append([name, " / ".join(versions), text])
    return table(["engine", "version", "configuration"], lines)


def number(value: float | None) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    return (
        f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 1
        else f"{value:.3f}"
        if value >= 0.1
        else f"{value:.4f}"
    )


def table(head: list[str], lines: list[list[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))

"""The results file as Markdown and, by `plot`, as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from . import results
from .held_out import KNOWN
from .registry import ENGINES
from .start import OURS

Row = dict[str, Any]


def summary(figure: dict[str, Any]) -> str:
    """One engine's figures in a line."""
    if "milliseconds" not in figure:
        return f"failed: {figure.get('failed')}"
    text = f"{figure['milliseconds']:9.3f} ms ({figure['min_milliseconds']:.3f}-{figure['max_milliseconds']:.3f})"
    text += (
        f"  error {figure['error']:.1e}  {figure['peak_bytes'] / 2**20:.0f} MiB  load {figure['load_seconds']:.2f} s"
    )
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
    return {name: figures[name]["milliseconds"] for name in ENGINES if "milliseconds" in figures.get(name, {})}


def best_peer(row: Row) -> tuple[str, float] | None:
    """The fastest other engine and its median time over ours, both of one run."""
    ratios = {name: figure["ratio"] for name, figure in row["engines"].items() if name != OURS and "ratio" in figure}
    return min(ratios.items(), key=lambda item: item[1]) if ratios else None


def write(path: Path) -> None:
    """Write the table and the plot beside the results file at `path`."""
    rows = ordered(results.read(path))
    path.with_suffix(".md").write_text(markdown(rows))
    try:
        from .plot import plot
    except ModuleNotFoundError as error:
        print(f"no plot: {error}")
        return
    main = [row for row in rows if row["case"]["batch"] == 1 and row["case"]["threads"] == 2]
    if main:
        plot(main, path.with_suffix(".svg"))


def ordered(rows: list[Row]) -> list[Row]:
    """The rows of models that are still defined, in the order they are defined in."""
    models = list(KNOWN)
    known = [row for row in rows if row["case"]["model"] in models]
    return sorted(known, key=lambda row: models.index(row["case"]["model"]))


def markdown(rows: list[Row]) -> str:
    """A section for each precision, batch and number of threads; then memory and start, then settings."""
    if not rows:
        return "No results.\n"
    sections = [_heading(rows)]
    keys = sorted({(r["case"]["threads"], r["case"]["batch"], r["case"]["precision"]) for r in rows}, key=_order)
    for threads, batch, precision in keys:
        chosen = [
            r for r in rows if r["case"] == r["case"] | {"threads": threads, "batch": batch, "precision": precision}
        ]
        title = f"{precision}, batch {batch}, {threads} thread{'s' * (threads > 1)}"
        sections += [f"## {title}", _times(chosen), _starts(chosen), _absent(chosen)]
    sections += ["## Engines", _settings(rows)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _order(key: tuple[int, int, str]) -> tuple[Any, ...]:
    threads, batch, precision = key
    return (-threads, batch, precision == "bf16")


def _heading(rows: list[Row]) -> str:
    here = rows[-1]["machine"]
    dates = sorted({f["date"] for r in rows for f in r["engines"].values()})
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    features = ", ".join(f for f in here["flags"] if f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8"))
    return (
        f"{span}, {here['processor']} ({features}), {here['cores']} cores. Median milliseconds of one inference; the engines take "
        "turns, each in a process of its own. The ratio is the best peer's time over Tilewright's in the same run; the error is the largest "
        "difference from float32 PyTorch over the output's largest magnitude."
    )


def _times(rows: list[Row]) -> str:
    names = [name for name in ENGINES if any(name in milliseconds(r) for r in rows)]
    peers = [name for name in names if name != OURS]
    head = ["model", OURS, "min–max", *peers, "best peer ÷ ours", "error", "share of roofline"]
    lines, ratios = [], []
    for row in rows:
        times, ours, best = milliseconds(row), row["engines"].get(OURS, {}), best_peer(row)
        ratio = best[1] if best else None
        ratios += [ratio] if ratio else []
        span = f"{_number(ours['min_milliseconds'])}–{_number(ours['max_milliseconds'])}" if OURS in times else ""
        cells = [row["case"]["model"], _number(times.get(OURS)) or "not yet", span]
        cells += [f"**{_number(times[p])}**" if best and p == best[0] else _number(times.get(p)) for p in peers]
        cells += [f"{ratio:.2f}" if ratio else "", f"{ours['error']:.0e}" if "error" in ours else ""]
        cells.append(f"{ours['roofline_share']:.0%}" if "roofline_share" in ours else "")
        lines.append(cells)
    if len(ratios) > 1:
        mean = [""] * len(head)
        mean[0], mean[-3] = "geometric mean", f"{statistics.geometric_mean(ratios):.2f}"
        lines.append(mean)
    notes = [
        f"{r['case']['model']}: {r['engines'][OURS]['inside_milliseconds'] * 1e3:.2f} µs inside the artifact (tw_run called in a loop of machine code)."
        for r in rows
        if "inside_milliseconds" in r["engines"].get(OURS, {})
    ]
    return "\n".join([_table(head, lines), *(["", *notes] if notes else [])])


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
            compile_ = f"{figure['compile_seconds']:.1f} + " if "compile_seconds" in figure else ""
            cells.append(f"{figure['peak_bytes'] / 2**20:.0f} / {compile_}{figure['load_seconds']:.2f}")
        lines.append(cells)
    title = "Peak memory in MiB of a process that only loads and runs, and seconds to (compile ahead of time +) load and run once:"
    return f"{title}\n\n{_table(['model', *names], lines)}"


def _absent(rows: list[Row]) -> str:
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


def _settings(rows: list[Row]) -> str:
    lines = []
    for name, engine in ENGINES.items():
        versions = sorted({r["engines"][name]["version"] for r in rows if "version" in r["engines"].get(name, {})})
        text = "; ".join(f"{precision}: {settings}" for precision, settings in engine.settings.items())
        lines.append([name, " / ".join(versions), text])
    return _table(["engine", "version", "configuration"], lines)


def _number(value: float | None) -> str:
    """Three significant digits, or as many as stand before the point."""
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


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))

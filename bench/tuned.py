"""The table of `python -m bench --tuned`: engines that search for schedules by measuring, beside Tilewright
without a search.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from . import report, results
from .start import OURS

MODELS = ("bert", "vit", "resnet50", "mobilenet_v2")
OWN, PEER = "tilewright-tuned", "tvm-tuned"
ENGINES = (OURS, OWN, PEER)


def write(path: Path) -> None:
    """Write the table beside the results file at `path`."""
    path.with_suffix(".md").write_text(markdown(report.ordered(results.read(path))))


def ratios(rows: list[dict[str, Any]], ours: str = OURS) -> dict[str, float]:
    """By model: the peer's median time over that of `ours`, if both were measured in one run."""
    found = {}
    for row in rows:
        peer, own = (row["engines"].get(name, {}) for name in (PEER, ours))
        # Ratios to Tilewright's time belong to the run of that time.
        base = row["engines"].get(OURS, {}).get("milliseconds")
        if base and all(
            figure.get("ratio") == figure.get("milliseconds", 0) / base for figure in (peer, own)
        ):
            found[row["case"]["model"]] = peer["milliseconds"] / own["milliseconds"]
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """A heading, and for each precision, batch and number of threads a table of times and searches."""
    if not rows:
        return "No results.\n"
    sections = [report.heading(rows), _TEXT]
    for key in sorted({report.row_key(row) for row in rows}, key=report.order):
        chosen = [row for row in rows if report.row_key(row) == key]
        sections += [f"## {report.title(*key)}", _times(chosen), report.absent(chosen)]
    sections += ["## Engines", report.settings(rows)]
    return "\n\n".join(section for section in sections if section) + "\n"


_TEXT = (
    "A search measures candidates for the given seconds, on this machine with as many threads. Imports, the "
    "first compilation and the compilation with the choices found are not part of these seconds. The error "
    "is the largest difference from float32 PyTorch over the output's largest magnitude."
)


def _times(rows: list[dict[str, Any]]) -> str:
    compared = {name: ratios(rows, name) for name in (OURS, OWN)}
    lines = []
    for row in rows:
        model, figures = row["case"]["model"], row["engines"]
        cells = [model]
        cells += [report.number(figures.get(name, {}).get("milliseconds")) for name in ENGINES]
        cells += [f"{compared[name][model]:.2f}" if model in compared[name] else "" for name in (OURS, OWN)]
        cells += [_search(figures.get(name, {})) for name in (OWN, PEER)]
        cells.append(f"{figures[PEER]['error']:.0e}" if "error" in figures.get(PEER, {}) else "")
        lines.append(cells)
    means = [f"{statistics.geometric_mean(c.values()):.2f}" if len(c) > 1 else "" for c in compared.values()]
    lines.append(["geometric mean", "", "", "", *means, "", "", ""])
    head = ["model", *ENGINES, f"{PEER} ÷ {OURS}", f"{PEER} ÷ {OWN}"]
    head += [f"search of {OWN}", f"search of {PEER}", f"error of {PEER}"]
    return report.table(head, lines)


def _search(figure: dict[str, Any]) -> str:
    return f"{figure['search_seconds']:.0f} s, {figure['trials']} trials" if "trials" in figure else ""

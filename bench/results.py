"""The results file: one JSON document with a row per case and figures per engine; new figures replace older
ones.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .case import Case, source
from .machines import machine
from .registry import ENGINES
from .roofline import Roof
from .start import OURS

SLOW = 5  # an engine that takes this many times the fastest engine's time is not built for other rows
WORTH_TRYING = 20  # milliseconds; shorter inferences are always measured


def read(path: Path) -> list[dict[str, Any]]:
    """The rows: "case", "machine", "roof" and "engines", whose figures each have a "date"."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def merge(path: Path, case: Case, figures: dict[str, dict[str, Any]], roof: Roof) -> None:
    """Put the figures of `case` into the file; engines and rows not measured stay. Figures of another machine
    are dropped.
    """
    rows = read(path)
    here = machine()
    row = next((r for r in rows if r["case"] == asdict(case) and r["machine"] == here), None)
    if row is None:
        rows = [r for r in rows if r["case"] != asdict(case)]
        row = {"case": asdict(case), "machine": here, "engines": {}}
        rows.append(row)
    row["roof"] = asdict(roof)
    row["source"] = source()
    today = datetime.date.today().isoformat()
    row["engines"] |= {name: {"date": today, **figure} for name, figure in figures.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    partial.rename(path)


def complete(path: Path, case: Case, engines: list[str]) -> bool:
    """Whether the row of `case` has been measured on this machine with this state of the sources, every
    engine in it.
    """
    row = _row(path, case)
    return row is not None and row.get("source") == source() and set(engines) <= set(row["engines"])


def left_out(path: Path, case: Case) -> dict[str, str]:
    """Engines that are not asked to compile `case` ahead of time, with the reason.

    They failed, or were much slower, in the model's first row (batch 1, two threads).
    """
    first = replace(case, batch=1, threads=2)
    row = None if case == first else _row(path, first)
    if row is None:
        return {}
    times = {name: f["milliseconds"] for name, f in row["engines"].items() if "milliseconds" in f}
    reasons = {}
    for name, figure in row["engines"].items():
        if name == OURS or not ENGINES[name].builds or ENGINES[name]().refuses(case):
            continue
        if name not in times:
            reasons[name] = f"as at batch 1 on two threads ({figure['failed']})"
        elif times[name] > SLOW * min(times.values()) and times[name] > WORTH_TRYING:
            reasons[name] = (
                f"{times[name] / min(times.values()):.0f} times the best time at batch 1 on two threads"
            )
    return reasons


def _row(path: Path, case: Case) -> dict[str, Any] | None:
    return next((r for r in read(path) if r["case"] == asdict(case) and r["machine"] == machine()), None)

"""The results file: one JSON document, a row for each case, each row's figures by engine; what is measured anew replaces what was there."""

from __future__ import annotations

import datetime
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .case import Case
from .roofline import Roof


def read(path: Path) -> list[dict[str, Any]]:
    """The rows: "case", "machine", "roof" and "engines", whose figures each have a "date"."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def merge(path: Path, case: Case, figures: dict[str, dict[str, Any]], roof: Roof) -> None:
    """Put the figures of `case` into the file; engines and rows not measured stay. Figures of another machine are dropped."""
    rows = read(path)
    here = machine()
    row = next((r for r in rows if r["case"] == asdict(case) and r["machine"] == here), None)
    if row is None:
        rows = [r for r in rows if r["case"] != asdict(case)]
        row = {"case": asdict(case), "machine": here, "engines": {}}
        rows.append(row)
    row["roof"] = asdict(roof)
    today = datetime.date.today().isoformat()
    row["engines"] |= {name: {"date": today, **figure} for name, figure in figures.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    partial.rename(path)


def engines_measured(path: Path, case: Case) -> set[str]:
    """Engines that have a time in the row of `case` on this machine."""
    return {
        name
        for row in read(path)
        if row["case"] == asdict(case) and row["machine"] == machine()
        for name, figure in row["engines"].items()
        if "milliseconds" in figure
    }


def machine() -> dict[str, Any]:
    """The processor's name, its vector and matrix features, and the cores this process may use."""
    name, flags = platform.processor() or platform.machine(), []
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() == "flags":
            flags = sorted(f for f in value.split() if f.startswith(("avx", "amx", "fma", "f16c")))
            break
    return {"processor": name, "flags": flags, "cores": len(os.sched_getaffinity(0))}

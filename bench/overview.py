"""bench/results/README.md: the results of all classes of machines beside each other."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from . import gemm, report, results, tuned
from .machines import RESULTS, described, results_files

KINDS = {
    "models": "[models](../models.py)",
    "held_out": "[models that were not used for tuning](../held_out.py)",
    "tuned": "[engines that search by measuring](../tuned.py)",
    "gemm": "[matrix products](../gemm.py)",
    "memory_ops": "[operators bound by memory](../memory_ops.py)",
    "llm": "[language models](../llm/__main__.py)",
    "speech": "[speech to text](../speech/__main__.py)",
    "llm_processes": "[language models in several processes](../llm/processes.py)",
    "training": "[training steps](../training.py)",
    "training_memory": "[memory of training steps](../training_memory.py)",
    "training_processes": "[training steps in several processes](../training_processes.py)",
}


def write(folder: Path = RESULTS) -> None:
    """Write the overview of the results in `folder`."""
    (folder / "README.md").write_text(markdown(folder))


def markdown(folder: Path) -> str:
    """The files by class; a table of ratios for models, held-out models and matrix products."""
    files = {kind: results_files(kind, folder) for kind in KINDS}
    classes = list(dict.fromkeys(name for found in files.values() for name in found))
    body = []
    for kind, found in files.items():
        body.append([KINDS[kind], *[_link(found.get(name)) for name in classes]])
    head = ["", *[described(name) for name in classes]]
    sections = [
        "# Results by class of machine",
        "A class is told from the features of the processor. The dates lead to all figures; "
        "[random programs](random_programs.md) and the "
        "[errors of the vector functions](vector_math_errors.md) are those of every machine.",
        *_browsers(folder),
        report.table(head, body),
    ]
    for kind, title in (("models", "Models"), ("held_out", "Models that were not used for tuning")):
        rows = {name: report.ordered(results.read(path)) for name, path in files[kind].items()}
        if rows:
            sections += [f"## {title}", _models(rows)]
    searched = {name: report.ordered(results.read(path)) for name, path in files["tuned"].items()}
    if searched:
        sections += ["## Engines that search by measuring", _searched(searched)]
    products = {name: json.loads(path.read_text())["rows"] for name, path in files["gemm"].items()}
    if products:
        sections += ["## Matrix products", _products(products)]
    return "\n\n".join(sections) + "\n"


def _browsers(folder: Path) -> list[str]:
    """Sentences that lead to the results in a browser and on microcontrollers, if there are any."""
    names = {"wasm": "models as WebAssembly", "webgpu": "models on WebGPU", "llm": "language models"}
    paths = {name: folder / f"web-{kind}.md" for kind, name in names.items()}
    links = [f"[{name}]({path.name})" for name, path in paths.items() if path.exists()]
    found = [f"In a browser: {', '.join(links)}."] if links else []
    if (folder / "mcu-qemu.md").exists():
        found.append("On microcontrollers: [instructions, flash and RAM](mcu-qemu.md).")
    return found


def _link(path: Path | None) -> str:
    """The results' latest date, which leads to their tables."""
    return f"[{_date(path)}]({path.with_suffix('.md').name})" if path else ""


def _date(path: Path) -> str:
    content = json.loads(path.read_text())
    if "note" in content:
        return str(content["note"]).partition(",")[0]
    found = [row["date"] for row in content["rows"] if "date" in row]
    engines = [f for row in content["rows"] for f in row.get("engines", {}).values()]
    found += [f["date"] for f in engines if "date" in f]
    return str(max(found, default=path.stem))


def _models(rows: dict[str, list[dict[str, Any]]]) -> str:
    """The geometric means and the smallest ratios by kind of row."""
    keys = sorted({report.row_key(row) for found in rows.values() for row in found}, key=report.order)
    body = []
    for key in keys:
        cells = []
        for found in rows.values():
            ratios = {
                row["case"]["model"]: best[1]
                for row in found
                if report.row_key(row) == key and (best := report.best_peer(row))
            }
            cells.append(_spread(ratios))
        body.append([report.title(*key), *cells])
    return (
        "The fastest peer's time over Tilewright's: the geometric mean of the models, and the least.\n\n"
        + report.table(["", *[described(name) for name in rows]], body)
    )


def _searched(rows: dict[str, list[dict[str, Any]]]) -> str:
    """The peer's time over that of Tilewright without and with a search."""
    body = []
    for ours in (tuned.OURS, tuned.OWN):
        body.append(
            [f"{tuned.PEER} ÷ {ours}", *[_spread(tuned.ratios(found, ours)) for found in rows.values()]]
        )
    return (
        "The time of TVM with MetaSchedule over Tilewright's: the geometric mean of the models, and the "
        "least. The tables have the searches' lengths.\n\n"
        + report.table(["", *[described(name) for name in rows]], body)
    )


def _products(rows: dict[str, list[dict[str, Any]]]) -> str:
    body = []
    for precision in gemm.PEERS:
        cells = []
        for found in rows.values():
            chosen = [row for row in found if row["precision"] == precision and "failed" not in row]
            cells.append(_spread({gemm.name(row): gemm.best_peer(row)[0] for row in chosen}))
        body.append([precision, *cells])
    return (
        "The fastest peer's time over Tilewright's: the geometric mean of the shapes, and the least.\n\n"
        + report.table(["", *[described(name) for name in rows]], body)
    )


def _spread(ratios: dict[str, float]) -> str:
    if not ratios:
        return ""
    least = min(ratios, key=lambda name: ratios[name])
    return f"{statistics.geometric_mean(ratios.values()):.2f} ({least} {ratios[least]:.2f})"

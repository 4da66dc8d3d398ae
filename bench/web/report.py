"""The results of the benchmark in the browser as text."""

from __future__ import annotations

import datetime
import json
import math
import platform
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
ABOUT = {
    "wasm": ("WebAssembly", "both engines in one worker, in turns, batch 1, float32."),
    "webgpu": (
        "WebGPU",
        "both engines on WebGPU in one worker, in turns, batch 1, images of 112×112,\n"
        "float32. The driver is SwiftShader, which runs kernels on the processor: no figures of a GPU.",
    ),
}
"""The title of each engine, and how it is measured."""


def summary(rows: list[dict[str, Any]]) -> str:
    """The mean and the least ratio of rows."""
    ratios = [row["ratio"] for row in rows]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return f"Geometric mean {mean:.2f}, least {min(ratios):.2f}."


def record(rows: list[dict[str, Any]], engine: str, ort: Path) -> None:
    """Write the rows to ``web-ENGINE.md`` and ``.json``. `ort` is the folder ``dist`` of ONNX Runtime Web."""
    version = json.loads((ort.parent / "package.json").read_text())["version"]
    about = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "browser": f"Chromium {rows[0]['browser']}",
        "onnxruntime-web": version,
    }
    path = RESULTS / f"web-{engine}"
    path.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    title, how = ABOUT[engine]
    option = "" if engine == "wasm" else f" --engine {engine}"
    has_threads = "threads" in rows[0]
    lines = [
        f"# {title} in a browser",
        "",
        f"Measured {about['date']} on two cores of {about['processor']} in headless {about['browser']},",
        f"against ONNX Runtime Web {version}; {how}",
        f"Medians. Command: `python -m bench.web --site FOLDER --ort FOLDER{option} --record`.",
        "",
        f"| model |{' threads |' if has_threads else ''} Tilewright, ms | ONNX Runtime Web, ms | ratio |",
        f"|---|{'---|' if has_threads else ''}---|---|---|",
        *(
            f"| {row['model']} |{' {} |'.format(row['threads']) if has_threads else ''} "
            f"{row['milliseconds']['tilewright']:.2f} | {row['milliseconds']['onnxruntime']:.2f} | "
            f"{row['ratio']:.2f} |"
            for row in rows
        ),
        "",
        summary(rows),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def processor() -> str:
    """The name of this machine's processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()

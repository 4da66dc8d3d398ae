"""The section of docs/guide/coverage.md about devices, from the outcomes in ``devices/``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import reasons
from .devices import FOLDER

RUNS_ON = {
    "cuda": "simulated",
    "hip": "simulated",
    "metal": "simulated",
    "opencl": "PoCL",
    "vulkan": "lavapipe",
    "webgpu": "lavapipe",
}
"""The device of each interface on a machine without a GPU."""


def section() -> Iterator[str]:
    """The lines of the section."""
    yield ""
    yield "## Devices"
    yield ""
    yield (
        "Kernels for GPUs on a machine without one (`python -m tests.conformance.devices`): by drivers for "
        'processors, or simulated. "Checked" runs search for accesses out of bounds, races, values that were '
        "never written, and barriers that not all threads reach; a finding counts as wrong."
    )
    yield from _onnx()
    yield from _others()


def _found(part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each device with outcomes of a part, and the outcomes."""
    for path in sorted(FOLDER.glob(f"*.{part}.json")):
        name = path.name.removesuffix(f".{part}.json")
        interface = name.removesuffix("-checked").partition("-")[0]
        how = RUNS_ON[interface] + (", checked" if name.endswith("-checked") else "")
        yield f"{name.removesuffix('-checked').replace('-', ':')} ({how})", json.loads(path.read_text())


def _onnx() -> Iterator[str]:
    rows = dict(_found("onnx"))
    yield ""
    yield (
        "ONNX's tests that pass on the CPU, without those with strings or image files. Where not all have "
        "run, those that have are spread over all operators."
    )
    yield ""
    yield "| device | tests | run | pass | refused | wrong | date |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in rows.items():
        counts = (row["of"], row["cases"], row["passed"], row.get("refused", 0), row.get("wrong", 0))
        yield f"| {name} | {' | '.join(map(str, counts))} | {row['date']} |"
    for name, row in rows.items():
        if row["not_passed"]:
            yield from reasons.table(f"{name}: not passing because", "cases", row["not_passed"].items())


def _others() -> Iterator[str]:
    models, layers, programs = (dict(_found(part)) for part in ("models", "layers", "programs"))
    yield ""
    yield (
        "Models are compared with eager PyTorch: small ones with fixed and with dynamic sizes, and one layer "
        "of the published width of each architecture. Random programs are compared with the interpreter."
    )
    yield ""
    yield "| device | models, right | layers of full width, right | programs, right |"
    yield "|---|---|---|---|"
    for name in sorted({*models, *layers, *programs}):
        cells = [_right(models.get(name, {})), _right(layers.get(name, {})), ""]
        if program := programs.get(name):
            count = program["seeds"][1] - program["seeds"][0]
            cells[2] = f"{count - len(program['wrong'])} of {count}"
        yield f"| {name} | {' | '.join(cells)} |"


def _right(found: dict[str, Any]) -> str:
    """How many models of how many are right; "" if none was run."""
    rows = [row for row in found.values() if isinstance(row, dict)]
    return f"{sum(row['outcome'] == 'right' for row in rows)} of {len(rows)}" if rows else ""


__all__ = ["section"]

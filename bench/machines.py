"""Machines and their classes. Results of one class of machines stand in files of their own."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
_CLASSES = {  # by what decides which kernels are generated, the most capable class first
    "amx": ("AVX-512 with AMX", {"avx512f", "amx_tile", "amx_bf16"}),
    # Without AMX, only Zen 5 has both; its 512-bit instructions take half of Zen 4's cycles.
    "avx512-avx-vnni": (
        "AVX-512 with BF16, and AVX-VNNI (Zen 5)",
        {"avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni"},
    ),
    "avx512-bf16": ("AVX-512 with VNNI and BF16 (Zen 4)", {"avx512f", "avx512_vnni", "avx512_bf16"}),
    "avx512-vnni": ("AVX-512 with VNNI", {"avx512f", "avx512_vnni"}),
    "avx512": ("AVX-512", {"avx512f"}),
    "avx2": ("AVX2", {"avx2"}),
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


def class_of(flags: Iterable[str]) -> str:
    """The class of a machine whose processor has these features, a part of the names of its results."""
    have = set(flags)
    return next((name for name, (_, needed) in _CLASSES.items() if needed <= have), platform.machine())


def described(name: str) -> str:
    """The class `name` in words."""
    return _CLASSES[name][0] if name in _CLASSES else name


def results_file(kind: str) -> Path:
    """The JSON file of this machine's results of one benchmark, such as "models"."""
    return RESULTS / f"{kind}-{class_of(machine()['flags'])}.json"


def results_files(kind: str, folder: Path = RESULTS) -> dict[str, Path]:
    """The JSON files of a benchmark's results by class, the known classes first."""
    found = {path.stem.removeprefix(f"{kind}-"): path for path in sorted(folder.glob(f"{kind}-*.json"))}
    known = {name: found[name] for name in _CLASSES if name in found}
    return known | found


def features(flags: Iterable[str]) -> str:
    """The features that a heading names."""
    named = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return ", ".join(sorted(set(flags) & set(named)))

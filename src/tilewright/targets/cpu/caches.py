"""Sizes of this machine's caches, read from Linux's sysfs."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def l2_bytes(cpus: Path = _CPUS) -> int | None:
    """Return the bytes of the second-level cache that a core has to itself: the minimum over the processors
    this process may use.

    A cache that several cores share counts as divided among them. None if the system does not say.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    sizes = [size for number in usable if (size := _of(cpus, number)) is not None]
    return min(sizes, default=None)


def _of(cpus: Path, number: int) -> int | None:
    for index in sorted((cpus / f"cpu{number}" / "cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() != "2":
                continue
            size = (index / "size").read_text().strip()
            sharing = _numbers((index / "shared_cpu_list").read_text())
            cores = {(cpus / f"cpu{k}" / "topology" / "core_cpus_list").read_text() for k in sharing}
            return int(size[:-1]) * _UNITS[size[-1]] // len(cores)
        except (OSError, ValueError, KeyError, ZeroDivisionError):
            return None
    return None


def _numbers(text: str) -> list[int]:
    """The numbers of a list like ``0-3,8``."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers

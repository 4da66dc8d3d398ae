"""The machines that schedules are made for: common ones for each instruction set, and this one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...ir.target_info import CacheLevel, Machine
from ..llvm.machine import UNITS

_CPUS = Path("/sys/devices/system/cpu")

CORES = 16
"""Cores of a machine of which only the instruction set is known. A larger value gives more and smaller pieces
of work.
"""


def common(l1: int, l2: int, cores: int = CORES) -> Machine:
    """A machine whose cores have caches of `l1` and `l2` KiB each."""
    return Machine(cores, (CacheLevel(1, l1 << 10), CacheLevel(2, l2 << 10)))


def this_machine(otherwise: Machine, cpus: Path = _CPUS) -> Machine:
    """This machine, as the processors that this process may use show it.

    Processors that differ count as the smallest of them. `otherwise` gives what the system does not say.
    Two threads of one core count as two cores, as for the number of threads of a library.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all_processors()
    found = [_caches_of(cpus, number) for number in usable]
    caches = []
    for level in (1, 2, 3):
        known = [caches[level] for caches in found if level in caches]
        smallest = min(known, key=lambda cache: (cache.share, cache.size), default=otherwise.cache(level))
        caches += [smallest] if smallest is not None else []
    return replace(otherwise, cores=len(usable) or 1, caches=tuple(caches))


def _all_processors() -> Sequence[int]:
    return range(os.cpu_count() or 1)


def _caches_of(cpus: Path, number: int) -> dict[int, CacheLevel]:
    """The data caches of a processor, by level. A cache that the system describes otherwise is left out."""
    found = {}
    for index in sorted((cpus / f"cpu{number}" / "cache").glob("index*")):
        try:
            kind = index / "type"
            if kind.exists() and kind.read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            sharing = _numbers((index / "shared_cpu_list").read_text())
            cores = {(cpus / f"cpu{k}" / "topology" / "core_cpus_list").read_text() for k in sharing}
            found[level] = CacheLevel(level, int(size[:-1]) * UNITS[size[-1]], len(cores))
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return {level: cache for level, cache in found.items() if cache.size > 0 and cache.cores > 0}


def _numbers(text: str) -> list[int]:
    """The numbers of a list like ``0-3,8``."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers

"""The number of cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores that this process may use, and that a run uses without the option `threads`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1

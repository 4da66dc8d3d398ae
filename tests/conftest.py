"""Settings of all tests. A kernel that falls back to a slower schedule is an error, because it shows a
mistake in a schedule rule.
"""

from __future__ import annotations

import gc
import os

import hypothesis  # noqa: F401  # before other modules, so that it does not read all of them for constants
import pytest

from tilewright.ir.debug import STRICT_SCHEDULES, VARIABLE

os.environ.setdefault(VARIABLE, STRICT_SCHEDULES)
# PyTorch uses one thread, because the models are small and the workers of pytest share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# JAX: most programs run once or twice, and XLA takes twice as long to compile them with its optimizations.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
gc.disable()  # what imports and collecting the tests make stays


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and tests, which stay in memory, away from the garbage collector. Scanning them took a
    tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()

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


def keep() -> None:
    """Keep what is alive now away from the garbage collector."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep modules and tests, which stay in memory, away from the garbage collector. Scanning them took a
    tenth of the time.
    """
    keep()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what a file's tests leave behind, too. After thousands of tests a collection took three seconds,
    and some tests ask for several.
    """
    if nextitem is None or nextitem.path != item.path:
        keep()

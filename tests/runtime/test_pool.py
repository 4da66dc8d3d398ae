"""The number of the pool's threads and the processors on which they may run, as Linux reports them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from build import expected

import tilewright as tw
from tilewright.runtime.library import Library

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def tasks() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def run(library: Library) -> None:
    generator = np.random.default_rng(0)
    x, z = generator.random((4096, 8), np.float32), generator.random(4096, np.float32)
    for result, reference in zip(library(x, z), expected(x, z), strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-6)


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_threads_start_with_the_first_work_and_end_with_the_library(affine: Path) -> None:
    before = tasks()
    library = Library(affine, num_threads=2)
    assert tasks() == before
    run(library)
    assert len(tasks() - before) == 1
    library.close()
    assert tasks() == before


def test_no_more_threads_than_cores(affine: Path) -> None:
    before = tasks()
    with Library(affine, num_threads=64) as library:
        run(library)
        assert len(tasks() - before) < CORES


@pytest.mark.parametrize("threads", [0, 8])
def test_a_process_with_one_core_computes_alone(affine: Path, threads: int) -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "import numpy as np; from tilewright.runtime.library import Library;"
        f"library = Library({str(affine)!r}, num_threads={threads}); before = "
        "len(os.listdir('/proc/self/task'));"
        "y, _ = library(np.ones((4096, 8), np.float32), np.zeros(4096, np.float32));"
        "print(len(os.listdir('/proc/self/task')) - before, float(y[7, 7]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "84.0"]


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
@pytest.mark.parametrize("pinned", [False, True])
def test_pinned_workers_stay_on_a_core(affine: Path, pinned: bool) -> None:
    before = tasks()
    with tw.load(affine, threads=2, pin_threads=pinned) as library:
        run(library)  # type: ignore[arg-type]
        (worker,) = tasks() - before
        wanted, end = 1 if pinned else CORES, time.monotonic() + 10
        while len(os.sched_getaffinity(worker)) != wanted:  # The thread may not have run yet.
            assert time.monotonic() < end
            time.sleep(0.001)


@pytest.mark.parametrize(("rows", "threads"), [(4, 0), (2048, 1)])
def test_only_work_for_two_wakes_a_second_thread(rows: int, threads: int) -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(128, 256), torch.nn.ReLU(), linear(256, 128)).eval()
    x = torch.randn(rows, 128)
    library = tw.compile(model, (x,), dims={"input": {0: "rows<=4096"}}, threads=2)
    with torch.no_grad():
        wanted = model(x)
    before = tasks()
    torch.testing.assert_close(library(x), wanted, rtol=1e-4, atol=1e-5)
    started, end = threads if CORES > 1 else 0, time.monotonic() + 10
    while len(tasks() - before) != started:  # The threads that gathered the weights may not have ended yet.
        assert time.monotonic() < end
        time.sleep(0.001)

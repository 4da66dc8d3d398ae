"""Measuring: speedups, the comparison with the default, and candidates that crash, hang or are wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from tilewright.artifact import link
from tilewright.tuning.child import difference, dtype_of, filling
from tilewright.tuning.harness import Argument, KernelDescription, harness_library, host_triple
from tilewright.tuning.measure import Built, MeasureError, Measurement, Measurer
from tilewright.tuning.memory import GuardedMemory
from tilewright.tuning.statistics import estimate

SOURCE = Path(__file__).with_name("kernels.c")
KERNELS = ("sum", "same_sum", "four_sums", "twice", "crashes", "aborts", "hangs", "one_wrong", "forgets_one")
KERNELS += ("reads_beyond", "writes_before", "writes_input", "uses_scratch", "wrong_later")
ARGUMENTS = (Argument("x", "f32", (64, 256)), Argument("y", "f32", (64,), "output"))

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the kernels and the signals are those of POSIX")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of all kernels."""
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    objects = link.compile_c([SOURCE], [], host_triple(), ["-O2", "-fno-inline"])
    link.link_shared(objects, path, host_triple(), KERNELS)
    return path


@pytest.fixture(scope="module")
def measurer() -> Measurer:
    """A measurer whose legs are short."""
    return Measurer(harness_library(), leg_seconds=2e-4, least_seconds=0.5)


def built(library: Path, symbol: str, **fields: object) -> Built:
    kernel = KernelDescription(symbol, ARGUMENTS, extent=64, terms=256)
    return Built(library, replace(kernel, **fields), symbol)  # type: ignore[arg-type]


def measured(
    measurer: Measurer, library: Path, symbol: str, blocks: int = 3, **fields: object
) -> Measurement:
    return measurer.measure(built(library, "sum"), built(library, symbol, **fields), blocks)


def test_a_kernel_of_twice_the_work_has_half_the_speed(measurer: Measurer, library: Path) -> None:
    found = measured(measurer, library, "twice", 9)
    assert found.failure is None and len(found.samples) == 9
    assert 0.35 < exp(float(np.median(found.samples))) < 0.7
    assert found.seconds and found.default_seconds and found.seconds > found.default_seconds > 1e-7


def test_a_hopeless_candidate_is_given_up(measurer: Measurer, library: Path) -> None:
    found = measured(replace(measurer, hopeless=0.9), library, "twice", 40)
    assert found.failure is None and len(found.samples) < 40


def test_equal_code_is_equally_fast_and_right(measurer: Measurer, library: Path) -> None:
    """Twenty processes' worth of confidence needs more time than a test has; see test_search.py."""
    found = measured(measurer, library, "same_sum", 9)
    assert found.failure is None
    assert abs(float(np.median(found.samples))) < 0.2


def test_another_order_of_sums_must_be_declared(measurer: Measurer, library: Path) -> None:
    found = measured(measurer, library, "four_sums")
    assert found.failure == "wrong" and "must be equal bit for bit" in found.message
    found = measured(measurer, library, "four_sums", reorders_sums=True)
    assert found.failure is None


@pytest.mark.parametrize(
    ("symbol", "failure", "message"),
    [
        ("crashes", "crash", "SIGSEGV"),
        ("aborts", "crash", "SIGABRT"),
        ("hangs", "hang", "no answer"),
        ("one_wrong", "wrong", r"1 of 64 elements of y differ from the default's, the first at \(7,\)"),
        ("forgets_one", "wrong", r"the first at \(63,\): nan"),
        ("reads_beyond", "crash", "SIG"),
        ("writes_before", "wrong", "writes outside of y"),
        ("writes_input", "crash", "SIG"),
        ("wrong_later", "wrong", r"the first at \(0,\)"),
    ],
)
def test_failures_are_told_apart(
    measurer: Measurer, library: Path, symbol: str, failure: str, message: str
) -> None:
    found = measured(measurer, library, symbol, reorders_sums=True)
    assert found.failure == failure and not found.samples
    assert re.search(message, found.message), found.message


def test_scratch_memory_has_its_size(measurer: Measurer, library: Path) -> None:
    assert measured(measurer, library, "uses_scratch", 1, scratch=64).failure is None
    found = measured(measurer, library, "uses_scratch", 1, scratch=60)
    assert found.failure == "wrong" and "outside of its scratch memory" in found.message


def test_threads_share_the_range(measurer: Measurer, library: Path) -> None:
    found = measured(measurer, library, "uses_scratch", 1, threads=2, grain=4, scratch=64)
    assert found.failure is None


def test_a_default_that_fails_is_an_error(measurer: Measurer, library: Path) -> None:
    with pytest.raises(MeasureError, match="the default cannot be measured: crash: .*SIGSEGV"):
        measurer.measure(built(library, "crashes"), built(library, "sum"))
    with pytest.raises(MeasureError, match="undefined symbol|not found"):
        measurer.measure(built(library, "absent"), built(library, "sum"))
    with pytest.raises(MeasureError, match="same arguments"):
        measurer.measure(built(library, "sum"), built(library, "sum", arguments=ARGUMENTS[::-1]))


def test_the_process_ends_with_its_parent(measurer: Measurer, library: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import test_measure as t\n"
        "from tilewright.tuning.measure import Measurer\n"
        "m = Measurer(pathlib.Path(sys.argv[2]), least_seconds=60)\n"
        "print('started', flush=True)\n"
        "t.measured(m, pathlib.Path(sys.argv[3]), 'hangs')\n"
    )
    arguments = [str(SOURCE.parent), str(measurer.harness), str(library)]
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        if not children.exists():
            parent.kill()
            pytest.skip("no list of child processes")
        deadline = time.monotonic() + 20
        while not children.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        child = int(children.read_text().split()[0])
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    assert time.monotonic() < deadline


def test_cold_arguments_do_not_stay_in_the_cache(measurer: Measurer, library: Path) -> None:
    arguments = (replace(ARGUMENTS[0], cold=True), ARGUMENTS[1])
    default = built(library, "sum", arguments=arguments)
    found = replace(measurer, cache_bytes=1 << 20).measure(default, replace(default, digest="2"), 2)
    assert found.failure is None and len(found.samples) == 2


def test_a_description_is_read_as_it_was_written(library: Path) -> None:
    kernel = built(library, "sum", dims=(3, 4), scratch=64).kernel
    assert KernelDescription.from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    with pytest.raises(ValueError, match="format 9"):
        KernelDescription.from_json({**kernel.to_json(), "format": 9})


@pytest.mark.parametrize("size", [0, 1, 64, 100, 4096, 5000])
def test_guarded_memory_is_aligned_and_watched(size: int) -> None:
    memory = GuardedMemory(size, 2)
    assert memory.address % 64 == 0 and len(memory.array(1)) == size
    memory.array(0)[:] = 1
    assert memory.is_intact()
    if size % 64:
        memory._bytes[memory._spans[1][1] + size] = 0
        assert not memory.is_intact()


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "bf16", "f8e5m2", "i8", "u8", "i64", "bool"])
def test_arguments_of_all_types_are_filled_and_compared(dtype: str) -> None:
    argument = Argument("x", dtype, (3, 5), low=0, high=9)
    data = filling(argument, 1)
    assert len(data) == 15 * dtype_of(dtype).itemsize
    kernel = KernelDescription("f", (argument,), 1, reorders_sums=True, terms=100)
    assert difference(argument, data, data.copy(), kernel) == ""
    other = filling(argument, 2)
    assert "differ from the default's" in difference(argument, data, other, kernel)
    unwritten = filling(replace(argument, role="output"), 1)
    assert "differ" in difference(argument, data, unwritten, kernel)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no data type 'f7'"):
        dtype_of("f7")


def test_the_tolerance_grows_with_the_terms() -> None:
    argument = Argument("y", "f32", (1000,), "output")
    expected = np.random.default_rng(0).normal(0, 30, 1000).astype(np.float32)
    given = expected + np.float32(1e-4)
    few = KernelDescription("f", (argument,), 1, reorders_sums=True, terms=1)
    arrays = expected.view(np.uint8), given.view(np.uint8)
    assert difference(argument, *arrays, few)
    assert not difference(argument, *arrays, replace(few, terms=4096))
    assert difference(argument, *arrays, replace(few, reorders_sums=False))


def test_a_copy_of_the_default_is_not_faster(measurer: Measurer, library: Path, tmp_path: Path) -> None:
    """Equal code in two libraries, measured as in a final."""
    copy = tmp_path / "copy.so"
    copy.write_bytes(library.read_bytes())
    default = built(library, "sum")
    groups = [measurer.measure(default, built(copy, "sum"), 10).samples for _ in range(3)]
    found = estimate(groups, 1 - 0.005 / 8)
    assert found.lower < 0.01
    assert abs(found.median) < 0.1

"""The measured roofs are plausible, and are measured once."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.driver.cores import usable_cores
from tilewright.tools.roofline import Roofline, machine, measure, peaks, reader


def test_peaks_are_not_beaten_by_numpy() -> None:
    """A matrix product of NumPy is not faster than the peak, up to noise, and not much slower."""
    threads = usable_cores()
    here = measure(threads)
    a = np.random.default_rng(0).random((1024, 1024), np.float32)
    a @ a
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - begin)
    reached = 2 * 1024**3 / min(seconds)
    assert reached < 1.5 * here.flops
    assert here.flops < 100 * reached
    assert 1e9 < here.bandwidth < 1e13
    assert here.flops <= min(here.bf16_flops, here.int8_flops)


def test_the_best_measurement_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    machine.cache_clear()
    try:
        first = machine(1)
        assert first.threads == 1
        for flops, expected in ((first.flops / 3, first.flops), (first.flops * 3, first.flops * 3)):
            machine.cache_clear()
            now = replace(first, flops=flops)
            monkeypatch.setattr("tilewright.tools.roofline.measure", lambda *_, now=now: now)
            assert machine(1).flops == expected
    finally:
        machine.cache_clear()


def test_single_measurements_keep_their_code_and_memory() -> None:
    rates, read = peaks(1), reader(1, 1 << 20)
    gc.collect()
    assert "float32" in rates and all(rate() > 1e8 for rate in rates.values()) and 0 < read() < 10


def test_roofline() -> None:
    here = Roofline("a processor", 2, flops=100e9, bandwidth=10e9)
    assert here.floor_seconds(100e9, 0) == 1
    assert here.floor_seconds(1e9, 20e9) == 2


def test_bytes_that_caches_hold_are_no_bytes_of_memory() -> None:
    here = Roofline("a processor", 2, 100e9, 10e9, 400e9, 800e9, cached=((1 << 20, 80e9), (16 << 20, 40e9)))
    for size, rate in ((1e3, 80e9), (2e6, 80e9), (20e6, 40e9), (300e6, 10e9)):
        assert here.bandwidth_of(size) == rate
        assert here.floor_seconds(0, 1e9, size) == 1e9 / rate
    assert here.floor_seconds(0, 1e9) == 0.1, "without a size of the data, all bytes come from memory"
    assert here.peak_of(()) == here.peak_of({"f32": 3}) == 100e9
    assert (here.peak_of({"f32": 1, "bf16": 2}), here.peak_of({"u8": 1})) == (400e9, 800e9)
    assert replace(here, cached=()).bandwidth_of(1e3) == 10e9


def test_profiled_kernels_stay_below_the_roofline() -> None:
    """A kernel that reads 1 MB in 12.5 us reads it from a cache. It reaches the whole 80 GB/s of the cache,
    and not eight times memory's rate.
    """
    from tilewright.cli.profile import _share
    from tilewright.runtime.model import KernelProfile

    here = Roofline("a processor", 2, 100e9, 10e9, cached=((1 << 20, 80e9), (16 << 20, 40e9)))
    assert _share(here, KernelProfile("k", 4, 4 * 12.5e-6, 4_000_000, 0), {}) == pytest.approx(1.0)
    assert _share(here, KernelProfile("k", 1, 0.1, 1_000_000_000, 0), {}) == pytest.approx(1.0)
    assert _share(here, KernelProfile("k", 1, 0.0, 1, 1), {}) == 0.0

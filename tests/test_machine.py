"""The measured roofs are plausible, and measured once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.machine import Machine, machine, measure, usable_cores


def test_peaks_are_not_beaten_by_numpy() -> None:
    """A matrix product cannot be faster than the peak (but for noise), and is not very far below it."""
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
            monkeypatch.setattr("tilewright.machine.measure", lambda *_, now=now: now)
            assert machine(1).flops == expected
    finally:
        machine.cache_clear()


def test_roofline() -> None:
    here = Machine("a processor", 2, flops=100e9, bandwidth=10e9)
    assert here.floor_seconds(100e9, 0) == 1
    assert here.floor_seconds(1e9, 20e9) == 2

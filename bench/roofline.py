"""The machine's roofs, measured in the run that uses them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .worker import Child, holding


@dataclass(frozen=True)
class Roof:
    """Peak flop/s by precision and bytes/s from memory, on `threads` threads."""

    threads: int
    flops: dict[str, float]
    bandwidth: float

    def floor_seconds(self, precision: str, flops: float, num_bytes: float) -> float:
        """No program that does `flops` operations in `precision` and moves `num_bytes` is faster."""
        return max(flops / self.flops[precision], num_bytes / self.bandwidth)


def measure_roof(threads: int, lock: Path | None = None, nice: int | None = None, timeout: float = 120) -> Roof:
    """Measure now, in a process of its own, on the terms of `measure.measure`: some seconds."""
    child = Child(_roof, threads, threads=threads)
    try:
        child.first(timeout)
        child.prioritize(nice)
        with holding(lock):
            return Roof(**child.ask(None, timeout))
    finally:
        child.close()


def _roof(threads: int) -> Any:
    from tilewright.machine import measure

    yield
    found = measure(threads)
    flops = {"float32": found.flops, "bf16": max(found.flops, _onednn_bf16(threads))}
    yield asdict(Roof(threads, flops, found.bandwidth))


def _onednn_bf16(threads: int) -> float:
    """The best of some large bf16 products as torch calls oneDNN."""
    import time

    import torch

    torch.set_num_threads(threads)
    n = 2048
    a, b = (torch.randn(n, n).to(torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best

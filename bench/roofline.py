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
    yield asdict(Roof(threads, {"float32": found.flops, "bf16": found.bf16_flops}, found.bandwidth))

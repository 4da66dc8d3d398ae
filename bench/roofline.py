"""The machine's rooflines, measured in the run that uses them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .worker import Child, holding


@dataclass(frozen=True)
class Roof:
    """Peak operations per second by precision, memory bandwidth in bytes/s, and the capacity of the cores'
    own caches in bytes, on `threads` threads.
    """

    threads: int
    flops: dict[str, float]
    bandwidth: float
    cache: int = 0

    def floor_seconds(self, precision: str, kernels: list[tuple[float, float]]) -> float:
        """A lower bound of the seconds of kernels run one after the other, each given as (operations, bytes
        moved).

        If the caches can hold all data that one run moves, its bytes do not count.
        """
        moving = sum(moved for _, moved in kernels) > self.cache
        return sum(max(f / self.flops[precision], moving * moved / self.bandwidth) for f, moved in kernels)


def measure_roof(
    threads: int, lock: Path | None = None, nice: int | None = None, timeout: float = 120
) -> Roof:
    """Measure now, in a separate process, with the priority and lock of `measure.measure`; takes some
    seconds.
    """
    child = Child(_roof, threads, threads=threads)
    try:
        child.first(timeout)
        child.prioritize(nice)
        with holding(lock):
            return Roof(**child.ask(None, timeout))
    finally:
        child.close()


def _roof(threads: int) -> Any:
    from tilewright.tools.roofline import measure

    yield
    found = measure(threads)
    flops = {"float32": found.flops, "bf16": found.bf16_flops, "int8": found.int8_flops}
    yield asdict(Roof(threads, flops, found.bandwidth, threads * _own_cache()))


def _own_cache() -> int:
    """Bytes of a core's second-level cache; 0 where Linux does not report it."""
    path = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    return int(path.read_text().strip().rstrip("K")) * 1024 if path.exists() else 0

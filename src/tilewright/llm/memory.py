"""The memory that a library needs: weights, the KV cache and other states, and the arena of the running
function.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..dialects import func, graph
from ..errors import CompileError
from ..ir.core import Module
from ..ir.types import DType
from .runner import ADAPTER, PAGE


@dataclass(frozen=True)
class MemoryEstimate:
    """Sizes in bytes, at the upper bounds of all dimensions."""

    weights: int
    cache: int
    """All states except for those of adapters."""
    per_token: int
    """Bytes of paged states per token."""
    adapters: int = 0
    """The matrices of low-rank adapters."""
    arenas: Mapping[str, int] = field(default_factory=dict)
    """The arena of each function; empty before lowering. Arenas share memory, so only the largest counts."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.adapters + max(self.arenas.values(), default=0)

    def to_metadata(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "arenas": dict(self.arenas),
            "cache_bytes_per_token": self.per_token,
            "cache": self.cache,
            "adapters": self.adapters,
            "total": self.total,
        }

    def __str__(self) -> str:
        parts = [f"weights {_mebibytes(self.weights)}", f"KV cache {_mebibytes(self.cache)}"]
        if self.per_token:
            parts[-1] += f" ({self.per_token} bytes a token)"
        if self.adapters:
            parts.append(f"adapters {_mebibytes(self.adapters)}")
        if self.arenas:
            function, largest = max(self.arenas.items(), key=lambda item: item[1])
            parts.append(f"arena {_mebibytes(largest)} ({function})")
        return f"{_mebibytes(self.total)}: {', '.join(parts)}"


def _mebibytes(n: int) -> str:
    return f"{n / 2**20:.1f} MiB"


def estimated(module: Module, pages: int, precision: str | None) -> MemoryEstimate:
    """The estimate for an imported module with a cache of `pages` pages, before compilation.

    Each constant counts once, in its own type, or in `precision` if that is narrower than float32.
    """
    constants = {op.value for op in module.walk() if isinstance(op, graph.Constant)}
    narrow = 32 if precision is None else DType.named(precision).bits
    bits = sum(c.size * (min(narrow, 32) if c.dtype.name == "f32" else c.dtype.bits) for c in constants)
    states = func.shared_states(func.entries(module))
    shapes = {name: (list(t.shape), t.dtype.itemsize) for name, (t, _) in states.items()}
    return MemoryEstimate(bits // 8, *_of_states(shapes, pages))


def planned(metadata: Mapping[str, Any]) -> MemoryEstimate:
    """The memory of a compiled library, from its metadata."""
    functions = metadata.get("functions") or {"main": metadata}
    arenas = {name: entry["memory"]["arena_bytes"] for name, entry in functions.items()}
    states = {s["name"]: (s["shape"], DType.named(s["dtype"]).itemsize) for s in metadata.get("states", ())}
    return MemoryEstimate(
        metadata["memory"]["weights_bytes"], *_of_states(states, metadata["llm"]["pages"]), arenas
    )


def _of_states(states: dict[str, tuple[list[Any], int]], pages: int) -> tuple[int, int, int]:
    """Bytes of all states but adapters, bytes per token of the paged ones, and bytes of adapters, given the
    states' shapes and element sizes by name.
    """
    sizes = {name: math.prod(shape) * size for name, (shape, size) in states.items()}
    adapters = sum(size for name, size in sizes.items() if name.startswith(ADAPTER))
    paged = sum(
        sizes[name]
        for name, (shape, _) in states.items()
        if shape[0] == pages and PAGE in shape[1:] and not name.startswith(ADAPTER)
    )
    return sum(sizes.values()) - adapters, paged // (pages * PAGE), adapters


def machine_memory() -> int:
    """The memory that this process may use, in bytes: the machine's, or the limit of its control group."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdigit() else installed


def must_fit(estimate: MemoryEstimate) -> None:
    """Check that the machine has enough memory.

    Raises:
        CompileError: the machine has less memory.
    """
    if estimate.total > (limit := machine_memory()):
        raise CompileError(
            f"the library needs {estimate}; this machine has {_mebibytes(limit)}. Reduce the sequences "
            "(--max-batch-size), their length (--context-window-size), the cache (--kv-cache) or its data "
            "type (--kv-dtype); or compile for another machine with --no-memory-check"
        )


__all__ = ["MemoryEstimate", "estimated", "machine_memory", "must_fit", "planned"]

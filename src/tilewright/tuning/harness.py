"""The library that runs kernels for the autotuner, and the description of a kernel that it needs.

A measured kernel is a shared library with a function ``(begin, end, buffers, dims, scratch)``, as `runtime.h`
declares it, and a description of its arguments, which travels as JSON. A machine that measures needs these
two and the harness for its system, but no compiler.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tilewright.artifact import disk_cache, link, temporary
from tilewright.artifact.kinds import suffixes_of
from tilewright.artifact.sources import COMPILE_FLAGS, INCLUDE_DIR

SOURCE = Path(__file__).parent / "c" / "harness.c"
EXPORTS = ("tw_harness_create", "tw_harness_destroy", "tw_harness_run")
_KIND = "harness"
_FORMAT = 1


@dataclass(frozen=True)
class Argument:
    """One buffer of a kernel."""

    name: str
    dtype: str
    """The data type of the elements, as types are printed: "f32", "bf16", "i8"."""
    shape: tuple[int, ...]
    role: Literal["input", "output", "updated"] = "input"
    """Whether the kernel reads the buffer, writes all of it, or reads and writes it."""
    low: float = -1.0
    """Inputs are uniformly random: the least value..."""
    high: float = 1.0
    """...and the greatest, which integers may reach."""
    cold: bool = False
    """Whether the caches do not hold the buffer when a launch begins, as with weights that exceed them."""


@dataclass(frozen=True)
class KernelDescription:
    """How to call a kernel."""

    symbol: str
    """The exported function."""
    arguments: tuple[Argument, ...]
    """The buffers, in the order of the function's parameter `buffers`."""
    extent: int
    """The launch's range is [0, extent)."""
    grain: int = 1
    """A thread gets multiples of so many items."""
    dims: tuple[int, ...] = ()
    """The values of the symbols that the kernel reads."""
    scratch: int = 0
    """Bytes of each thread's private memory."""
    threads: int = 1
    reorders_sums: bool = False
    """Whether its results may differ from the default's by the rounding of sums."""
    terms: int = 1
    """The most terms of a sum, on which the rounding depends."""

    def to_json(self) -> dict[str, Any]:
        """The description as values that JSON holds."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> KernelDescription:
        """The description that `to_json` gave.

        Raises:
            ValueError: It is of another format.
        """
        given = dict(fields)
        if given.pop("format", None) != _FORMAT:
            raise ValueError(f"the description has format {fields.get('format')}, this Tilewright {_FORMAT}")
        arguments = tuple(Argument(**{**a, "shape": tuple(a["shape"])}) for a in given.pop("arguments"))
        return cls(arguments=arguments, **{**given, "dims": tuple(given["dims"])})


def host_triple() -> str:
    """The LLVM triple of this machine's processor and system."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    systems = {"Darwin": "apple-darwin", "Windows": "pc-windows-gnu", "FreeBSD": "unknown-freebsd"}
    return f"{machine}-{systems.get(platform.system(), 'unknown-linux-gnu')}"


def harness_library(triple: str | None = None) -> Path:
    """The harness for a triple (default: this machine), compiled at the first use.

    Raises:
        ArtifactError: There is no C compiler, or it fails.
    """
    name = triple or host_triple()
    needed = ("pool.c", "platform_posix.c", "platform_windows.c")
    sources = [SOURCE, *(INCLUDE_DIR / file for file in needed)]
    headers = sorted(INCLUDE_DIR.glob("*.h"))
    key = disk_cache.digest(name, *(file.read_bytes() for file in (*sources, *headers)))
    suffix = suffixes_of(name)[0]
    path = temporary.folder() / f"harness-{key}{suffix}"
    if not path.exists():
        data = disk_cache.read(_KIND, key)
        if data is None:
            objects = link.compile_c(sources, [INCLUDE_DIR], name, COMPILE_FLAGS)
            link.link_shared(objects, path, name, EXPORTS)
            disk_cache.write(_KIND, key, path.read_bytes())
        else:
            path.write_bytes(data)
    return path

"""Devices that the CPU simulates: the library of a driver that runs the source of kernels by the SIMT
simulator, so that artifacts for GPUs run on machines without one.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.artifact import link, temporary
from tilewright.errors import ArtifactError

_SOURCE = Path(__file__).parent / "mock" / "driver.c"
_DEFINES = {"cuda": (), "hip": ("-DTW_MOCK_HIP",)}
COUNTERS = (
    "allocations",
    "frees",
    "bytes",
    "launches",
    "uploads",
    "downloads",
    "copies",
    "graphs",
    "graph_launches",
)
"""What a simulated driver counts: calls, and under "bytes" the bytes that are allocated now."""


class SimulatedDriver:
    """A driver of CUDA or HIP in this process whose device is this machine's CPU."""

    def __init__(self, api: str, checked: bool) -> None:
        """Build the driver's library.

        Args:
            api: ``cuda`` or ``hip``.
            checked: Whether launches find faults: accesses out of bounds, races and others.

        Raises:
            ArtifactError: The interface cannot be simulated, or there is no C compiler.
        """
        if api not in _DEFINES or platform.system() != "Linux":
            known = " and ".join(_DEFINES)
            raise ArtifactError(f"{api} cannot be simulated here: the simulator runs {known} on Linux")
        import llvmlite.binding as llvm

        self.api, self.checked = api, checked
        triple = llvm.get_process_triple()
        flags = ["-std=c11", "-O2", "-fvisibility=hidden", *_DEFINES[api]]
        self.path = temporary.folder() / f"libsimulated-{api}{'-checked' if checked else ''}.so"
        """The library, which `DeviceLibrary` takes as its `driver`."""
        link.link_shared(
            link.compile_c([_SOURCE], [], triple, flags), self.path, triple, ["cu*", "hip*", "tw_*"]
        )
        self._library = ctypes.CDLL(str(self.path))
        self._units: dict[str, object] = {}

    def add(self, source: str) -> None:
        """Compile the kernels of a translation unit, so that the driver can load them.

        Raises:
            SimulationError: The compiler refuses the text.
            ArtifactError: The simulator does not run on this machine.
        """
        if source in self._units:
            return
        from tilewright.runtime.simulator.module import SimulatedModule

        unit = SimulatedModule(source, self.api, self.checked)
        self._library.tw_mock_register(source.encode(), str(unit.path).encode())
        self._units[source] = unit

    def counters(self) -> dict[str, int]:
        """The calls since the last `reset`, by the names of `COUNTERS`."""
        values = np.zeros(len(COUNTERS), np.uint64)
        self._library.tw_mock_counters(ctypes.c_void_p(values.ctypes.data))
        return dict(zip(COUNTERS, map(int, values), strict=True))

    def reset(self) -> None:
        """Set all counters of calls to 0."""
        self._library.tw_mock_reset()

    def set_seed(self, seed: int) -> None:
        """Choose the order of blocks and threads: 0 for ascending, any other number for a random order."""
        self._library.tw_mock_set_seed(ctypes.c_uint64(seed))


def simulated_driver(api: str, checked: bool = False) -> SimulatedDriver:
    """The driver of this process for an interface; see `SimulatedDriver`."""
    return _drivers(api, checked)


_drivers = cache(SimulatedDriver)
"""One for each interface and mode: the file of a library that is mapped must not be written again."""


__all__ = ["COUNTERS", "SimulatedDriver", "simulated_driver"]

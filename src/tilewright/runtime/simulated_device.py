"""Devices that the CPU simulates: the library of a driver that runs the source of kernels by the SIMT
simulator, so that artifacts for GPUs run on machines without one.
"""

from __future__ import annotations

import ctypes
import platform
import re
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.artifact import link, temporary
from tilewright.errors import ArtifactError
from tilewright.runtime.simulator.module import SimulatedModule, architecture_number

_FOLDER = Path(__file__).parent / "mock"
_DRIVERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "cuda": ("cuda.c", (), ("cu*",)),
    "hip": ("cuda.c", ("-DTW_MOCK_HIP",), ("hip*",)),
    "metal": ("metal.c", ("-DTW_MOCK_METAL",), ("MTL*", "objc_*", "sel_*")),
}
"""The source of each driver, its definitions, and the functions that it exports."""
SIMULATED = tuple(_DRIVERS)
"""The interfaces whose devices can be simulated."""
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
    "uploaded",
    "downloaded",
    "waits",
    "pending",
    "library_calls",
)
"""The counters of a simulated driver: calls; under "bytes" the bytes that are allocated now, under "uploaded"
and "downloaded" the bytes that were copied to and from the device, and under "pending" the launches and
copies that nothing has waited for.
"""


class SimulatedDriver:
    """A driver of CUDA, HIP or Metal in this process whose device is this machine's CPU."""

    def __init__(self, api: str, checked: bool, warp: int, architecture: str) -> None:
        """Build the driver's library.

        Args:
            api: ``cuda``, ``hip`` or ``metal``.
            checked: Whether launches find faults: accesses out of bounds, races and others.
            warp: Threads of a warp: 32, or 64 for AMD's gfx9.
            architecture: An AMD GPU whose matrix instructions are computed, such as ``gfx90a``; "": gfx942 or
                gfx1100, by the warp. A simulated NVIDIA GPU has compute capability 9.0.

        Raises:
            ArtifactError: The interface cannot be simulated, or there is no C compiler.
        """
        if api not in _DRIVERS or platform.system() != "Linux":
            known = ", ".join(_DRIVERS)
            raise ArtifactError(f"{api} cannot be simulated here: the simulator runs {known} on Linux")
        import llvmlite.binding as llvm

        self.api, self.checked, self.warp = api, checked, warp
        source, defines, exports = _DRIVERS[api]
        triple = llvm.get_process_triple()
        number = architecture_number(architecture)
        flags = ["-std=c11", "-O2", "-fvisibility=hidden", f"-DTW_MOCK_ARCHITECTURE={number}", *defines]
        sources = ["device.c", source, *(["cublas.c", "cudnn.c"] if api == "cuda" else [])]
        objects = link.compile_c([_FOLDER / name for name in sources], [_FOLDER], triple, flags)
        self.path = (
            temporary.folder() / f"libsimulated-{api}{warp}{architecture}{'-checked' if checked else ''}.so"
        )
        """The library, which `DeviceLibrary` takes as its `driver`."""
        link.link_shared(objects, self.path, triple, [*exports, "tw_*"])
        self._library = ctypes.CDLL(str(self.path))
        self._units: dict[str, SimulatedModule] = {}

    def add(self, source: str) -> None:
        """Compile the kernels of a translation unit, so that the driver can load them.

        Raises:
            SimulationError: The compiler refuses the text.
            ArtifactError: The simulator does not run on this machine.
        """
        if source in self._units:
            return
        match = re.search(r'^#line 1 "([^"\n]+)"', source, re.M)
        name = match[1] if match else "kernel"
        unit = SimulatedModule(source, self.api, self.checked, self.warp, name=name)
        self._library.tw_mock_register(source.encode(), str(unit.path).encode())
        self._units[source] = unit

    def explain(self, message: str) -> str:
        """The message of an error, with the lines of the source where a kernel was at fault."""
        for unit in self._units.values():
            fault = unit.last_fault
            if fault is not None and fault.text.replace("\n", " ") in message:
                unit.forget_fault()
                return "\n  ".join([message, *unit.places(fault)])
        return message

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


def simulated_driver(
    api: str, checked: bool = False, warp: int = 32, architecture: str = ""
) -> SimulatedDriver:
    """The driver of this process for an interface; see `SimulatedDriver`."""
    return _drivers(api, checked, warp, architecture)


_drivers = cache(SimulatedDriver)
"""One for each interface, mode, warp and architecture: the file of a library that is mapped must not be
written again.
"""


__all__ = ["COUNTERS", "SIMULATED", "SimulatedDriver", "simulated_driver"]

"""SIMT simulator: runs the source text of GPU kernels on the CPU.

The text of a translation unit in CUDA C++, HIP or Metal's language is compiled by zig's clang against headers
that define the language's built-ins (`include/`), and linked with a scheduler (`c/`) that runs the threads
of a block as fibers. Checked units find faults that results may not show: accesses out of bounds, races,
divergent barriers, and others.
"""

from __future__ import annotations

from tilewright.runtime.simulator.faults import Fault, SimulationError
from tilewright.runtime.simulator.module import SimulatedModule
from tilewright.runtime.simulator.simulate import simulate

__all__ = ["Fault", "SimulatedModule", "SimulationError", "simulate"]

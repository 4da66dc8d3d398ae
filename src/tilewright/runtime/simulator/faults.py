"""The faults that a simulated launch can report, and their exception."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilewright.errors import KernelError

KINDS = (
    "",
    "launch",
    "deadlock",
    "divergent-barrier",
    "out-of-bounds",
    "race",
    "block-race",
    "uninitialized-shared",
    "uninitialized-global",
    "misaligned",
    "mask",
    "lane",
    "async-copy",
    "division",
    "assertion",
    "read-only",
    "shift",
)
"""Names of the kinds of faults, in the order of tw_simulator.h."""


class FaultRecord(ctypes.Structure):
    """tw_sim_fault of tw_simulator.h."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("has_thread", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("other_line", ctypes.c_uint32),
        ("code", ctypes.c_uint64),
        ("other_code", ctypes.c_uint64),
        ("text", ctypes.c_char * 1024),
    ]


@dataclass(frozen=True)
class Fault:
    """The fault that ended a launch."""

    kind: str
    """Its kind, such as ``race``: one of `KINDS`."""
    kernel: str
    """The name of the kernel."""
    block: tuple[int, int, int]
    """blockIdx."""
    thread: tuple[int, int, int] | None
    """threadIdx; None where the fault is not one of a single thread."""
    line: int
    """The line of the source, counted from 1; 0 where it is unknown."""
    other_line: int
    """The line of the access that the fault's access conflicts with; 0 where there is none."""
    text: str
    """The description of the fault."""


class SimulationError(KernelError):
    """A simulated kernel did something that is an error on a GPU, or was launched wrongly.

    `fault` has the parts of the message.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault

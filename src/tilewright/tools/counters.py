"""Hardware counters of a process's threads by time, from Linux's perf events, and their sums by kernel.

Each thread of the process gets a sampled event: the system writes the time of every nth event to a ring of
memory, and a sample counts n events of the kernel that ran then. The interface: ``perf_event_open(2)`` and
``linux/perf_event.h``.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import TilewrightError
from ..runtime.timeline import RawCall

_HARDWARE, _SOFTWARE = 0, 1
EVENTS: dict[str, tuple[int, int, int]] = {
    "cycles": (_HARDWARE, 0, 100_003),
    "instructions": (_HARDWARE, 1, 200_003),
    "cache misses": (_HARDWARE, 3, 101),
    "cpu time": (_SOFTWARE, 0, 100_000),
}
"""The events: the type and number that Linux gives them, and the events between two samples. ``cpu time`` is
in nanoseconds; it needs no counters of the processor.
"""
_PAGES = 64
_SAMPLE, _LOST, _THROTTLE = 9, 2, 5
_TIME = 1 << 2
_DISABLED, _NO_KERNEL, _NO_HYPERVISOR, _CLOCK = 1, 1 << 5, 1 << 6, 1 << 25
_ENABLE, _DISABLE = 0x2400, 0x2401
_NUMBERS = {"x86_64": 298, "aarch64": 241}
_HEAD, _TAIL = 1024, 1032
"""Places in the first page of a ring: the system writes its end to the first, the reader its begin to the
second.
"""


class _Attributes(ctypes.Structure):
    """The first fields of ``struct perf_event_attr``, version 5."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("branch_sample_type", ctypes.c_uint64),
        ("sample_regs_user", ctypes.c_uint64),
        ("sample_stack_user", ctypes.c_uint32),
        ("clockid", ctypes.c_int32),
        ("sample_regs_intr", ctypes.c_uint64),
        ("aux_watermark", ctypes.c_uint32),
        ("sample_max_stack", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
    )


def refusal(event: str) -> str:
    """The reason why an `event` of `EVENTS` cannot be counted on this machine; "" if it can."""
    try:
        _Ring(event, 0).close()
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: OSError) -> str:
    level = ""
    try:
        with open("/proc/sys/kernel/perf_event_paranoid") as file:
            level = file.read().strip()
    except OSError:
        pass
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"Linux allows no counters to this user (kernel.perf_event_paranoid is {level or 'unknown'}): "
            "sysctl kernel.perf_event_paranoid=1 allows them"
        )
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the processor, or the virtual machine, has no such counter"
    return f"perf_event_open fails: {error.strerror}"


class _Ring:
    """One sampled event of one thread (0: the calling one)."""

    def __init__(self, event: str, thread: int) -> None:
        number = _NUMBERS.get(platform.machine())
        if sys.platform != "linux" or number is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        kind, config, period = EVENTS[event]
        attributes = _Attributes(type=kind, config=config, sample_period=period, sample_type=_TIME)
        attributes.size = ctypes.sizeof(_Attributes)
        attributes.flags = _DISABLED | _NO_KERNEL | _NO_HYPERVISOR | _CLOCK
        attributes.clockid = time.CLOCK_MONOTONIC
        libc = ctypes.CDLL(None, use_errno=True)
        self.file = libc.syscall(number, ctypes.byref(attributes), thread, -1, -1, 0)
        if self.file < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        try:
            self.memory = mmap.mmap(self.file, (1 + _PAGES) * mmap.PAGESIZE)
        except OSError:
            os.close(self.file)
            raise

    def control(self, request: int) -> None:
        import fcntl

        fcntl.ioctl(self.file, request, 0)

    def samples(self) -> list[int]:
        """The times of the samples, in nanoseconds of the monotonic clock.

        Raises:
            TilewrightError: Samples are missing.
        """
        (end,) = struct.unpack_from("Q", self.memory, _HEAD)
        (at,) = struct.unpack_from("Q", self.memory, _TAIL)
        struct.pack_into("Q", self.memory, _TAIL, end)
        return read_samples(self.memory[mmap.PAGESIZE :], at, end)

    def close(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()
        os.close(self.file)


def read_samples(ring: bytes, begin: int, end: int) -> list[int]:
    """The times of the samples between two places of a ring, which count on behind its end.

    Raises:
        TilewrightError: Samples are missing: the ring was full, or Linux paused the event.
    """
    times = []
    while begin < end:
        place = begin % len(ring)
        kind, _, length = struct.unpack_from("IHH", ring, place)
        if kind == _LOST:
            raise TilewrightError("the counters lost samples: the call is too long for the ring")
        if kind == _THROTTLE:
            raise TilewrightError(
                "Linux paused the counter, since it interrupts too often, so its counts would be too low: a "
                "higher sysctl kernel.perf_event_max_sample_rate, or kernel.perf_cpu_time_max_percent=0, "
                "prevents it"
            )
        if kind == _SAMPLE:
            times.append(struct.unpack("Q", (ring[place + 8 :] + ring[:8])[:8])[0])
        begin += length
    return times


@dataclass(frozen=True)
class Counts:
    """Events of the launches of several calls, by kernel, for one call.

    Attributes:
        event: The name of the event, of `EVENTS`.
        kernels: The events by kernel.
        outside: The events outside of kernels.
    """

    event: str
    kernels: dict[str, float]
    outside: float


def count(event: str, call: Callable[[], RawCall], repeat: int = 20) -> Counts:
    """Count events of all threads of this process by the kernel that runs.

    Args:
        event: A name of `EVENTS`.
        call: Runs the model once; returns its launches, and the time that they count from.
        repeat: The number of calls.

    Raises:
        TilewrightError: The system refuses the event, or samples of it are missing; the message says why.
    """
    call()  # starts the threads
    rings: list[_Ring] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # a thread that has ended counts nothing
                rings.append(_Ring(event, int(thread)))
        kernels: dict[str, float] = {}
        outside = 0.0
        period = EVENTS[event][2]
        for _ in range(repeat):
            for ring in rings:
                ring.control(_ENABLE)
            launches, _, start, _ = call()
            for ring in rings:
                ring.control(_DISABLE)
            begins = [start + launch.begin for launch in launches]
            for sample in (x for ring in rings for x in ring.samples()):
                place = bisect_right(begins, sample) - 1
                if place >= 0 and sample <= start + launches[place].end:
                    name = launches[place].kernel
                    kernels[name] = kernels.get(name, 0.0) + period / repeat
                else:
                    outside += period / repeat
    except OSError as error:
        raise TilewrightError(f"{event}: {_reason(error)}") from error
    finally:
        for ring in rings:
            ring.close()
    return Counts(event, kernels, outside)


def counts_of(library: Any, inputs: Sequence[Any], repeat: int = 20) -> tuple[list[Counts], dict[str, str]]:
    """The counts of all events that this machine has, for a model that measures launches, and the reasons why
    others are refused, by event.

    Args:
        library: The compiled model.
        inputs: The inputs of a call.
        repeat: The number of calls for each event.
    """
    found, refused = [], {}
    for event in EVENTS:
        reason = refusal(event)
        if reason:
            refused[event] = reason
            continue
        try:
            found.append(count(event, partial(library.call_raw, *inputs), repeat))
        except TilewrightError as error:
            refused[event] = str(error)
    return found, refused


__all__ = ["EVENTS", "Counts", "count", "counts_of", "refusal"]

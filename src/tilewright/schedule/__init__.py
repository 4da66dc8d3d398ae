"""Schedules of loop kernels: primitives, traces, finalization."""

from __future__ import annotations

from .core import PRIMITIVES, ScheduleError, Step, primitive, trace_from_json, trace_to_json
from .finalize import finalize
from .schedule import Schedule

__all__ = [
    "PRIMITIVES",
    "Schedule",
    "ScheduleError",
    "Step",
    "finalize",
    "primitive",
    "trace_from_json",
    "trace_to_json",
]

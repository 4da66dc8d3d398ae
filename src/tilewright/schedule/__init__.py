"""Schedules of loop kernels: primitives, traces, finalization."""

from __future__ import annotations

from . import blocks, compact, loops, online, runs, tensorize, tensorize_quantized  # noqa: F401  (registers the primitives)
from .finalize import finalize
from .schedule import PRIMITIVES, Schedule, ScheduleError, Step, trace_from_json, trace_to_json

__all__ = ["PRIMITIVES", "Schedule", "ScheduleError", "Step", "finalize", "trace_from_json", "trace_to_json"]

"""Schedules: a loop kernel and the primitives that transform it, recorded as a trace that prints and replays.

Blocks and loops are named by strings (a block's `sym_name`, a loop's variable), so a trace is plain data:

    s = Schedule(kernel)
    s.split("matmul.i0", 32)  ->  ("matmul_i0_o", "matmul_i0_i")

Every primitive checks its arguments and raises `ScheduleError` naming the bad one; none changes what the kernel computes.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..dialects import loop
from ..ir.core import Operation
from .tree import enclosing_loops, walk_blocks, walk_loops

P = ParamSpec("P")
R = TypeVar("R")


class ScheduleError(Exception):
    """A primitive was given something it cannot transform; the message names the primitive and the argument."""


@dataclass(frozen=True)
class Step:
    """One applied primitive: its name, arguments and result (names of new loops or blocks)."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    result: Any

    def __str__(self) -> str:
        arguments = [repr(a) for a in self.arguments] + [f"{k}={v!r}" for k, v in self.options]
        arrow = f"  -> {self.result!r}" if self.result is not None else ""
        return f"{self.name}({', '.join(arguments)}){arrow}"


PRIMITIVES: dict[str, Callable[..., Any]] = {}


def primitive(function: Callable[Concatenate[Schedule, P], R]) -> Callable[Concatenate[Schedule, P], R]:
    """Register a schedule primitive: a function on a schedule whose use is recorded in the trace."""
    name = function.__name__
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(schedule: Schedule, *args: P.args, **kwargs: P.kwargs) -> R:
        _check_arguments(name, signature, (schedule, *args), kwargs)
        depth, schedule._depth = schedule._depth, schedule._depth + 1
        try:
            result = function(schedule, *args, **kwargs)
        finally:
            schedule._depth = depth
        if depth == 0:
            schedule.trace.append(Step(name, args, tuple(kwargs.items()), result))
        return result

    PRIMITIVES[name] = run
    return run


def _check_arguments(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `ScheduleError` when arguments are missing, too many or of another type than the primitive declares."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ScheduleError(f"{name}: {error}") from None
    for argument, value in list(bound.arguments.items())[1:]:
        parameter = signature.parameters[argument]
        annotation = str(parameter.annotation)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            annotation = f"tuple[{annotation}, ...]"
        if not _fits(value, annotation):
            raise ScheduleError(f"{name}: {argument} must be {annotation}, got {value!r}")


def _fits(value: Any, annotation: str) -> bool:
    if " | " in annotation:
        return any(_fits(value, part) for part in annotation.split(" | "))
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return isinstance(value, (tuple, list)) and all(_fits(v, annotation[6:-6]) for v in value)
    plain = {"str": str, "int": int, "bool": bool, "None": type(None)}.get(annotation)
    return plain is None or type(value) is plain


class Schedule:
    """A kernel being scheduled. Primitives are methods by name: ``s.split(loop, factor)``."""

    def __init__(self, kernel: loop.Kernel) -> None:
        self.kernel = kernel
        self.trace: list[Step] = []
        self._depth = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = PRIMITIVES.get(name)
        if found is None:
            raise AttributeError(f"no schedule primitive {name!r}; known: {', '.join(sorted(PRIMITIVES))}")
        return functools.partial(found, self)

    def block(self, name: str) -> loop.Block:
        """The block called `name`."""
        for op in walk_blocks(self.kernel):
            if op.sym_name == name:
                return op
        known = ", ".join(op.sym_name for op in walk_blocks(self.kernel))
        raise ScheduleError(f"no block {name!r} in kernel '{self.kernel.sym_name}'; blocks: {known}")

    def loop(self, name: str) -> loop.For:
        """The loop whose variable is called `name`."""
        for found in walk_loops(self.kernel):
            if found.iv.name == name:
                if found.attributes.get(loop.STEPS):
                    raise ScheduleError(f"loop {name!r} goes through steps that follow one another: it stays as it is")
                return found
        known = ", ".join(f.iv.name for f in walk_loops(self.kernel))
        raise ScheduleError(f"no loop {name!r} in kernel '{self.kernel.sym_name}'; loops: {known}")

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [f.iv.name for f in enclosing_loops(self.block(block))]

    def fresh(self, name: str) -> str:
        """`name`, made unique among the kernel's loops and blocks."""
        used = {f.iv.name for f in walk_loops(self.kernel)}
        used |= {op.sym_name for op in walk_blocks(self.kernel)}
        used |= {d.name for d in self.kernel.dims}
        candidate, n = name, 1
        while candidate in used:
            n += 1
            candidate = f"{name}_{n}"
        return candidate

    def replay(self, trace: list[Step]) -> Schedule:
        """Apply a recorded trace to this (unscheduled) kernel."""
        for step in trace:
            PRIMITIVES[step.name](self, *step.arguments, **dict(step.options))
        return self

    def show(self) -> str:
        """The trace, one primitive a line."""
        return "\n".join(map(str, self.trace))


def trace_to_json(trace: list[Step]) -> str:
    """A trace as JSON text."""
    return json.dumps([[s.name, list(s.arguments), dict(s.options)] for s in trace])


def trace_from_json(text: str) -> list[Step]:
    """The trace written by `trace_to_json`.

    Raises:
        ScheduleError: an unknown primitive.
    """
    steps = []
    for name, arguments, options in json.loads(text):
        if name not in PRIMITIVES:
            raise ScheduleError(f"the trace uses an unknown primitive {name!r}; known: {', '.join(sorted(PRIMITIVES))}")
        steps.append(Step(name, _tuples(arguments), tuple((k, _tuples(v)) for k, v in options.items()), None))
    return steps


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def only_child(f: Operation) -> Operation | None:
    """The single operation in a loop's body, or None."""
    body = f.body
    return body.first if body.first is not None and body.first is body.last else None

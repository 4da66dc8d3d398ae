"""The base of schedules: the kernel, its trace, lookup by name, and the decorator that records primitives."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from ..analysis.loop_nest import enclosing_loops, walk_blocks, walk_loops
from ..artifact.choices import Choice, Knob
from ..dialects import loop
from ..ir.core import Operation
from ..ir.target_info import TargetInfo

F = TypeVar("F", bound=Callable[..., Any])
UNKNOWN_TARGET = TargetInfo()


class ScheduleError(Exception):
    """A primitive cannot transform what it was given. The message names the primitive and the argument."""


@dataclass(frozen=True)
class Step:
    """One applied primitive: its name, arguments and result (names of new loops or blocks)."""

    name: str
    """The name of the primitive."""
    arguments: tuple[Any, ...]
    """Its arguments by position."""
    options: tuple[tuple[str, Any], ...]
    """Its arguments by name."""
    result: Any
    """Its result: names of new loops or blocks, or None."""

    def __str__(self) -> str:
        arguments = [repr(a) for a in self.arguments] + [f"{k}={v!r}" for k, v in self.options]
        arrow = f"  -> {self.result!r}" if self.result is not None else ""
        return f"{self.name}({', '.join(arguments)}){arrow}"


K = TypeVar("K", int, bool, str)
PRIMITIVES: dict[str, Callable[..., Any]] = {}
"""All primitives by name; the first argument of each is the schedule."""


def primitive(function: F) -> F:
    """Decorate a schedule primitive: its arguments are checked, its use is recorded in the trace, and
    `PRIMITIVES` lists it.

    Works on methods and on functions whose first parameter is the schedule; a package of yours calls the
    latter as ``my_primitive(s, ...)``. Parameters of type ``str``, ``int``, ``bool``, ``None`` and tuples of
    these are checked: a call with other arguments raises `ScheduleError`.
    """
    name = function.__name__
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(schedule: ScheduleCore, *args: Any, **kwargs: Any) -> Any:
        _check_arguments(name, signature, (schedule, *args), kwargs)
        schedule.finished = None
        depth, schedule._depth = schedule._depth, schedule._depth + 1
        try:
            result = function(schedule, *args, **kwargs)
        finally:
            schedule._depth = depth
        if depth == 0:
            schedule.trace.append(Step(name, args, tuple(kwargs.items()), result))
        return result

    PRIMITIVES[name] = run
    return cast(F, run)


def _check_arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise `ScheduleError` if arguments are missing, too many, or of another type than the primitive
    declares.
    """
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


def _fits(value: object, annotation: str) -> bool:
    if " | " in annotation:
        return any(_fits(value, part) for part in annotation.split(" | "))
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return isinstance(value, (tuple, list)) and all(_fits(v, annotation[6:-6]) for v in value)
    if annotation == "str":
        return isinstance(value, str)  # also members of enumerations of strings
    exact = {"int": int, "bool": bool, "None": type(None)}.get(annotation)
    return exact is None or type(value) is exact  # a bool is no int


class ScheduleCore:
    """A kernel, the device it is scheduled for, and the steps applied so far."""

    def __init__(
        self,
        kernel: loop.Kernel,
        info: TargetInfo = UNKNOWN_TARGET,
        choices: Mapping[str, Knob] | None = None,
    ) -> None:
        """Begin a schedule of `kernel`, which the primitives change in place, for the device `info`.

        `choices` are values of knobs, by name, that a rule takes in place of its defaults: see `choose`.
        """
        self.kernel = kernel
        self.info = info
        self.trace: list[Step] = []
        """The primitives applied so far."""
        self.choices: list[Choice] = []
        """The knobs that were asked for so far."""
        self._chosen = dict(choices or {})
        self._depth = 0
        self.finished: loop.Kernel | None = None
        """The finalized kernel, if it is known: see `adopt`."""

    def copy(self) -> Self:
        """A schedule of a copy of the kernel, with default choices, which `adopt` may take over."""
        kernel = self.kernel.clone()
        assert isinstance(kernel, loop.Kernel)
        return type(self)(kernel, self.info)

    def adopt(self, other: Self) -> None:
        """Take over what was done to `other`, a copy of this schedule, in place of doing it again."""
        self.kernel, self.finished = other.kernel, other.finished
        self.trace += other.trace
        self.choices += other.choices

    @property
    def has_own_choices(self) -> bool:
        """Whether the schedule was begun with choices in place of a rule's defaults."""
        return bool(self._chosen)

    def choose(self, name: str, default: K, among: Iterable[K], *, reorders_sums: bool = False) -> K:
        """Return the value of a knob: `default`, unless the schedule was begun with another choice.

        A rule asks for each of its decisions by which kernels of equal results differ in speed. Running the
        rule thus defines the space of schedules: `choices` lists each knob with its domain, and the rule, run
        again with other choices, gives another point. A rule may ask for a knob under a condition; a point
        that does not fit the kernel raises `ScheduleError`.

        Args:
            name: The knob's name, one for each kernel.
            default: The value that the rule chooses by itself.
            among: The values that may be chosen; `default` is added. A knob of one value is not recorded.
            reorders_sums: Whether another value changes the order in which a sum adds its terms.

        Raises:
            ScheduleError: The value chosen is not in the domain, or the rule has asked for this knob already.
        """
        if any(choice.name == name for choice in self.choices):
            raise ScheduleError(f"choose: the rule asks for {name!r} twice")
        domain = list(dict.fromkeys(among))
        if default not in domain:
            domain.append(default)
        if type(default) is int:
            domain.sort(key=int)
        chosen = self._chosen.get(name, default)
        value = next((v for v in domain if v == chosen and type(v) is type(chosen)), None)
        if value is None:
            known = ", ".join(map(repr, domain[:20])) + (", ..." if len(domain) > 20 else "")
            raise ScheduleError(f"choose: {name} cannot be {chosen!r}; its values are {known}")
        if len(domain) > 1:
            self.choices.append(Choice(name, value, default, tuple(domain), reorders_sums))
        return value

    def unknown_choices(self) -> list[str]:
        """Return the names of choices that no rule has asked for."""
        asked = {choice.name for choice in self.choices}
        return [name for name in self._chosen if name not in asked]

    def block(self, name: str) -> loop.Block:
        """Return the block called `name`.

        Raises:
            ScheduleError: There is none; the message lists the blocks.
        """
        for op in walk_blocks(self.kernel):
            if op.sym_name == name:
                return op
        known = ", ".join(op.sym_name for op in walk_blocks(self.kernel))
        raise ScheduleError(
            f"no block {name!r} in kernel '{self.kernel.sym_name}'{self._former(name)}; blocks: {known}"
        )

    def blocks(self) -> list[loop.Block]:
        """Return all blocks in program order."""
        return list(walk_blocks(self.kernel))

    def loop(self, name: str) -> loop.For:
        """Return the loop whose variable is called `name`.

        Raises:
            ScheduleError: There is none; the message lists the loops.
        """
        for candidate in walk_loops(self.kernel):
            if candidate.iv.name == name:
                return candidate
        known = ", ".join(f.iv.name for f in walk_loops(self.kernel))
        raise ScheduleError(
            f"no loop {name!r} in kernel '{self.kernel.sym_name}'{self._former(name)}; loops: {known}"
        )

    def _former(self, name: str) -> str:
        """Which step took the loop or block of a name away, as a part of an error text; "" if none did."""
        for step in reversed(self.trace):
            if name in step.arguments or name in dict(step.options).values():
                return f" any more, after {step}"
        return ""

    def loops(self, block: str) -> list[str]:
        """Return the names of the loops around a block, outermost first.

        Raises:
            ScheduleError: There is no such block; the message lists the blocks.
        """
        return [f.iv.name for f in enclosing_loops(self.block(block))]

    def fresh(self, name: str) -> str:
        """Return `name`, with a number added if a loop, block or size of the kernel already has it."""
        used = {f.iv.name for f in walk_loops(self.kernel)}
        used |= {op.sym_name for op in walk_blocks(self.kernel)}
        used |= {d.name for d in self.kernel.dims}
        candidate, n = name, 1
        while candidate in used:
            n += 1
            candidate = f"{name}_{n}"
        return candidate

    def replay(self, trace: list[Step]) -> Self:
        """Apply a recorded trace to this (unscheduled) kernel and return the schedule.

        Raises:
            KeyError: A step's primitive is not registered.
            ScheduleError: A step does not fit this kernel.
        """
        for step in trace:
            PRIMITIVES[step.name](self, *step.arguments, **dict(step.options))
        return self

    def show(self) -> str:
        """Return the trace as text, one primitive a line."""
        return "\n".join(map(str, self.trace))


def trace_to_json(trace: list[Step]) -> str:
    """Return a trace as JSON text."""
    return json.dumps([[s.name, list(s.arguments), dict(s.options)] for s in trace])


def trace_from_json(text: str) -> list[Step]:
    """Return the trace written by `trace_to_json`.

    Raises:
        ScheduleError: The trace uses an unknown primitive.
        ValueError: The text is no JSON.
    """
    steps = []
    for name, arguments, options in json.loads(text):
        if name not in PRIMITIVES:
            raise ScheduleError(
                f"the trace uses an unknown primitive {name!r}; known: {', '.join(sorted(PRIMITIVES))}"
            )
        steps.append(Step(name, _tuples(arguments), tuple((k, _tuples(v)) for k, v in options.items()), None))
    return steps


def _tuples(value: object) -> Any:
    """Return lists, as JSON has them, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def only_child(f: Operation) -> Operation | None:
    """Return the single operation in the body of `f`, a loop, or None."""
    body = f.body
    return body.first if body.first is not None and body.first is body.last else None

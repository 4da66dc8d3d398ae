"""Schedules that a user gives for kernels of a model: choices for a rule's knobs, a recorded trace, or a
function of one's own, for all sizes or under a condition. They print, and are kept in files.

    library = tw.compile(model, args, schedules=[tw.pin("matmul_gelu", rows=96, columns=128)])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from ..artifact.choices import Knob
from ..errors import CompileError, TilewrightError
from ..ir.condition import Condition, check_condition, parse_condition
from ..ir.symbolic import Expr, bounds
from .core import ScheduleError, Step, trace_from_json, trace_to_json
from .rules import ScheduleRule
from .schedule import Schedule

ScheduleFunction = Callable[[Schedule], None]
"""Applies primitives to the schedule of an unscheduled kernel."""

VERSION = 1
"""The version of the files that `save_schedules` writes; a reader refuses a later one."""


@dataclass(frozen=True)
class KernelSchedule:
    """How kernels are scheduled in place of the target's rules. `pin`, `schedule_kernel` and
    `load_schedules` make it.

    Attributes:
        kernel: The kernel's name, as `library.kernels` lists it, or a pattern: ``matmul*``.
        choices: Values of knobs of the target's rule.
        trace: Primitives to apply in place of the rule; None: the rule is applied, with `choices`.
        function: A function to call in place of the rule; None: there is none.
        when: The condition on sizes under which a kernel has this schedule: ``batch*seq <= 64``; "": always.

    Raises:
        CompileError: `when` is no condition.
    """

    kernel: str
    choices: Mapping[str, Knob] = field(default_factory=dict)
    trace: tuple[Step, ...] | None = None
    function: ScheduleFunction | None = None
    when: str = ""

    def __post_init__(self) -> None:
        if self.when == "":
            return
        try:
            check_condition(self.when)
        except ValueError as error:
            raise CompileError(f"the schedule of {self.kernel!r}: when={self.when!r}: {error}") from None

    def condition(self, dims: Sequence[Expr]) -> Condition:
        """The condition on the sizes `dims` of a kernel.

        Raises:
            ValueError: It has another symbol, or never holds.
        """
        condition = parse_condition(self.when, {d.name: d for d in dims})
        if condition.never_holds:
            limits = ", ".join(f"{d.name} in {'..'.join(map(_limit, bounds(d)))}" for d in dims)
            raise ValueError(f"'{self.when}' never holds for {limits}")
        return condition

    def fits(self, name: str) -> bool:
        """Whether this schedule is for the kernel called `name`."""
        return fnmatchcase(name, self.kernel)

    def schedule(self, s: Schedule, rule: ScheduleRule, rows: int) -> None:
        """Apply this schedule to `s`, the kernel of a group that shares `rows` axes and whose rule is `rule`.

        Raises:
            ScheduleError: It does not fit the kernel, or has a choice that nothing asks for.
            CompileError: The function raised another error.
        """
        if self.function is not None:
            try:
                self.function(s)
            except (ScheduleError, TilewrightError):
                raise
            except Exception as error:
                raise CompileError(
                    f"the schedule of kernel {s.kernel.sym_name!r} raised {type(error).__name__}: {error}"
                ) from error
        elif self.trace is not None:
            s.replay(list(self.trace))
        else:
            rule(s, rows)
        if unknown := s.unknown_choices():
            known = ", ".join(choice.name for choice in s.choices) or "none"
            raise ScheduleError(f"there is no choice {unknown[0]!r}; the choices of this kernel are {known}")

    def key(self) -> str:
        """Text that differs for different choices and traces, for the key of a cache."""
        trace = None if self.trace is None else trace_to_json(list(self.trace))
        return json.dumps([self.kernel, sorted(self.choices.items()), trace, self.when])


def refuse_unfit(
    schedules: Sequence[KernelSchedule], unfit: Mapping[int, str], kernels: Iterable[str]
) -> None:
    """Refuse schedules that no kernel of a model has.

    Args:
        schedules: All schedules that were given for the model.
        unfit: The numbers of those that no kernel has, and why; "" where no kernel has such a name.
        kernels: The names of the model's kernels.

    Raises:
        CompileError: There is one.
    """
    for number, reason in sorted(unfit.items()):
        own = schedules[number]
        if not reason:
            known = ", ".join(sorted(set(kernels)))
            raise CompileError(f"schedules: no kernel is called {own.kernel!r}; the kernels are {known}")
        raise CompileError(
            f"schedules: the one of {own.kernel!r} with when={own.when!r} is for no sizes: {reason}"
        )


def _limit(bound: int | None) -> str:
    return "" if bound is None else str(bound)


def pin(kernel: str, *, when: str = "", **choices: Knob) -> KernelSchedule:
    """A schedule with fixed values for some knobs; the rule chooses the others.

    Args:
        kernel: The kernel's name, as `library.kernels` lists it, or a pattern: ``matmul*``.
        when: A condition on dynamic sizes: ``"batch*seq <= 64"``. The kernel then has a variant with these
            choices, which runs where the condition holds. The first of several schedules whose
            condition holds counts; one without a condition, or else the rule's, serves all other sizes.
        choices: Values by the knob's name; `library.kernels[name].choices` lists them with their domains.

    `tilewright.compile` raises `CompileError` if a kernel has no such knob or its domain no such value, or if
    a condition has an unknown symbol or never decides.

    Raises:
        CompileError: `when` is no condition.
    """
    return KernelSchedule(kernel, choices, when=when)


def schedule_kernel(
    kernel: str, *, when: str = "", **choices: Knob
) -> Callable[[ScheduleFunction], KernelSchedule]:
    """Decorate a function that schedules a kernel with primitives.

        @tw.schedule_kernel("matmul_relu")
        def mine(s):
            rows, columns = s.loops("relu")
            s.parallel(rows)
            s.vectorize(columns)

        library = tw.compile(model, args, schedules=[mine])

    Args:
        kernel: The kernel's name, as `library.kernels` lists it, or a pattern: ``matmul*``.
        when: A condition on dynamic sizes under which the kernel has this schedule, as for `pin`.
        choices: Values that ``s.choose`` returns in place of its defaults.
    """

    def decorate(function: ScheduleFunction) -> KernelSchedule:
        return KernelSchedule(kernel, choices, None, function, when)

    return decorate


class _Kernel(Protocol):
    """The parts of a library's kernel that `save_schedules` reads: see `tilewright.runtime.kernels`."""

    @property
    def name(self) -> str: ...

    @property
    def trace(self) -> Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any], Any]]: ...

    @property
    def variants(self) -> Sequence[_Variant]: ...


class _Variant(Protocol):
    """The parts of a variant of a kernel that `save_schedules` reads."""

    @property
    def when(self) -> str: ...

    @property
    def trace(self) -> Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any], Any]]: ...


class _Library(Protocol):
    """The part of a compiled model that `save_schedules` reads."""

    @property
    def kernels(self) -> Mapping[str, _Kernel]: ...


def save_schedules(schedules: _Library | Iterable[KernelSchedule], path: str | Path) -> None:
    """Write schedules to a JSON file, which `load_schedules` reads.

    Args:
        schedules: A compiled model, whose kernels' schedules are written as their traces, so that later
            versions of the rules change nothing; or schedules of `pin` and `load_schedules`.
        path: The file.

    Raises:
        CompileError: A schedule is a function, which no file can hold.
        OSError: The file cannot be written.
    """
    entries: list[dict[str, Any]] = []
    if not isinstance(schedules, Iterable):
        schedules = [own for kernel in schedules.kernels.values() for own in _recorded(kernel)]
    for own in schedules:
        if own.function is not None:
            raise CompileError(
                f"the schedule of {own.kernel!r} is a function: save the library compiled with it instead"
            )
        entry: dict[str, Any] = {"kernel": own.kernel}
        if own.when:
            entry["when"] = own.when
        if own.choices:
            entry["choices"] = dict(own.choices)
        if own.trace is not None:
            entry["trace"] = json.loads(trace_to_json(list(own.trace)))
        entries.append(entry)
    Path(path).write_text(json.dumps({"version": VERSION, "schedules": entries}, indent=1) + "\n")


def _recorded(kernel: _Kernel) -> list[KernelSchedule]:
    """The traces of a kernel's variants, then its own."""
    traces = [*((v.trace, v.when) for v in kernel.variants), (kernel.trace, "")]
    return [
        KernelSchedule(
            kernel.name, {}, tuple(Step(n, a, tuple(o.items()), r) for n, a, o, r in trace), None, when
        )
        for trace, when in traces
    ]


def load_schedules(path: str | Path) -> list[KernelSchedule]:
    """Read the schedules that `save_schedules` wrote to the file `path`.

    Raises:
        CompileError: The file cannot be read or is none of this form; the message names the entry.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise CompileError(f"schedules: {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CompileError(f"schedules: {path} is no JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("schedules"), list):
        raise CompileError(f'schedules: {path} has no list "schedules"')
    if data.get("version") != VERSION:
        raise CompileError(
            f"schedules: {path} has version {data.get('version')!r}; this version reads {VERSION}"
        )
    return [
        _read_entry(entry, f"schedules: entry {k} of {path}") for k, entry in enumerate(data["schedules"])
    ]


def _read_entry(entry: object, where: str) -> KernelSchedule:
    if not isinstance(entry, dict) or not isinstance(entry.get("kernel"), str):
        raise CompileError(f'{where} has no "kernel", a name')
    if unknown := entry.keys() - {"kernel", "when", "choices", "trace"}:
        raise CompileError(
            f"{where} has an unknown key {min(unknown)!r}; known: kernel, when, choices, trace"
        )
    choices = entry.get("choices", {})
    if not isinstance(choices, dict) or not all(isinstance(v, (int, str)) for v in choices.values()):
        raise CompileError(f'{where}: "choices" must be numbers, flags or names by the name of a knob')
    trace = None
    if "trace" in entry:
        try:
            trace = tuple(trace_from_json(json.dumps(entry["trace"])))
        except (ScheduleError, ValueError, TypeError, AttributeError) as error:
            raise CompileError(f'{where}: "trace" is no list of primitives: {error}') from error
    try:
        return KernelSchedule(entry["kernel"], choices, trace, None, entry.get("when", ""))
    except CompileError as error:
        raise CompileError(f"{where}: {error}") from None


__all__ = ["KernelSchedule", "load_schedules", "pin", "save_schedules", "schedule_kernel"]

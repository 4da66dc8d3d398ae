"""The kernel of a group before it is scheduled, the rules that may schedule it, and the text of its
structure, by which a database of measured choices finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..analysis.size_names import number_sizes
from ..artifact.choices import Choice, Knob
from ..dialects import loop, tensor
from ..ir import notes
from ..ir.printer import print_op
from ..ir.target_info import TargetInfo
from ..passes.tensor.write_in_place import in_place_pairs
from ..schedule import Schedule, Step, finalize
from ..schedule.kernel_schedule import KernelSchedule
from ..schedule.rules import ScheduleRule, rules_for
from .tensor_to_loop import kernel_of_group

_NUMBER = re.compile(r"(?<![\w.%@])\d+")


@dataclass(frozen=True)
class Scheduled:
    """A finalized kernel, its rule's choices and primitives, and why it has a slower form, if so."""

    kernel: loop.Kernel
    choices: tuple[Choice, ...] = ()
    trace: tuple[Step, ...] = ()
    slower: str = ""
    tuned: str = ""
    """The use of measured choices for this kernel; "" where there are none."""


@dataclass(frozen=True)
class Form:
    """One way to schedule a group: the rule of its kind, or of a slower one."""

    group: tensor.Group
    name: str
    """The name of the kernel."""
    kind: str
    rows: int
    """The number of leading axes that all members of the group share."""
    rule: ScheduleRule
    info: TargetInfo

    def choices(self, choices: Mapping[str, Knob]) -> tuple[Choice, ...]:
        """All knobs that the rule asks for with these choices, without making the kernel's code.

        Raises:
            ScheduleError: The rule does not fit the kernel, or refuses the choices.
        """
        schedule = Schedule(unscheduled(self.group, self.name), self.info, choices)
        self.rule(schedule, self.rows)
        return tuple(schedule.choices)

    def scheduled(self, choices: Mapping[str, Knob] | None = None, slower: str = "") -> Scheduled:
        """The kernel that the rule makes with these choices in place of its defaults; those that it does not
        ask for have no effect.

        Raises:
            ScheduleError: The rule does not fit the kernel, or refuses the choices.
        """
        schedule = Schedule(unscheduled(self.group, self.name), self.info, choices)
        self.rule(schedule, self.rows)
        return Scheduled(finalize(schedule), tuple(schedule.choices), tuple(schedule.trace), slower)

    def with_own(self, own: KernelSchedule, kernel: loop.Kernel | None = None) -> Schedule:
        """A user's schedule, applied to the naive kernel of the group or to `kernel`.

        Raises:
            ScheduleError: The schedule does not fit.
            CompileError: Its function raised another error.
        """
        schedule = Schedule(kernel or unscheduled(self.group, self.name), self.info, own.choices)
        own.schedule(schedule, self.rule, self.rows)
        return schedule


def forms(
    group: tensor.Group, name: str, info: TargetInfo, rules: Mapping[str, ScheduleRule]
) -> Iterator[Form]:
    """The forms of a group's kernel, the fastest first."""
    for kind, rows in _kinds(group):
        for rule in rules_for(kind, info, rules):
            yield Form(group, name, kind, rows, rule, info)


def _kinds(group: tensor.Group) -> list[tuple[str, int]]:
    """The kinds under which a group can be scheduled, fastest first, each with the number of axes that
    members share.
    """
    kinds = [(group.kind, int(notes.ROW_AXES.get(group, 0)))]
    # an epilogue reads the sum at the point where it was written
    if group.kind == tensor.GroupKind.CONTRACTION:
        kinds.append((tensor.GroupKind.ROWS, min(len(r.type.shape) for r in group.body.terminator.operands)))
    return [*kinds, (tensor.GroupKind.PLAIN, 0)]


def unscheduled(group: tensor.Group, name: str) -> loop.Kernel:
    """The naive kernel of a group."""
    kernel = kernel_of_group(group, name)
    if pairs := in_place_pairs(group):
        notes.BUFFER_ALIASES.set(kernel, pairs)
    return kernel


def structure_of(group: tensor.Group) -> str:
    """The kind and the naive kernel of a group as text: equal for groups that a rule schedules alike,
    whatever the model calls its tensors and sizes.
    """
    return _structure(group)[0]


def sizes_of(group: tensor.Group) -> tuple[str, ...]:
    """The names of the sizes that a group's structure calls ``size_0``, ``size_1``, ..."""
    return _structure(group)[1]


def _structure(group: tensor.Group) -> tuple[str, tuple[str, ...]]:
    kernel, names = number_sizes(unscheduled(group, "kernel"))
    for number, argument in enumerate(kernel.body.args):
        argument.hint = f"a{number}"
    return f"{group.kind} {int(notes.ROW_AXES.get(group, 0))}\n{print_op(kernel)}", names


def without_sizes(structure: str) -> str:
    """A structure with its numbers left out: equal for kernels that differ in sizes only."""
    return _NUMBER.sub("n", structure)


__all__ = ["Form", "Scheduled", "forms", "sizes_of", "structure_of", "unscheduled", "without_sizes"]

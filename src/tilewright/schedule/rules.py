"""Schedule rules: how a kind of group becomes a kernel, by target. Packages may add and replace rules.

A rule applies primitives to the schedule of an unscheduled kernel:

    def flat(s: Schedule, rows: int) -> None:
        for block in s.blocks():
            s.vectorize(s.loops(block.sym_name)[-1])

    register_schedule_rule("rows", flat, target="cpu")

Lowering tries the rules for a group's kind in this order and takes the first that does not raise
`ScheduleError`:

1. registered rules, from the most to the least specific: for the target's full name (``cpu:x86-64-v4``), for
   its family (``cpu``), for every target;
2. the target's own rule for the kind, or its rule for `GroupKind.PLAIN` where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..dialects.tensor import GroupKind
from ..ir.plugins import call_plugins
from ..ir.target_info import TargetInfo
from .schedule import Schedule

ScheduleRule = Callable[[Schedule, int], None]
"""``rule(schedule, rows)`` applies primitives to a schedule without steps. ``schedule.info`` describes the
target; `rows` is the number of leading axes that all members of the group share.

Raises `ScheduleError` if the rule's form does not fit the kernel; lowering then tries the next rule.
"""

EVERY_TARGET = ""
"""As the target of a registered rule: the rule applies to all targets."""

ENTRY_POINTS = "tilewright.schedule_rules"
"""Group of entry points. Each names a function without parameters that calls `register_schedule_rule`."""

RULES: dict[tuple[str, str], ScheduleRule] = {}
"""Registered rules by kind and target. The cache of compiled models notices each function in it."""


def register_schedule_rule(kind: str, rule: ScheduleRule, *, target: str = EVERY_TARGET) -> None:
    """Use `rule` for groups of `kind` on `target`, before the target's own rule and in place of one
    registered earlier.

    Nothing is checked: a kind or a target that does not exist leaves the rule unused.

    Args:
        kind: A `GroupKind`, or a new kind that a pass of yours forms.
        rule: Applies primitives to the kernel's schedule; see `ScheduleRule`.
        target: A full name (``cpu:x86-64-v4``), a family (``cpu``), or "" for every target.
    """
    RULES[kind, target] = rule


def rules_for(kind: str, info: TargetInfo, own: Mapping[str, ScheduleRule]) -> Iterator[ScheduleRule]:
    """Yield the rules to try for a kind of group, in order.

    Args:
        kind: The kind of group.
        info: The description of the target.
        own: The target's own rules by kind.
    """
    for target in dict.fromkeys((info.name, info.family, EVERY_TARGET)):
        if (rule := RULES.get((kind, target))) is not None:
            yield rule
    rule = own.get(kind) or own.get(GroupKind.PLAIN)
    if rule is not None:
        yield rule


def load_plugin_rules() -> None:
    """Call the functions that installed packages name in the group `ENTRY_POINTS`, each once in a process.

    Raises:
        CompileError: A package cannot be loaded, or its function fails; the message names the package.
    """
    call_plugins(ENTRY_POINTS, "schedule rules", "tilewright.schedule.rules.register_schedule_rule")


__all__ = ["RULES", "ScheduleRule", "load_plugin_rules", "register_schedule_rule", "rules_for"]

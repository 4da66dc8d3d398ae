"""Reasons for which rules leave operations as they are: why two computations stay kernels of their own, why a
pattern does not rewrite.

A rule returns a `Refusal` in place of False. Whoever applies the rule passes it on by `refused`, which costs
nothing where nobody observes refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Operation


class Refusal(str):
    """The reason for which a rule does not apply, in words. It is false, so the result of a rule reads as a
    test.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


Observer = Callable[[str, str, "Operation", "Sequence[Operation]"], None]

refusals_observed: ContextVar[Observer | None] = ContextVar("refusals_observed", default=None)
"""A function that is told of each refusal: the name of the rule, the reason, the operation that the rule was
tried at, and the operations that it would have been joined with (none for a rewrite).
"""


def refused(rule: str, verdict: object, op: Operation, producers: Sequence[Operation] = ()) -> None:
    """Tell the observer that a rule does not apply, if its `verdict` is a `Refusal`.

    Args:
        rule: The name of the rule.
        verdict: The rule's result.
        op: The operation that the rule was tried at.
        producers: The operations whose results `op` reads and that it stays apart from.
    """
    if isinstance(verdict, Refusal) and (observe := refusals_observed.get()) is not None:
        observe(rule, str(verdict), op, producers)


__all__ = ["Observer", "Refusal", "refusals_observed", "refused"]

"""The option `memory_budget`: little work whose planned memory fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import CompileError

if TYPE_CHECKING:
    from ..ir.core import Module
    from ..passes.graph.rematerialize import Plan

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def memory_size(budget: object) -> int:
    """The option `memory_budget` in bytes: a whole number, or text such as "2GB" or "512 MiB".

    Raises:
        CompileError: It is neither, or not above 0.
    """
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?:[kmg]i?)?)b?\s*", budget.lower())
        size = 0 if found is None else int(float(found[1]) * _UNITS[found[2]])
    else:
        size = budget if isinstance(budget, int) and not isinstance(budget, bool) else 0
    if size <= 0:
        raise CompileError(
            f"memory_budget={budget!r}: give a number of bytes above 0, or text such as '2GB' or '512MiB'"
        )
    return size


def fit_memory(module: Module, budget: int, planned: Callable[[Module], int]) -> Module:
    """Compute values of the forward pass again until the planned memory fits.

    Binary search finds a plan (`Rematerialization.plans`) that fits, where the one before it does not. If the
    last plan does not fit, the others are tried from the last to the first: after fusion a plan may take more
    memory than one before it, against the estimates.

    Args:
        module: A graph-level module in which no pass has run. It is used up.
        budget: Bytes of working memory.
        planned: Lowers a module, which is used up; returns the bytes of its working memory.

    Returns:
        The module to compile.

    Raises:
        CompileError: No plan fits. The message names the smallest memory of all plans.
    """
    from ..passes.graph.rematerialize import Rematerialization

    least = planned(module.clone())
    if least <= budget:
        return module
    found = Rematerialization(module)
    plans = found.plans()
    sizes: dict[int, int] = {}

    def fits(k: int) -> bool:
        if k not in sizes:
            sizes[k] = planned(found.applied(plans[k]))
        return sizes[k] <= budget

    best = next((k for k in reversed(range(len(plans))) if fits(k)), None)
    if best is None:
        raise CompileError(_refusal(budget, min([least, *sizes.values()]), plans))
    low = 0
    while low < best:
        middle = (low + best) // 2
        if fits(middle):
            best = middle
        else:
            low = middle + 1
    return found.applied(plans[best])


def _refusal(budget: int, least: int, plans: list[Plan]) -> str:
    reached = (
        f"with everything computed again that may be, the working memory is {least} bytes"
        if plans
        else f"the working memory is {least} bytes, and no value of a forward pass waits for a backward pass"
    )
    return (
        f"memory_budget: {budget} bytes are not enough: {reached}. Allow {least}, make the batch smaller, or "
        "compute it in parts (accumulate= of tilewright.train_step)"
    )


__all__ = ["fit_memory", "memory_size"]

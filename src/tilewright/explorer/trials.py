"""The trials of `tilewright tune` behind the kernels of a compiled model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..driver.tuned import keys_for
from ..driver.tuning_database import Database, KernelKey
from ..lowering.groups_to_kernels import kernel_names
from ..lowering.kernel_forms import structure_of

if TYPE_CHECKING:
    from ..driver.compile import Compilation


def trials_of(compilations: Iterable[Compilation], database: Database) -> dict[str, list[dict[str, Any]]]:
    """The trials of a database by the names of the kernels that they measured on this machine.

    Args:
        compilations: The model, compiled in this process.
        database: The trials.

    Returns:
        For each kernel a list as of `described`; kernels without trials are left out.
    """
    found = {}
    for compilation in compilations:
        key = keys_for(compilation.target, compilation.options.threads)
        for group, name in kernel_names(compilation.grouped()).items():
            if name not in found and (trials := described(database, key(structure_of(group)))):
                found[name] = trials
    return found


def described(database: Database, key: KernelKey) -> list[dict[str, Any]]:
    """The trials of a key in the order of their dates: ``stage``, ``choices``, ``date``, ``failure`` or
    ``speedup`` with ``lower`` and ``upper``, and whether it is the one ``used`` by `tilewright.compile`.
    """
    used = database.chosen(key)
    kept = ("stage", "speedup", "lower", "upper", "failure", "date")
    return [
        {
            **{name: value for name, value in asdict(trial).items() if name in kept and value is not None},
            "choices": dict(trial.choices),
            "used": trial is used,
        }
        for trial in sorted(database.of(key), key=lambda trial: trial.date)
    ]


__all__ = ["described", "trials_of"]

"""The facts of a machine that a target's name states."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ...errors import CompileError
from ...ir.target_info import CacheLevel, Machine

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""The units of sizes in bytes."""

FACTS = ("cores", "l1", "l2", "l3", "bandwidth")
"""The facts that a target's name may state beside features: ``cpu:x86-64-v4+cores=64+l2=2M``."""


def stated(machine: Machine, facts: Iterable[str], where: str) -> Machine:
    """Return `machine` with the facts of a target's name: ``cores=64``, ``l2=2M``, ``l3=32M/8`` (a cache that
    eight cores share), ``bandwidth=2.5`` (bytes per cycle and core). Messages call the name `where`.

    Raises:
        CompileError: An unknown fact or a value that is no number.
    """
    for fact in facts:
        name, _, text = fact.partition("=")
        if name not in FACTS:
            raise CompileError(f"{where}: unknown fact {name!r} of a machine; known: {', '.join(FACTS)}")
        if name == "bandwidth" and re.fullmatch(r"\d+(\.\d+)?", text) and float(text):
            machine = replace(machine, bandwidth=float(text))
        elif name == "cores" and re.fullmatch(r"[1-9]\d*", text):
            machine = replace(machine, cores=int(text))
        elif name[0] == "l" and (match := re.fullmatch(r"([1-9]\d*)([KMG]?)(?:/([1-9]\d*))?", text)):
            size = int(match[1]) * UNITS[match[2]]
            cache = CacheLevel(int(name[1]), size, int(match[3] or 1))
            others = [c for c in machine.caches if c.level != cache.level]
            machine = replace(machine, caches=tuple(sorted([*others, cache], key=lambda c: c.level)))
        else:
            example = {"bandwidth": "bandwidth=2.5", "cores": "cores=64"}.get(
                name, f"{name}=2M or {name}=32M/8"
            )
            raise CompileError(f"{where}: {fact!r} has no valid value; an example is {example}")
    return machine

"""Instruction sets of CPUs by name: this host, and those of the tables in `ports`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...artifact.systems import system_of
from ...errors import CompileError
from ..llvm.isa import Isa
from ..llvm.machine import stated
from .machine import common, this_machine
from .ports import (
    AARCH64,
    EXTENSIONS,
    FEATURES,
    LEVELS,
    PORTS,
    X86_64_V2,
    X86_64_V3,
    X86_64_V4,
    Feature,
    processor_of,
)

WITH_TILES = common(48, 2048)
"""All processors with AMX (since Sapphire Rapids) have at least these caches."""

ISAS = {**LEVELS, **PORTS}
"""Instruction sets by name: levels of x86-64, and targets with a system."""

NATIVE = "native"
"""The name of this machine's instruction set, to which a target's name may add facts of another machine."""

FORCED = "TILEWRIGHT_CPU"
"""Environment variable: the feature set, such as ``x86-64-v4+avx512vnni``, that replaces this machine's for
the target ``cpu``.

For tests: instructions that this machine lacks are emulated, slowly, so that every feature set of x86-64
runs.
"""


@cache
def host_isa() -> Isa:
    """Return the instruction set of the target ``cpu``: this machine's, or the one that the environment
    forces (`FORCED`).

    This machine's is the highest level whose features it has, with its further features and the size of its
    caches. LLVM's name of the CPU is not used: it misnames some virtual machines, while the feature flags are
    right.

    Raises:
        CompileError: there is no code generator for this processor, or the environment forces an unknown
            feature set.
    """
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if platform.machine() in ("aarch64", "arm64"):
        found = [name for name in FEATURES["aarch64"] if f"+{name}" in _machine_features()]
        isa = _with_features(AARCH64, found)
        return replace(isa, name="host", triple=triple, machine=this_machine(isa.machine))
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CompileError(
            f"cannot compile for this processor ({platform.machine()}); known: x86-64, AArch64"
        )
    forced = os.environ.get(FORCED)
    if forced:
        isa = _with_extensions(forced, f"the environment variable {FORCED}")
        return _emulated(replace(isa, name="host", triple=triple))

    features = _machine_features()
    level = next(
        (isa for isa in (X86_64_V4, X86_64_V3, X86_64_V2) if features.issuperset(isa.features)), None
    )
    if level is None:
        missing = ", ".join(f[1:] for f in X86_64_V2.features if f not in features)
        raise CompileError(f"this processor lacks {missing}; at least x86-64-v2 (SSE4.2) is needed")
    extras = [
        name for name in EXTENSIONS if f"+{name}" in features and (level is X86_64_V4 or "512" not in name)
    ]
    isa = _with_features(level, extras)
    return replace(isa, name="host", triple=triple, machine=this_machine(isa.machine))


def isa_named(target: str) -> Isa:
    """Return the instruction set of a target's name: ``cpu`` is this host; others are ``cpu:x86-64-v3``,
    ``cpu:x86-64-v4+avx512vnni+cores=64``, ``cpu:native+cores=8``, ``aarch64-linux:dotprod+cores=4``,
    ``x86_64-windows:x86-64-v3``.

    Only `cpu` and `cpu:native` depend on this machine.

    Raises:
        CompileError: an unknown name or feature.
    """
    if target.partition(":")[0] in PORTS:
        return _port(target)
    where = f"the target {target!r}"
    name = target.removeprefix("cpu:")
    if name in ("cpu", NATIVE):
        return host_isa()
    if name.startswith(f"{NATIVE}+"):
        isa, facts = host_isa(), name.split("+")[1:]
        return replace(isa, machine=stated(isa.machine, facts, where))
    isa = _with_extensions(name, where)
    return _emulated(isa) if os.environ.get(FORCED) else isa


def _port(target: str) -> Isa:
    """Return the instruction set of a target with a system. The features of x86-64 may begin with a level."""
    name, _, variant = target.partition(":")
    port, (level, _, rest) = PORTS[name], variant.partition("+")
    base = port
    if processor_of(port) == "x86_64" and level in LEVELS:
        base, variant = replace(LEVELS[level], name=name, triple=port.triple, machine=port.machine), rest
    parts = [part for part in variant.split("+") if part]
    return replace(_extended(base, parts, f"the target {target!r}"), name=target)


def _with_extensions(name: str, where: str) -> Isa:
    """Return the instruction set ``level+feature+fact=value...`` of x86-64; messages call its source
    `where`.
    """
    level, *rest = name.split("+")
    isa = LEVELS.get(level)
    if isa is None:
        known = ", ".join(f"cpu:{name}" for name in LEVELS)
        raise CompileError(f"{where}: unknown instruction set {level!r}; known: cpu, {known}")
    features = [part for part in rest if "=" not in part]
    return replace(_extended(isa, rest, where), name="+".join((level, *features)))


def _extended(isa: Isa, parts: Sequence[str], where: str) -> Isa:
    """Return `isa` with the features and facts ``name=value`` in `parts`.

    Raises:
        CompileError: one is unknown, or needs a higher level.
    """
    features, facts = [x for x in parts if "=" not in x], [x for x in parts if "=" in x]
    processor = processor_of(isa)
    for name in features:
        if name not in FEATURES[processor]:
            levels = () if isa.name in LEVELS or processor != "x86_64" else LEVELS
            known = ", ".join((*levels, *FEATURES[processor]))
            raise CompileError(f"{where}: unknown feature {name!r} of {isa.name}; known: {known}")
        if name.startswith("avx512") and not isa.avx512:
            raise CompileError(f"{where}: {name} needs x86-64-v4")
    isa = _with_features(isa, features)
    return replace(isa, machine=stated(isa.machine, facts, where))


def _with_features(isa: Isa, names: Sequence[str]) -> Isa:
    """Return `isa` with features of its processor's table, and those that they need."""
    table = FEATURES[processor_of(isa)]
    wanted = {n for name in names for n in (name, *table[name].needs)}
    chosen: list[Feature] = [feature for name, feature in table.items() if name in wanted]
    flags = tuple(dict.fromkeys((*isa.features, *(flag for feature in chosen for flag in feature.flags))))
    changes: dict[str, Any] = {key: value for feature in chosen for key, value in feature.changes}
    machine = WITH_TILES if "amx-tile" in wanted else isa.machine
    return replace(isa, features=flags, machine=machine, **changes)


def _emulated(isa: Isa) -> Isa:
    """Return `isa` with the features that this machine lacks marked as emulated."""
    missing = tuple(f[1:] for f in isa.features if f not in _machine_features())
    return replace(isa, emulated=missing) if missing else isa


@cache
def _machine_features() -> frozenset[str]:
    """Return this machine's features in LLVM's spelling, regardless of `FORCED`."""
    import llvmlite.binding as llvm

    return frozenset(f"+{name}" for name, on in llvm.get_host_cpu_features().items() if on)


def runs_here(isa: Isa) -> bool:
    """Whether this process can run code of `isa`."""
    host = host_isa()
    same_system = system_of(isa.triple) is system_of(host.triple) and processor_of(isa) == processor_of(host)
    return isa is host or (same_system and set(isa.machine_features) <= _machine_features())

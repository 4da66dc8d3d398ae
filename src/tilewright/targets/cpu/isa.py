"""Instruction sets of CPUs: the x86-64 levels, this host, AArch64."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ...errors import CompileError
from ..llvm.isa import Isa
from ..llvm.machine import stated
from .machine import common, this_machine

_V2 = ("+cx16", "+popcnt", "+sahf", "+sse3", "+ssse3", "+sse4.1", "+sse4.2")
_V3 = (*_V2, "+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe")
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl")
EXTENSIONS = ("avx512bf16", "avx512fp16", "avx512vnni", "avxvnni", "amx-tile", "amx-bf16", "amx-int8", "gfni")
"""Features beyond a level that generated code may use."""

_LINUX = "x86_64-unknown-linux-gnu"

X86_64_V2 = Isa(
    "x86-64-v2", _LINUX, "x86-64-v2", _V2, 128, 16, masked=False, fma=False,
    machine=common(32, 256),
)  # fmt: skip
X86_64_V3 = Isa(
    "x86-64-v3", _LINUX, "x86-64-v3", _V3, 256, 16, masked=False, fma=True, half=True,
    machine=common(32, 512),
)  # fmt: skip
X86_64_V4 = Isa(
    "x86-64-v4",
    _LINUX,
    "x86-64-v4",
    _V4,
    512,
    32,
    masked=True,
    fma=True,
    half=True,
    avx512=True,
    machine=common(32, 1024),
)
AARCH64 = Isa(
    "aarch64-linux", "aarch64-unknown-linux-gnu", "generic", ("+fp-armv8", "+neon"), 128, 32,
    masked=False, fma=True, half=True, nan_minmax=True, machine=common(64, 1024),
)  # fmt: skip
"""Caches have common sizes: a second level of 256 KiB (Nehalem to Broadwell), 512 KiB (Zen 1 to 3) or 1 MiB
(Skylake with AVX-512, Zen 4, Neoverse).
"""
WITH_TILES = common(48, 2048)
"""All processors with AMX (since Sapphire Rapids) have at least these caches."""

ISAS = {isa.name: isa for isa in (X86_64_V2, X86_64_V3, X86_64_V4, AARCH64)}

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
        return replace(AARCH64, name="host", triple=triple, machine=this_machine(AARCH64.machine))
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CompileError(
            f"cannot compile for this processor ({platform.machine()}); known: x86-64, AArch64"
        )
    forced = os.environ.get(FORCED)
    if forced:
        isa = _with_extensions(forced, f"the environment variable {FORCED}")
        if not isa.triple.startswith("x86_64"):
            raise CompileError(
                f"the environment variable {FORCED}: {forced!r} is not a feature set of x86-64"
            )
        return _emulated(replace(isa, name="host", triple=triple))

    features = _machine_features()
    level = next(
        (isa for isa in (X86_64_V4, X86_64_V3, X86_64_V2) if features.issuperset(isa.features)), None
    )
    if level is None:
        missing = ", ".join(f[1:] for f in _V2 if f not in features)
        raise CompileError(f"this processor lacks {missing}; at least x86-64-v2 (SSE4.2) is needed")
    extras = [
        name for name in EXTENSIONS if f"+{name}" in features and (level is X86_64_V4 or "512" not in name)
    ]
    isa = _extended(level, extras)
    return replace(isa, name="host", triple=triple, machine=this_machine(isa.machine))


def isa_named(target: str) -> Isa:
    """Return the instruction set of a target's name: ``cpu`` is this host; others are ``cpu:x86-64-v3``,
    ``cpu:x86-64-v4+avx512vnni+cores=64``, ``cpu:native+cores=8``, ``aarch64-linux``.

    Only `cpu` and `cpu:native` depend on this machine.

    Raises:
        CompileError: an unknown name or feature.
    """
    name = target.removeprefix("cpu:")
    if name in ("cpu", NATIVE):
        return host_isa()
    if name.startswith(f"{NATIVE}+"):
        isa, facts = host_isa(), name.split("+")[1:]
        return replace(isa, machine=stated(isa.machine, facts, f"the target {target!r}"))
    isa = _with_extensions(name, f"the target {target!r}")
    return _emulated(isa) if os.environ.get(FORCED) and isa.triple.startswith("x86_64") else isa


def _with_extensions(name: str, where: str) -> Isa:
    """Return the instruction set ``level+feature+fact=value...``; messages call its source `where`."""
    level, *rest = name.split("+")
    extras, facts = [x for x in rest if "=" not in x], [x for x in rest if "=" in x]
    isa = ISAS.get(level)
    if isa is None:
        known = ", ".join(f"cpu:{name}" for name in ISAS if name.startswith("x86"))
        raise CompileError(f"{where}: unknown instruction set {level!r}; known: cpu, aarch64-linux, {known}")
    if not rest:
        return isa
    for extra in extras:
        if extra not in EXTENSIONS or isa is AARCH64:
            known = "none" if isa is AARCH64 else ", ".join(EXTENSIONS)
            raise CompileError(f"{where}: unknown feature {extra!r} of {level}; known: {known}")
        if "512" in extra and isa is not X86_64_V4:
            raise CompileError(f"{where}: {extra} needs x86-64-v4")
    isa = _extended(isa, extras)
    return replace(isa, name="+".join((level, *extras)), machine=stated(isa.machine, facts, where))


def _extended(level: Isa, extras: Sequence[str]) -> Isa:
    features = tuple(dict.fromkeys((*level.features, *(f"+{name}" for name in extras))))
    machine = WITH_TILES if "amx-tile" in extras else level.machine
    return replace(level, features=features, bf16="avx512bf16" in extras, machine=machine)


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
    same_system = isa.triple.split("-")[0] == host.triple.split("-")[0] and "linux" in host.triple
    return isa is host or (same_system and set(isa.machine_features) <= _machine_features())

"""Instruction sets of CPUs: the x86-64 levels, this host, AArch64."""

from __future__ import annotations

import platform
from dataclasses import replace
from functools import cache

from ...errors import CompileError
from ..llvm.isa import Isa
from .caches import l2_bytes

_V2 = ("+cx16", "+popcnt", "+sahf", "+sse3", "+ssse3", "+sse4.1", "+sse4.2")
_V3 = (*_V2, "+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe")
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl")
_HOST_EXTRAS = ("avx512bf16", "avx512fp16", "avx512vnni", "avxvnni", "amx-tile", "amx-bf16", "amx-int8", "gfni")
"""Features beyond a level that code for this host may use."""

_LINUX = "x86_64-unknown-linux-gnu"
_KIB = 1024

X86_64_V2 = Isa("x86-64-v2", _LINUX, "x86-64-v2", _V2, 128, 16, masked=False, fma=False)
X86_64_V3 = Isa("x86-64-v3", _LINUX, "x86-64-v3", _V3, 256, 16, masked=False, fma=True, half=True, l2_bytes=512 * _KIB)
X86_64_V4 = Isa(
    "x86-64-v4", _LINUX, "x86-64-v4", _V4, 512, 32, masked=True, fma=True, half=True, avx512=True, l2_bytes=1024 * _KIB
)
AARCH64 = Isa(
    "aarch64-linux", "aarch64-unknown-linux-gnu", "generic", ("+fp-armv8", "+neon"), 128, 32,
    masked=False, fma=True, half=True, nan_minmax=True, l2_bytes=1024 * _KIB,
)  # fmt: skip
"""Second-level caches: 256 KiB (the default), 512 KiB (Zen) and 1 MiB (Skylake with AVX-512, Neoverse) or more are common at these levels."""

ISAS = {isa.name: isa for isa in (X86_64_V2, X86_64_V3, X86_64_V4, AARCH64)}


@cache
def host_isa() -> Isa:
    """The instruction set of this machine: the best level it fulfils, further features it has, and the size of its caches.

    LLVM's name of the host's CPU is not used: it misnames some virtual machines, while the feature flags are right.

    Raises:
        CompileError: a processor that Tilewright has no code generator for.
    """
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if platform.machine() in ("aarch64", "arm64"):
        return replace(AARCH64, name="host", triple=triple, l2_bytes=l2_bytes() or AARCH64.l2_bytes)
    if platform.machine() not in ("x86_64", "AMD64"):
        raise CompileError(f"cannot compile for this processor ({platform.machine()}); known: x86-64, AArch64")
    flags = llvm.get_host_cpu_features()

    def fulfils(isa: Isa) -> bool:
        return all(flags.get(feature[1:]) for feature in isa.features)

    level = next((isa for isa in (X86_64_V4, X86_64_V3, X86_64_V2) if fulfils(isa)), None)
    if level is None:
        missing = ", ".join(f[1:] for f in _V2 if not flags.get(f[1:]))
        raise CompileError(f"this processor lacks {missing}; at least x86-64-v2 (SSE4.2) is needed")
    extras = tuple(f"+{name}" for name in _HOST_EXTRAS if flags.get(name) and (level is X86_64_V4 or "512" not in name))
    return replace(
        level,
        name="host",
        triple=triple,
        features=(*level.features, *extras),
        bf16="+avx512bf16" in extras,
        l2_bytes=l2_bytes() or level.l2_bytes,
    )


def isa_named(target: str) -> Isa:
    """The instruction set of a target's name: ``cpu`` is this host, ``cpu:x86-64-v3``, ``aarch64-linux``, ...

    Raises:
        CompileError: unknown name.
    """
    if target == "cpu":
        return host_isa()
    found = ISAS.get(target.removeprefix("cpu:"))
    if found is None:
        raise CompileError(
            f"unknown target {target!r}; known: cpu, aarch64-linux, {', '.join(f'cpu:{name}' for name in ISAS if name.startswith('x86'))}"
        )
    return found


def runs_here(isa: Isa) -> bool:
    """Whether this process can run code of `isa`."""
    host = host_isa()
    same_system = isa.triple.split("-")[0] == host.triple.split("-")[0] and "linux" in host.triple
    return isa is host or (same_system and set(isa.features) <= set(host.features))

"""Targets with an operating system, such as ``aarch64-android``: one row for each processor and one for each
target.

A target is named ``PROCESSOR-SYSTEM``. Features follow a colon and are joined by plus signs:
``aarch64-linux:dotprod+i8mm``, ``x86_64-windows:x86-64-v3``, ``riscv64-linux:v``. The systems, with their
triples, formats and suffixes, are in `tilewright.artifact.systems`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...artifact.systems import BY_NAME
from ...ir.target_info import CacheLevel, Machine
from ..llvm.isa import Isa
from .machine import common

_V2 = ("+cx16", "+popcnt", "+sahf", "+sse3", "+ssse3", "+sse4.1", "+sse4.2")
_V3 = (*_V2, "+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe")
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl")
EXTENSIONS = ("avx512bf16", "avx512fp16", "avx512vnni", "avxvnni", "amx-tile", "amx-bf16", "amx-int8", "gfni")
"""Features beyond a level of x86-64 that generated code may use."""

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
    "x86-64-v4", _LINUX, "x86-64-v4", _V4, 512, 32, masked=True, fma=True, half=True, avx512=True,
    machine=common(32, 1024),
)  # fmt: skip
AARCH64 = Isa(
    "aarch64-linux", "aarch64-unknown-linux-gnu", "generic", ("+fp-armv8", "+neon"), 128, 32,
    masked=False, fma=True, half=True, lane_factors=True, nan_minmax=True, machine=common(64, 1024),
)  # fmt: skip
"""Caches have common sizes: a second level of 256 KiB (Nehalem to Broadwell), 512 KiB (Zen 1 to 3) or 1 MiB
(Skylake with AVX-512, Zen 4, Neoverse).
"""
RISCV64 = Isa(
    "riscv64-linux", "riscv64-unknown-linux-gnu", "generic-rv64", ("+m", "+a", "+f", "+d", "+c"), 64, 16,
    masked=False, fma=True, machine=common(32, 512, 4),
)  # fmt: skip
"""RV64GC. A vector of two numbers is two of the 32 floating-point registers, which hides the latency of
multiply-adds; the sizes are those of the SiFive U74.
"""
ARMV7 = Isa(
    "armv7-linux", "armv7-unknown-linux-gnueabihf", "generic", ("+v7", "+vfp3", "+neon"), 128, 16,
    masked=False, fma=False, lane_factors=True, rounding=False, machine=common(32, 256, 4),
)  # fmt: skip
"""ARMv7-A with NEON, whose float32 results that are denormal are 0 where vectors compute them. The sizes are
those of the Cortex-A7 and A9.
"""
HEXAGON = Isa(
    "hexagon-linux", "hexagon-unknown-linux-musl", "hexagonv66", (), 64, 12,
    masked=False, fma=True, rounding=False, loads_anywhere=False, machine=common(32, 512, 4),
)  # fmt: skip
"""Hexagon V66 without its vector coprocessor (HVX). A vector is a pair of the 28 free registers. Tiles for 16
vectors would spill their sums: the inner loop of a float32 product then accesses the stack more often than
it multiplies.
"""
LEVELS = {isa.name: isa for isa in (X86_64_V2, X86_64_V3, X86_64_V4)}
"""The levels of x86-64, by the names that the System V ABI gives them."""


@dataclass(frozen=True)
class Feature:
    """A feature that a target's name may add.

    Attributes:
        flags: LLVM's features.
        needs: features of the same table that come with it.
        changes: fields of the `Isa` with the feature.
    """

    flags: tuple[str, ...]
    needs: tuple[str, ...] = ()
    changes: tuple[tuple[str, object], ...] = ()


def _sve(bits: int) -> Feature:
    """Registers of SVE with a known width, as which LLVM takes vectors of this width.

    A64FX, the processor with 512 bits, needs two micro-operations for a multiply-add by a lane.
    """
    changes = (("vector_bits", bits), ("sve_bits", bits), ("masked", True), ("lane_factors", bits == 256))
    return Feature(("+sve",), (), changes)


WITH_MATRICES = (
    "cortex-a710", "neoverse-n2", "neoverse-v1", "neoverse-v2", "apple-m2", "apple-m3", "apple-m4",
)  # fmt: skip
"""Processors of AArch64 with products of matrices of bytes and of bf16."""

FEATURES: Mapping[str, Mapping[str, Feature]] = {
    "x86_64": {
        name: Feature((f"+{name}",), (), (("bf16", True),) if name == "avx512bf16" else ())
        for name in EXTENSIONS
    },
    "aarch64": {
        "dotprod": Feature(("+dotprod",)),
        "i8mm": Feature(("+i8mm",), ("dotprod",)),
        "bf16": Feature(("+bf16",), (), (("bf16", True),)),
        **{f"sve{bits}": _sve(bits) for bits in (256, 512)},
        **{name: Feature((), ("dotprod",)) for name in ("cortex-a76", "neoverse-n1", "apple-m1")},
        **{name: Feature((), ("dotprod", "i8mm", "bf16")) for name in WITH_MATRICES},
    },
    "armv7": {"vfp4": Feature(("+vfp4",), (), (("fma", True),))},
    "riscv64": {
        "v": Feature(("+v",), (), (("vector_bits", 128), ("vector_registers", 32))),
        "zvl256b": Feature(("+zvl256b",), ("v",), (("vector_bits", 256),)),
    },
    "hexagon": {
        "hvx": Feature(
            ("+hvxv66", "+hvx-length128b"), (), (("integer_bits", 1024), ("integer_registers", 32))
        ),
    },
}
"""Features by processor, in the order in which a target's name lists them. A name of a processor stands for
the features that code makes use of.
"""


@dataclass(frozen=True)
class Processor:
    """A kind of processor of targets with a system.

    Attributes:
        isa: what every such processor has.
        endings: ends of LLVM's triple in place of the system's, by the system's name.
    """

    isa: Isa
    endings: Mapping[str, str] | None = None


PROCESSORS = {
    "x86_64": Processor(X86_64_V2),
    "aarch64": Processor(AARCH64),
    "riscv64": Processor(RISCV64),
    "armv7": Processor(
        ARMV7,
        {
            "linux": "unknown-linux-gnueabihf",
            "linux-musl": "unknown-linux-musleabihf",
            "android": "unknown-linux-androideabi21",
        },
    ),
    "hexagon": Processor(HEXAGON, {"linux": "unknown-linux-musl"}),  # glibc is not made for Hexagon
}

_PHONE = common(64, 256, 8)
_M1 = Machine(8, (CacheLevel(1, 128 << 10), CacheLevel(2, 12 << 20, 4)))
_A9 = Machine(2, (CacheLevel(1, 64 << 10), CacheLevel(2, 3 << 20, 2)))
_DESKTOP = common(32, 256, 8)

_M1_FEATURES = (*AARCH64.features, "+dotprod")
_ROWS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("aarch64", "linux", {}),
    ("aarch64", "linux-musl", {}),
    ("x86_64", "linux", {}),
    ("x86_64", "linux-musl", {}),
    ("riscv64", "linux", {}),
    ("riscv64", "linux-musl", {}),
    ("armv7", "linux", {}),
    ("armv7", "linux-musl", {}),
    ("hexagon", "linux", {}),
    ("aarch64", "android", {"machine": _PHONE}),
    ("armv7", "android", {}),
    ("x86_64", "android", {"machine": _PHONE}),
    ("aarch64", "macos", {"cpu": "apple-m1", "features": _M1_FEATURES, "machine": _M1}),
    ("x86_64", "macos", {"machine": _DESKTOP}),
    ("aarch64", "ios", {"cpu": "apple-a9", "machine": _A9}),
    ("aarch64", "ios-simulator", {"cpu": "apple-m1", "features": _M1_FEATURES, "machine": _M1}),
    ("x86_64", "windows", {"machine": _DESKTOP}),
    ("aarch64", "windows", {"machine": _DESKTOP}),
)
"""Processor, system, and what processors of such systems have in addition. A9: the oldest that runs iOS 15;
M1: the oldest Mac with an Apple processor.
"""


def _port(processor: str, system: str, changes: Mapping[str, object]) -> Isa:
    base = PROCESSORS[processor]
    ending = (base.endings or {}).get(system, BY_NAME[system].llvm)
    values = {"name": f"{processor}-{system}", "triple": f"{processor}-{ending}", **changes}
    return replace(base.isa, **values)  # type: ignore[arg-type]


PORTS = {isa.name: isa for isa in (_port(*row) for row in _ROWS)}
"""The instruction sets of targets with a system, by the target's name without features."""


def processor_of(isa: Isa) -> str:
    """The processor's name in targets' names."""
    name = isa.triple.partition("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


__all__ = [
    "AARCH64",
    "ARMV7",
    "EXTENSIONS",
    "FEATURES",
    "HEXAGON",
    "LEVELS",
    "PORTS",
    "PROCESSORS",
    "RISCV64",
    "X86_64_V2",
    "X86_64_V3",
    "X86_64_V4",
    "Feature",
    "processor_of",
]

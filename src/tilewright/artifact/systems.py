"""Operating systems that artifacts are made for: names, spellings of compilers, formats and suffixes.

Each system is told once. `system_of` finds the system of an LLVM triple; linking, suffixes and messages read
it.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class System:
    """An operating system with its C library.

    Attributes:
        name: the end of targets' names (``linux-musl`` in ``aarch64-linux-musl``).
        title: the name in messages.
        format: the format of libraries: "ELF", "Mach-O" or "PE".
        llvm: LLVM's triple after the processor.
        zig: zig's target after the processor.
        suffixes: the suffixes of artifacts, the usual one first.
        marks: parts of LLVM triples by which the system is known; a triple is compared in the table's order.
    """

    name: str
    title: str
    format: str
    llvm: str
    zig: str
    suffixes: tuple[str, ...]
    marks: tuple[str, ...]

    @property
    def family(self) -> str:
        """The heading under which lists name the system."""
        return "Apple" if self.format == "Mach-O" else self.title.partition(" with ")[0]


_ELF_SUFFIXES = (".so", ".a", ".tar")
_APPLE_SUFFIXES = (".dylib", ".so", ".a", ".tar")

SYSTEMS = (
    System(
        "android",
        "Android",
        "ELF",
        "unknown-linux-android21",
        "linux-android.21",
        _ELF_SUFFIXES,
        ("android",),
    ),
    System(
        "linux-musl", "Linux with musl", "ELF", "unknown-linux-musl", "linux-musl", _ELF_SUFFIXES, ("musl",)
    ),
    System("linux", "Linux", "ELF", "unknown-linux-gnu", "linux-gnu", _ELF_SUFFIXES, ("linux",)),
    System("freebsd", "FreeBSD", "ELF", "unknown-freebsd", "freebsd", _ELF_SUFFIXES, ("freebsd",)),
    System(
        "ios-simulator",
        "the iOS simulator",
        "Mach-O",
        "apple-ios15.0.0-simulator",
        "ios.15.0-simulator",
        _APPLE_SUFFIXES,
        ("-simulator",),
    ),
    System("ios", "iOS", "Mach-O", "apple-ios15.0.0", "ios.15.0", _APPLE_SUFFIXES, ("apple-ios",)),
    System(
        "macos",
        "macOS",
        "Mach-O",
        "apple-macosx11.0.0",
        "macos.11.0",
        _APPLE_SUFFIXES,
        ("apple", "darwin", "macos"),
    ),
    System(
        "windows", "Windows", "PE", "pc-windows-gnu", "windows-gnu", (".dll", ".lib", ".tar"), ("windows",)
    ),
)
"""All systems, those with more specific marks first. Versions are the oldest ones that artifacts run on."""

BY_NAME = {system.name: system for system in SYSTEMS}
UNKNOWN = System("none", "no system", "ELF", "unknown-none-elf", "freestanding", _ELF_SUFFIXES, ())
"""The system of triples that name none, such as those of bare processors."""


def system_of(triple: str) -> System:
    """The system of an LLVM triple; `UNKNOWN` if it names none of `SYSTEMS`."""
    return next((s for s in SYSTEMS if any(mark in triple for mark in s.marks)), UNKNOWN)


@cache
def host_system() -> System:
    """The system of this process."""
    name = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    if name == "linux" and platform.libc_ver()[0] != "glibc":
        name = "android" if hasattr(sys, "getandroidapilevel") else "linux-musl"
    return BY_NAME.get(name, UNKNOWN)


__all__ = ["BY_NAME", "SYSTEMS", "UNKNOWN", "System", "host_system", "system_of"]

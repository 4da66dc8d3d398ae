"""Kinds of artifacts: the suffixes of each target, and the kind of a file from its first bytes."""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.artifact import elf
from tilewright.artifact.systems import host_system, system_of
from tilewright.errors import ArtifactError

SUFFIXES = {
    ".so": "a shared library",
    ".dylib": "a shared library for macOS",
    ".dll": "a shared library for Windows",
    ".a": "a static library",
    ".lib": "a static library for Windows",
    ".wasm": "a WebAssembly module",
    ".tar": "an archive",
}
"""The suffixes of all artifacts, with their formats."""

UNLINKED = {
    ".tar": "objects and sources as a .tar file",
    ".a": "a static library",
    ".lib": "a static library",
}
"""The suffixes of artifacts that a program is linked with, with what they hold."""

_VERSIONED = re.compile(r"\.so(\.\d+)*$", re.IGNORECASE)
_ELF_MACHINES = {
    3: "32-bit x86",
    20: "32-bit PowerPC",
    21: "ppc64",
    22: "s390x",
    40: "32-bit ARM",
    62: "x86_64",
    164: "hexagon",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
_MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
_PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64", 0x14C: "32-bit x86"}
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_HOST_FORMATS = {"Darwin": "Mach-O", "Windows": "PE"}


def suffixes_of(triple: str) -> tuple[str, ...]:
    """The suffixes of artifacts for an LLVM triple, the usual one first."""
    if triple.startswith("wasm"):
        return (".wasm", ".tar")
    return system_of(triple).suffixes


FRAMEWORK = ".framework"
"""The end of the name of a folder with a library for Apple's systems, whose file has no suffix."""


def library_name(path: str | Path) -> str:
    """The name by which other libraries and programs refer to a shared library: that of its file, or its path
    from the folder of its framework on.
    """
    parts = Path(path).parts
    at = next((k for k, part in enumerate(parts[:-1]) if part.endswith(FRAMEWORK)), -1)
    return "/".join(parts[at:])


def suffix_of(path: str | Path) -> str:
    """The suffix of a name, as in `SUFFIXES`: ``.so`` for ``libmodel.so.1``, ``.dylib`` for the file in a
    framework.
    """
    if library_name(path) != Path(path).name and not Path(path).suffix:
        return ".dylib"
    return ".so" if _VERSIONED.search(Path(path).name) else Path(path).suffix.lower()


def check_suffix(path: str | Path, suffixes: Sequence[str], target: str) -> None:
    """Raises ArtifactError unless the name of `path` ends in one of `suffixes`, those of `target`; the
    message lists them.
    """
    if suffix_of(path) in suffixes:
        return
    ending = Path(path).suffix
    other = _owner(ending.lower())
    right = Path(path).with_suffix(suffixes[0]).name if Path(path).name else f"model{suffixes[0]}"
    raise ArtifactError(
        f"{path}: an artifact for {target} has the suffix {_either(suffixes)}, not "
        f"{ending or 'none'}{other}; name it {right}"
    )


def _either(names: Sequence[str]) -> str:
    """``.so, .a or .tar``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _owner(suffix: str) -> str:
    """The clause that says which targets have a suffix; "" for one that several systems share."""
    if suffix == ".wasm":
        return ", which is that of the target wasm32"
    titles = {".dylib": "macOS and iOS", ".dll": "Windows", ".lib": "Windows"}
    return f", which is that of {titles[suffix]}" if suffix in titles else ""


@dataclass(frozen=True)
class FileKind:
    """A file's format ("ELF", "Mach-O", "PE", "WebAssembly", "tar", "ar", "" for another), and its
    machine.
    """

    format: str
    machine: str = ""
    system: str = ""

    def __str__(self) -> str:
        if not self.format:
            return "a file of an unknown format"
        names = {
            "WebAssembly": "a WebAssembly module",
            "tar": "a tar archive",
            "ar": "a static library, which is linked into a program and not loaded",
        }
        return names.get(self.format) or f"a shared library for {self.system} on {self.machine}"

    @property
    def native(self) -> bool:
        """Whether it is a shared library of any system."""
        return bool(self.machine)

    @property
    def runs_here(self) -> bool:
        """Whether it is a shared library of this system and kind of processor."""
        machine = platform.machine().lower()
        wanted = _HOST_FORMATS.get(platform.system(), "ELF"), _OTHER_NAMES.get(machine, machine)
        return (self.format, self.machine) == wanted


def kind_of(path: Path) -> FileKind:
    """The kind of the file `path`. Raises ArtifactError: it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _kind(head.ljust(1024, b"\0"))


def _kind(head: bytes) -> FileKind:
    if head[:4] == b"\0asm":
        return FileKind("WebAssembly")
    if head[:8] == b"!<arch>\n":
        return FileKind("ar")
    if head[257:262] == b"ustar":
        return FileKind("tar")
    if head[:4] == b"\x7fELF":
        (number,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)
        return FileKind(
            "ELF", _ELF_MACHINES.get(number, f"processor {number}"), {9: "FreeBSD"}.get(head[7], "Linux")
        )
    if head[:4] == b"\xcf\xfa\xed\xfe":
        (number,) = struct.unpack_from("<I", head, 4)
        return FileKind("Mach-O", _MACH_MACHINES.get(number, f"processor {number:#x}"), "macOS")
    if head[:4] == b"\xca\xfe\xba\xbe":
        return FileKind("Mach-O", "several processors", "macOS")
    if head[:2] == b"MZ":
        (at,) = struct.unpack_from("<I", head, 60)
        if head[at : at + 4] == b"PE\0\0" and at + 6 <= len(head):
            (number,) = struct.unpack_from("<H", head, at + 4)
            return FileKind("PE", _PE_MACHINES.get(number, f"processor {number:#x}"), "Windows")
    return FileKind("")


def check_native(path: Path, triple: str = "") -> None:
    """Raises ArtifactError unless `path` is a shared library for this machine; the message says what the file
    is.

    `triple` is the one that the artifact's metadata state. It tells apart systems whose files have one
    format, such as Linux, Linux with musl and Android.
    """
    kind = kind_of(path)
    if kind.native and triple:
        kind = replace(kind, system=system_of(triple).title)
    foreign = bool(triple) and system_of(triple) is not host_system()
    if kind.native and (foreign or not kind.runs_here):
        raise ArtifactError(
            f"{path}: {kind}; this machine is {host_system().title} on {platform.machine()}: run it there, "
            "or compile the model for the target cpu"
        )
    if not kind.native:
        raise ArtifactError(f"{path}: not a Tilewright artifact: {kind}")
    if kind.format == "ELF" and not elf.is_whole(path):
        raise ArtifactError(f"{path}: damaged file: it is truncated")


__all__ = [
    "FRAMEWORK",
    "SUFFIXES",
    "UNLINKED",
    "FileKind",
    "check_native",
    "check_suffix",
    "kind_of",
    "library_name",
    "suffix_of",
    "suffixes_of",
]

"""C compilers and linkers: the runtime's objects, data as objects, and the final shared library or WebAssembly module.

The system's `cc` serves the host itself; everything else, and hosts without one, is served by zig, which comes as the Python
package `ziglang` and brings a C library for every system. TILEWRIGHT_CC=zig (or a command) overrides the choice.

A target is anything with an LLVM `triple`, or a triple.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import disk_cache
from tilewright.errors import ArtifactError

_KIND = "runtime"
_ALIGNMENT = 64


def triple(target: Any) -> str:
    """The LLVM triple of a target."""
    return target if isinstance(target, str) else str(target.triple)


def compile_c(sources: Sequence[Path], include_dirs: Sequence[Path], target: Any, flags: Sequence[str]) -> list[bytes]:
    """Objects of C files, position-independent, kept on disk by the content of sources, headers, flags and compiler.

    Raises ArtifactError: no compiler, or it refuses a file.
    """
    name = triple(target)
    command, identity = _compiler(name)
    options = [*flags, *(f"-I{folder}" for folder in include_dirs), *([] if _is_wasm(name) else ["-fPIC"])]
    headers = b"".join(f.read_bytes() for folder in include_dirs for f in sorted(Path(folder).glob("*.h")))

    def build(source: Path) -> bytes:
        text = source.read_bytes()
        key = disk_cache.digest(identity, name, *flags, source.name, text, headers)
        found = disk_cache.read(_KIND, key)
        if found is None:
            with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
                out = Path(folder) / "out.o"
                _run([*command, *options, "-c", str(source), "-o", str(out)], f"compiling {source.name}")
                found = out.read_bytes()
            disk_cache.write(_KIND, key, found)
        return found

    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1) or 1) as pool:
        return list(pool.map(build, sources))


def blob_object(data: bytes, symbol: str, triple: str) -> bytes:
    """An object that defines `symbol` as read-only data, aligned to 64 bytes.

    ELF is written directly, at memory speed; for other formats the C compiler reads the data with ``#embed``.
    """
    arch = triple.split("-")[0]
    if arch in _ELF_MACHINES and not any(system in triple for system in ("windows", "darwin", "macos", "apple")):
        return _elf_object(data, symbol, arch)
    command, _ = _compiler(triple, need_embed=True)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        base = Path(folder)
        (base / "blob.bin").write_bytes(data)
        source, out = base / "blob.c", base / "blob.o"
        array = '{\n#embed "blob.bin"\n}' if data else "{0}"
        source.write_text(f"_Alignas({_ALIGNMENT}) const unsigned char {symbol}[] = {array};\n")
        _run([*command, "-std=c23", "-O1", "-c", str(source), "-o", str(out)], f"embedding {symbol}")
        return out.read_bytes()


def link_shared(objects: Sequence[bytes], path: Path, target: Any, exports: Sequence[str]) -> None:
    """Link objects into the shared library (or WebAssembly module) `path` that shows `exports` and hides the rest.

    Raises ArtifactError: no linker, or it fails; the message is its own.
    """
    name = triple(target)
    command, _ = _compiler(name)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        base = Path(folder)
        files = []
        for index, data in enumerate(objects):
            file = base / f"{index}.o"
            file.write_bytes(data)
            files.append(str(file))
        out = base / "linked"
        _run([*command, *_link_options(name, base, exports), *files, "-o", str(out)], f"linking {Path(path).name}")
        shutil.copyfile(out, path)


def _link_options(name: str, folder: Path, exports: Sequence[str]) -> list[str]:
    if _is_wasm(name):
        return [
            "-nostdlib",
            "-lcompiler_rt",
            "-O2",
            "-Wl,--no-entry",
            "-Wl,--strip-all",
            *(f"-Wl,--export={e}" for e in exports),
        ]
    if _is_apple(name):
        listing = folder / "exports.txt"
        listing.write_text("".join(f"_{e}\n" for e in exports))
        return ["-shared", "-O2", f"-Wl,-exported_symbols_list,{listing}"]
    if "windows" in name:
        return ["-shared", "-O2"]  # the runtime marks its functions dllexport
    script = folder / "exports.map"
    script.write_text("{ global: " + "".join(f"{e}; " for e in exports) + "local: *; };\n")
    return [
        "-shared",
        "-O2",
        "-pthread",
        f"-Wl,--version-script={script}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,noexecstack",
        "-s",
    ]


# -- Choosing a compiler -----------------------------------------------------------------------------------------------------


def _is_wasm(name: str) -> bool:
    return name.startswith("wasm")


def _is_apple(name: str) -> bool:
    return "apple" in name or "darwin" in name or "macos" in name


_SYSTEMS = {"Linux": "linux", "Darwin": "apple", "Windows": "windows", "FreeBSD": "freebsd"}
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def _is_host(name: str) -> bool:
    """Whether `name` is this machine's own system and kind of processor."""
    arch, *rest = name.split("-")
    machine = platform.machine().lower()
    if _ARCHITECTURES.get(arch, arch) != _ARCHITECTURES.get(machine, machine):
        return False
    system = _SYSTEMS.get(platform.system(), platform.system().lower())
    if system == "linux" and ("musl" in name or "android" in name) != (platform.libc_ver()[0] != "glibc"):
        return False
    return any(system in part or (system == "apple" and part.startswith(("darwin", "macos"))) for part in rest)


def _compiler(name: str, need_embed: bool = False) -> tuple[list[str], str]:
    """The command of a C compiler for a triple, and what identifies it in cache keys.

    Raises ArtifactError when there is none.
    """
    wish = os.environ.get("TILEWRIGHT_CC", "")
    if wish != "zig" and not need_embed and _is_host(name):
        command = shlex.split(wish) or ["cc"]
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]], f"{' '.join(command)} {_fingerprint(os.path.realpath(found))}"
        if wish:
            raise ArtifactError(f"TILEWRIGHT_CC names '{wish}', which is not an executable")
    if importlib.util.find_spec("ziglang") is None:
        raise ArtifactError(f"no C compiler for {name}: pip install ziglang (for this machine, any `cc` will do)")
    return [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        zig_target(name),
    ], f"zig {_zig_version()} {zig_target(name)}"


@cache
def _fingerprint(path: str) -> str:
    info = os.stat(path)
    return f"{path} {info.st_size} {info.st_mtime_ns}"


@cache
def _zig_version() -> str:
    from importlib.metadata import version

    return version("ziglang")


def zig_target(name: str) -> str:
    """zig's spelling of an LLVM triple: "x86_64-unknown-linux-gnu" is "x86_64-linux-gnu"."""
    arch, *rest = name.split("-")
    arch = {"arm64": "aarch64", "amd64": "x86_64", "i686": "x86", "i386": "x86"}.get(arch, arch)
    text = "-".join(rest)
    if arch.startswith("wasm"):
        return f"{arch}-wasi" if "wasi" in text else f"{arch}-freestanding"
    if _is_apple(text):
        return f"{arch}-macos"
    if "windows" in text:
        return f"{arch}-windows-gnu"
    if "linux" in text:
        abi = next((a for a in ("gnueabihf", "musleabihf", "android", "musl", "gnu") if a in text), "gnu")
        return f"{arch}-linux-{abi}"
    if "freebsd" in text:
        return f"{arch}-freebsd"
    return f"{arch}-freestanding-eabi" if arch.startswith(("arm", "thumb")) else f"{arch}-freestanding"


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise ArtifactError(f"{what}: {command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        shown = "\n".join(lines[:20])
        raise ArtifactError(f"{what} failed ({shlex.join(command[:4])} ...):\n{shown}")


# -- ELF ---------------------------------------------------------------------------------------------------------------------
# System V ABI, "Object Files"; e_machine and e_flags from the processors' supplements.

_ELF_MACHINES = {"x86_64": (62, 0), "amd64": (62, 0), "aarch64": (183, 0), "riscv64": (243, 0x5)}  # RVC, double floats
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOCATED, _LARGE = 0x2, 0x10000000


def _elf_object(data: bytes, symbol: str, arch: str) -> bytes:
    machine, flags = _ELF_MACHINES[arch]
    # Beyond 2 GB, code could not reach what the linker puts behind the data: the large model's section is placed last.
    large = machine == 62 and len(data) > 1 << 30
    names = ["", ".lrodata" if large else ".rodata", ".symtab", ".strtab", ".shstrtab", ".note.GNU-stack"]
    strings = b"\0" + symbol.encode() + b"\0"
    section_names = b"\0".join(n.encode() for n in names) + b"\0"
    starts = [sum(len(n) + 1 for n in names[:k]) for k in range(len(names))]
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(1, 1 << 4 | 1, 0, 1, 0, len(data))  # global data object
    parts, at, offsets = [bytes(_HEADER.size)], _HEADER.size, []
    for content, align in ((data, _ALIGNMENT), (symbols, 8), (strings, 1), (section_names, 1), (b"", 1)):
        pad = -at % align
        parts += [bytes(pad), content]
        offsets.append(at + pad)
        at += pad + len(content)
    pad = -at % 8
    parts.append(bytes(pad))
    table = at + pad
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    rows = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (starts[1], _PROGBITS, _ALLOCATED | (_LARGE if large else 0), 0, offsets[0], len(data), 0, 0, _ALIGNMENT, 0),
        (starts[2], _SYMTAB, 0, 0, offsets[1], len(symbols), 3, 1, 8, _SYMBOL.size),
        (starts[3], _STRTAB, 0, 0, offsets[2], len(strings), 0, 0, 1, 0),
        (starts[4], _STRTAB, 0, 0, offsets[3], len(section_names), 0, 0, 1, 0),
        (starts[5], _PROGBITS, 0, 0, offsets[4], 0, 0, 0, 1, 0),
    ]
    parts += [_SECTION.pack(*row) for row in rows]
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)  # 64 bit, little-endian, version 1, System V
    parts[0] = _HEADER.pack(ident, 1, machine, 1, 0, 0, table, flags, 64, 0, 0, _SECTION.size, len(rows), 4)
    return b"".join(parts)

"""C compilers and linkers: the runtime's objects, data as objects, and the final shared library or
WebAssembly module.

For the host itself the system's `cc` is used. For other systems, and on hosts without `cc`, zig is used,
which comes as the Python package `ziglang` with a C library for every system. TILEWRIGHT_CC=zig (or another
command) overrides the choice. A target is an LLVM triple, or any object with an attribute `triple`.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Protocol

from tilewright.artifact import disk_cache, elf, macho, stubs, symbols, temporary
from tilewright.artifact.systems import BY_NAME, UNKNOWN, host_system, system_of
from tilewright.errors import ArtifactError

_KIND = "runtime"
_ALIGNMENT = 64
_SMALL = 1024  # bytes of data whose object is kept, such as the head of weights in another place


class Machine(Protocol):
    """A description of a machine with its LLVM triple."""

    @property
    def triple(self) -> str: ...


def triple(target: str | Machine) -> str:
    """The LLVM triple of a target."""
    return target if isinstance(target, str) else str(target.triple)


def feature_flags(target: str | Machine) -> list[str]:
    """The compiler's options for the features of a WebAssembly target, such as ``-matomics``; none for other
    targets, whose runtime runs on every processor of the kind.
    """
    features: Sequence[str] = getattr(target, "features", ()) if _is_wasm(triple(target)) else ()
    flags = [f"-m{feature.lstrip('+')}" for feature in features]
    return [*flags, "-mthread-model", "posix"] if has_threads(target) else flags


def has_threads(target: str | Machine) -> bool:
    """Whether modules for a WebAssembly target share their memory with the modules of other threads."""
    return "+atomics" in getattr(target, "features", ()) and _is_wasm(triple(target))


def compile_c(
    sources: Sequence[Path],
    include_dirs: Sequence[Path],
    target: str | Machine,
    flags: Sequence[str],
    *,
    join: bool = False,
) -> list[bytes]:
    """Compile C files to position-independent objects, cached by the contents of sources, headers, flags and
    compiler.

    Args:
        sources: The files.
        include_dirs: Folders with headers.
        target: The system and processor that they are compiled for.
        flags: Options of the compiler.
        join: Whether they become one object, where the target's linker can join objects. To read one takes a
            linker a fraction of the time.

    Raises:
        ArtifactError: There is no compiler, or it fails on a file.
    """
    name = triple(target)
    command, identity = _compiler(name)
    flags = [*flags, *feature_flags(target), *([] if _is_wasm(name) else ["-fPIC"])]
    options = [*flags, *(f"-I{folder}" for folder in include_dirs)]
    headers = b"".join(f.read_bytes() for folder in include_dirs for f in sorted(Path(folder).glob("*.h")))
    keys = {
        source: disk_cache.digest(identity, name, *flags, source.name, source.read_bytes(), headers)
        for source in sources
    }

    def build(source: Path) -> bytes:
        full = [*command, *options, "-c", str(source)]
        return _kept(keys[source], lambda out: _run([*full, "-o", str(out)], f"compiling {source.name}"))

    def build_all() -> list[bytes]:
        with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1) or 1) as pool:
            return list(pool.map(build, sources))

    joining = _joining_command(name) if join else None
    if joining is None:
        return build_all()
    key = disk_cache.digest("joined", *joining[1:], *keys.values())
    return [_kept(key, lambda out: _join(build_all(), joining, out))]


def _kept(key: str, make: Callable[[Path], None]) -> bytes:
    """The contents that `_made` gives, from the cache if they are there."""
    data = disk_cache.read(_KIND, key)
    if data is None:
        data = _made(make)
        disk_cache.write(_KIND, key, data)
    return data


def _made(make: Callable[[Path], None]) -> bytes:
    """The contents of the file that `make` writes to the path that it is given, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        out = Path(folder) / "out.o"
        make(out)
        return out.read_bytes()


def _joining_command(name: str) -> list[str] | None:
    """The command of a linker that joins objects for a triple to one object; None where no linker can: zig
    has none for Mach-O, and objects of Windows cannot be joined.
    """
    if not _is_wasm(name) and system_of(name).format != "ELF":
        return None
    command, identity = _compiler(name, linking=True)
    if not identity.startswith("zig "):
        return [*command, "-r", "-nostdlib"]
    return [*zig_command(), "wasm-ld" if _is_wasm(name) else "ld.lld", "-r"]


def _join(objects: Sequence[bytes], command: Sequence[str], out: Path) -> None:
    """Write the object that has the contents of several."""
    _run([*command, *_written(objects, out.parent), "-o", str(out)], "joining objects")


def _written(objects: Sequence[bytes], folder: Path) -> list[str]:
    """The paths of objects that are written into a folder."""
    files = [folder / f"{index}.o" for index in range(len(objects))]
    for file, data in zip(files, objects, strict=True):
        file.write_bytes(data)
    return list(map(str, files))


def compile_text(
    text: str, name: str, target: str | Machine, flags: Sequence[str], header: str, *, cpp: bool = False
) -> bytes:
    """The position-independent object of a C or C++ source, cached by all that determines it but the files
    that it includes.

    Args:
        text: The source.
        name: Its name or path in the compiler's messages.
        target: The system and processor that it is compiled for.
        flags: Options of the compiler. Options for folders with headers must name all folders that matter.
        header: Declarations that stand before it.
        cpp: Whether it is C++.

    Raises:
        CompilerError: The compiler refuses the source; the message is the compiler's.
        ArtifactError: There is no compiler.
    """
    triple_ = triple(target)
    command, identity = _compiler(triple_, cpp=cpp)
    options = [*flags, *([] if _is_wasm(triple_) else ["-fPIC"])]
    if identity.startswith("zig "):  # which names processors with underscores, and checks by default
        options = [f"-march={o[7:].replace('-', '_')}" if o.startswith("-march=") else o for o in options]
        options.append("-fno-sanitize=undefined")
    key = disk_cache.digest(identity, triple_, *options, name, header, text)

    def make(out: Path) -> None:
        base = out.parent
        source, before = base / ("kernel.cpp" if cpp else "kernel.c"), base / "kernel.h"
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        source.write_text(f'#line 1 "{quoted}"\n{text}\n')
        before.write_text(header)
        full = [*command, *options, "-include", str(before), "-c", str(source), "-o", str(out)]
        try:
            _run(full, f"compiling {name}")
        except ArtifactError as error:
            raise CompilerError(str(error).replace(f"{base}{os.sep}", "")) from None

    return _kept(key, make)


class CompilerError(ArtifactError):
    """A compiler refuses a source; the message has its output."""


def compiler_identity(target: str | Machine, *, cpp: bool = False) -> str:
    """A text that changes with the compiler that `compile_text` runs; "" where there is none."""
    try:
        return _compiler(triple(target), cpp=cpp)[1]
    except ArtifactError:
        return ""


def zig_identity() -> str:
    """A text that changes with zig's version.

    Raises:
        ArtifactError: zig is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise ArtifactError("zig is not installed: pip install ziglang")
    return f"zig {_zig_version()}"


def zig_command() -> list[str]:
    """The beginning of zig's command: the program in the package `ziglang`, since ``python -m ziglang`` would
    start Python once more for each run.
    """
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if program := shutil.which("zig", path=folder):
            return [program]
    return [sys.executable, "-m", "ziglang"]


def blob_object(data: bytes, symbol: str, triple: str) -> bytes:
    """An object that defines `symbol` as read-only data, aligned to 64 bytes.

    ELF is written directly; for other formats the C compiler reads the data with ``#embed``.
    """
    if elf.serves(triple):
        return elf.object_file(data, symbol, triple)
    command, identity = _compiler(triple, need_embed=True)

    def make(out: Path) -> None:
        source = out.with_name("blob.c")
        out.with_name("blob.bin").write_bytes(data)
        array = '{\n#embed "blob.bin"\n}' if data else "{0}"
        source.write_text(f"_Alignas({_ALIGNMENT}) const unsigned char {symbol}[] = {array};\n")
        _run([*command, "-std=c23", "-O1", "-g0", "-c", str(source), "-o", str(out)], f"embedding {symbol}")

    if len(data) > _SMALL:
        return _made(make)
    return _kept(disk_cache.digest("data", identity, triple, symbol, data), make)


def link_shared(
    objects: Sequence[bytes],
    path: Path,
    target: str | Machine,
    exports: Sequence[str],
    *,
    name: str | None = None,
    beside: Path | None = None,
) -> None:
    """Link objects into the shared library (or WebAssembly module) `path`, which exports `exports` only.

    Args:
        exports: Names of functions; on Linux and Apple's systems ``*`` in a name stands for any text.
        name: The file's final name, by which other libraries of the system refer to it; that of `path` if
            None.
        beside: Where the import library of a DLL is written, if it is.

    Raises:
        ArtifactError: There is no linker, or it fails; the message has its output.
    """
    triple_, system = triple(target), system_of(triple(target))
    name = name or Path(path).name
    command, _ = _compiler(triple_, linking=True)
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        base = Path(folder)
        if system.format == "Mach-O":
            objects = [symbols.hidden(data, exports) for data in objects]
        files = _written(objects, base)
        out = base / "linked" / Path(name).name  # import libraries and signatures have this name
        out.parent.mkdir()
        # Only a library that calls functions of libm, as kernels of the user's may, then names it.
        libraries = ["-Wl,--as-needed", "-lm", "-ldl"] if elf.serves(triple_) else []
        options, environment = _link_options(target, base, exports, objects), {}
        if system is BY_NAME["android"]:
            libraries = ["-Wl,--as-needed", *_stubs(triple_, base)]
            options += [*stubs.ANDROID_OPTIONS, f"-Wl,-soname,{name}"]
        elif system.format == "Mach-O":
            if system.name.startswith("ios"):
                environment = {"ZIG_LIB_DIR": str(stubs.library_folder(system, command[0], base / "zig"))}
            options.append(f"-Wl,-install_name,@rpath/{name}")
        elif system.format == "PE" and beside is not None:
            options.append(f"-Wl,--out-implib,{base / 'import.lib'}")
        _run([*command, *options, *files, *libraries, "-o", str(out)], f"linking {name}", environment)
        if system.format == "Mach-O":
            _sign(out)
        shutil.copyfile(out, path)
        if system.format == "PE" and beside is not None:
            shutil.copyfile(base / "import.lib", beside)


def _sign(library: Path) -> None:
    """Give a library for Apple's systems a signature, where the linker has written none."""
    data = bytearray(library.read_bytes())
    if not macho.is_signed(data):
        macho.sign_ad_hoc(data, library.stem)
        library.write_bytes(data)


def archive(objects: Sequence[bytes], path: Path, target: str | Machine) -> None:
    """Write the static library `path` of objects, in the format of the target's system.

    Raises:
        ArtifactError: zig is not installed, or fails.
    """
    zig_identity()
    kinds = {"Mach-O": "darwin", "PE": "coff"}
    form = kinds.get(system_of(triple(target)).format, "gnu")
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        base = Path(folder)
        # The library is made in a new file, since `ar` would add to one that is there.
        command = [*zig_command(), "ar", f"--format={form}", "rcsD", str(base / "library")]
        command += _written(objects, base)
        _run(command, f"writing {path.name}")
        shutil.copyfile(base / "library", path)


def _stubs(triple_: str, folder: Path) -> list[str]:
    """Libraries with the names and functions of Android's, to link with."""
    command = [*_compiler(triple_, linking=True)[0], "-shared", "-nostdlib", "-fno-builtin", "-w"]
    files = []
    for name, functions in stubs.ANDROID.items():

        def make(out: Path, name: str = name, functions: Sequence[str] = functions) -> None:
            source = out.with_name("stub.c")
            source.write_text(stubs.c_source(functions))
            options = [f"-Wl,-soname,{name}", str(source), "-o", str(out)]
            _run([*command, *options], f"making a stub of {name}")

        key = disk_cache.digest("stub", triple_, zig_identity(), name, *functions)
        (folder / name).write_bytes(_kept(key, make))
        files.append(str(folder / name))
    return files


_SHARED_MEMORY = (
    "-Wl,--import-memory",
    "-Wl,--shared-memory",
    f"-Wl,--max-memory={(1 << 32) - (1 << 16)}",
    "-Wl,-z,stack-size=1048576",
)
"""Every thread has an instance of its own, so the memory comes from outside. The stack is that of the first
thread; platform_wasm_threads.c allocates the others.
"""


def _link_options(
    target: str | Machine, folder: Path, exports: Sequence[str], objects: Sequence[bytes]
) -> list[str]:
    name = triple(target)
    if _is_wasm(name):
        return [
            *feature_flags(target),
            *(_SHARED_MEMORY if has_threads(target) else ()),
            "-nostdlib",
            "-lcompiler_rt",
            "-O2",
            "-Wl,--no-entry",
            "-Wl,--strip-all",
            *(f"-Wl,--export={e}" for e in exports),
        ]
    system = system_of(name)
    if system.format in ("Mach-O", "PE"):  # objects say what is exported
        return ["-shared", "-O2", "-s"]
    script = folder / "exports.map"
    script.write_text("{ global: " + "".join(f"{e}; " for e in exports) + "local: *; };\n")
    # The compiler's start files add functions that the loader calls when the process ends. If the library's
    # file had been overwritten by then, the process would crash. Only destructors of static objects in C++,
    # which refer to `__dso_handle`, need the start files.
    needs_start_files = any(b"__dso_handle" in data for data in objects)
    return [
        "-shared",
        *([] if needs_start_files else ["-nostartfiles"]),
        "-O2",
        "-pthread",
        f"-Wl,--version-script={script}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id",  # a note, whose program header `elf.append_segment` reuses
        "-s",
    ]


# -- Choosing a compiler --


def _is_wasm(name: str) -> bool:
    return name.startswith("wasm")


_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def host_triple() -> str:
    """The triple of this machine."""
    machine = platform.machine().lower()
    system = {"Linux": "linux-gnu", "Darwin": "apple-darwin", "Windows": "windows-gnu"}.get(
        platform.system(), platform.system().lower()
    )
    if system == "linux-gnu" and platform.libc_ver()[0] != "glibc":
        system = "linux-musl"
    return f"{_ARCHITECTURES.get(machine, machine)}-unknown-{system}"


def _is_host(name: str) -> bool:
    """Whether a triple is this machine's system and kind of processor."""
    arch, machine = name.partition("-")[0], platform.machine().lower()
    same = _ARCHITECTURES.get(arch, arch) == _ARCHITECTURES.get(machine, machine)
    return same and not _is_wasm(name) and system_of(name) is host_system()


def _compiler(
    name: str, need_embed: bool = False, cpp: bool = False, linking: bool = False
) -> tuple[list[str], str]:
    """The command of a C (with `cpp`: C++) compiler for a triple, or (`linking`) of a linker, and a text that
    identifies it in cache keys.

    Raises:
        ArtifactError: There is none.
    """
    variable, default, language = ("TILEWRIGHT_CXX", "c++", "C++") if cpp else ("TILEWRIGHT_CC", "cc", "C")
    wish = os.environ.get(variable, "")
    if cpp and os.environ.get("TILEWRIGHT_CC") == "zig":
        wish = wish or "zig"
    if wish != "zig" and not need_embed and _is_host(name):
        command = shlex.split(wish) or [default]
        executable = shutil.which(command[0])
        if executable:
            return [
                executable,
                *command[1:],
            ], f"{' '.join(command)} {_fingerprint(os.path.realpath(executable))}"
        if wish:
            raise ArtifactError(
                f"{variable} names '{wish}', which is not an executable; set it to a {language} compiler"
            )
    if importlib.util.find_spec("ziglang") is None:
        raise ArtifactError(
            f"no {language} compiler for {name} was found: pip install ziglang, or, for this machine, "
            f"install any {language} compiler"
        )
    zig, target, options = zig_command(), zig_target(name), []
    system, processor = system_of(name), target.partition("-")[0]
    if system is BY_NAME["android"] and linking:  # zig refuses to link for Android without a C library
        target = zig_target(name.replace("android", "musl"))
    elif system.name in ("android", "ios", "ios-simulator") and not linking:
        options = stubs.include_options(system, zig[0], processor)
    elif system.format == "PE" and not linking:
        options = ["-s"]  # or else objects hold the path of the temporary file that they were made in
    command = [*zig, "c++" if cpp else "cc", "-target", target, *options]
    return command, " ".join(["zig", _zig_version(), target, *(o for o in options if o == "-s")])


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
    arch = {"arm64": "aarch64", "amd64": "x86_64", "i686": "x86", "i386": "x86", "armv7": "arm"}.get(
        arch, arch
    )
    text, system = "-".join(rest), system_of(name)
    if arch.startswith("wasm"):
        return f"{arch}-wasi" if "wasi" in text else f"{arch}-freestanding"
    if system is UNKNOWN:
        return f"{arch}-freestanding-eabi" if arch.startswith(("arm", "thumb")) else f"{arch}-freestanding"
    floats = next((x for x in ("eabihf", "eabi") if x in text), "")
    base, dot, version = system.zig.partition(".")
    return f"{arch}-{base}{floats}{dot}{version}"


def _run(command: list[str], what: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        # Compilers leave temporary files behind when they are killed.
        place = {**os.environ, "TMPDIR": str(temporary.folder()), **(environment or {})}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=place
        )
    except OSError as error:
        raise ArtifactError(f"{what}: {command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        shown = "\n".join(lines[:20])
        raise ArtifactError(f"{what} failed ({shlex.join(command[:4])} ...):\n{shown}")

"""Building a unit: from the text of kernels to a shared library, by zig's clang, cached on disk.

Clang's own parts serve the simulator: the instrumentation of memory accesses for checked units
(`-fsanitize=thread` calls functions of ours), vector extensions, 16-bit floats. Other compilers are not used.
No C++ library is needed and no C library is linked: its functions are those of the process.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tilewright.artifact import disk_cache, elf, link, temporary
from tilewright.errors import ArtifactError
from tilewright.runtime.simulator import image
from tilewright.runtime.simulator import text as steps
from tilewright.runtime.simulator.faults import SimulationError

FOLDER = Path(__file__).parent
LANGUAGES = {"cuda": "cuda.h", "hip": "hip.h", "metal": "metal.h"}
"""The header of `include/tw_sim` that defines each language."""

_COMMON = (
    "-std=c++20",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-fdeclspec",
    "-fno-stack-protector",
    "-fno-sanitize=undefined",
    "-fwrapv",
    "-Wno-everything",
    "-nostdlibinc",
)
_FAST = ("-O2", "-fsanitize=integer-divide-by-zero", "-fno-sanitize-recover=all", "-fno-sanitize-trap=all")
# Checked code keeps one access for each of the source's: nothing is vectorized, merged or speculated.
_CHECKED = (
    "-DTW_SIM_CHECKED=1",
    "-O1",
    "-gdwarf-4",
    "-gline-tables-only",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fsanitize=thread",
    "-fsanitize=array-bounds,alignment,integer-divide-by-zero,shift-exponent",
    "-fno-sanitize-recover=all",
    "-fno-sanitize-trap=all",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-distinguish-volatile=1",
    "-mllvm",
    "-tsan-instrument-atomics=0",
)
_RUNTIME_CHECKED = ("-DTW_SIM_CHECKED=1", "-O2")


def build(source: str, name: str, language: str, checked: bool, warp: int, entries: tuple[str, ...]) -> bytes:
    """The shared library of a unit.

    Args:
        source: The text.
        name: Its name in the compiler's messages.
        language: A key of `LANGUAGES`.
        checked: Whether accesses are checked.
        warp: Lanes of a warp, 32 or 64.
        entries: Names of kernels to add to those that are found, such as ``scale<float>``.

    Raises:
        SimulationError: The compiler refuses the text; the message is the compiler's.
        ArtifactError: zig is not installed, or the simulator does not run on this machine.
    """
    if checked and not elf.serves(host_triple()):
        raise ArtifactError("checked simulation needs Linux: it reads the variables of ELF files")
    flags = (*_COMMON, f"-DTW_SIM_WARP={warp}", *_machine())
    key = disk_cache.digest(
        "simulator",
        *_identity(),
        *flags,
        *(_CHECKED if checked else _FAST),
        name,
        language,
        *entries,
        "",
        source,
    )
    data = disk_cache.read("simulator", key)
    if data is not None:
        return data
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        base = Path(folder)
        text = _prepare(base, source, name, language, checked, flags, entries)
        (base / "unit.cpp").write_text(text)
        mode = _CHECKED if checked else _FAST
        _zig(["c++", *flags, *mode, "-c", "unit.cpp", "-o", "unit.o"], base, f"compiling {name}")
        objects = ["unit.o", "runtime.o"]
        (base / "runtime.o").write_bytes(_runtime(checked, (*flags, f"-DTW_SIM_{language.upper()}=1")))
        variables = []
        if checked:
            found = image.Image((base / "unit.o").read_bytes()).variables().values()
            variables = [v for v in found if "tw_sim_" not in v.name]
            table = image.symbol_table(variables, None)
            (base / "symbols.o").write_bytes(link.blob_object(table, "tw_sim_symbols", host_triple()))
            objects.append("symbols.o")
        out = base / "unit.so"
        _zig(["cc", *_target(), *_link_flags(), *objects, "-o", out.name], base, f"linking {name}")
        data = out.read_bytes()
        if checked:
            data = image.with_symbols(data, variables)
    disk_cache.write("simulator", key, data)
    return data


def _prepare(
    base: Path,
    source: str,
    name: str,
    language: str,
    checked: bool,
    flags: tuple[str, ...],
    entries: tuple[str, ...],
) -> str:
    """The text that is compiled: preprocessed, with the table of kernels behind it."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (base / "kernel.cpp").write_text(f'#line 1 "{quoted}"\n{source}\n')
    define = ["-DTW_SIM_CHECKED=1"] if checked else []
    header = FOLDER / "include" / "tw_sim" / LANGUAGES[language]
    _zig(
        [
            "c++",
            *flags,
            *define,
            f"-I{FOLDER / 'include'}",
            "-include",
            str(header),
            "-E",
            "kernel.cpp",
            "-o",
            "out.ii",
        ],
        base,
        f"preprocessing {name}",
    )
    text = (base / "out.ii").read_text()
    start = steps.own_part(text, quoted)
    head, own = text[:start], text[start:]
    own = steps.metal_storage(own) if language == "metal" else steps.bind_dynamic_shared(own)
    found = steps.find_kernels(own)
    names = list(dict.fromkeys([*found, *entries]))
    if language != "metal":
        return head + own + steps.entry_table(names)
    try:
        codes = {entry: steps.metal_codes(entry, found[entry]) for entry in found}
    except ValueError as error:
        raise SimulationError(str(error)) from None
    return head + own + steps.entry_table(list(found), codes)


def _runtime(checked: bool, flags: tuple[str, ...]) -> bytes:
    """The object of the scheduler, the same for all units of a mode."""
    mode = _RUNTIME_CHECKED if checked else ("-O2",)
    key = disk_cache.digest("simulator runtime", *_identity(), *flags, *mode)
    data = disk_cache.read("runtime", key)
    if data is None:
        with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
            include = [f"-I{FOLDER / 'include'}", f"-I{FOLDER / 'c'}"]
            source = str(FOLDER / "c" / "runtime.cpp")
            _zig(
                ["c++", *flags, *mode, *include, "-c", source, "-o", "runtime.o"],
                Path(folder),
                "compiling the simulator's runtime",
            )
            data = (Path(folder) / "runtime.o").read_bytes()
        disk_cache.write("runtime", key, data)
    return data


@cache
def _identity() -> tuple[str, ...]:
    """Texts that change with the compiler, this machine's processor, and the simulator's own sources."""
    files = sorted(path for kind in ("c", "include") for path in (FOLDER / kind).rglob("*") if path.is_file())
    own = disk_cache.digest(*(part for f in [*files, Path(__file__)] for part in (f.name, f.read_bytes())))
    return (
        own,
        disk_cache.digest(*((FOLDER / name).read_bytes() for name in ("text.py", "image.py"))),
        link.zig_identity(),
        _processor(),
    )


@cache
def _processor() -> str:
    """A text that differs between processors with different instructions."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    features = re.search(r"^(flags|Features)\s*:.*", info, re.MULTILINE)
    return f"{platform.machine()} {features.group() if features else ''}"


def _target() -> list[str]:
    return ["-target", link.zig_target(host_triple()), "-march=native"]


def _machine() -> tuple[str, ...]:
    return tuple(_target())


def host_triple() -> str:
    """The LLVM triple of this machine.

    Raises:
        ArtifactError: The simulator does not run on it.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    system = platform.system()
    if machine not in ("x86_64", "aarch64") or system not in ("Linux", "Darwin"):
        raise ArtifactError(
            f"the simulator does not run on {system} {machine}: it needs Linux or macOS on x86-64 or AArch64"
        )
    if system == "Darwin":
        return f"{machine}-apple-darwin"
    return f"{machine}-linux-{'gnu' if platform.libc_ver()[0] == 'glibc' else 'musl'}"


def _link_flags() -> list[str]:
    flags = ["-shared", "-nostdlib", "-O2"]
    if platform.system() == "Darwin":
        return [*flags, "-Wl,-undefined,dynamic_lookup"]
    return [*flags, "-Wl,-Bsymbolic", "-Wl,-z,noexecstack"]


def _zig(arguments: list[str], folder: Path, what: str) -> None:
    command = [*link.zig_command(), *arguments]
    place = {**os.environ, "TMPDIR": str(temporary.folder())}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=folder, env=place
    )
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if "argument unused" not in line]
        shown = "\n".join(lines[:30])
        raise SimulationError(f"{what} failed:\n{shown}")

"""Libraries for systems without an emulator: what their loaders read is what the systems demand."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import macho, stubs
from tilewright.artifact.link import zig_command
from tilewright.artifact.sources import EXPORTS
from tilewright.artifact.systems import system_of
from tilewright.artifact.trailer import verify_file
from tilewright.errors import ArtifactError
from tilewright.targets.cpu.isa import isa_named
from tilewright.targets.cpu.ports import FEATURES, PORTS

X = np.ones((2, 8), np.float32)
COLD = {"x86_64-windows", "aarch64-windows"}
"""Targets for which zig first builds a C library, which takes a minute."""


def model(x: Any) -> Any:
    return tw.numpy.tanh(x @ tw.Tensor(np.arange(64, dtype=np.float32).reshape(8, 8) / 64))


def saved(target: str, folder: Path) -> Path:
    library = tw.compile(model, (X,), target=target, cache=False)
    return library.save(folder / f"model{system_of(PORTS[target].triple).suffixes[0]}")


def compiled_for_a_port(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if name in COLD else name


@pytest.mark.parametrize("target", [compiled_for_a_port(name) for name in PORTS])
def test_every_target_is_linked_without_paths_of_this_machine(target: str, tmp_path: Path) -> None:
    path = saved(target, tmp_path)
    verify_file(path)
    data = path.read_bytes()
    for text in (str(tmp_path), str(Path.home()), "ziglang", str(Path(tw.__file__).parent)):
        assert text.encode() not in data
    triple = PORTS[target].triple
    if target != "x86_64-linux":
        what = f"a shared library for {system_of(triple).title} on .*; this machine is"
        with pytest.raises(ArtifactError, match=what):
            tw.load(path)


@pytest.mark.parametrize("processor", [n for n in FEATURES["aarch64"] if "-" in n])
def test_processors_have_the_features_of_llvms_table(processor: str) -> None:
    name = processor.replace("-", "_")
    command = [*zig_command(), "cc", "-target", "aarch64-linux", f"-mcpu={name}", "-dM", "-E", "-x", "c", "-"]
    macros = subprocess.run(command, input="", check=True, capture_output=True, text=True).stdout
    names = {"dotprod": "DOTPROD", "i8mm": "MATMUL_INT8", "bf16": "BF16"}
    found = {feature for feature, macro in names.items() if f"__ARM_FEATURE_{macro} " in macros}
    assert found == set(FEATURES["aarch64"][processor].needs)
    assert {f"+{x}" for x in found} <= set(isa_named(f"aarch64-linux:{processor}").features)


def dynamic_section(data: bytes) -> tuple[list[str], list[str], list[str]]:
    """The needed libraries, the name, and the undefined symbols of a 64-bit ELF library."""
    table, size, count = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + k * size) for k in range(count)]

    def text(section: int, at: int) -> str:
        start = rows[section][4] + at
        return data[start : data.index(b"\0", start)].decode()

    entries: list[tuple[int, str]] = []
    missing = []
    for row in rows:
        if row[1] == 6:  # SHT_DYNAMIC
            for at in range(row[4], row[4] + row[5], 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag in (1, 14):
                    entries.append((tag, text(row[6], value)))
        if row[1] == 11:  # SHT_DYNSYM
            for at in range(row[4] + 24, row[4] + row[5], 24):
                name, _, _, place = struct.unpack_from("<IBBH", data, at)
                if place == 0:
                    missing.append(text(row[6], name))
    needed = [name for tag, name in entries if tag == 1]
    return needed, [name for tag, name in entries if tag == 14], missing


@pytest.mark.parametrize("target", ["aarch64-android", "x86_64-android"])
def test_android_finds_all_functions_in_its_libraries(target: str, tmp_path: Path) -> None:
    data = saved(target, tmp_path).read_bytes()
    needed, name, missing = dynamic_section(data)
    assert name == ["model.so"]
    assert needed == ["libc.so"]
    # The declaration of dlsym is weak: without the library that has it, it is null.
    assert set(missing) - {"dlsym"} <= set(stubs.ANDROID["libc.so"])
    assert "__errno_location" not in missing
    (table,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + 56 * k) for k in range(count)]
    assert all(s[7] % 16384 == 0 for s in segments if s[0] == 1)
    assert not any(s[0] == 7 for s in segments), "thread-local variables need Android 10"


def test_a_function_that_android_lacks_is_an_error(tmp_path: Path) -> None:
    from tilewright.artifact import link

    source = tmp_path / "f.c"
    source.write_text("extern int backtrace(void); int f(void) { return backtrace(); }\n")
    triple = PORTS["aarch64-android"].triple
    objects = link.compile_c([source], [], triple, [])
    with pytest.raises(ArtifactError, match="undefined symbol: backtrace"):
        link.link_shared(objects, tmp_path / "f.so", triple, ["f"])


@pytest.mark.parametrize(
    ("target", "platform", "version"),
    [
        ("aarch64-macos", 1, (11, 0)),
        ("x86_64-macos", 1, (11, 0)),
        ("aarch64-ios", 2, (15, 0)),
        ("aarch64-ios-simulator", 7, (15, 0)),
    ],
)
def test_apples_loader_accepts_the_library(
    target: str, platform: int, version: tuple[int, int], tmp_path: Path
) -> None:
    """Load commands name the platform, its oldest version and the system's library, and the signature that
    processors of Apple demand has the hashes of all pages.
    """
    data = saved(target, tmp_path).read_bytes()
    names, found, end = {}, None, 0
    for number, at, _ in macho.commands(data):
        if number in (macho.LOAD_DYLIB, macho.ID_DYLIB):
            start = at + struct.unpack_from("<I", data, at + 8)[0]
            names.setdefault(number, []).append(data[start : data.index(b"\0", start)].decode())
        elif number == macho.BUILD_VERSION:
            kind, oldest = struct.unpack_from("<II", data, at + 8)
            found = kind, (oldest >> 16, oldest >> 8 & 255)
        elif number == macho.SEGMENT:
            end = max(end, sum(struct.unpack_from("<QQ", data, at + 40)))
    assert found == (platform, version)
    assert names[macho.LOAD_DYLIB] == ["/usr/lib/libSystem.B.dylib"]
    assert names[macho.ID_DYLIB] == ["@rpath/model.dylib"]
    assert end == len(data), "the last segment has to reach to the end of the file"
    hashes = macho.page_hashes(data)
    assert hashes, "the library has no signature"
    for place, digest in hashes:
        assert data[place : place + len(digest)] == digest


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(COLD))
def test_windows_library_has_an_import_library(target: str, tmp_path: Path) -> None:
    path = saved(target, tmp_path)
    imports = path.with_suffix(".lib").read_bytes()
    assert imports.startswith(b"!<arch>\n")
    for name in EXPORTS:
        assert name.encode() in imports
    assert b"model.dll" in imports

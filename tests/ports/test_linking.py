"""Libraries for systems without an emulator: what their loaders read is what the systems demand."""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact import link, macho, stubs
from tilewright.artifact.link import zig_command
from tilewright.artifact.sources import EXPORTS, INCLUDE_DIR
from tilewright.artifact.systems import system_of
from tilewright.artifact.trailer import verify_file
from tilewright.errors import ArtifactError
from tilewright.targets.cpu.isa import isa_named
from tilewright.targets.cpu.ports import FEATURES, PORTS

from .emulators import NoEmulator, command_of, run_static
from .models import difference

X = np.ones((2, 8), np.float32)
READER = """
#include <stdio.h>
#include "platform.h"
int main(int count, char** arguments) {
  tw_mapping file = {0};
  const char* problem = tw_map_file(arguments[count - 1], &file);
  if (problem) return fputs(problem, stderr), 1;
  printf("%d|%.*s|%.3f", (int)file.size, (int)file.size, (const char*)file.data, (double)tw_clock() / 1e9);
  tw_unmap_file(&file);
  return 0;
}
"""
"""A program that says the size and the text of a file, and the seconds of the clock."""
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


ANDROID = [name for name in PORTS if name.endswith("-android")]


@pytest.mark.parametrize("target", ANDROID)
def test_android_finds_all_functions_in_its_libraries(target: str, tmp_path: Path) -> None:
    lief = pytest.importorskip("lief")
    binary = lief.ELF.parse(str(saved(target, tmp_path)))
    assert binary[lief.ELF.DynamicEntry.TAG.SONAME].name == "model.so"
    assert binary.libraries == ["libc.so"]
    missing = {s.name for s in binary.imported_symbols if s.name}
    # The declaration of dlsym is weak: without the library that has it, it is null.
    assert missing - {"dlsym"} <= set(stubs.ANDROID["libc.so"])
    assert "__errno_location" not in missing
    segments = {kind: [s for s in binary.segments if s.type.name == kind] for kind in ("LOAD", "TLS")}
    assert segments["LOAD"] and all(s.alignment % 16384 == 0 for s in segments["LOAD"])
    assert not segments["TLS"], "thread-local variables need Android 10"


@pytest.mark.parametrize("target", ANDROID)
@pytest.mark.parametrize("name", ["mlp", "int8-mlp"])
def test_android_code_runs_with_another_c_library(name: str, target: str) -> None:
    """Models with the runtime for Android, linked with glibc or musl, compute what ``cpu`` does."""
    try:
        command_of(target)
    except NoEmulator as error:
        pytest.skip(str(error))
    assert difference(name, target).startswith("ok")


@pytest.mark.parametrize("target", ANDROID)
def test_android_maps_files_and_reads_the_clock(target: str, tmp_path: Path) -> None:
    """Sizes, offsets and times have the types of Android's C library, which are not those of the headers."""
    text = "the weights of a model"
    (tmp_path / "weights").write_text(text)
    (tmp_path / "main.c").write_text(READER)
    triple, folder = PORTS[target].triple, INCLUDE_DIR
    flags = ["-O1", "-fno-sanitize=undefined"]
    runtime, main = link.compile_c(
        [folder / "platform_posix.c", tmp_path / "main.c"], [folder], triple, flags
    )
    for name, data in (("runtime.o", runtime), ("main.o", main)):
        (tmp_path / name).write_bytes(data)
    try:
        said = run_static(target, [tmp_path / "main.o", tmp_path / "runtime.o"], [str(tmp_path / "weights")])
    except NoEmulator as error:
        pytest.skip(str(error))
    length, found, seconds = said.split("|")
    assert (int(length), found) == (len(text), text)
    assert 0 <= float(seconds) - time.monotonic() + 60 <= 61


def test_a_function_that_android_lacks_is_an_error(tmp_path: Path) -> None:
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

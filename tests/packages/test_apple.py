"""Packages for Apple's systems: files are where the systems look for them, and an independent reader finds
platforms, names and signatures in the libraries.
"""

from __future__ import annotations

import plistlib
import subprocess
from pathlib import Path

import pytest

from tilewright.artifact import link, macho, sources

from .models import check_no_paths, packaged

PLACES = {
    "ios-arm64": ("IOS", [15, 0], 1),
    "ios-arm64-simulator": ("IOS_SIMULATOR", [15, 0], 1),
    "macos-arm64_x86_64": ("MACOS", [11, 0], 2),
}
"""The folders of the xcframework: platform, oldest version, number of processors."""
LINKERS = {"___dso_handle", "__mh_dylib_header"}
"""Symbols that the linker defines in every library."""


def check_includes(folder: Path, name: str) -> None:
    """The header, as a program for iOS includes it."""
    call = f"{name}_call(0, 3, 0, 0)"
    (folder / "main.c").write_text(f'#include "{name}.h"\nint main(void) {{ return {call}; }}\n')
    compiler = [*link.zig_command(), "cc", "-target", "aarch64-linux-musl", "-Wall", "-Wextra", "-Werror"]
    files = ["-c", str(folder / "main.c"), "-o", str(folder / "main.o")]
    subprocess.run([*compiler, f"-I{folder}", *files], check=True)


def test_frameworks(tmp_path: Path) -> None:
    lief = pytest.importorskip("lief")
    package = packaged(tmp_path, "apple", identifier="com.example.text_encoder")
    check_no_paths(package)
    base = package / "encoder.xcframework"
    listed = plistlib.loads((base / "Info.plist").read_bytes())
    assert listed["CFBundlePackageType"] == "XFWK"
    entries = {entry["LibraryIdentifier"]: entry for entry in listed["AvailableLibraries"]}
    assert set(entries) == set(PLACES)
    assert entries["ios-arm64-simulator"]["SupportedPlatformVariant"] == "simulator"
    for place, (platform, oldest, processors) in PLACES.items():
        framework = base / place / entries[place]["LibraryPath"]
        path = base / place / entries[place]["BinaryPath"]
        resources = framework / "Resources" if platform == "MACOS" else framework
        described = plistlib.loads((resources / "Info.plist").read_bytes())
        assert described["CFBundleExecutable"] == "encoder" and (framework / "encoder").is_file()
        assert described["CFBundleIdentifier"] == "com.example.text-encoder"
        module = (framework / "Modules" / "module.modulemap").read_text()
        assert module.startswith("framework module encoder {") and (framework / "Headers/encoder.h").is_file()
        binaries = lief.MachO.parse(str(path))
        assert binaries.size == processors == len(entries[place]["SupportedArchitectures"])
        for binary in binaries:
            assert binary.build_version.platform.name == platform
            assert list(binary.build_version.minos)[:2] == oldest
            names = {c.command.name: c.name for c in binary.commands if hasattr(c, "compatibility_version")}
            assert names == {
                "ID_DYLIB": f"@rpath/{path.relative_to(base / place).as_posix()}",
                "LOAD_DYLIB": "/usr/lib/libSystem.B.dylib",
            }
            assert binary.has_code_signature
            exported = {e.symbol.name for e in binary.dyld_info.exports if e.symbol} - LINKERS
            assert exported == {f"_{sources.exported(name, 'encoder')}" for name in sources.EXPORTS}
    data = (base / "ios-arm64" / "encoder.framework" / "encoder").read_bytes()
    hashes = macho.page_hashes(data)
    assert len(hashes) > 3 and all(data[at : at + len(digest)] == digest for at, digest in hashes)
    check_includes(base / "ios-arm64/encoder.framework/Headers", "encoder")


def test_static_libraries(tmp_path: Path) -> None:
    targets = "aarch64-ios,aarch64-macos,x86_64-macos"
    package = packaged(tmp_path, "apple", target=targets, linkage="static")
    check_no_paths(package)
    base = package / "encoder.xcframework"
    entries = plistlib.loads((base / "Info.plist").read_bytes())["AvailableLibraries"]
    assert [e["LibraryIdentifier"] for e in entries] == ["ios-arm64", "macos-arm64_x86_64"]
    for entry in entries:
        folder = base / entry["LibraryIdentifier"]
        assert (folder / entry["HeadersPath"] / "module.modulemap").read_text().startswith("module encoder {")
        magic = (folder / entry["LibraryPath"]).read_bytes()[:8]
        many = len(entry["SupportedArchitectures"]) > 1
        assert magic == (b"\xca\xfe\xba\xbe\x00\x00\x00\x02" if many else b"!<arch>\n")

"""An xcframework with a module for C, Objective-C and Swift, in a Swift package.

Processors of one platform lie in one file. Sources: Apple's "Creating a multiplatform binary framework
bundle", "Bundle Programming Guide", ``Modules`` in Clang's documentation.
"""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..artifact.kinds import FRAMEWORK
from ..artifact.macho import universal
from .contents import SHARED, Contents, TargetLibrary
from .templates import write_templates

_PROCESSORS = {"aarch64": "arm64", "x86_64": "x86_64"}
_PLATFORMS = {
    "ios": ("ios", "", "iPhoneOS", "MinimumOSVersion", "15.0"),
    "ios-simulator": ("ios", "simulator", "iPhoneSimulator", "MinimumOSVersion", "15.0"),
    "macos": ("macos", "", "MacOSX", "LSMinimumSystemVersion", "11.0"),
}
"""By system: the platform and its variant in xcframeworks, the platform in bundles, and the key and value of
the oldest version.
"""


def write(contents: Contents) -> None:
    """Write the package."""
    base = contents.folder / f"{contents.name}.xcframework"
    entries = []
    for system in _PLATFORMS:
        parts = [part for part in contents.libraries if part.system.name == system]
        if parts:
            entries.append(_write_platform(contents, base, system, parts))
    whole = {
        "AvailableLibraries": entries,
        "CFBundlePackageType": "XFWK",
        "XCFrameworkFormatVersion": "1.0",
    }
    _write_list(base / "Info.plist", whole)
    places = ", ".join(part.place for part in contents.libraries)
    write_templates("apple", contents.folder, {"name": contents.name, "places": places})


def _write_platform(
    contents: Contents, base: Path, system: str, parts: Sequence[TargetLibrary]
) -> dict[str, Any]:
    """Write the library of a platform; returns its entry in the list of the xcframework."""
    platform, variant, *_ = _PLATFORMS[system]
    names = [_PROCESSORS[part.processor] for part in parts]
    place = "-".join([platform, "_".join(names), *([variant] if variant else [])])
    entry = {
        "LibraryIdentifier": place,
        "SupportedArchitectures": names,
        "SupportedPlatform": platform,
        **({"SupportedPlatformVariant": variant} if variant else {}),
    }
    if contents.linkage == SHARED:
        folder = f"{contents.name}{FRAMEWORK}"
        binary = _write_framework(contents, base / place / folder, system, parts)
        return {**entry, "LibraryPath": folder, "BinaryPath": f"{folder}/{binary}"}
    file = f"lib{contents.name}.a"
    _write_binary(contents, base / place / file, parts)
    headers = base / place / "Headers"
    contents.write_headers(headers)
    (headers / "module.modulemap").write_text(_module(contents.name, framework=False))
    return {**entry, "LibraryPath": file, "BinaryPath": file, "HeadersPath": "Headers"}


def _write_framework(contents: Contents, folder: Path, system: str, parts: Sequence[TargetLibrary]) -> str:
    """Write a framework; returns the path of the library in it. Frameworks for macOS have versions."""
    versioned = system == "macos"
    inner = Path("Versions", "A") if versioned else Path()
    lists = folder / inner / ("Resources" if versioned else "")
    _write_binary(contents, folder / inner / contents.name, parts)
    contents.write_headers(folder / inner / "Headers")
    (folder / inner / "Modules").mkdir()
    (folder / inner / "Modules" / "module.modulemap").write_text(_module(contents.name, framework=True))
    lists.mkdir(exist_ok=True)
    _, _, platform, key, oldest = _PLATFORMS[system]
    _write_list(
        lists / "Info.plist",
        {
            "CFBundleDevelopmentRegion": "en",
            "CFBundleExecutable": contents.name,
            "CFBundleIdentifier": contents.identifier.replace("_", "-"),
            "CFBundleInfoDictionaryVersion": "6.0",
            "CFBundleName": contents.name,
            "CFBundlePackageType": "FMWK",
            "CFBundleShortVersionString": "1.0",
            "CFBundleSupportedPlatforms": [platform],
            "CFBundleVersion": "1",
            key: oldest,
        },
    )
    if versioned:
        (folder / "Versions" / "Current").symlink_to("A")
        for name in (contents.name, "Headers", "Modules", "Resources"):
            (folder / name).symlink_to(Path("Versions", "Current", name))
    return (inner / contents.name).as_posix()


def _write_binary(contents: Contents, path: Path, parts: Sequence[TargetLibrary]) -> None:
    """Write the file of all processors. Each library is saved at its place, after which it is named."""
    saved = []
    for part in parts:
        contents.save(part, path)
        saved.append((part.processor, path.read_bytes()))
    if len(saved) > 1:
        path.write_bytes(universal(saved))


def _module(name: str, *, framework: bool) -> str:
    """The map of the module, whose header includes tilewright.h."""
    kind = "framework module" if framework else "module"
    return f'{kind} {name} {{\n  header "{name}.h"\n  header "tilewright.h"\n  export *\n}}\n'


def _write_list(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(plistlib.dumps(value))


__all__ = ["write"]

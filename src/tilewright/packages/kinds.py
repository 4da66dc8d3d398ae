"""The kinds of packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ArtifactError
from . import android, apple, cpp, rust
from .contents import SHARED, STATIC, Contents


@dataclass(frozen=True)
class Kind:
    """A kind of package.

    Attributes:
        name: the name by which users ask for it.
        title: what it holds.
        targets: the targets, unless others are named.
        systems: the names of the systems that it is for; all if there are none.
        linkages: the ways in which programs are linked with it, the usual one first.
        write: writes it.
    """

    name: str
    title: str
    targets: tuple[str, ...]
    systems: tuple[str, ...]
    linkages: tuple[str, ...]
    write: Callable[[Contents], None]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("cpp", "headers for C and C++, and CMake", ("cpu",), (), (STATIC, SHARED), cpp.write),
        Kind(
            "windows",
            "a DLL with its import library, headers for C and C++, and CMake",
            ("x86_64-windows",),
            ("windows",),
            (SHARED, STATIC),
            cpp.write,
        ),
        Kind(
            "android",
            "a Gradle module with a Kotlin class",
            ("aarch64-android", "x86_64-android"),
            ("android",),
            (SHARED,),
            android.write,
        ),
        Kind(
            "apple",
            "an xcframework in a Swift package",
            ("aarch64-ios", "aarch64-ios-simulator", "aarch64-macos", "x86_64-macos"),
            ("ios", "ios-simulator", "macos"),
            (SHARED, STATIC),
            apple.write,
        ),
        Kind("rust", "a crate with a safe interface", ("cpu",), (), (STATIC,), rust.write),
    )
}
"""The kinds of packages by name."""


def kind_named(name: str) -> Kind:
    """The kind with a name.

    Raises:
        ArtifactError: There is none.
    """
    if name not in KINDS:
        raise ArtifactError(f"there is no kind of package {name!r}; known: {', '.join(KINDS)}")
    return KINDS[name]


__all__ = ["KINDS", "Kind", "kind_named"]

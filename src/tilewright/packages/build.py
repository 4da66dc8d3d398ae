"""`tilewright.package`: a model as a package for a language or a system."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..artifact.kinds import suffixes_of
from ..artifact.sources import check_prefix
from ..artifact.version import __version__
from ..driver.compile import compile
from ..errors import ArtifactError
from .contents import LINKAGES, Contents, TargetLibrary
from .kinds import Kind, kind_named

MANIFEST = "tilewright-package.json"
"""The file in a package that says what it is. A folder with it is replaced by a new package."""


def package(
    model: object,
    args: Any = None,
    *,
    kind: str,
    output: str | Path,
    target: str | Sequence[str] | None = None,
    name: str | None = None,
    linkage: str | None = None,
    identifier: str | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Path:
    """Compile a model for one or several targets, and write a package of the libraries, with headers or
    wrappers that are typed for the model, and build files.

    ``tw.package(model, (x,), kind="android", output="encoder")``

    Args:
        model: The model, as for `tilewright.compile`.
        args: Example inputs, as for `tilewright.compile`.
        kind: ``"cpp"`` (headers for C and C++, CMake), ``"windows"`` (the same, for Windows), ``"rust"`` (a
            crate), ``"android"`` (a Gradle module with a Kotlin class), ``"apple"`` (an xcframework in a
            Swift package).
        output: The folder to write. A package that is there is replaced.
        target: The targets, in a sequence or joined by commas: ``"aarch64-android,x86_64-android"``. The
            default depends on the kind.
        name: The name of the package, which is the prefix of the C functions; that of the folder by default.
        linkage: ``"shared"`` or ``"static"``: how programs are linked with the model. The default depends on
            the kind.
        identifier: A name in the form of a domain, such as ``"com.example.encoder"``, which is the Kotlin
            package and the identifier of the framework; ``"org.tilewright.NAME"`` by default.
        progress: Called with a text as each step begins.
        **options: Options of `tilewright.compile`, such as `dims` and `precision`.

    Returns:
        The folder.

    Raises:
        ArtifactError: The kind, a target, the linkage or a name does not fit; or the folder has other
            contents, or cannot be written.
        CompileError: The model cannot be compiled.
    """
    found, folder = kind_named(kind), Path(output)
    label = check_prefix(name if name is not None else re.sub(r"\W", "_", folder.resolve().name))
    whole = identifier if identifier is not None else f"org.tilewright.{label}"
    _check_identifier(whole)
    chosen = linkage if linkage is not None else found.linkages[0]
    if chosen not in found.linkages:
        raise ArtifactError(
            f"linkage {chosen!r}: a package for {found.name} is linked {' or '.join(found.linkages)}"
            if chosen in LINKAGES
            else f"linkage {chosen!r} is unknown; known: {', '.join(LINKAGES)}"
        )
    _check_folder(folder)
    report = progress or (lambda text: None)
    libraries = [
        _compiled(model, args, text, found, {**options, "progress": progress} if progress else options)
        for text in target_names(target, found)
    ]
    _check_places(found, libraries)
    report("writing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / "package"
        new.mkdir()
        found.write(Contents(new, label, whole, chosen, libraries))
        manifest = {
            "kind": found.name,
            "name": label,
            "linkage": chosen,
            "targets": [part.target for part in libraries],
            "compiler": f"tilewright {__version__}",
        }
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if folder.exists():
            shutil.move(folder, Path(temporary) / "before")
        shutil.move(new, folder)
    return folder


def target_names(target: str | Sequence[str] | None, kind: Kind) -> list[str]:
    """The names of the targets, each once.

    Raises:
        ArtifactError: There is none.
    """
    names = target if target is not None else kind.targets
    texts = names.split(",") if isinstance(names, str) else names
    found = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not found:
        raise ArtifactError(f"a package for {kind.name} needs a target, such as {kind.targets[0]}")
    return found


def _compiled(model: object, args: Any, target: str, kind: Kind, options: dict[str, Any]) -> TargetLibrary:
    from ..targets.registry import resolve

    suffixes = resolve(target).suffixes
    if not {".so", ".dylib", ".dll"}.intersection(suffixes):
        raise ArtifactError(f"target {target}: its artifacts are not native libraries, as packages need them")
    part = TargetLibrary(target, compile(model, args, target=target, **options))
    if not set(suffixes_of(part.triple)) <= set(suffixes):
        raise ArtifactError(f"target {target}: a package holds libraries for processors, not for devices")
    if kind.systems and part.system.name not in kind.systems:
        raise ArtifactError(
            f"target {target} is for {part.system.title}; a package for {kind.name} takes "
            f"{', '.join(kind.targets)}"
        )
    return part


def _check_places(kind: Kind, libraries: Sequence[TargetLibrary]) -> None:
    """Raises ArtifactError: Two targets are for the same processors and system."""
    seen: dict[str, str] = {}
    for part in libraries:
        if part.place in seen:
            raise ArtifactError(
                f"targets {seen[part.place]} and {part.target} are both for {part.place}, of which a package "
                f"for {kind.name} holds one library"
            )
        seen[part.place] = part.target


def _check_identifier(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+", text):
        raise ArtifactError(
            f"identifier {text!r} cannot be used: give words of letters, digits and underscores with dots "
            "between them, such as com.example.encoder"
        )


def _check_folder(folder: Path) -> None:
    """Raises ArtifactError: There is something else than a package."""
    if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        raise ArtifactError(
            f"{folder}: exists and is no package of Tilewright; remove it or name another folder"
        )


__all__ = ["MANIFEST", "package", "target_names"]

"""The parts of a package: libraries for its targets, and the description of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..artifact.c_interface import functions_of
from ..artifact.package import exports_of
from ..artifact.sources import HEADER, prefixed_header
from ..artifact.systems import System, system_of
from ..runtime.model import CompiledModel
from .typed_c import typed_functions

SHARED, STATIC = "shared", "static"
LINKAGES = (SHARED, STATIC)


@dataclass(frozen=True)
class TargetLibrary:
    """A model compiled for one target, and the folder that is named after it."""

    target: str
    library: CompiledModel

    @property
    def triple(self) -> str:
        """The LLVM triple."""
        return str(self.library.metadata["target"]["triple"])

    @property
    def system(self) -> System:
        """The system that the library is for."""
        return system_of(self.triple)

    @property
    def processor(self) -> str:
        """The processor's name in targets' names, such as ``aarch64``."""
        name = self.triple.partition("-")[0]
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)

    @property
    def place(self) -> str:
        """``aarch64-linux``: the processor and the system."""
        return f"{self.processor}-{self.system.name}"

    def file_name(self, name: str, linkage: str) -> str:
        """The name of the library's file by the conventions of the system."""
        if self.system.format == "PE":
            return f"{name}.dll" if linkage == SHARED else f"{name}.lib"
        suffix = self.system.suffixes[0] if linkage == SHARED else ".a"
        return f"lib{name}{suffix}"


@dataclass(frozen=True)
class Contents:
    """A package that is being written.

    Attributes:
        folder: where it is written.
        name: the name of the package, the prefix of its C functions.
        identifier: a name in the form of a domain, such as ``com.example.encoder``.
        linkage: `SHARED` or `STATIC`.
        libraries: one for each target.
    """

    folder: Path
    name: str
    identifier: str
    linkage: str
    libraries: Sequence[TargetLibrary]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The description of the model, the same for all targets but for memory and kernels."""
        return self.libraries[0].library.metadata

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The entries of the model's functions by name."""
        return functions_of(self.metadata)

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """The entries of the model's states."""
        return self.metadata.get("states", ())

    def save(self, part: TargetLibrary, path: Path) -> Path:
        """Write the library of a target, with the prefix, but without the headers beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part.library.save(path, weights="inside", prefix=self.name)
        for header in (HEADER.name, f"{self.name}.h"):
            path.with_name(header).unlink()
        return path

    def write_headers(self, folder: Path) -> None:
        """Write tilewright.h, and the header of the model's functions in C."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HEADER.name).write_text(HEADER.read_text())
        typed = typed_functions(self.name, self.functions)
        text = prefixed_header(self.name, exports_of(self.metadata), typed)
        (folder / f"{self.name}.h").write_text(text)


__all__ = ["LINKAGES", "SHARED", "STATIC", "Contents", "TargetLibrary"]

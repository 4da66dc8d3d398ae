"""Linking a host program and its kernels into a library file, which is used at once or saved as an
artifact.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...artifact import package, temporary
from ...artifact.weights import Parts, gather_weights
from ...ir.core import Module
from ...lowering.memory_plan import MemoryPlan, plan_memory
from .host import kernel_order, print_host
from .host_calls import HostCalls
from .isa import Isa
from .toolchain import compile_objects


@dataclass(eq=False)
class BuiltLibrary:
    """A linked library without its weights, and the parts needed to save it with them.

    `path` is the shared library or WebAssembly module. A temporary file is removed together with this object;
    code that is already loaded stays.
    """

    path: Path
    objects: list[bytes]
    texts: list[str]
    metadata: dict[str, Any]
    isa: Isa
    weights_size: int
    parts: Callable[[], Parts]
    """The weights one by one, with their offsets."""
    llvm_opt_level: int

    @cached_property
    def weights(self) -> np.ndarray[Any, Any]:
        """The weights as bytes (uint8, aligned to 64) for a runtime context; computed on first use."""
        return gather_weights(self.parts(), self.weights_size)

    def save(self, path: str | Path, *, beside: bool = False, prefix: str | None = None) -> Path:
        """Write an artifact. `.tar` holds the unlinked parts; every other suffix is linked.

        The weights are embedded, or written to a separate file with `beside`.

        Raises:
            ArtifactError: the file cannot be written.
        """
        return package.save_artifact(
            path,
            self.objects,
            self.parts(),
            self.weights_size,
            self.metadata,
            self.isa,
            beside=beside,
            prefix=prefix,
        )

    @property
    def llvm_text(self) -> str:
        """The LLVM IR of all modules; the host program is the last."""
        return "\n".join(self.texts)


def build(
    module: Module,
    calls: HostCalls,
    isa: Isa,
    metadata: Mapping[str, Any],
    plan: MemoryPlan | None = None,
    path: str | Path | None = None,
    llvm_opt_level: int = 2,
    library_objects: Sequence[bytes] = (),
    compiled: Callable[[Sequence[str]], list[bytes]] | None = None,
    link: Callable[[Path, Sequence[bytes], dict[str, Any]], None] | None = None,
) -> BuiltLibrary:
    """Compile and link the host functions of `module` with their kernels.

    Args:
        calls: the kernels, with the form of launches.
        metadata: the description of the model; its kernels are put in launch order.
        plan: the result of `plan_memory`, if it has run. The weights are the constants of the program.
        path: the library file; a temporary file by default.
        llvm_opt_level: LLVM's optimization level, 0 to 3.
        library_objects: further object files and static libraries: registered libraries that kernels call,
            device code.
        compiled: compiles the modules, given as LLVM IR; to objects of `isa` by default.
        link: makes the library file from objects and metadata; by the linker of `isa` by default.

    Raises:
        CompileError: a size cannot be derived from the shape of any input.
        ArtifactError: there is no linker, or the file cannot be written.
        InternalError: LLVM rejects the generated code.
    """
    plan = plan or plan_memory(module)
    order = kernel_order(module)
    host_text = print_host(module, calls, isa, plan.weights_size)
    texts = [*calls.modules(order), host_text]
    own = compiled(texts) if compiled else compile_objects(texts, isa, llvm_opt_level=llvm_opt_level)
    objects = [*own, *library_objects]
    known = {k["name"]: k for k in metadata.get("kernels", ())}
    full = {**metadata, "kernels": [known.get(name, {"name": name}) for name in order]}
    file = _new_file(isa) if path is None else Path(path)
    if link is None:
        package.link_library(file, objects, full, isa)
    else:
        link(file, objects, full)
    built = BuiltLibrary(
        file, objects, texts, full, isa, plan.weights_size, lambda: plan.weights, llvm_opt_level
    )
    if path is None:
        weakref.finalize(built, file.unlink, missing_ok=True)
    return built


def _new_file(isa: Isa) -> Path:
    """A temporary file for a library."""
    suffix = ".wasm" if isa.triple.startswith("wasm") else ".so"
    handle, name = tempfile.mkstemp(suffix=suffix, dir=temporary.folder())
    os.close(handle)
    return Path(name)


@dataclass(frozen=True)
class KeptLibrary:
    """A library without its weights, for the cache: `code` is the content of its file."""

    code: bytes
    objects: list[bytes]
    metadata: dict[str, Any]
    isa: Isa
    weights_size: int
    llvm_opt_level: int

    @classmethod
    def of(cls, built: BuiltLibrary) -> KeptLibrary:
        code = built.path.read_bytes()
        return cls(code, built.objects, built.metadata, built.isa, built.weights_size, built.llvm_opt_level)

    def built(self, parts: Callable[[], Parts], source: dict[str, str]) -> BuiltLibrary:
        """The library in a new file; its LLVM IR is no longer available."""
        file = _new_file(self.isa)
        file.write_bytes(self.code)
        metadata = {**self.metadata, "source": source}
        built = BuiltLibrary(
            file, self.objects, [], metadata, self.isa, self.weights_size, parts, self.llvm_opt_level
        )
        weakref.finalize(built, file.unlink, missing_ok=True)
        return built

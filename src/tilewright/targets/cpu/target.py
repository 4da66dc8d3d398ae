"""The target ``cpu`` (this host) and its variants for given instruction sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.library import Library
from ...runtime.model import CompiledModel
from ..llvm.isa import Isa
from ..llvm.target import BuiltCode, ForeignLibrary, LlvmTarget

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary


class BuiltCpuLibrary(BuiltCode, Library):
    """A library just compiled for this machine."""

    def __init__(self, built: BuiltLibrary, threads: int | None) -> None:
        self.built = built
        super().__init__(built.path, num_threads=threads or 0, verify=False)

    @property
    def weights(self) -> np.ndarray[Any, Any]:
        """The weights that the compiler packed; no file holds them yet."""
        return self.built.weights


class CpuTarget(LlvmTarget):
    """A CPU with the given instruction set."""

    measures_kernels = True

    def __init__(self, name: str, isa: Isa, runs_here: bool) -> None:
        super().__init__(name, isa)
        self.runs_here = runs_here

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        return (
            BuiltCpuLibrary(built, threads)
            if self.runs_here
            else ForeignLibrary(
                built,
                self.name,
                f"compiled for {self.name}, which is not this machine: save the library and run it on such "
                "a machine",
            )
        )


def cpu_target(name: str) -> CpuTarget:
    """Return the target ``cpu``, ``cpu:x86-64-v3``, ``aarch64-linux``, ...

    Raises:
        CompileError: an unknown variant.
    """
    from .isa import isa_named, runs_here

    isa = isa_named(name)
    return CpuTarget(name, isa, runs_here(isa))

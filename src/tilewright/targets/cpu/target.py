"""The target ``cpu`` (this host) and its variants for given instruction sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...dialects import loop
from ...errors import ArtifactError
from ...ir.types import f32
from ...lowering.pipeline import LoweringOptions
from ...runtime.library import Library
from ...runtime.model import CompiledModel
from ...schedule import Schedule
from ..llvm.isa import Isa
from ..llvm.rules import Machine, schedule_kernel
from ..llvm.target import LlvmTarget, code_text


class BuiltCpuLibrary(Library):
    """A library just compiled: its weights are passed by pointer, and it can still be saved and looked into."""

    def __init__(self, built: Any, threads: int | None) -> None:
        self.built = built
        super().__init__(built.path, weights=built.weights, num_threads=threads or 0, verify=False)

    def save(self, path: str | Path) -> Path:
        saved: Path = self.built.save(Path(path))
        return saved

    def code_text(self, level: str) -> str | None:
        return code_text(self.built, level)


class ForeignLibrary(CompiledModel):
    """A library for another machine: it can be saved and looked into, not run."""

    def __init__(self, built: Any, name: str) -> None:
        self.built, self.name = built, name
        self._describe(built.metadata, name)

    def _execute(self, arrays: Any, out: Any) -> Any:
        raise ArtifactError(f"compiled for {self.name}, which is not this machine: save it and run it there")

    def save(self, path: str | Path) -> Path:
        saved: Path = self.built.save(Path(path))
        return saved

    def code_text(self, level: str) -> str | None:
        return code_text(self.built, level)

    def close(self) -> None:
        pass


class CpuTarget(LlvmTarget):
    """A CPU with the given instruction set; `native` when this process can run it."""

    def __init__(self, name: str, isa: Isa, native: bool) -> None:
        super().__init__(name, isa)
        self.native = native

    @property
    def lowering(self) -> LoweringOptions:
        from ..llvm.brgemm import tile_shape

        mr, nr = tile_shape(self.isa, f32)
        machine = Machine(mr=mr, nr=nr, lanes=self.isa.lanes(32))

        def rule(kernel: loop.Kernel, kind: str, rows: int) -> Schedule:
            return schedule_kernel(kernel, kind, rows, machine)

        return LoweringOptions(panel=nr, rule=rule)

    def load(self, built: Any, threads: int | None) -> CompiledModel:
        return BuiltCpuLibrary(built, threads) if self.native else ForeignLibrary(built, self.name)


def cpu_target(name: str) -> CpuTarget:
    """``cpu``, ``cpu:x86-64-v3``, ``aarch64-linux``, ...

    Raises:
        CompileError: unknown variant.
    """
    from .isa import isa_named, runs_here

    isa = isa_named(name)
    return CpuTarget(name, isa, runs_here(isa))

"""Targets whose code is LLVM IR: kernels printed one by one, a host program, objects, a linked library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact.kinds import suffixes_of
from ...dialects import loop
from ...errors import ArtifactError
from ...ir.types import bf16, f32, i8, u8
from ...lowering.pipeline import Lowered, LoweringOptions
from ...runtime.model import CompiledModel, Function, goes_beside
from ...schedule import Schedule
from ..base import Progress, Target, Weights
from .brgemm import panel_of, tile_shape
from .isa import Isa
from .rules import Machine, schedule_kernel

if TYPE_CHECKING:
    from .build import BuiltLibrary


class LlvmTarget(Target):
    """A target of one instruction set; subclasses say how the library is loaded."""

    code_level = "llvm"

    def __init__(self, name: str, isa: Isa) -> None:
        self.name = name
        self.isa = isa
        self.suffixes = suffixes_of(isa.triple)
        self.precisions = ("bf16", "f16") if isa.half else ("bf16",)

    @property
    def lowering(self) -> LoweringOptions:
        mr, nr = tile_shape(self.isa, f32)
        tiles = tuple((t, tile_shape(self.isa, t)) for t in (bf16, i8, u8))
        machine = Machine(mr=mr, nr=nr, lanes=self.isa.lanes(32), l2=self.isa.l2_bytes, tiles=tiles)

        def rule(kernel: loop.Kernel, kind: str, rows: int) -> Schedule:
            return schedule_kernel(kernel, kind, rows, machine)

        return LoweringOptions(panel=partial(panel_of, self.isa), rule=rule)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "triple": self.isa.triple,
            "features": list(self.isa.machine_features),
            "l2_bytes": self.isa.l2_bytes,
            **({"emulated": list(self.isa.emulated)} if self.isa.emulated else {}),
        }

    def build(
        self,
        lowered: Lowered,
        plan: Any,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        effort: int = 2,
    ) -> Any:
        from .build import build
        from .kernel import print_kernel

        progress("generating code")
        # The prefix keeps a kernel called "exp" or "floor" apart from the C library's function.
        kernels = lowered.module.functions(loop.Kernel)
        codes = {k.sym_name: print_kernel(k, self.isa, f"kernel_{k.sym_name}") for k in kernels}
        progress("compiling")
        built = build(lowered.module, codes, self.isa, metadata, plan=plan, effort=effort)
        return self.load(built, threads)

    def keep(self, library: Any) -> tuple[Any, Weights] | None:
        from .build import KeptLibrary

        return KeptLibrary.of(library.built), tuple(library.built.parts())

    def restore(self, kept: Any, weights: Callable[[], Weights], threads: int | None, source: dict[str, str]) -> Any:
        library = self.load(kept.built(weights, source), threads)
        library.metadata["source"] = source
        return library

    def load(self, built: Any, threads: int | None) -> Any:
        """The library that runs `built` here; one for another machine can only be saved."""
        raise NotImplementedError


class BuiltCode:
    """Mixed into a library just compiled: its weights are passed by pointer, and it can be saved and looked into."""

    built: BuiltLibrary

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        return self.built.save(path, beside=goes_beside(path, weights), prefix=prefix)

    def code_text(self, level: str) -> str | None:
        """LLVM IR or assembly, None for another level."""
        if level == "llvm":
            return self.built.llvm_text
        if level == "asm":
            from .toolchain import assembly

            return "\n".join(assembly(text, self.built.isa, self.built.effort) for text in self.built.texts)
        return None


class ForeignLibrary(BuiltCode, CompiledModel):
    """A library that does not run here: it can be saved and looked into."""

    def __init__(self, built: Any, name: str, why: str) -> None:
        """`why` it does not run, and what to do."""
        self.built, self.why = built, why
        self._describe(built.metadata, name)

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        return Function(self, name, 0, entry)

    def _execute(self, arrays: Any, out: Any) -> Any:
        return self._execute_function(self, arrays, out)

    def _execute_function(self, function: Any, arrays: Any, out: Any) -> Any:
        raise ArtifactError(self.why)

    def close(self) -> None:
        pass

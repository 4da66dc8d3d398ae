"""Targets whose code is LLVM IR: kernels printed one by one, a host program, objects, a linked library."""

from __future__ import annotations

from typing import Any

from ...dialects import loop
from ...lowering.pipeline import Lowered
from ..base import Progress, Target
from .isa import Isa


class LlvmTarget(Target):
    """A target of one instruction set; subclasses add the schedule rules and how the library is loaded."""

    code_level = "llvm"

    def __init__(self, name: str, isa: Isa) -> None:
        self.name = name
        self.isa = isa

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "triple": self.isa.triple, "features": list(self.isa.features)}

    def build(
        self, lowered: Lowered, plan: Any, metadata: dict[str, Any], progress: Progress, threads: int | None
    ) -> Any:
        from .build import build
        from .kernel import print_kernel

        progress("generating code")
        # The prefix keeps a kernel called "exp" or "floor" apart from the C library's function.
        kernels = lowered.module.functions(loop.Kernel)
        codes = {k.sym_name: print_kernel(k, self.isa, f"kernel_{k.sym_name}") for k in kernels}
        progress("compiling")
        built = build(lowered.module, codes, self.isa, metadata, plan=plan)
        return self.load(built, threads)

    def load(self, built: Any, threads: int | None) -> Any:
        """The library that runs `built` here; one for another machine can only be saved."""
        raise NotImplementedError


def code_text(built: Any, level: str) -> str | None:
    """LLVM IR or assembly of a built library, None for another level."""
    if level == "llvm":
        text: str = built.llvm_text
        return text
    if level == "asm":
        from .toolchain import assembly

        return "\n".join(assembly(text, built.isa) for text in built.texts)
    return None

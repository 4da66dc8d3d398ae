"""Targets whose code is LLVM IR: printed kernels and a host program become object files and a linked
library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...artifact import package
from ...artifact.kinds import suffixes_of
from ...dialects import kernels as user_kernels
from ...dialects import loop, simd
from ...errors import ArtifactError
from ...ir.target_info import MatrixUnit, RegisterTile, TargetInfo
from ...ir.types import bf16, f32, i8, i32, u8
from ...lowering.memory_plan import MemoryPlan
from ...lowering.pipeline import Lowered, LoweringOptions
from ...runtime.model import CompiledModel, LibraryFunction, goes_beside
from ..base import KernelObjects, Progress, Target, Weights
from .brgemm import has_byte_dots, pairs_rows, panel_of, rows_at_once, tile_shape
from .c_kernels import compilers_of_kernels, objects_of_kernels
from .isa import Isa
from .libraries import libraries_for, load_plugin_libraries, objects_of, reads_row_major
from .rules import RULES
from .vendor_table import vendor_metadata, vendor_objects

if TYPE_CHECKING:
    import numpy as np

    from .build import BuiltLibrary, KeptLibrary
    from .kernel import KernelCode


class LinkedTarget(Target):
    """A target whose artifacts are linked libraries."""

    def keep(self, library: CompiledModel) -> tuple[Any, Weights] | None:
        from .build import KeptLibrary

        assert isinstance(library, BuiltCode)
        return KeptLibrary.of(library.built), cast(Weights, tuple(library.built.parts()))

    def restore(
        self, kept: KeptLibrary, weights: Callable[[], Weights], threads: int | None, source: dict[str, str]
    ) -> CompiledModel:
        library = self.load(kept.built(weights, source), threads)
        library.metadata["source"] = source
        return library

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        """Return the library that runs `built` here; a library for another machine can only be saved."""
        raise NotImplementedError


class LlvmTarget(LinkedTarget):
    """A target with one instruction set. Subclasses load the library."""

    def __init__(self, name: str, isa: Isa) -> None:
        load_plugin_libraries()
        self.name = name
        self.isa = isa
        self.suffixes = suffixes_of(isa.triple)
        self.precisions = ("bf16", "f16") if isa.half else ("bf16",)

    @property
    def info(self) -> TargetInfo:
        isa = self.isa
        factors = (bf16,) * isa.tiles + (i8, u8) * isa.byte_tiles
        return TargetInfo(
            name=self.name,
            vector_bits=isa.vector_bits,
            masked=isa.masked,
            vector_registers=isa.vector_registers,
            integer_bits=isa.integer_bits,
            integer_registers=isa.integer_registers,
            machine=isa.machine,
            matrix_units=tuple(
                MatrixUnit(16, 16, 64 // t.itemsize, t, f32 if t is bf16 else i32) for t in factors
            ),
            register_tiles=tuple(
                (t, RegisterTile(*tile_shape(isa, t), pairs_rows(isa, t))) for t in (f32, bf16, i8, u8)
            ),
            quantized_factors=i8 if has_byte_dots(isa) and not isa.tiles else bf16,
            byte_rows=rows_at_once(isa),
            integer_sums=isa.has("dsp"),
            features=isa.machine_features,
        )

    @property
    def lowering(self) -> LoweringOptions:
        info = self.info
        row_major = partial(reads_row_major, info) if libraries_for(info) else None
        return LoweringOptions(
            panel=partial(panel_of, self.isa), rules=RULES, info=info, variants=True, row_major=row_major
        )

    def describe(self) -> dict[str, Any]:
        libraries = libraries_for(self.info)
        return {
            "name": self.name,
            "triple": self.isa.triple,
            "features": list(self.isa.machine_features),
            "machine": self.isa.machine.describe(),
            **({"emulated": list(self.isa.emulated)} if self.isa.emulated else {}),
            **({"libraries": [x.describe() for x in libraries]} if libraries else {}),
        }

    def kernel_code(self, kernel: loop.Kernel) -> str:
        from .kernel import print_kernel

        code = print_kernel(kernel, self.isa, "kernel")
        return "\n".join([code.text, *code.helpers.values(), str((code.extent, code.grain, code.scratch))])

    def kernel_objects(self, kernels: Sequence[loop.Kernel], llvm_opt_level: int) -> list[KernelObjects]:
        from .kernel import print_kernel
        from .kernel_modules import kernel_modules
        from .toolchain import compile_objects

        codes = [print_kernel(kernel, self.isa, "kernel") for kernel in kernels]
        modules = [kernel_modules([code]) for code in codes]
        objects = iter(
            compile_objects([t for texts in modules for t in texts], self.isa, None, llvm_opt_level)
        )
        found = []
        for kernel, code, texts in zip(kernels, codes, modules, strict=True):
            called = {op.library for op in kernel.walk() if isinstance(op, simd.ExternalGemm)}
            own = [*islice(objects, len(texts)), *objects_of(sorted(called))]
            found.append(KernelObjects(own, code.symbol, code.extent, code.grain, code.scratch))
        return found

    def kernel_compilers(self, kernels: Iterable[user_kernels.KernelDefinition]) -> str:
        return compilers_of_kernels(kernels, self.info.name, self.isa)

    def more_metadata(self, lowered: Lowered, codes: Mapping[str, KernelCode]) -> dict[str, Any]:
        """Return what the description of a model has beside that of all targets."""
        return {}

    def compile_modules(self, texts: Sequence[str], llvm_opt_level: int) -> list[bytes]:
        """Return an object for each module of LLVM IR."""
        from .toolchain import compile_objects

        return compile_objects(texts, self.isa, llvm_opt_level=llvm_opt_level)

    def link(self, path: Path, objects: Sequence[bytes], metadata: dict[str, Any]) -> None:
        """Write the library of `objects`, without its weights.

        Raises:
            ArtifactError: The file cannot be written.
        """
        package.link_library(path, objects, metadata, self.isa)

    def build(
        self,
        lowered: Lowered,
        plan: MemoryPlan,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        llvm_opt_level: int = 2,
    ) -> CompiledModel:
        from .build import build
        from .host_calls import CpuCalls
        from .kernel import print_kernel

        progress("generating code")
        # The prefix keeps a kernel called "exp" or "floor" apart from the C library's function.
        kernels = lowered.module.functions(loop.Kernel)
        codes = {k.sym_name: print_kernel(k, self.isa, f"kernel_{k.sym_name}") for k in kernels}
        progress("compiling")
        called = {op.library for k in kernels for op in k.walk() if isinstance(op, simd.ExternalGemm)}
        own = user_kernels.kernels_in(lowered.module).values()
        built = build(
            lowered.module,
            CpuCalls(codes),
            self.isa,
            {**metadata, **vendor_metadata(own), **self.more_metadata(lowered, codes)},
            plan=plan,
            llvm_opt_level=llvm_opt_level,
            library_objects=[
                *objects_of(sorted(called)),
                *objects_of_kernels(own, self.info.name, self.isa),
                *vendor_objects(own, self.isa),
            ],
            compiled=lambda texts: self.compile_modules(texts, llvm_opt_level),
            link=self.link,
        )
        return self.load(built, threads)


class BuiltCode:
    """Mixin of libraries just compiled: their weights are passed by pointer, and they can be saved and
    inspected.
    """

    built: BuiltLibrary

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        return self.built.save(path, beside=goes_beside(path, weights), prefix=prefix)

    def code_text(self, level: str) -> str | None:
        """Return LLVM IR or assembly; None for another level."""
        if level == "llvm":
            return self.built.llvm_text
        if level == "asm":
            from .toolchain import assembly

            return "\n".join(
                assembly(text, self.built.isa, self.built.llvm_opt_level) for text in self.built.texts
            )
        return None


class ForeignLibrary(BuiltCode, CompiledModel):
    """A library that cannot run on this machine. It can be saved and inspected."""

    def __init__(self, built: BuiltLibrary, name: str, why: str) -> None:
        """Keep `built` for saving; calls raise ArtifactError with the message `why`, which says what to
        do.
        """
        self.built, self.why = built, why
        self._describe(built.metadata, name)

    def _function(self, name: str, entry: dict[str, Any]) -> CompiledModel:
        return LibraryFunction(self, name, 0, entry)

    def _execute(self, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None) -> Any:
        return self._execute_function(self, arrays, out)

    def _execute_function(
        self, function: object, arrays: list[np.ndarray], out: Sequence[np.ndarray] | None
    ) -> Any:
        raise ArtifactError(self.why)

    def close(self) -> None:
        pass

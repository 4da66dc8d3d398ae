"""The target ``wasm32``: WebAssembly with 128-bit SIMD, one thread, run by wasmtime, Node or a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...dialects import loop
from ...ir.types import f32
from ...lowering.pipeline import LoweringOptions
from ...runtime.wasm import WasmLibrary
from ...schedule import Schedule
from ..llvm.rules import Machine, schedule_kernel
from ..llvm.target import LlvmTarget, code_text
from .isa import WASM32


class BuiltWasmLibrary(WasmLibrary):
    """A module just compiled, run by wasmtime; it can be saved with its weights inside."""

    def __init__(self, built: Any) -> None:
        self.built = built
        super().__init__(built.path, weights=built.weights)

    def save(self, path: str | Path) -> Path:
        saved: Path = self.built.save(Path(path))
        return saved

    def code_text(self, level: str) -> str | None:
        return code_text(self.built, level)


class WasmTarget(LlvmTarget):
    suffix = ".wasm"

    def __init__(self) -> None:
        super().__init__("wasm32", WASM32)

    @property
    def lowering(self) -> LoweringOptions:
        from ..llvm.brgemm import tile_shape

        mr, nr = tile_shape(self.isa, f32)
        machine = Machine(mr=mr, nr=nr, lanes=self.isa.lanes(32), l2=256 * 1024)

        def rule(kernel: loop.Kernel, kind: str, rows: int) -> Schedule:
            return schedule_kernel(kernel, kind, rows, machine)

        return LoweringOptions(panel=nr, rule=rule)

    def load(self, built: Any, threads: int | None) -> BuiltWasmLibrary:
        return BuiltWasmLibrary(built)

"""The target ``wasm32``: WebAssembly with 128-bit SIMD, one thread, run by wasmtime, Node or a browser."""

from __future__ import annotations

from typing import Any

from ...packages import installed
from ...runtime.model import CompiledModel
from ...runtime.wasm import WasmLibrary
from ..llvm.target import BuiltCode, ForeignLibrary, LlvmTarget
from .isa import WASM32


class BuiltWasmLibrary(BuiltCode, WasmLibrary):
    """A module just compiled, run by wasmtime; it can be saved with its weights inside."""

    def __init__(self, built: Any) -> None:
        self.built = built
        super().__init__(built.path, weights=built.weights)


class WasmTarget(LlvmTarget):
    def __init__(self) -> None:
        super().__init__("wasm32", WASM32)
        self.runs_here = installed("wasmtime")

    def load(self, built: Any, threads: int | None) -> CompiledModel:
        if not self.runs_here:
            return ForeignLibrary(built, self.name, "running WebAssembly here needs wasmtime: pip install wasmtime")
        return BuiltWasmLibrary(built)

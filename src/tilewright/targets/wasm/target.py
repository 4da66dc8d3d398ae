"""The target ``wasm32``: WebAssembly with 128-bit SIMD, one thread, run by wasmtime, Node or a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import CompileError, is_installed
from ...runtime.model import CompiledModel
from ...runtime.wasm import WasmLibrary
from ..llvm.target import BuiltCode, ForeignLibrary, LlvmTarget
from .isa import WASM32

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary


class BuiltWasmLibrary(BuiltCode, WasmLibrary):
    """A module just compiled, which wasmtime runs. It can be saved with its weights inside."""

    def __init__(self, built: BuiltLibrary) -> None:
        self.built = built
        super().__init__(built.path, weights=built.weights)


class WasmTarget(LlvmTarget):
    def __init__(self) -> None:
        super().__init__("wasm32", WASM32)
        self.runs_here = is_installed("wasmtime")

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        if not self.runs_here:
            return ForeignLibrary(
                built, self.name, "running WebAssembly here needs wasmtime: pip install wasmtime"
            )
        return BuiltWasmLibrary(built)


def wasm_target(name: str) -> WasmTarget:
    """Return the target ``wasm32``.

    Raises:
        CompileError: `name` has features.
    """
    if name != "wasm32":
        raise CompileError(f"unknown target {name!r}: the target wasm32 has no features to choose")
    return WasmTarget()

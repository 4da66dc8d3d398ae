"""The target ``wasm32``: WebAssembly with 128-bit SIMD, run by wasmtime, Node or a browser; with relaxed SIMD
and threads where the name asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import is_installed
from ...runtime.model import CompiledModel
from ...runtime.wasm import WasmLibrary
from ..llvm.target import BuiltCode, ForeignLibrary, LlvmTarget
from .isa import wasm_isa

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary


class BuiltWasmLibrary(BuiltCode, WasmLibrary):
    """A module just compiled, which wasmtime runs. It can be saved with its weights inside."""

    def __init__(self, built: BuiltLibrary, threads: int | None = None) -> None:
        self.built = built
        super().__init__(built.path, weights=built.weights, num_threads=threads or 0)


class WasmTarget(LlvmTarget):
    def __init__(self, name: str) -> None:
        super().__init__(name, wasm_isa(name))
        self.runs_here = is_installed("wasmtime")

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        if not self.runs_here:
            return ForeignLibrary(
                built, self.name, "running WebAssembly here needs wasmtime: pip install wasmtime"
            )
        return BuiltWasmLibrary(built, threads)


def wasm_target(name: str) -> WasmTarget:
    """Return the target ``wasm32``, ``wasm32:relaxed``, ``wasm32:threads``, ...

    Raises:
        CompileError: An unknown feature or fact of the machine.
    """
    return WasmTarget(name)

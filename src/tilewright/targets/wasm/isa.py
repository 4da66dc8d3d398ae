"""The instruction set of WebAssembly with 128-bit SIMD."""

from __future__ import annotations

from ...ir.target_info import CacheLevel, Machine
from ..llvm.isa import Isa

WASM32 = Isa(
    "wasm32",
    "wasm32-unknown-unknown",
    "generic",
    ("+simd128", "+bulk-memory", "+nontrapping-fptoint", "+sign-ext"),
    128,
    16,
    masked=False,
    fma=False,
    nan_minmax=True,
    machine=Machine(1, (CacheLevel(1, 32 * 1024), CacheLevel(2, 256 * 1024))),
)

"""The instruction set of WebAssembly with 128-bit SIMD."""

from __future__ import annotations

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
)

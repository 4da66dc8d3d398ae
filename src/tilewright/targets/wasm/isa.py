"""The instruction sets of WebAssembly: 128-bit SIMD, and what a target's name adds to it."""

from __future__ import annotations

from ...errors import CompileError
from ...ir.target_info import CacheLevel, Machine
from ..llvm.isa import Isa
from ..llvm.machine import stated

FEATURES = {"relaxed": "+relaxed-simd", "threads": "+atomics"}
"""The features that a target's name may add, in the order in which names list them, as LLVM spells them."""

VARIANTS = ("wasm32", "wasm32:relaxed", "wasm32:threads", "wasm32:relaxed+threads")

CORES = 4
"""Cores of a machine that runs a module with threads. Browsers run on laptops and telephones, and on no more
than eight threads (`web/src/threads.ts`).
"""

_BASE = ("+simd128", "+bulk-memory", "+nontrapping-fptoint", "+sign-ext")


def wasm_isa(name: str) -> Isa:
    """Return the instruction set of a target ``wasm32``, ``wasm32:relaxed``, ``wasm32:threads`` or both, with
    facts of the machine behind them: ``wasm32:relaxed+threads+cores=8``.

    Raises:
        CompileError: An unknown feature or fact.
    """
    parts = [part for part in name.partition(":")[2].split("+") if part]
    features = [part for part in parts if "=" not in part]
    if unknown := [part for part in features if part not in FEATURES]:
        raise CompileError(
            f"target {name!r}: unknown feature {unknown[0]!r} of wasm32; known targets: {', '.join(VARIANTS)}"
        )
    cores = CORES if "threads" in features else 1
    machine = Machine(cores, (CacheLevel(1, 32 * 1024), CacheLevel(2, 256 * 1024)))
    return Isa(
        "+".join(["wasm32", *(feature for feature in FEATURES if feature in features)]),
        "wasm32-unknown-unknown",
        "generic",
        (*_BASE, *(flag for feature, flag in FEATURES.items() if feature in features)),
        128,
        16,
        masked=False,
        fma=False,
        nan_minmax=True,
        in_order=True,
        machine=stated(machine, [part for part in parts if "=" in part], f"target {name!r}"),
    )


WASM32 = wasm_isa("wasm32")

__all__ = ["CORES", "FEATURES", "VARIANTS", "WASM32", "wasm_isa"]

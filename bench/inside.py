"""Seconds of one `tw_run_bound`, called in a loop of machine code, as a C program would call it."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

_LOOP = """
define void @repeat(ptr %run, ptr %binding, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %status = call i32 %run(ptr %binding)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def seconds_inside(library: Any, arrays: list[np.ndarray], repeats: int = 5) -> float:
    """The time of the best of several runs of the loop, about 20 ms each, divided by the number of calls."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_LOOP), machine)
    engine.finalize_object()
    void = ctypes.c_void_p
    loop = ctypes.CFUNCTYPE(None, void, void, ctypes.c_int64)(engine.get_function_address("repeat"))
    bound = library.bind(*arrays)
    run, binding = native_call(bound)

    def seconds(calls: int) -> float:
        start = time.perf_counter()
        loop(run, binding, calls)
        return (time.perf_counter() - start) / calls

    calls = max(1, int(0.02 / seconds(10)))
    return min(seconds(calls) for _ in range(repeats))


def native_call(bound: Any) -> tuple[int, int]:
    """Addresses of `tw_run_bound` and of a bound call's `tw_binding`."""
    return ctypes.cast(bound.run.func, ctypes.c_void_p).value or 0, bound.run.args[0]

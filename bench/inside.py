"""Seconds of one `tw_run`, called in a loop of machine code: what a C program sees."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

_LOOP = """
define void @repeat(ptr %run, ptr %context, ptr %in, i32 %ins, ptr %out, i32 %outs, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %status = call i32 %run(ptr %context, ptr %in, i32 %ins, ptr %out, i32 %outs)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def seconds_inside(library: Any, arrays: list[np.ndarray], repeats: int = 5) -> float:
    """The best of some runs of the loop, about 20 ms each, over the number of calls."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_LOOP), machine)
    engine.finalize_object()
    void, count = ctypes.c_void_p, ctypes.c_int32
    loop = ctypes.CFUNCTYPE(None, void, void, void, count, void, count, ctypes.c_int64)(
        engine.get_function_address("repeat")
    )
    outputs = library(*arrays)
    kept = outputs if isinstance(outputs, tuple) else (outputs,)
    library(*arrays, out=kept)  # the call's descriptors now hold addresses of tensors that stay alive here
    context = library._context()
    call = context.call_for(arrays)
    run = ctypes.cast(context.native.tw_run, void)

    def seconds(calls: int) -> float:
        start = time.perf_counter()
        loop(run, context.handle, call.inputs, len(arrays), call.outputs, len(kept), calls)
        return (time.perf_counter() - start) / calls

    calls = max(1, int(0.02 / seconds(10)))
    return min(seconds(calls) for _ in range(repeats))

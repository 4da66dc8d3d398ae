"""Masked accesses of single lanes do what LLVM's masked intrinsics do."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from tilewright.targets.cpu.isa import isa_named
from tilewright.targets.llvm.emitter import mangled
from tilewright.targets.llvm.masks import expanded
from tilewright.targets.llvm.toolchain import assembly

from .jit import compile_functions


def text_of(action: str, lanes: int, scalar: str, align: int) -> str:
    """``entry(memory, offsets, mask, values)``: offsets in bytes and masks are i64."""
    numbers, vector, pointers = f"<{lanes} x i64>", f"<{lanes} x {scalar}>", f"<{lanes} x ptr>"
    kind, mask = mangled(vector), f"<{lanes} x i1> %mask"
    apart = action in ("gather", "scatter")
    where = f"{pointers} align {align} %places" if apart else f"ptr align {align} %memory"
    name = f"@llvm.masked.{action}.{kind}.{f'v{lanes}p0' if apart else 'p0'}"
    if action in ("load", "gather"):
        call = f"%new = call {vector} {name}({where}, {mask}, {vector} %old)"
        call += f"\n  store {vector} %new, ptr %values, align {align}"
    else:
        call = f"call void {name}({vector} %old, {where}, {mask})"
    return f"""
define i32 @entry(ptr %memory, ptr %offsets, ptr %masks, ptr %values) {{
  %at = load {numbers}, ptr %offsets, align 8
  %places = getelementptr i8, ptr %memory, {numbers} %at
  %flags = load {numbers}, ptr %masks, align 8
  %mask = icmp ne {numbers} %flags, zeroinitializer
  %old = load {vector}, ptr %values, align {align}
  {call}
  %some = call i1 @llvm.vector.reduce.or.v{lanes}i1({mask})
  %any = zext i1 %some to i32
  ret i32 %any
}}
"""


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize("action", ["load", "store", "gather", "scatter"])
def test_lanes_of_every_mask(action: str, dtype: str) -> None:
    """Lanes outside the mask access no memory, keep what a load has for them, and leave stored memory."""
    lanes, kind = 4, np.dtype(dtype)
    scalar = {"float32": "float", "int8": "i8", "float64": "double"}[dtype]
    text = expanded(text_of(action, lanes, scalar, kind.itemsize))
    assert "@llvm.masked" not in text and "@llvm.vector.reduce" not in text
    address = compile_functions(text)("entry")
    run = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(address)
    order = np.array([5, 0, 3, 6]) if action in ("gather", "scatter") else np.arange(lanes)
    for bits in range(1 << lanes):
        flags = np.array([bits >> lane & 1 for lane in range(lanes)], np.int64)
        places = np.where(flags == 1, order, 1 << 40)  # any access of the others is a fault
        memory, values = np.arange(1, 9).astype(kind), np.arange(21, 21 + lanes).astype(kind)
        chosen, wanted_memory, wanted = order[flags == 1], memory.copy(), values.copy()
        if action in ("load", "gather"):
            wanted[flags == 1] = memory[chosen]
        else:
            wanted_memory[chosen] = values[flags == 1]
        offsets = places * kind.itemsize
        pointers = (x.ctypes.data for x in (memory, offsets, flags, values))
        assert run(*pointers) == (bits != 0)
        np.testing.assert_array_equal(memory, wanted_memory)
        np.testing.assert_array_equal(values, wanted)


def test_hexagon_reads_a_lane_from_its_own_bits() -> None:
    """The second of two lanes has bits 4 to 7 of a predicate register, the first bits 0 to 3."""
    code = assembly(
        """
define void @entry(ptr %p, ptr %q, <2 x i32> %a, <2 x i32> %b) {
  %mask = icmp slt <2 x i32> %a, %b
  %x = call <2 x i32> @llvm.masked.load.v2i32.p0(ptr align 4 %p, <2 x i1> %mask, <2 x i32> zeroinitializer)
  store <2 x i32> %x, ptr %q
  ret void
}
""",
        isa_named("hexagon-linux"),
    )
    assert re.search(r"tstbit\(r\d+,#4\)", code) and "bitsclr" not in code, code

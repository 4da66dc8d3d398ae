"""Multiply-adds of whole vectors of SVE by a lane of 128 bits that are repeated in a register.

LLVM lowers operations on vectors of a known width to SVE's, but has no pattern for its multiply-add "by
element": a factor that is loaded by itself would need an instruction and the calculation of an address for
each step and row. The instructions are therefore written as functions of LLVM on vectors of any width, which
cost no instruction where registers have the known width.
"""

from __future__ import annotations

from ..emitter import Emitter, mangled

UNIT = 128
"""Bits of which each lane of an instruction's factor has a copy."""


def _scalable(element: str) -> tuple[str, str]:
    """The type of vectors of any width, and its name in intrinsics."""
    bits = {"float": 32, "double": 64}[element]
    return f"<vscale x {UNIT // bits} x {element}>", f"nxv{UNIT // bits}f{bits}"


def repeated_factors(e: Emitter, element: str, where: str) -> str:
    """The 128 bits at the address `where`, repeated in a register: a vector of any width."""
    kind, name = _scalable(element)
    mask = f"{kind.replace(element, 'i1')} splat (i1 true)"
    return e.op(f"call {kind} @llvm.aarch64.sve.ld1rq.{name}({mask}, ptr {where})")


def multiply_add_by_lane(e: Emitter, vector: str, x: str, factors: str, lane: int, total: str) -> str:
    """``total + x * factors[lane]`` with one rounding; `x` and `total` have the type `vector`, such as ``<8 x
    float>``, and `factors` are `repeated_factors`.
    """
    kind, name = _scalable(vector[1:-1].split(" x ")[1])
    pair = f"{name}.{mangled(vector)}"
    total, x = (
        e.op(f"call {kind} @llvm.vector.insert.{pair}({kind} poison, {vector} {v}, i64 0)")
        for v in (total, x)
    )
    operands = f"{kind} {total}, {kind} {x}, {kind} {factors}, i32 {lane}"
    result = e.op(f"call {kind} @llvm.aarch64.sve.fmla.lane.{name}({operands})")
    return e.op(f"call {vector} @llvm.vector.extract.{mangled(vector)}.{name}({kind} {result}, i64 0)")


__all__ = ["UNIT", "multiply_add_by_lane", "repeated_factors"]

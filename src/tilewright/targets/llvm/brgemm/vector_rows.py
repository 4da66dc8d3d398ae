"""`simd.brgemm` of bytes by dot products of 16 bytes (Arm's MVE, "Helium").

``vmladav.s8`` multiplies two vectors of 16 bytes and adds all products to a general register. Both vectors
have to be signed, or both unsigned. Unsigned activations are therefore copied as ``a - 128`` (their highest
bit is inverted), and 128 times the sum of a column of weights (``vaddva``) is added. Unsigned weights are
treated the same way, with the sums of rows. Copied rows are filled up with zeros, to which the weights'
panels add zeros, so that no lane is masked in a product.

Two rows by two columns are computed at a time. The accumulators are general registers with even numbers,
of which there are seven: four products, two sums.
"""

from __future__ import annotations

from ....ir.types import i8, u8
from ..emitter import Carried, Emitter
from .copied_rows import COLUMNS, CopiedRows, Sums

GROUP = 16
"""Bytes of a vector."""
VECTOR = f"<{GROUP} x i8>"
INVERTED = "splat (i8 -128)"
SHIFT = 4
"""The bits below an integer of 4 bits in a byte."""


class VectorRows(CopiedRows):
    """Copies rows as signed bytes, and multiplies vectors of them."""

    feature, group, unit, copied = "mve.fp", GROUP, GROUP, GROUP

    def copy(self, source: str, target: str, count: int, size: int) -> str:
        p, e = self.problem, self.emitter
        inverts = p.dtype is u8 and p.b_dtype is i8

        def move(source: str, target: str, left: int | None = None) -> None:
            if left is None:
                x = e.load(VECTOR, source, 1)
            else:
                mask = e.op(f"call <{GROUP} x i1> @llvm.arm.mve.vctp8(i32 {left})")
                x = e.masked_load(VECTOR, source, 1, mask)
            x = e.op(f"xor {VECTOR} {x}, {INVERTED}") if inverts else x
            e.line(f"store {VECTOR} {x}, ptr {target}, align {GROUP}")

        def whole(_: str, carried: Carried) -> list[str]:
            (_, now), (_, to) = carried
            move(now, to)
            return [e.at(now, str(GROUP), 1), e.at(to, str(GROUP * count), 1)]

        carried = [("ptr", source), ("ptr", target)]
        now, to = e.loop("0", str(size // GROUP), "1", carried, whole)
        if size % GROUP:
            move(now, to, size % GROUP)
            to = e.at(to, str(GROUP * count), 1)
        return to

    def product(self, rows: int) -> tuple[str, str]:
        p = self.problem
        unsigned = int(p.dtype is u8 and p.b_dtype is u8)
        inverted = p.dtype is not p.b_dtype
        by_column = p.dtype is u8
        places = [(i, j) for i in range(rows) for j in range(COLUMNS)]
        stored = self.step // GROUP
        corrected = 0 if not inverted else COLUMNS if by_column else rows

        def panel(e: Emitter, b: str) -> tuple[str, Sums]:
            def total(x: str, acc: str) -> str:
                wide = e.op(f"sext {VECTOR} {x} to <{GROUP} x i32>")
                found = e.op(f"call i32 @llvm.vector.reduce.add.v{GROUP}i32(<{GROUP} x i32> {wide})")
                return e.op(f"add i32 {acc}, {found}")

            def product(acc: str, x: str, y: str) -> str:
                numbers = f"i32 {unsigned}, i32 0, i32 0, i32 {acc}"
                return e.op(f"call i32 @llvm.arm.mve.vmldava.v16i8({numbers}, {VECTOR} {x}, {VECTOR} {y})")

            def group(_: str, carried: Carried) -> list[str]:
                (_, a), (_, b), *values = carried
                found = [v for _, v in values]
                align = 1 if self.in_place else GROUP
                left = [e.load(VECTOR, e.at(a, str(GROUP * i), 1), align) for i in range(rows)]
                if self.in_place and inverted and by_column:
                    left = [e.op(f"xor {VECTOR} {x}, {INVERTED}") for x in left]
                right = [e.load(VECTOR, e.at(b, str(GROUP * j), 1), GROUP) for j in range(stored)]
                if p.halves:
                    low = e.op(f"shl {VECTOR} {right[0]}, splat (i8 {SHIFT})")
                    right = [low, e.op(f"and {VECTOR} {right[0]}, splat (i8 {-1 << SHIFT})")]
                if inverted and not by_column:
                    right = [e.op(f"xor {VECTOR} {x}, {INVERTED}") for x in right]
                products = [
                    product(acc, left[i], right[j]) for (i, j), acc in zip(places, found, strict=False)
                ]
                summed = (right if by_column else left)[:corrected]
                corrections = [total(x, acc) for x, acc in zip(summed, found[len(places) :], strict=True)]
                after = [e.at(a, str(GROUP * rows), 1), e.at(b, str(self.step), 1)]
                return [*after, *products, *corrections]

            state: Carried = [("ptr", "%a"), ("ptr", b), *[("i32", "0")] * (len(places) + corrected)]
            _, after, *totals = e.loop("0", e.op("zext i32 %steps to i64"), "1", state, group)
            found = dict(zip(places, totals, strict=False))
            for (i, j), x in found.items() if corrected else ():
                excess = e.op(f"shl i32 {totals[len(places) + (j if by_column else i)]}, 7")
                found[i, j] = e.op(f"add i32 {x}, {excess}")
            return after, self.shifted(e, found, SHIFT)

        name = f"vectors_of_{rows}_{p.dtype.label}_{p.b_dtype.label}"
        return self.columns(name, rows, "noinline nounwind", panel)


__all__ = ["VectorRows"]

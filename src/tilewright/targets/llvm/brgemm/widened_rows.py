"""`simd.brgemm` of bytes by pairs of 16-bit integers (Arm's DSP extension): rows of A are widened first.

``smlad`` multiplies two pairs of 16-bit integers and adds both products. The copied rows of A are therefore
widened: of four bytes the even ones, then the odd ones, as ``uxtb16`` extracts them. Weights stay bytes in
memory, and ``sxtb16`` widens them in registers. Two rows by two columns are computed at a time: four sums,
four words of A, two of B and their halves fill the registers.

Where two columns share a byte, a mask and a shift extract each column's integers, as the upper bits of bytes,
which ``sxtb16`` widens. For short sums they become the upper bits of 16-bit integers instead, which are not
widened at all: a word of weights takes four masks, where bytes take two loads and four ``sxtb16``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....ir.types import DType, i8
from ..emitter import Carried, Emitter
from .copied_rows import COLUMNS, CopiedRows, Sums

GROUP = 4
"""Bytes of a row that are widened at once."""
SHORT = (1 << 31) // (255 * 8 << 12)
"""The most terms of a sum that fits 32 bits with weights in the upper 4 of 16 bits."""


class WidenedRows(CopiedRows):
    """Copies rows as 16-bit integers, and multiplies pairs of them."""

    feature, group, unit, copied = "dsp", GROUP, 4, 2 * GROUP

    def copy(self, source: str, target: str, count: int, size: int) -> str:
        name = self.helper(*_widen(self.problem.dtype, count, size % GROUP))
        return self.emitter.op(f"call ptr @{name}(ptr {source}, ptr {target}, i32 {size // GROUP})")

    def product(self, rows: int) -> tuple[str, str]:
        dtype, raw = self.problem.b_dtype, self.problem.dtype if self.in_place else None
        name = f"pairs_of_{rows}_{dtype.label}{f'_{raw.label}' if raw else ''}"
        factors: Factors = partial(_halves, dtype)
        bits = 12 if self._terms() <= SHORT else 4
        if self.problem.halves:
            name, factors = f"{name}_{bits}", _short if bits == 12 else _long

        def panel(e: Emitter, b: str) -> tuple[str, Sums]:
            after, sums = _panel(rows, self.step, factors, raw, e, b)
            return after, self.shifted(e, sums, bits)

        name, text = self.columns(name, rows, "noinline nounwind", panel)
        halves = "  %steps.pairs = lshr i32 %steps, 1\n  %steps.odd = and i32 %steps, 1\n"
        return name, _HEAD + text.replace("entry:\n", f"entry:\n{halves}", 1)


_HEAD = """declare i32 @llvm.arm.uxtb16(i32)
declare i32 @llvm.arm.sxtb16(i32)
declare i32 @llvm.arm.smlad(i32, i32, i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)
"""


def _widen(dtype: DType, count: int, rest: int) -> tuple[str, str]:
    """``ptr @name(ptr from, ptr to, i32 words)``: widens `rest` bytes more than `words` words to every
    `count`-th word; returns where the next one belongs.
    """
    extend, name = ("sxtb16" if dtype is i8 else "uxtb16"), f"widen_{dtype.label}_{count}_{rest}"
    step = 8 * count

    def pair(x: str, to: str) -> str:
        return f"""  %{x}.even = call i32 @llvm.arm.{extend}(i32 %{x})
  %{x}.turned = call i32 @llvm.fshr.i32(i32 %{x}, i32 %{x}, i32 8)
  %{x}.odd = call i32 @llvm.arm.{extend}(i32 %{x}.turned)
  %{x}.second = getelementptr i8, ptr {to}, i32 {4 * count}
  store i32 %{x}.even, ptr {to}, align 4
  store i32 %{x}.odd, ptr %{x}.second, align 4
"""

    tail = "  ret ptr %q.end\n"
    if rest:
        lines = []
        for k in range(rest):
            lines += [
                f"  %b{k}.at = getelementptr i8, ptr %p.end, i32 {k}",
                f"  %b{k}.byte = load i8, ptr %b{k}.at, align 1",
                f"  %b{k}.wide = zext i8 %b{k}.byte to i32",
                f"  %b{k} = shl i32 %b{k}.wide, {8 * k}",
                f"  %{'y' if k == rest - 1 else f'y{k}'} = or i32 %b{k}, {f'%y{k - 1}' if k else '0'}",
            ]
        after = f"  %after = getelementptr i8, ptr %q.end, i32 {step}\n  ret ptr %after\n"
        tail = "\n".join(lines) + "\n" + pair("y", "%q.end") + after
    text = f"""define internal ptr @{name}(ptr %from, ptr %to, i32 %words) noinline nounwind {{
entry:
  %some = icmp ne i32 %words, 0
  br i1 %some, label %each, label %end
each:
  %n = phi i32 [ %words, %entry ], [ %left, %each ]
  %p = phi ptr [ %from, %entry ], [ %p.next, %each ]
  %q = phi ptr [ %to, %entry ], [ %q.next, %each ]
  %x = load i32, ptr %p, align 1
{pair("x", "%q")}  %p.next = getelementptr i8, ptr %p, i32 4
  %q.next = getelementptr i8, ptr %q, i32 {step}
  %left = add i32 %n, -1
  %more = icmp ne i32 %left, 0
  br i1 %more, label %each, label %end
end:
  %p.end = phi ptr [ %from, %entry ], [ %p.next, %each ]
  %q.end = phi ptr [ %to, %entry ], [ %q.next, %each ]
{tail}}}
"""
    return name, _HEAD + text


Factors = Callable[[Emitter, list[str]], list[list[str]]]
"""The even, then the odd weights of each column as pairs of 16-bit integers, from the words of a group."""


def _halves(dtype: DType, e: Emitter, words: list[str]) -> list[list[str]]:
    """The even, then the odd bytes of some words as pairs of 16-bit integers: `Factors` of bytes."""
    extend = "sxtb16" if dtype is i8 else "uxtb16"
    turned = [e.op(f"call i32 @llvm.fshr.i32(i32 {w}, i32 {w}, i32 8)") for w in words]
    return [[e.op(f"call i32 @llvm.arm.{extend}(i32 {w})") for w in half] for half in (words, turned)]


def _long(e: Emitter, words: list[str]) -> list[list[str]]:
    """`Factors` of two columns in a byte, times 2**4."""
    return _halves(i8, e, [_upper(e, words[0], 4 - 4 * j, 0xF0F0F0F0) for j in range(COLUMNS)])


def _short(e: Emitter, words: list[str]) -> list[list[str]]:
    """`Factors` of two columns in a byte, times 2**12."""
    return [
        [_upper(e, words[0], 12 - 8 * odd - 4 * j, 0xF000F000) for j in range(COLUMNS)] for odd in range(2)
    ]


def _upper(e: Emitter, word: str, bits: int, mask: int) -> str:
    """The upper bits that a mask selects of each part of a word, shifted to the left."""
    shifted = e.op(f"shl i32 {word}, {bits}") if bits else word
    return e.op(f"and i32 {shifted}, {mask - (1 << 32)}")


def _panel(rows: int, step: int, factors: Factors, raw: DType | None, e: Emitter, b: str) -> tuple[str, Sums]:
    """The sums of `rows` widened rows, or a row of bytes of type `raw`, and a panel whose groups have `step`
    bytes. An iteration takes two groups.

    LLVM's loop strength reduction would replace the two pointers by more registers than there are, so it must
    not see how they advance.
    """
    size = GROUP if raw else 2 * GROUP * rows
    sums = [(i, j) for i in range(rows) for j in range(COLUMNS)]

    def group(a: str, b: str, acc: dict[tuple[int, int], str], number: int) -> None:
        """Add the products of one group, whose words lie `number` groups after `a` and `b`."""
        weights = [e.load("i32", e.at(b, str(step * number + at), 1), 4) for at in range(0, step, 4)]
        row = size * number
        own = _halves(raw, e, [e.load("i32", e.at(a, str(row), 1), 1)]) if raw else None
        for half, columns in enumerate(factors(e, weights)):
            places = [e.at(a, str(row + 4 * (rows * half + i)), 1) for i in range(0 if own else rows)]
            words = own[half] if own else [e.load("i32", place, 4) for place in places]
            for i, x in enumerate(words):
                for j, w in enumerate(columns):
                    acc[i, j] = e.op(f"call i32 @llvm.arm.smlad(i32 {x}, i32 {w}, i32 {acc[i, j]})")

    def groups(count: int) -> Callable[[str, Carried], list[str]]:
        def body(_: str, carried: Carried) -> list[str]:
            (_, a), (_, b), *values = carried
            acc = {place: v for place, (_, v) in zip(sums, values, strict=True)}
            for number in range(count):
                group(a, b, acc, number)
            after = [e.at(a, str(size * count), 1), e.at(b, str(step * count), 1)]
            return [*(e.op(f'call ptr asm "", "=r,0"(ptr {x})') for x in after), *acc.values()]

        return body

    state: Carried = [("ptr", "%a"), ("ptr", b), *[("i32", "0")] * len(sums)]
    values = e.loop("0", e.op("zext i32 %steps.pairs to i64"), "1", state, groups(2))
    state = [(kind, v) for (kind, _), v in zip(state, values, strict=True)]
    _, after, *totals = e.loop("0", e.op("zext i32 %steps.odd to i64"), "1", state, groups(1))
    return after, dict(zip(sums, totals, strict=True))


__all__ = ["WidenedRows"]

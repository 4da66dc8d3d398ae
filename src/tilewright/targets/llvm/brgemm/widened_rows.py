"""`simd.brgemm` of bytes by pairs of 16-bit integers (Arm's DSP extension): rows of A are widened first.

``smlad`` multiplies two pairs of 16-bit integers and adds both products. The rows of A, with all of a
convolution's window, are therefore copied to the stack and widened, once for all columns: of four bytes the
even ones, then the odd ones, as ``uxtb16`` extracts them. Weights stay bytes in memory, and ``sxtb16`` widens
them in registers. Two rows by two columns are computed at a time: four sums, four words of A, two of B and
their halves fill the registers.

The kernels of CMSIS-NN (Lai, Suda, Chandra 2018) copy rows the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from ....ir.types import DType, i8, i32
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import BYTES, Problem, SymbolicArguments

GROUP = 4
"""Bytes of a row that are widened at once."""
COLUMNS, ROWS = 2, 2
"""Columns of a panel, and rows that are multiplied at once."""
BLOCK_ROWS = 4
"""Rows of a block of the result. More rows need more memory for the block, and less time for its launch."""
MOST_COPIED = 4096
"""The most bytes of widened rows on the stack. Longer rows are multiplied by the other code, which is slower.
"""


def widens_rows(isa: Isa) -> bool:
    """Whether an instruction set multiplies pairs of 16-bit integers in general registers."""
    return isa.has("dsp")


def fits(p: Problem, isa: Isa) -> bool:
    """Whether a problem has packed weights whose rows follow one another, and rows short enough to copy."""
    if not (widens_rows(isa) and p.group == GROUP and p.dtype in BYTES and p.c_dtype is i32):
        return False
    if not (isinstance(p.k, int) and p.a_k == 1 and p.padded and not p.accumulate):
        return False
    step = GROUP * COLUMNS * -(-p.k // GROUP)
    if p.k > GROUP and p.b_k != GROUP * COLUMNS:
        return False
    for extent, stride in zip(reversed(p.reductions), reversed(p.b_r), strict=True):
        if not isinstance(extent, int) or stride != step:
            return False
        step *= extent
    one_panel = isinstance(p.n, int) and p.n <= COLUMNS
    return p.width == COLUMNS and (one_panel or p.b_panel == step) and _row_bytes(p) * ROWS <= MOST_COPIED


def _row_bytes(p: Problem) -> int:
    """The bytes of a widened row."""
    assert isinstance(p.k, int)
    total = -(-p.k // GROUP) * 2 * GROUP
    for extent in p.reductions:
        assert isinstance(extent, int)
        total *= extent
    return total


class WidenedRows:
    """Writes the function of a problem that `fits`, and collects the functions that it calls."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.emitter, self.dims = Emitter("i32"), SymbolicArguments()
        self.definitions: dict[str, str] = {}

    def write(self) -> None:
        p, e = self.problem, self.emitter
        place = e.alloca(f"[{_row_bytes(p) * (1 if p.m == 1 else ROWS)} x i8]", 8)
        m = self.dims(p.m)

        def line(i: str, _: Carried) -> list[str]:
            a = e.at("%a", e.mul(i, self.dims(p.a_line)), 1)
            c = e.at("%c", e.mul(i, self.dims(p.c_line)), 4)

            def pair(row: str, _: Carried) -> list[str]:
                self._rows(a, c, place, e.mul(row, str(ROWS)), ROWS)
                return []

            e.loop("0", e.divide(m, ROWS), "1", [], pair)
            rest = e.remainder(m, ROWS)
            if rest == "1":
                self._rows(a, c, place, e.sub(m, "1"), 1)
            elif rest != "0":
                with e.when(e.op(f"icmp ne i64 {rest}, 0")):
                    self._rows(a, c, place, e.sub(m, "1"), 1)
            return []

        e.loop("0", self.dims(p.lines), "1", [], line)

    def _rows(self, a: str, c: str, place: str, first: str, count: int) -> None:
        """Compute `count` rows of the result, from row `first` on."""
        p, e = self.problem, self.emitter
        for k in range(count):
            source = e.at(a, e.mul(e.add(first, str(k)), self.dims(p.a_m)), 1)
            self._widen(source, e.at(place, str(4 * k), 1), count, 0)
        name = self._helper(*_product(count))
        c = e.at(c, e.mul(first, self.dims(p.c_m)), 4)
        steps = _row_bytes(p) // (2 * GROUP)
        sizes = [steps, *(self._narrow(x) for x in (p.c_m, p.n))]
        e.line(f"call void @{name}(ptr {place}, ptr %b, ptr {c}, {', '.join(f'i32 {x}' for x in sizes)})")

    def _widen(self, source: str, target: str, count: int, level: int) -> str:
        """Widen a row from reduction `level` on, to every `count`-th word; returns the end."""
        p, e = self.problem, self.emitter
        if level < len(p.reductions):

            def run(_: str, carried: Carried) -> list[str]:
                (_, now), (_, to) = carried
                after = self._widen(now, to, count, level + 1)
                return [e.at(now, self.dims(p.a_r[level]), 1), after]

            carried = [("ptr", source), ("ptr", target)]
            return e.loop("0", self.dims(p.reductions[level]), "1", carried, run)[1]
        assert isinstance(p.k, int)
        name = self._helper(*_widen(p.dtype, count, p.k % GROUP))
        return e.op(f"call ptr @{name}(ptr {source}, ptr {target}, i32 {p.k // GROUP})")

    def _narrow(self, size: object) -> str:
        if isinstance(size, int):
            return str(size)
        return self.emitter.op(f"trunc i64 {self.dims(size)} to i32")  # type: ignore[arg-type]

    def _helper(self, name: str, text: str) -> str:
        self.definitions[name] = text
        return name


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


def _product(rows: int) -> tuple[str, str]:
    """``void @name(ptr a, ptr b, ptr c, i32 steps, i32 c_m, i32 n)``: `rows` widened rows times all columns,
    two columns at a time; `c_m` counts elements. An iteration takes two groups of four bytes.

    LLVM's loop strength reduction would replace the two pointers by more registers than there are, so it must
    not see how they advance.
    """
    name = f"pairs_of_{rows}"
    sums = [(i, j) for i in range(rows) for j in range(COLUMNS)]
    e = Emitter("i32")

    def group(a: str, b: str, acc: dict[tuple[int, int], str], number: int) -> None:
        """Add the products of one group, whose words lie `number` groups after `a` and `b`."""
        weights = [e.load("i32", e.at(b, str(4 * (COLUMNS * number + j)), 1), 4) for j in range(COLUMNS)]
        row = 8 * rows * number
        halves = [[e.op(f"call i32 @llvm.arm.sxtb16(i32 {w})") for w in weights]]
        turned = [e.op(f"call i32 @llvm.fshr.i32(i32 {w}, i32 {w}, i32 8)") for w in weights]
        halves.append([e.op(f"call i32 @llvm.arm.sxtb16(i32 {w})") for w in turned])
        for half, factors in enumerate(halves):
            words = [e.load("i32", e.at(a, str(row + 4 * (rows * half + i)), 1), 4) for i in range(rows)]
            for i, x in enumerate(words):
                for j, w in enumerate(factors):
                    acc[i, j] = e.op(f"call i32 @llvm.arm.smlad(i32 {x}, i32 {w}, i32 {acc[i, j]})")

    def groups(count: int) -> Callable[[str, Carried], list[str]]:
        def body(_: str, carried: Carried) -> list[str]:
            (_, a), (_, b), *values = carried
            acc = {place: v for place, (_, v) in zip(sums, values, strict=True)}
            for number in range(count):
                group(a, b, acc, number)
            after = [e.at(a, str(8 * rows * count), 1), e.at(b, str(4 * COLUMNS * count), 1)]
            return [*(e.op(f'call ptr asm "", "=r,0"(ptr {x})') for x in after), *acc.values()]

        return body

    def columns(i: str, carried: Carried) -> list[str]:
        state: Carried = [("ptr", "%a"), *carried, *[("i32", "0")] * len(sums)]
        pairs = e.op("zext i32 %steps.pairs to i64")
        values = e.loop("0", pairs, "1", state, groups(2))
        state = [(kind, v) for (kind, _), v in zip(state, values, strict=True)]
        _, b, *totals = e.loop("0", e.op("zext i32 %steps.odd to i64"), "1", state, groups(1))
        found = dict(zip(sums, totals, strict=True))
        row = e.at("%c", e.mul(i, str(COLUMNS)), 4)
        places = [e.at(row, e.mul(str(k), e.op("zext i32 %c_m to i64")), 4) for k in range(rows)]
        for k, place in enumerate(places):
            e.line(f"store i32 {found[k, 0]}, ptr {place}, align 4")
        left = e.op(f"sub i32 %n, {e.op(f'trunc i64 {e.mul(i, str(COLUMNS))} to i32')}")
        with e.when(e.op(f"icmp sgt i32 {left}, 1")):
            for k, place in enumerate(places):
                e.line(f"store i32 {found[k, 1]}, ptr {e.at(place, '1', 4)}, align 4")
        return [b]

    e.line("%steps.pairs = lshr i32 %steps, 1")
    e.line("%steps.odd = and i32 %steps, 1")
    panels = e.op(f"lshr i32 {e.op(f'add i32 %n, {COLUMNS - 1}')}, {COLUMNS.bit_length() - 1}")
    e.loop("0", e.op(f"zext i32 {panels} to i64"), "1", [("ptr", "%b")], columns)
    parameters = "ptr %a, ptr %b, ptr %c, i32 %steps, i32 %c_m, i32 %n"
    return name, f"{_HEAD}define internal void @{name}({parameters}) noinline nounwind {{\n{e.text()}}}\n"


__all__ = ["BLOCK_ROWS", "COLUMNS", "GROUP", "WidenedRows", "fits", "widens_rows"]

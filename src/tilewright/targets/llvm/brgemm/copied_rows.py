"""`simd.brgemm` of bytes whose rows of A are copied first: those of a convolution's window follow one another
then, and are as long as the weights' packed rows.

Rows are copied to the stack, once for all columns, `ROWS` at a time: of each row in turn `unit` bytes. A
subclass copies them in the form that its machine's product instruction reads:

| machine | instruction | copied | weights | class |
|---|---|---|---|---|
| Arm's DSP extension (Cortex-M4, M7, M33) | ``smlad``: 2 products | as 16 bits | in fours | `WidenedRows` |
| Arm's MVE (Cortex-M55) | ``vmladav.s8``: 16 products | as bytes | in sixteens | `VectorRows` |

Where two columns share a byte (`simd.Panel`), their integers of 4 bits are multiplied where they lie, in the
upper bits of bytes: 16 times as large. Sums are shifted at the end, which is exact.

The kernels of CMSIS-NN (Lai, Suda, Chandra 2018) copy rows the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ....ir.symbolic import Dim
from ....ir.types import i32
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import BYTES, Problem, SymbolicArguments

COLUMNS, ROWS = 2, 2
"""Columns of a panel, and rows that are multiplied at once."""
MOST_COPIED = 4096
"""The most bytes of copied rows on the stack. Longer rows are copied and multiplied in parts, whose products
are added in memory.
"""


Sums = dict[tuple[int, int], str]
"""Values by row and column."""


class CopiedRows:
    """Writes the function of a problem that `fits`, and collects the functions that it calls.

    Attributes:
        feature: the feature of the instruction sets that have the product instruction, in LLVM's spelling.
        group: bytes of a row of A, and of a column of B, that follow one another in a panel.
        unit: bytes of a copied row before those of the next row.
        copied: bytes that a group takes in a copied row, a multiple of `unit`.
        apart: the outermost reductions whose terms are copied one after the other; one more than there are
            if the run of `k` is itself cut.
        in_parts: whether products are added to the result.
        in_place: whether a row is read where it lies: a single one of whole groups, which follow one another.
        step: bytes of a group of a panel.
    """

    feature: ClassVar[str]
    group: ClassVar[int]
    unit: ClassVar[int]
    copied: ClassVar[int]
    apart: int
    in_parts: bool
    in_place: bool
    step: int

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.emitter, self.dims = Emitter("i32"), SymbolicArguments()
        self.definitions: dict[str, str] = {}
        self.line = self.row = "0"  # The line, and the first of the rows that are multiplied at once.
        self.row_of_pair = 0
        run = isinstance(problem.k, int) and problem.k % self.group == 0 and not problem.reductions
        run = run and not problem.guards
        self.in_place = problem.m == 1 and run
        levels = range(len(problem.reductions) + 1)
        fitting = [k for k in levels if self._copied_bytes(k) * ROWS <= MOST_COPIED]
        self.apart = 0 if self.in_place else fitting[0] if fitting else len(levels)
        self.step = problem.elements_of_b(COLUMNS)
        step = self._copied_bytes(0) // self.copied * self.step
        one_panel = isinstance(problem.n, int) and problem.n <= COLUMNS
        self.in_parts = self.apart > 0 or problem.accumulate or not (one_panel or problem.b_panel == step)

    @classmethod
    def fits(cls, p: Problem, isa: Isa) -> bool:
        """Whether a problem has packed weights, of which a panel's rows follow one another."""
        group = cls.group
        if not (isa.has(cls.feature) and p.group == group and p.dtype in BYTES and p.c_dtype is i32):
            return False
        if not (isinstance(p.k, int) and p.a_k == 1 and p.padded and p.width == COLUMNS):
            return False
        step = p.elements_of_b(COLUMNS) * -(-p.k // group)
        if p.k > group and p.b_k != p.elements_of_b(COLUMNS):
            return False
        for extent, stride in zip(reversed(p.reductions), reversed(p.b_r), strict=True):
            if not isinstance(extent, int) or stride != step:
                return False
            step *= extent
        return True

    def _copied_bytes(self, level: int) -> int:
        """The bytes of a copied row from reduction `level` on."""
        p = self.problem
        assert isinstance(p.k, int)
        total = -(-p.k // self.group) * self.copied
        for extent in p.reductions[level:]:
            assert isinstance(extent, int)
            total *= extent
        return total

    def _terms(self) -> int:
        """The most terms of a sum of products at once, and zeros."""
        copied = self._copied_bytes(self.apart)
        return (copied if self.in_place else min(copied, MOST_COPIED // ROWS)) // self.copied * self.group

    def write(self) -> None:
        p, e = self.problem, self.emitter
        size = min(MOST_COPIED // ROWS, self._copied_bytes(self.apart)) * (1 if p.m == 1 else ROWS)
        place = "poison" if self.in_place else e.alloca(f"[{size} x i8]", max(8, self.unit))
        m = self.dims(p.m)

        def line(i: str, _: Carried) -> list[str]:
            a = e.at("%a", e.mul(i, self.dims(p.a_line)), 1)
            c = e.at("%c", e.mul(i, self.dims(p.c_line)), 4)

            self.line = i

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
        sources = [e.at(a, e.mul(e.add(first, str(k)), self.dims(p.a_m)), 1) for k in range(count)]
        targets = [e.at(c, e.mul(e.add(first, str(k)), self.dims(p.c_m)), 4) for k in range(count)]
        if self.in_parts and not p.accumulate:
            for target in targets:

                def clear(i: str, _: Carried, target: str = target) -> list[str]:
                    e.line(f"store i32 0, ptr {e.at(target, i, 4)}, align 4")
                    return []

                e.loop("0", self.dims(p.n), "1", [], clear)
        self.row = first
        self._parts(sources, "%b", targets[0], place, ())

    def _parts(self, sources: list[str], b: str, c: str, place: str, point: tuple[str, ...]) -> None:
        """Add the products of some rows at a `point` of the outer reductions, in parts that can be copied."""
        p, e, level = self.problem, self.emitter, len(point)
        if level < self.apart and level < len(p.reductions):

            def part(i: str, _: Carried) -> list[str]:
                step = e.mul(i, self.dims(p.a_r[level]))
                moved = [e.at(x, step, 1) for x in sources]
                self._parts(moved, e.at(b, e.mul(i, self.dims(p.b_r[level])), 1), c, place, (*point, i))
                return []

            e.loop("0", self.dims(p.reductions[level]), "1", [], part)
            return
        assert isinstance(p.k, int)
        most = p.k
        if level < self.apart:
            most = MOST_COPIED // ROWS // self.copied * self.group
        for start in range(0, p.k, most):
            size = min(most, p.k - start)
            for k, x in enumerate(() if self.in_place else sources):
                self.row_of_pair = k
                target = e.at(place, str(self.unit * k), 1)
                self._copy(e.at(x, str(start), 1), target, len(sources), point, size)
            steps = self._copied_bytes(level) // self.copied if size == p.k else -(-size // self.group)
            done = start // self.group * self.step
            sizes = [str(steps), *(self._narrow(x) for x in (p.c_m, p.n))]
            if self.in_parts:
                sizes.append(self._narrow(p.b_panel - steps * self.step))
            name = self.helper(*self.product(len(sources)))
            rows, arguments = sources[0] if self.in_place else place, ", ".join(f"i32 {x}" for x in sizes)
            e.line(f"call void @{name}(ptr {rows}, ptr {e.at(b, str(done), 1)}, ptr {c}, {arguments})")

    def _copy(self, source: str, target: str, count: int, point: tuple[str, ...], size: int) -> str:
        """Copy `size` bytes of each run of a row at a `point` of the outer reductions, to every `count`-th
        unit; returns the end.
        """
        p, e, level = self.problem, self.emitter, len(point)
        if level < len(p.reductions):

            def run(i: str, carried: Carried) -> list[str]:
                (_, now), (_, to) = carried
                after = self._copy(now, to, count, (*point, i), size)
                return [e.at(now, self.dims(p.a_r[level]), 1), after]

            carried = [("ptr", source), ("ptr", target)]
            return e.loop("0", self.dims(p.reductions[level]), "1", carried, run)[1]
        return self.copy(self._guarded(source, point, size), target, count, size)

    def _guarded(self, source: str, point: tuple[str, ...], size: int) -> str:
        """Where a run of `size` bytes is read: behind a guard that fails, from a constant."""
        p, e = self.problem, self.emitter
        inside = None
        for start, *steps in p.guards:
            total = self.dims(start)
            row = e.add(self.row, str(self.row_of_pair))
            for step, i in zip(steps, (self.line, row, *point), strict=True):
                total = e.add(total, e.mul(i, self.dims(step)))
            holds = e.op(f"icmp sge i32 {self._cut(total)}, 0")
            inside = holds if inside is None else e.op(f"and i1 {inside}, {holds}")
        if inside is None:
            return source
        name = f"fill_{p.fill % 256}_{size}"
        bytes_ = f"\\{p.fill % 256:02x}" * size
        self.helper(name, f'@{name} = private unnamed_addr constant [{size} x i8] c"{bytes_}"\n')
        return e.op(f"select i1 {inside}, ptr {source}, ptr @{name}")

    def _cut(self, value: str) -> str:
        """An i64 operand as i32."""
        return value if value.lstrip("-").isdigit() else self.emitter.op(f"trunc i64 {value} to i32")

    def _narrow(self, size: Dim) -> str:
        return self._cut(self.dims(size))

    def helper(self, name: str, text: str) -> str:
        """Add a function that is called; returns its name."""
        self.definitions[name] = text
        return name

    def copy(self, source: str, target: str, count: int, size: int) -> str:
        """Copy `size` neighbouring bytes to every `count`-th unit; returns where the next group belongs."""
        raise NotImplementedError

    def product(self, rows: int) -> tuple[str, str]:
        """``void @name(ptr a, ptr b, ptr c, i32 steps, i32 c_m, i32 n[, i32 skip])``: its name and its text.

        It multiplies `rows` copied rows, or one `in_place`, with all columns, `COLUMNS` at a time; `steps`
        counts groups, `c_m` elements. With `in_parts` products are added to `c`, and `skip` bytes lie between
        the parts of panels.
        """
        raise NotImplementedError

    def shifted(self, e: Emitter, sums: Sums, bits: int) -> Sums:
        """Sums of products, whose weights are 2**bits times as large if two columns share bytes."""
        if not self.problem.halves:
            return sums
        return {place: e.op(f"ashr i32 {x}, {bits}") for place, x in sums.items()}

    def columns(
        self, name: str, rows: int, attributes: str, panel: Callable[[Emitter, str], tuple[str, Sums]]
    ) -> tuple[str, str]:
        """A function as `product` describes.

        Args:
            name: Its name, of which a form `in_parts` has a variant.
            rows: The rows.
            attributes: The function's attributes.
            panel: Writes the sums of a panel, by row and column; returns the panel's end and the sums.
        """
        e, parts = Emitter("i32"), self.in_parts
        name += "".join(
            f"_{kind}"
            for kind, holds in (
                ("halves", self.problem.halves), ("added", parts), ("in_place", self.in_place)
            )
            if holds
        )  # fmt: skip

        def columns(k: str, carried: Carried) -> list[str]:
            b, found = panel(e, carried[0][1])
            row = e.at("%c", e.mul(k, str(COLUMNS)), 4)
            places = [e.at(row, e.mul(str(i), e.op("zext i32 %c_m to i64")), 4) for i in range(rows)]

            def store(j: int) -> None:
                for i, place in enumerate(places):
                    at, x = e.at(place, str(j), 4), found[i, j]
                    x = e.op(f"add i32 {x}, {e.load('i32', at, 4)}") if parts else x
                    e.line(f"store i32 {x}, ptr {at}, align 4")

            store(0)
            left = e.op(f"sub i32 %n, {e.op(f'trunc i64 {e.mul(k, str(COLUMNS))} to i32')}")
            with e.when(e.op(f"icmp sgt i32 {left}, 1")):
                store(1)
            return [e.op(f"getelementptr i8, ptr {b}, i32 %skip") if parts else b]

        panels = e.op(f"lshr i32 {e.op(f'add i32 %n, {COLUMNS - 1}')}, {COLUMNS.bit_length() - 1}")
        e.loop("0", e.op(f"zext i32 {panels} to i64"), "1", [("ptr", "%b")], columns)
        parameters = f"ptr %a, ptr %b, ptr %c, i32 %steps, i32 %c_m, i32 %n{', i32 %skip' if parts else ''}"
        return name, f"define internal void @{name}({parameters}) {attributes} {{\n{e.text()}}}\n"


__all__ = ["COLUMNS", "ROWS", "CopiedRows"]

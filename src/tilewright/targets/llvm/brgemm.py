"""The register-tiled microkernel behind `simd.brgemm`, as LLVM IR text.

In: the properties of a `simd.BatchReduceGemm` and an `Isa`. Out: internal LLVM functions in two layers.

- A *tile* function computes ``rows x (vectors * lanes)`` elements of C. They stay in registers over all reductions: per step of k it
  loads the row of B once and multiplies it by one broadcast element of A per row.
- The *driver* walks the panels of B and, in each, blocks of rows of nearly equal height, so that at most two tile heights occur
  (and no block is so low that it starves the multipliers). It is what `simd.brgemm` calls.

Numbers that are known are baked into the text; symbolic ones become trailing ``i64`` arguments. Columns that do not fill a vector
are masked where the instruction set does that for free; else computed whole into a stack tile when B may be read in full
(`padded`), and by narrower and narrower vectors when it may not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ...dialects import simd
from ...ir.symbolic import Dim, bounds, prove_eq
from ...ir.types import DType, bf16, f16, f32, f64
from .conversions import loaded
from .emitter import Carried, Emitter
from .isa import Isa
from .values import storage

LLVM_TYPES = {f16: "half", bf16: "bfloat", f32: "float", f64: "double"}
MIN_CHAINS = 8
"""Independent accumulators that keep two multiply-add pipes of latency four busy."""
MAX_ROWS = 14
PREFETCH = 384
"""Multiply-adds of vectors between asking for a row of B and using it: some 200 cycles, what a shared cache takes."""
MAX_UNROLL = 4
"""Steps of k in one turn of the inner loop of small tiles; large ones have work enough in half as many."""


def tile_rows(isa: Isa, vectors: int) -> int:
    """How many rows of `vectors` vectors fit the registers, beside a row of B, a broadcast element and, without FMA, products."""
    spare = vectors + (1 if isa.fma else 3)
    return max(1, min(MAX_ROWS, (isa.vector_registers - spare) // vectors))


def tile_shape(isa: Isa, dtype: DType) -> tuple[int, int]:
    """The preferred register tile ``(mr, nr)``: rows, and columns of a panel of B, for accumulators of `dtype`.

    Few rows and wide panels: A is read where it lies, and many rows a power of two apart would fall into one set of the first cache.
    So 6 x 4 vectors with 32 registers, 6 x 2 with 16.
    """
    lanes = isa.lanes(max(dtype.bits, 32))
    vectors = 4 if isa.vector_registers >= 32 else 2
    return tile_rows(isa, vectors), vectors * lanes


def brgemm_function(op: simd.BatchReduceGemm, isa: Isa) -> tuple[str, dict[str, str], tuple[Dim, ...]]:
    """The function that computes `op`, on A, B and C pointers already advanced by the operation's offsets.

    Returns:
        Its name, ``{name: definition}`` of it and of the tile functions it calls, and the symbolic numbers to pass, in
        order, as trailing ``i64`` arguments: ``void @name(ptr %a, ptr %b, ptr %c, i64...)``. Equal static properties give
        equal names.

    Raises:
        NotImplementedError: element types other than floating-point ones, or A and B of different types.
    """
    a, b, c = (v.type.dtype for v in (op.a, op.b, op.c))
    if a is not b or a not in LLVM_TYPES or c not in LLVM_TYPES or c.bits < a.bits:
        raise NotImplementedError(
            f"simd.brgemm of {a} and {b} into {c}: only equal floating-point factors, not wider than the result"
        )
    problem = _problem(op, isa, a, c)
    driver = _Driver(problem, isa)
    driver.write()
    dims = driver.dims.dims
    parameters = ["ptr %a", "ptr %b", "ptr %c", *(f"i64 %d{i}" for i in range(len(dims)))]
    name, text = _named("brgemm", parameters, driver.emitter, isa)
    return name, {name: text, **driver.definitions}, tuple(dims)


@dataclass(frozen=True)
class _Problem:
    """A brgemm after simplification: `width` columns (a multiple of `lanes`) are computed at a time, `splits` such in a panel."""

    dtype: DType
    c_dtype: DType
    lanes: int
    width: int
    splits: int
    m: Dim
    n: Dim
    k: Dim
    reductions: tuple[Dim, ...]
    a_m: Dim
    a_k: Dim
    a_r: tuple[Dim, ...]
    b_panel: Dim
    b_k: Dim
    b_r: tuple[Dim, ...]
    c_m: Dim
    accumulate: bool
    padded: bool


@dataclass(frozen=True)
class _Tile:
    """The static properties of a tile function. `masked`: the last vector's columns are limited by an argument."""

    dtype: DType
    c_dtype: DType
    rows: int
    vectors: int
    lanes: int
    k: Dim
    reductions: tuple[Dim, ...]
    a_m: Dim
    a_k: Dim
    a_r: tuple[Dim, ...]
    b_k: Dim
    b_r: tuple[Dim, ...]
    accumulate: bool
    padded: bool
    masked: bool = False

    @staticmethod
    def of(p: _Problem, rows: int, vectors: int, lanes: int) -> _Tile:
        return _Tile(
            p.dtype, p.c_dtype, rows, vectors, lanes, p.k, p.reductions, p.a_m, p.a_k, p.a_r, p.b_k, p.b_r, p.accumulate, p.padded
        )  # fmt: skip


class _Arguments:
    """Symbolic dims seen so far; each distinct one is the argument ``%d<i>``."""

    def __init__(self) -> None:
        self.dims: list[Dim] = []

    def __call__(self, e: Dim) -> str:
        """`e` as an i64 operand."""
        if isinstance(e, int):
            return str(e)
        if e not in self.dims:
            self.dims.append(e)
        return f"%d{self.dims.index(e)}"


def _named(
    prefix: str, parameters: list[str], emitter: Emitter, isa: Isa, attributes: str = "nounwind"
) -> tuple[str, str]:
    """A function's name, the hash of all it says, and its text."""
    text = f"({', '.join(parameters)}) {attributes} {{\n{emitter.text()}}}\n"
    digest = hashlib.blake2b(f"{isa.name} {text}".encode(), digest_size=8).hexdigest()
    name = f"{prefix}_{digest}"
    return name, f"define internal void @{name}{text}"


def _problem(op: simd.BatchReduceGemm, isa: Isa, dtype: DType, c_dtype: DType) -> _Problem:
    accumulator = f64 if c_dtype is f64 else f32
    _, natural = tile_shape(isa, accumulator)
    nr = op.nr
    if prove_eq(op.b_panel, nr):  # plain rows: any panel width will do
        nr = natural
    lanes = isa.lanes(accumulator.bits)
    while nr % lanes:
        lanes //= 2
    width = natural if nr > natural and nr % natural == 0 and tile_rows(isa, nr // lanes) < 4 else nr
    reductions, a_r, b_r, k = tuple(op.reductions), tuple(op.a_r), tuple(op.b_r), op.k
    # A reduction that goes on where k ends is more of k: the columns of a convolution's kernel over channels-last data.
    while reductions and prove_eq(a_r[-1], k * op.a_k) and prove_eq(b_r[-1], k * op.b_k):
        k = k * reductions[-1]
        reductions, a_r, b_r = reductions[:-1], a_r[:-1], b_r[:-1]
    kept = [i for i, e in enumerate(reductions) if e != 1]
    return _Problem(
        dtype=dtype,
        c_dtype=c_dtype,
        lanes=lanes,
        width=width,
        splits=nr // width,
        m=op.m,
        n=op.n,
        k=k,
        reductions=tuple(reductions[i] for i in kept),
        a_m=op.a_m,
        a_k=op.a_k,
        a_r=tuple(a_r[i] for i in kept),
        b_panel=nr if prove_eq(op.b_panel, op.nr) else op.b_panel,
        b_k=op.b_k,
        b_r=tuple(b_r[i] for i in kept),
        c_m=op.c_m,
        accumulate=op.accumulate,
        padded=op.padded,
    )


# -- The driver ----------------------------------------------------------------------------------------------------------------


class _Driver:
    """Writes the function over a whole problem, collecting the tile functions it calls in `definitions`."""

    def __init__(self, problem: _Problem, isa: Isa) -> None:
        self.problem, self.isa = problem, isa
        self.emitter, self.dims = Emitter(), _Arguments()
        self.definitions: dict[str, str] = {}

    def write(self) -> None:
        """Panels of columns outside, so that a panel of B stays in the nearest cache while the rows of A pass by."""
        p, e = self.problem, self.emitter
        whole, rest = p.n // p.width, p.n % p.width
        count = str(whole) if isinstance(whole, int) else e.op(f"sdiv i64 {self.dims(p.n)}, {p.width}")

        def body(group: str, _: Carried) -> list[str]:
            self._rows(*self._panel(group), p.width // p.lanes)
            return []

        e.loop("0", count, "1", [], body)
        if isinstance(rest, int):
            if rest:
                self._known_columns(*self._panel(count), rest)
            return
        left = e.op(f"srem i64 {self.dims(p.n)}, {p.width}")
        b, c = self._panel(count)
        if not (self.isa.masked or p.padded):
            with e.when(e.op(f"icmp sgt i64 {left}, 0")):  # an empty tile may have a negative extent
                self._narrowing(b, c, left)
            return
        for v in range(1, p.width // p.lanes + 1):
            above = e.op(f"icmp sgt i64 {left}, {(v - 1) * p.lanes}")
            upto = e.op(f"icmp sle i64 {left}, {v * p.lanes}")
            with e.when(e.op(f"and i1 {above}, {upto}")):
                self._rows(b, c, v, left)

    def _panel(self, group: str) -> tuple[str, str]:
        """Addresses of B and C where group `group` of `width` columns begins."""
        p, e = self.problem, self.emitter
        if p.splits == 1:
            start = e.mul(group, self.dims(p.b_panel))
        else:
            panel = e.mul(e.divide(group, p.splits), self.dims(p.b_panel))
            start = e.add(panel, e.mul(e.remainder(group, p.splits), str(p.width)))
        return e.at("%b", start, p.dtype.itemsize), e.at("%c", e.mul(group, str(p.width)), p.c_dtype.itemsize)

    def _known_columns(self, b: str, c: str, rest: int) -> None:
        p = self.problem
        if rest % p.lanes == 0:
            self._rows(b, c, rest // p.lanes)
        elif self.isa.masked or p.padded:
            self._rows(b, c, -(-rest // p.lanes), str(rest))
        else:
            self._narrowing(b, c, str(rest))

    def _narrowing(self, b: str, c: str, left: str) -> None:
        """`left` columns without reading past them: whole vectors one by one, then halves, quarters, ... by the bits of `left`."""
        p, e = self.problem, self.emitter

        def at(start: str, lanes: int) -> None:
            self._rows(e.at(b, start, p.dtype.itemsize), e.at(c, start, p.c_dtype.itemsize), 1, lanes=lanes)

        def body(i: str, _: Carried) -> list[str]:
            at(e.mul(i, str(p.lanes)), p.lanes)
            return []

        e.loop("0", e.divide(left, p.lanes), "1", [], body)
        lanes = p.lanes
        while lanes > 1:
            lanes //= 2
            start = e.mul(e.divide(left, 2 * lanes), str(2 * lanes))
            if left.isdigit():
                if int(left) & lanes:
                    at(start, lanes)
            else:
                with e.when(e.op(f"icmp ne i64 {e.op(f'and i64 {left}, {lanes}')}, 0")):
                    at(start, lanes)

    def _rows(self, b: str, c: str, vectors: int, columns: str | None = None, lanes: int | None = None) -> None:
        """All rows of one panel, in blocks whose heights differ by at most one; only `columns` of its columns where given."""
        p, e = self.problem, self.emitter
        limit = tile_rows(self.isa, vectors)

        def block(height: int, row: str) -> None:
            a_row = e.at("%a", e.mul(row, self.dims(p.a_m)), p.dtype.itemsize)
            c_row = e.at(c, e.mul(row, self.dims(p.c_m)), p.c_dtype.itemsize)
            self._call(_Tile.of(p, height, vectors, lanes or p.lanes), a_row, b, c_row, columns)

        if isinstance(p.m, int):
            if p.m <= 0:
                return
            blocks = -(-p.m // limit)
            low, tall = divmod(p.m, blocks)
            for height, first, number in ((low + 1, 0, tall), (low, tall * (low + 1), blocks - tall)):

                def body(i: str, _: Carried, height: int = height, first: int = first) -> list[str]:
                    block(height, e.add(e.mul(i, str(height)), str(first)))
                    return []

                e.loop("0", str(number), "1", [], body)
            return
        # Any height may occur, each with a tile function of its own: no more of them than keep the multipliers busy.
        most = bounds(p.m)[1]
        limit = min(limit, max(tile_rows(self.isa, p.width // p.lanes), -(-MIN_CHAINS // vectors)))
        limit = limit if most is None else max(1, min(limit, most))
        m = self.dims(p.m)
        with e.when(e.op(f"icmp sgt i64 {m}, 0")):
            count = e.divide(e.add(m, str(limit - 1)), limit)
            low_rows = e.op(f"udiv i64 {m}, {count}")
            tall_blocks = e.op(f"urem i64 {m}, {count}")

            def each(i: str, carried: Carried) -> list[str]:
                row = carried[0][1]
                is_tall = e.op(f"icmp ult i64 {i}, {tall_blocks}")
                height = e.add(low_rows, e.op(f"zext i1 {is_tall} to i64"))
                e.switch(height, {h: partial(block, h, row) for h in range(1, limit + 1)})
                return [e.add(row, height)]

            e.loop("0", count, "1", [("i64", "0")], each)

    def _call(self, tile: _Tile, a: str, b: str, c: str, columns: str | None) -> None:
        p, e = self.problem, self.emitter
        through_stack = columns is not None and not self.isa.masked
        if through_stack:
            tile = replace(tile, accumulate=False)
        elif columns is not None:
            tile = replace(tile, masked=True)
        name, text, needed = _tile_function(tile, self.isa)
        self.definitions[name] = text
        extra = "".join(f", i64 {x}" for x in ([columns] if tile.masked else []) + [self.dims(d) for d in needed])
        if columns is None or not through_stack:
            e.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {c}, i64 {self.dims(p.c_m)}{extra})")
            return
        width = tile.vectors * tile.lanes
        element, size = LLVM_TYPES[p.c_dtype], p.c_dtype.itemsize
        stack = e.alloca(f"[{tile.rows * width} x {element}]", 64)
        e.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {stack}, i64 {width}{extra})")

        def row(i: str, _: Carried) -> list[str]:
            source, target = e.at(stack, e.mul(i, str(width)), size), e.at(c, e.mul(i, self.dims(p.c_m)), size)

            def column(j: str, _: Carried) -> list[str]:
                value, where = e.load(element, e.at(source, j, size), size), e.at(target, j, size)
                if p.accumulate:
                    value = e.op(f"fadd {element} {value}, {e.load(element, where, size)}")
                e.line(f"store {element} {value}, ptr {where}, align {size}")
                return []

            e.loop("0", columns, "1", [], column)
            return []

        e.loop("0", str(tile.rows), "1", [], row)


# -- The tile ------------------------------------------------------------------------------------------------------------------


def _tile_function(t: _Tile, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """``void @name(ptr %a, ptr %b, ptr %c, i64 %c_m[, i64 %columns], i64...)``: its name, text and trailing symbolic arguments."""
    e, dims = Emitter(), _Arguments()
    accumulator = f64 if t.c_dtype is f64 else f32
    scalar = LLVM_TYPES[accumulator]
    vector = f"<{t.lanes} x {scalar}>"
    low, high = storage(t.dtype, 1, isa.half), LLVM_TYPES[t.c_dtype]
    mask = ""
    if t.masked:
        valid = e.sub("%columns", str((t.vectors - 1) * t.lanes))
        lane_ids = f"<{', '.join(f'i64 {i}' for i in range(t.lanes))}>"
        mask = e.op(f"icmp ult <{t.lanes} x i64> {lane_ids}, {e.splat(f'<{t.lanes} x i64>', 'i64', valid)}")

    def load(element: str, pointer: str, index: int, itemsize: int, guarded: bool) -> str:
        """Vector `index` of a row, as accumulators' type."""
        narrow = f"<{t.lanes} x {element}>"
        where = e.at(pointer, str(index * t.lanes), itemsize)
        if t.lanes == 1 and element == low:
            return e.splat(vector, scalar, loaded(e, isa, e.load(low, where, itemsize), t.dtype, 1))
        if guarded and index == t.vectors - 1:
            value = e.masked_load(narrow, where, itemsize, mask)
        else:
            value = e.load(narrow, where, itemsize)
        if element == low:
            return loaded(e, isa, value, t.dtype, t.lanes)
        return value if element == scalar else e.op(f"fpext {narrow} {value} to {vector}")

    size = t.rows * t.vectors
    unroll = MAX_UNROLL if size <= MIN_CHAINS else MAX_UNROLL // 2
    chains = 1
    while size * chains < MIN_CHAINS and chains < unroll and size * chains * 2 <= tile_rows(isa, t.vectors) * t.vectors:
        chains *= 2
    ahead = PREFETCH // size if size > MIN_CHAINS else 0  # small tiles read B faster than prefetches can be issued

    def advance(pointer: str, count: str | int, stride: Dim) -> str:
        return e.at(pointer, e.mul(str(count), dims(stride)), t.dtype.itemsize)

    def step(a: str, b: str, acc: list[str]) -> list[str]:
        """One step of k: ``acc += a[:, None] * b``."""
        for line in range(0, t.vectors * t.lanes * t.dtype.itemsize if ahead else 0, 64):
            e.line(
                f"call void @llvm.prefetch.p0(ptr {e.at(advance(b, ahead, t.b_k), str(line), 1)}, i32 0, i32 3, i32 1)"
            )
        row = [load(low, b, v, t.dtype.itemsize, t.masked and not t.padded) for v in range(t.vectors)]
        result = []
        for i in range(t.rows):
            element = e.load(low, e.at(a, e.mul(str(i), dims(t.a_m)), t.dtype.itemsize), t.dtype.itemsize)
            factor = e.splat(vector, scalar, loaded(e, isa, element, t.dtype, 1))
            for v in range(t.vectors):
                result.append(e.fma(vector, factor, row[v], acc[i * t.vectors + v], isa.fma))
        return result

    def over_k(a: str, b: str, acc: list[str]) -> list[str]:
        """Accumulators of chain c take steps ``k = c (mod chains)``; the rest goes to chain 0."""

        def steps(count: int) -> Callable[[str, Carried], list[str]]:
            def body(_: str, carried: Carried) -> list[str]:
                (_, a_now), (_, b_now), *accs = carried
                values = [v for _, v in accs]
                for u in range(count):
                    c = u % chains if count > 1 else 0
                    values[c * size : (c + 1) * size] = step(
                        advance(a_now, u, t.a_k), advance(b_now, u, t.b_k), values[c * size : (c + 1) * size]
                    )
                return [advance(a_now, count, t.a_k), advance(b_now, count, t.b_k), *values]

            return body

        carried = [("ptr", a), ("ptr", b), *((vector, v) for v in acc)]
        k = dims(t.k)
        main = e.loop("0", e.divide(k, unroll), "1", carried, steps(unroll))
        carried = [(kind, v) for (kind, _), v in zip(carried, main, strict=True)]
        if not (isinstance(t.k, int) and t.k % unroll == 0):
            rest = str(t.k % unroll) if isinstance(t.k, int) else e.op(f"and i64 {k}, {unroll - 1}")
            main = e.loop("0", rest, "1", carried, steps(1))
        return main[2:]

    def over(level: int, a: str, b: str, acc: list[str]) -> list[str]:
        if level == len(t.reductions):
            return over_k(a, b, acc)

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), *accs = carried
            inner = over(level + 1, a_now, b_now, [v for _, v in accs])
            return [advance(a_now, 1, t.a_r[level]), advance(b_now, 1, t.b_r[level]), *inner]

        carried = [("ptr", a), ("ptr", b), *((vector, v) for v in acc)]
        return e.loop("0", dims(t.reductions[level]), "1", carried, body)[2:]

    total = over(0, "%a", "%b", ["zeroinitializer"] * (size * chains))
    while len(total) > size:
        half = len(total) // 2
        total = [e.op(f"fadd {vector} {x}, {y}") for x, y in zip(total[:half], total[half:], strict=True)]
    narrow = f"<{t.lanes} x {high}>"
    for i in range(t.rows):
        pointer = e.at("%c", e.mul(str(i), "%c_m"), t.c_dtype.itemsize)
        for v in range(t.vectors):
            value = total[i * t.vectors + v]
            if t.accumulate:
                value = e.op(f"fadd {vector} {value}, {load(high, pointer, v, t.c_dtype.itemsize, t.masked)}")
            if high != scalar:
                value = e.op(f"fptrunc {vector} {value} to {narrow}")
            where = e.at(pointer, str(v * t.lanes), t.c_dtype.itemsize)
            if t.masked and v == t.vectors - 1:
                e.masked_store(narrow, value, where, t.c_dtype.itemsize, mask)
            else:
                e.line(f"store {narrow} {value}, ptr {where}, align {t.c_dtype.itemsize}")
    parameters = ["ptr %a", "ptr %b", "ptr %c", "i64 %c_m"]
    parameters += ["i64 %columns"] if t.masked else []
    parameters += [f"i64 %d{i}" for i in range(len(dims.dims))]
    name, text = _named("tile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = ["brgemm_function", "tile_rows", "tile_shape"]

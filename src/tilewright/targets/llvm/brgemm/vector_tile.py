"""The register tile for vector instruction sets: a tile of C stays in vector registers over the whole sum.

Each step of k loads one row of B (one or more vectors), broadcasts one element of A per tile row, and issues
one multiply-add per row and vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....dialects import loop
from ....ir.symbolic import Dim, symbol
from ....ir.types import DType, f32, i8, i32
from ..conversions import loaded
from ..emitter import REDUCED, Carried, Emitter
from ..index_expr import IndexCode, Lanes
from ..isa import Isa
from ..scalars import emit_scalar
from ..values import KernelContext, Val, storage
from .epilogue import Epilogue, Place
from .group_step import group_step, has_vector_products, is_shifted, widening_multiply
from .lane_factors import UNIT, multiply_add_by_lane, repeated_factors
from .problem import (
    BYTES,
    LLVM_TYPES,
    MIN_CHAINS,
    Problem,
    SymbolicArguments,
    accumulator_of,
    named,
    tile_rows,
)

LINE = 64
"""Distance of the prefetch of A along a row, in bytes: one cache line.

A large float32 tile needs a line of A in eight iterations of its inner loop, about 200 cycles, dot products
in half that time. A larger value prefetches earlier. Rows of the next tile are not prefetched: long rows a
power of two bytes apart, of two tiles, would evict each other from one set of the first-level cache.
"""
MAX_UNROLL = 4
"""Steps of k per iteration of the inner loop of small tiles; large tiles use half as many.

A larger value saves loop overhead and lengthens the code.
"""
WIDENED_FACTORS = 8
"""Steps of k whose bytes of a row of A are extended at once: the 16-bit lanes of a vector of 128 bits; half
as many with 16 registers. A smaller value extends A more often.
"""
SPARE = 5
"""Registers besides the accumulators with which an iteration of the inner loop may take two steps of
interleaved rows.

LLVM loads the rows of both steps at the beginning of the iteration. Dot products overwrite their accumulator,
so that too few registers lead to copies of most accumulators in each iteration.
"""


@dataclass(frozen=True)
class VectorTile:
    """A register tile of ``rows x vectors`` vectors of `lanes` elements; `problem.m` and `problem.n` are
    ignored.

    `accumulate` adds to C instead of overwriting it. `masked` limits the columns of the last vector by an
    argument. `streams` adds two arguments for a prefetch into the second-level cache: an address, and the
    bytes by which it advances per iteration of the inner loop. `aligned` says that groups of A begin at
    multiples of their size.
    """

    problem: Problem
    rows: int
    vectors: int
    lanes: int
    accumulate: bool
    masked: bool = False
    streams: bool = False
    aligned: bool = False


class VectorTileWriter:
    """Writes the function of one `VectorTile`.

    The accumulators of a chain are a flat list: row by row, and in each row vector by vector. A small tile
    has several chains, which sum different steps of k, so that independent multiply-adds fill the pipelines;
    they are added at the end.
    """

    def __init__(self, tile: VectorTile, isa: Isa) -> None:
        self.tile, self.isa = tile, isa
        self.problem = p = tile.problem
        self.emitter, self.dims = Emitter(), SymbolicArguments()
        self.accumulator = accumulator_of(p.c_dtype)
        self.scalar = LLVM_TYPES[self.accumulator]
        self.vector = f"<{tile.lanes} x {self.scalar}>"
        self.stored = storage(p.dtype, 1, isa.half)
        self.result = LLVM_TYPES[p.c_dtype]
        self.mask = ""
        if tile.masked:
            in_last = self.emitter.sub("%columns", str((tile.vectors - 1) * tile.lanes))
            self.mask = self.emitter.first_lanes(tile.lanes, in_last)
        self.shifted = is_shifted(isa, p)
        both_bytes = p.group == 1 and p.dtype in BYTES and p.b_dtype in BYTES
        self.widening = widening_multiply(isa, tile.lanes) if both_bytes and not p.halves else None
        self.size = self._accumulators()
        self._plan()
        self.chains = self._chain_count()
        self.kinds = ["ptr", *[self.vector] * (self.size * self.chains)]

    def _accumulators(self) -> int:
        """The number of accumulators of a chain."""
        return (self.tile.rows + self.shifted) * self.tile.vectors

    def _capacity(self) -> int:
        """The number of accumulators that the registers hold."""
        return tile_rows(self.isa, self.tile.vectors) * self.tile.vectors

    def _plan(self) -> None:
        """Decide how many steps of k an iteration of the inner loop takes, how many of them have their
        factors in one vector, and how far ahead B is prefetched.
        """
        p, isa = self.problem, self.isa
        self.unroll = MAX_UNROLL if self.size <= MIN_CHAINS else MAX_UNROLL // 2
        if p.group > 1 and isa.vector_registers >= 32 and isa.vector_registers - self.size < SPARE:
            self.unroll = 1
        if p.tile.unroll and self.size > MIN_CHAINS:
            self.unroll = p.tile.unroll
        self.per_vector = self._factors_per_vector()
        if self.per_vector > 1:
            twice = isinstance(p.k, int) and p.k // p.group % (2 * self.per_vector) == 0
            twice = twice and self.widening is None and self.size > MIN_CHAINS and not self.isa.sve_bits
            self.unroll = self.per_vector * (2 if twice else 1)
        # Small tiles read B faster than prefetches can be issued. A row of two or more lines would need as
        # many prefetches as loads; processors with SVE find by themselves that rows follow one another.
        self.ahead = p.tile.ahead // self.size if self.size > MIN_CHAINS and not isa.sve_bits else 0

    def _chain_count(self) -> int:
        """Chains of accumulators; one if `m` is symbolic, since a row's sum must not depend on the tile
        height.
        """
        capacity = self._capacity()
        chains = 1
        while (
            isinstance(self.problem.m, int)
            and self.size * chains < MIN_CHAINS
            and chains < self.unroll
            and self.size * chains * 2 <= capacity
        ):
            chains *= 2
        return chains

    def _factors_per_vector(self) -> int:
        """Consecutive steps of k whose factors of a row of A are the lanes of one vector; 1 where each is
        loaded by itself.
        """
        p, width = self.problem, self.isa.vector_bits
        bits = 32 if p.group > 1 else self.accumulator.bits
        if self.widening:
            few = self.isa.vector_registers < 32
            count = WIDENED_FACTORS // 2 if few else WIDENED_FACTORS
            return count if self.isa.lane_factors and p.a_k == 1 else 1
        usable = self.isa.lane_factors and p.a_k == 1 and self.tile.lanes * bits == width
        if p.group > 1:
            usable = usable and has_vector_products(self.isa, p.dtype, p.b_dtype, p.group)
        if self.isa.sve_bits and p.group == 1:
            return UNIT // bits if usable and p.dtype is self.accumulator and self.accumulator.is_float else 1
        return width // bits if usable and (p.group > 1 or self.accumulator.is_float) else 1

    def write(self) -> tuple[str, str, tuple[Dim, ...]]:
        """The name, the definition and the symbolic trailing arguments of the function that computes the
        tile.

        Its signature is ``void @name(ptr %a, ptr %b, ptr %c, i64 %c_m[, ptr %read0...][, i64 %columns][, ptr
        %next, i64 %next_step], i64...)``.
        """
        tile, e = self.tile, self.emitter
        self._prefetch_reads()
        zeros = ["zeroinitializer"] * (self.size * self.chains)
        _, *total = self._reduce(0, "%a", "%b", ["%next" if tile.streams else "null", *zeros])
        while len(total) > self.size:
            half = len(total) // 2
            total = [
                e.add_numbers(self.vector, x, y) for x, y in zip(total[:half], total[half:], strict=True)
            ]
        self._store(self._results(total))
        parameters = ["ptr %a", "ptr %b", "ptr %c", "i64 %c_m"]
        reads = tile.problem.epilogue.reads if tile.problem.epilogue is not None else ()
        parameters += [f"ptr %read{i}" for i in range(len(reads))]
        parameters += ["i64 %columns"] if tile.masked else []
        parameters += ["ptr %next", "i64 %next_step"] if tile.streams else []
        parameters += [f"i64 %d{i}" for i in range(len(self.dims.dims))]
        name, text = named("tile", parameters, e, self.isa, f"noinline nounwind {REDUCED}")
        return name, text, tuple(self.dims.dims)

    # -- Elements --------------------------------------------------------------------------------------------

    def _widened(self, value: str, dtype: DType, lanes: int) -> str:
        """A loaded element or vector of A or B, converted to the accumulators' type."""
        if dtype.is_float:
            return loaded(self.emitter, self.isa, value, dtype, lanes)
        if dtype is self.accumulator:
            return value
        kind = f"<{lanes} x {{}}>" if lanes > 1 else "{}"
        extend = "sext" if dtype.kind == "int" else "zext"
        return self.emitter.op(f"{extend} {kind.format(self.stored)} {value} to {kind.format(self.scalar)}")

    def _multiply_add(self, a: str, b: str, total: str) -> str:
        e, vector = self.emitter, self.vector
        if self.accumulator.is_float:
            return e.fma(vector, a, b, total, self.isa.fma)
        return e.op(f"add {vector} {total}, {e.op(f'mul {vector} {a}, {b}')}")

    def _load(self, element: str, pointer: str, index: int, itemsize: int, guarded: bool) -> str:
        """Vector `index` of a row of B or C, converted to the accumulators' type; masked if last and
        `guarded`.
        """
        e, tile = self.emitter, self.tile
        narrow = f"<{tile.lanes} x {element}>"
        where = e.at(pointer, str(index * tile.lanes), itemsize)
        if tile.lanes == 1 and element == self.stored:
            value = self._widened(e.load(element, where, itemsize), self.problem.b_dtype, 1)
            return e.splat(self.vector, self.scalar, value)
        if guarded and index == tile.vectors - 1:
            value = e.masked_load(narrow, where, itemsize, self.mask)
        else:
            value = e.load(narrow, where, itemsize)
        if element == self.stored:
            return self._widened(value, self.problem.b_dtype, tile.lanes)
        return value if element == self.scalar else e.op(f"fpext {narrow} {value} to {self.vector}")

    def _halves(self, pointer: str) -> list[str]:
        """The vectors of a row of B, or of a group of rows, whose bytes hold two columns each, as bytes."""
        e, group, lanes = self.emitter, self.problem.group, self.tile.lanes
        size = self.problem.elements_of_b(lanes)
        kind = f"<{size} x i8>"
        order = [
            half * size + pair * group + k
            for pair in range(lanes // 2)
            for half in range(2)
            for k in range(group)
        ]
        four, vectors = e.splat(kind, "i8", "4"), []
        for v in range(self.tile.vectors):
            both = e.load(kind, e.at(pointer, str(v * size), 1), 1)
            low = e.op(f"ashr {kind} {e.op(f'shl {kind} {both}, {four}')}, {four}")
            vectors.append(e.shuffle(kind, low, e.op(f"ashr {kind} {both}, {four}"), order))
        return vectors

    def _advance(self, pointer: str, count: str | int, stride: Dim) -> str:
        e = self.emitter
        return e.at(pointer, e.mul(str(count), self.dims(stride)), self.problem.dtype.itemsize)

    # -- Sums ------------------------------------------------------------------------------------------------

    def _factor_vectors(self, a: str) -> list[str]:
        """For each tile row, the vector of its factors of the next `per_vector` steps of k."""
        p, e, lanes = self.problem, self.emitter, self.per_vector
        itemsize = p.dtype.itemsize
        vectors = []
        for i in range(self.tile.rows):
            where = e.at(a, e.mul(str(i), self.dims(p.a_m)), itemsize)
            if p.group > 1:
                vectors.append(e.load(self._kind_of_factors(), where, itemsize))
            elif self.widening:
                vectors.append(self._in_16_bits(e.load(f"<{lanes} x i8>", where, 1), p.dtype, lanes))
            elif self.isa.sve_bits:
                vectors.append(repeated_factors(e, self.stored, where))
            else:
                value = e.load(f"<{lanes} x {self.stored}>", where, itemsize)
                vectors.append(self._widened(value, p.dtype, lanes))
        return vectors

    def _kind_of_factors(self) -> str:
        """The type of vectors of groups of A, which instructions take lanes of."""
        return f"<{self.per_vector} x {'i32' if self.accumulator is i32 else 'float'}>"

    def _lane(self, kind: str, vectors: list[str], row: int, lane: int) -> str:
        """The vector with copies of one lane of a row's factors, whose vector has the type `kind`."""
        same = ", ".join([f"i32 {lane}"] * self.tile.lanes)
        operands = f"{kind} {vectors[row]}, {kind} poison, <{self.tile.lanes} x i32> <{same}>"
        return self.emitter.op(f"shufflevector {operands}")

    def _step(
        self, a: str, b: str, acc: list[str], vectors: list[str] | None = None, lane: int = 0
    ) -> list[str]:
        """One step of k: ``acc += a[:, None] * b``, or one group of interleaved rows of B. The factors of A
        are lane `lane` of `vectors`, if these are given.
        """
        p, e, tile = self.problem, self.emitter, self.tile
        itemsize = p.dtype.itemsize
        if p.group > 1:
            return self._grouped_step(a, b, acc, p.group, vectors, lane)
        if self.widening:
            return self._widening_step(a, b, acc, vectors, lane)
        for line in range(0, tile.vectors * tile.lanes * itemsize if self.ahead else 0, 64):
            where = e.at(self._advance(b, self.ahead, p.b_k), str(line), 1)
            e.line(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 3, i32 1)")
        guarded = tile.masked and not p.padded
        if p.halves:
            row = [self._widened(x, p.b_dtype, tile.lanes) for x in self._halves(b)]
        else:
            row = [self._load(self.stored, b, v, itemsize, guarded) for v in range(tile.vectors)]
        result = []
        for i in range(tile.rows):
            if vectors is not None and self.isa.sve_bits:
                own = slice(i * tile.vectors, (i + 1) * tile.vectors)
                result += [
                    multiply_add_by_lane(e, self.vector, x, vectors[i], lane, total)
                    for x, total in zip(row, acc[own], strict=True)
                ]
                continue
            if vectors is not None:
                factor = self._lane(self.vector, vectors, i, lane)
            else:
                element = e.load(self.stored, e.at(a, e.mul(str(i), self.dims(p.a_m)), itemsize), itemsize)
                factor = e.splat(self.vector, self.scalar, self._widened(element, p.dtype, 1))
            for v in range(tile.vectors):
                result.append(self._multiply_add(factor, row[v], acc[i * tile.vectors + v]))
            if self.isa.in_order and tile.lanes == self.isa.lanes(self.accumulator.bits):
                row_of = slice(i * tile.vectors, None)
                result[row_of] = [self.emitter.completed(self.vector, value) for value in result[row_of]]
        return result

    def _in_16_bits(self, value: str, dtype: DType, lanes: int) -> str:
        """Bytes as signed 16-bit integers."""
        extend = "sext" if dtype is i8 else "zext"
        return self.emitter.op(f"{extend} <{lanes} x i8> {value} to <{lanes} x i16>")

    def _part(self, kind: str, vector: str, first: int) -> str:
        """The `tile.lanes` elements from number `first` on of a vector of type `kind`."""
        numbers = ", ".join(f"i32 {first + k}" for k in range(self.tile.lanes))
        operands = f"{kind} {vector}, {kind} poison, <{self.tile.lanes} x i32> <{numbers}>"
        return self.emitter.op(f"shufflevector {operands}")

    def _widening_step(
        self, a: str, b: str, acc: list[str], vectors: list[str] | None, lane: int
    ) -> list[str]:
        """``acc += a[:, None] * b`` for bytes, by products of 16-bit integers that have 32 bits."""
        p, e, tile = self.problem, self.emitter, self.tile
        lanes, half = tile.lanes, f"<{tile.lanes} x i16>"
        row: list[str] = []
        while len(row) < tile.vectors:
            first = len(row)
            where = e.at(b, str(first * lanes), 1)
            # Several vectors are loaded and extended as one: registers have more bytes than sums.
            count = next(n for n in (2, 1) if n <= tile.vectors - first)
            if tile.masked and not p.padded:
                count = 1
            if tile.masked and not p.padded and first == tile.vectors - 1:
                part = e.masked_load(f"<{lanes} x i8>", where, 1, self.mask)
            else:
                part = e.load(f"<{count * lanes} x i8>", where, 1)
            wide = self._in_16_bits(part, p.b_dtype, count * lanes)
            row += [self._part(f"<{count * lanes} x i16>", wide, v * lanes) for v in range(count)]
        result = []
        for i in range(tile.rows):
            if vectors is not None:
                factor = self._lane(f"<{self.per_vector} x i16>", vectors, i, lane)
            else:
                element = e.load("i8", e.at(a, e.mul(str(i), self.dims(p.a_m)), 1), 1)
                extend = "sext" if p.dtype is i8 else "zext"
                factor = e.splat(half, "i16", e.op(f"{extend} i8 {element} to i16"))
            for v in range(tile.vectors):
                product = e.op(f"call {self.vector} @{self.widening}({half} {factor}, {half} {row[v]})")
                result.append(e.op(f"add {self.vector} {acc[i * tile.vectors + v]}, {product}"))
        return result

    def _grouped_step(
        self,
        a: str,
        b: str,
        acc: list[str],
        rows: int,
        vectors: list[str] | None = None,
        lane: int = 0,
    ) -> list[str]:
        """``acc += a[:, :rows] @ b`` for one group of interleaved rows of B; `rows` elements of A are read,
        or are lane `lane` of `vectors`.
        """
        p, e, tile = self.problem, self.emitter, self.tile
        itemsize = p.dtype.itemsize
        width = p.group * tile.lanes
        kind = f"<{width} x {LLVM_TYPES[p.dtype]}>"
        if p.halves:
            row = self._halves(b)
        else:
            row = [e.load(kind, e.at(b, str(v * width), itemsize), itemsize) for v in range(tile.vectors)]
        align = rows * itemsize if self.tile.aligned and rows == p.group else itemsize
        words = []
        if vectors is not None:
            kind = self._kind_of_factors()
            words = [self._lane(kind, vectors, i, lane) for i in range(tile.rows)]
            return group_step(e, self.isa, p, tile.lanes, words, row, acc, splat=True)
        for i in range(tile.rows):
            word = f"i{8 * itemsize * rows}"
            value = e.load(word, e.at(a, e.mul(str(i), self.dims(p.a_m)), itemsize), align)
            words.append(value if word == "i32" else e.op(f"zext {word} {value} to i32"))
        return group_step(e, self.isa, p, tile.lanes, words, row, acc)

    def _steps(self, count: int) -> Callable[[str, Carried], list[str]]:
        """The body of a loop over k that takes `count` steps; step ``u`` belongs to chain ``u mod
        chains``.
        """
        p, e, tile, size = self.problem, self.emitter, self.tile, self.size
        streams = tile.streams and count > 1

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, next_now), *accs = carried
            values = [v for _, v in accs]
            if self.isa.in_order:
                a_now, b_now = e.completed("ptr", a_now), e.completed("ptr", b_now)
            if streams:
                e.line(f"call void @llvm.prefetch.p0(ptr {next_now}, i32 0, i32 2, i32 1)")
            # Rows that are read by whole vectors are found by the processors' own prefetchers.
            if self.ahead and p.a_k == 1 and count > 1 and self.per_vector == 1:
                for i in range(tile.rows):
                    row = e.at(a_now, e.mul(str(i), self.dims(p.a_m)), p.dtype.itemsize)
                    e.line(f"call void @llvm.prefetch.p0(ptr {e.at(row, str(LINE), 1)}, i32 0, i32 3, i32 1)")
            vectors = None
            for u in range(count):
                chain = u % self.chains if count > 1 else 0
                part = slice(chain * size, (chain + 1) * size)
                a, b = self._advance(a_now, u, p.a_k * p.group), self._advance(b_now, u, p.b_k)
                lane = u % self.per_vector
                if count > 1 and self.per_vector > 1 and lane == 0:
                    vectors = self._factor_vectors(a)
                values[part] = self._step(a, b, values[part], vectors, lane)
            following = e.at(next_now, "%next_step", 1) if streams else next_now
            forward = self._advance(a_now, count, p.a_k * p.group), self._advance(b_now, count, p.b_k)
            return [*forward, following, *values]

        return body

    def _incomplete_group(self, count: int) -> Callable[[str, Carried], list[str]]:
        """The body of a loop for the last group of k if it has `count` rows; A is not read beyond them."""

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, next_now), *accs = carried
            values = [v for _, v in accs]
            first = self._grouped_step(a_now, b_now, values[: self.size], count)
            return [a_now, b_now, next_now, *first, *values[self.size :]]

        return body

    def _reduce_k(self, a: str, b: str, state: list[str]) -> list[str]:
        """The sum over k: `unroll` steps at a time, then single steps, then an incomplete group."""
        p, e = self.problem, self.emitter
        carried = [("ptr", a), ("ptr", b), *zip(self.kinds, state, strict=True)]
        k = e.divide(self.dims(p.k), p.group)
        values = e.loop("0", e.divide(k, self.unroll), "1", carried, self._steps(self.unroll))
        carried = [(kind, v) for (kind, _), v in zip(carried, values, strict=True)]
        if not (isinstance(p.k, int) and p.k // p.group % self.unroll == 0):
            values = e.loop("0", e.remainder(k, self.unroll), "1", carried, self._steps(1))
        left = e.remainder(self.dims(p.k), p.group)
        for count in range(1, p.group):
            if left.isdigit() and int(left) != count:
                continue
            trips = "1" if left.isdigit() else e.op(f"zext i1 {e.op(f'icmp eq i64 {left}, {count}')} to i64")
            carried = [(kind, v) for (kind, _), v in zip(carried, values, strict=True)]
            values = e.loop("0", trips, "1", carried, self._incomplete_group(count))
        return values[2:]

    def _reduce(self, level: int, a: str, b: str, state: list[str]) -> list[str]:
        """The sum over the reductions from `level` on, outermost first, and over k."""
        p = self.problem
        if level == len(p.reductions):
            return self._reduce_k(a, b, state)

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), *rest = carried
            inner = self._reduce(level + 1, a_now, b_now, [v for _, v in rest])
            return [self._advance(a_now, 1, p.a_r[level]), self._advance(b_now, 1, p.b_r[level]), *inner]

        carried = [("ptr", a), ("ptr", b), *zip(self.kinds, state, strict=True)]
        return self.emitter.loop("0", self.dims(p.reductions[level]), "1", carried, body)[2:]

    def _results(self, total: list[str]) -> list[str]:
        """Vectors of results, row by row, from the accumulators."""
        return total

    # -- Epilogues -------------------------------------------------------------------------------------------

    def _prefetch_reads(self) -> None:
        """Prefetch what the epilogue reads for each row: it is needed at the end of the sum, all at once."""
        p, e, tile = self.problem, self.emitter, self.tile
        if p.epilogue is None or self.size <= MIN_CHAINS:
            return
        itemsize = p.c_dtype.itemsize
        for number, (_, place) in enumerate(p.epilogue.reads):
            for i in range(tile.rows if place.row != 0 else 0):
                row = e.at(f"%read{number}", e.mul(str(i), self.dims(place.row)), itemsize)
                for byte in range(0, tile.vectors * tile.lanes * itemsize, LINE):
                    e.line(f"call void @llvm.prefetch.p0(ptr {e.at(row, str(byte), 1)}, i32 0, i32 3, i32 1)")

    def _read(self, number: int, place: Place, row: int) -> list[str]:
        """The vectors of a row of read `number` of the epilogue."""
        e, itemsize = self.emitter, self.problem.c_dtype.itemsize
        start = e.at(f"%read{number}", e.mul(str(row), self.dims(place.row)), itemsize)
        return [
            self._load(self.scalar, start, v, itemsize, self.tile.masked) for v in range(self.tile.vectors)
        ]

    def _beside(self) -> dict[int, list[str]]:
        """The vectors of those reads of the epilogue that all rows share."""
        reads = self.problem.epilogue.reads if self.problem.epilogue is not None else ()
        return {n: self._read(n, place, 0) for n, (_, place) in enumerate(reads) if place.row == 0}

    def _finished(
        self, epilogue: Epilogue, sums: list[str], row: int, beside: dict[int, list[str]]
    ) -> list[str]:
        """The results of a row from its sums. All that is read is read before the row is written."""
        lanes = self.tile.lanes
        g = KernelContext(self.emitter, IndexCode(self.emitter), self.isa)
        g.index.lanes = Lanes(symbol("column", 0, lanes - 1), lanes, 1, "0")
        reads = [
            (load, beside[n] if n in beside else self._read(n, place, row))
            for n, (load, place) in enumerate(epilogue.reads)
        ]
        results = []
        for v, total in enumerate(sums):
            for load, vectors in reads:
                g.values[load.result] = Val(f32, [vectors[v]], lanes)
            for op in epilogue.body:
                if op in epilogue.sums:
                    g.values[op.results[0]] = Val(f32, [total], lanes)
                elif not isinstance(op, loop.Load):
                    g.values[op.results[0]] = emit_scalar(g, op)
            results.append(g.values[epilogue.result].parts[0])
        return results

    def _store(self, total: list[str]) -> None:
        """Write the sums to C, converted to its type and added to its elements where the tile accumulates."""
        p, e, tile = self.problem, self.emitter, self.tile
        itemsize = p.c_dtype.itemsize
        narrow = f"<{tile.lanes} x {self.result}>"
        beside = self._beside()
        for i in range(tile.rows):
            pointer = e.at("%c", e.mul(str(i), "%c_m"), itemsize)
            row = total[i * tile.vectors : (i + 1) * tile.vectors]
            if p.epilogue is not None:
                row = self._finished(p.epilogue, row, i, beside)
            for v, value in enumerate(row):
                if self.shifted:
                    excess = total[tile.rows * tile.vectors + v]
                    value = e.op(f"sub {self.vector} {value}, {excess}")
                if tile.accumulate:
                    old = self._load(self.result, pointer, v, itemsize, tile.masked)
                    value = e.add_numbers(self.vector, value, old)
                if self.result != self.scalar:
                    value = e.op(f"fptrunc {self.vector} {value} to {narrow}")
                where = e.at(pointer, str(v * tile.lanes), itemsize)
                if tile.masked and v == tile.vectors - 1:
                    e.masked_store(narrow, value, where, itemsize, self.mask)
                else:
                    e.line(f"store {narrow} {value}, ptr {where}, align {itemsize}")


__all__ = ["LINE", "MAX_UNROLL", "VectorTile", "VectorTileWriter"]

"""The register tile of vector instruction sets: multiply-adds of rows of B with broadcast elements of A."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....ir.symbolic import Dim
from ....ir.types import DType
from ..conversions import loaded
from ..emitter import Carried, Emitter
from ..isa import Isa
from ..values import storage
from .group_step import group_step, is_shifted
from .problem import LLVM_TYPES, MIN_CHAINS, Arguments, Problem, accumulator_of, named, tile_rows

PREFETCH = 384
"""Multiply-adds of vectors between asking for a row of B and using it: some 200 cycles, what a shared cache takes."""
LINE = 64
"""Bytes of a cache line: how far ahead a row of A is asked for. That is eight turns of a large float32 tile, again some 200 cycles."""
MAX_UNROLL = 4
"""Steps of k in one turn of the inner loop of small tiles; large ones have work enough in half as many."""


@dataclass(frozen=True)
class Tile:
    """A tile of `rows` x `vectors` vectors of a problem, of which only what does not depend on m and n matters. `masked`: the last vector's columns are limited by an argument. `streams`: two
    arguments tell where to bring memory into the second-level cache from, and by how many bytes to go on with every turn of the inner loop."""

    problem: Problem
    rows: int
    vectors: int
    lanes: int
    accumulate: bool
    masked: bool = False
    streams: bool = False


def tile_function(t: Tile, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """``void @name(ptr %a, ptr %b, ptr %c, i64 %c_m[, i64 %columns], i64...)``: its name, text and trailing symbolic arguments."""
    p, e, dims = t.problem, Emitter(), Arguments()
    accumulator = accumulator_of(p.c_dtype)
    scalar = LLVM_TYPES[accumulator]
    vector = f"<{t.lanes} x {scalar}>"
    low, high = storage(p.dtype, 1, isa.half), LLVM_TYPES[p.c_dtype]
    mask = ""
    if t.masked:
        mask = e.first_lanes(t.lanes, e.sub("%columns", str((t.vectors - 1) * t.lanes)))

    def widened(value: str, dtype: DType, lanes: int) -> str:
        """An element of A or B in the type of the sums."""
        if dtype.is_float:
            return loaded(e, isa, value, dtype, lanes)
        if dtype is accumulator:
            return value
        kind = f"<{lanes} x {{}}>" if lanes > 1 else "{}"
        return e.op(f"{'sext' if dtype.kind == 'int' else 'zext'} {kind.format(low)} {value} to {kind.format(scalar)}")

    def multiply_add(a: str, b: str, total: str) -> str:
        if accumulator.is_float:
            return e.fma(vector, a, b, total, isa.fma)
        return e.op(f"add {vector} {total}, {e.op(f'mul {vector} {a}, {b}')}")

    def load(element: str, pointer: str, index: int, itemsize: int, guarded: bool) -> str:
        """Vector `index` of a row, as accumulators' type."""
        narrow = f"<{t.lanes} x {element}>"
        where = e.at(pointer, str(index * t.lanes), itemsize)
        if t.lanes == 1 and element == low:
            return e.splat(vector, scalar, widened(e.load(low, where, itemsize), p.b_dtype, 1))
        if guarded and index == t.vectors - 1:
            value = e.masked_load(narrow, where, itemsize, mask)
        else:
            value = e.load(narrow, where, itemsize)
        if element == low:
            return widened(value, p.b_dtype, t.lanes)
        return value if element == scalar else e.op(f"fpext {narrow} {value} to {vector}")

    shifted = is_shifted(isa, p)
    size = (t.rows + shifted) * t.vectors
    unroll = MAX_UNROLL if size <= MIN_CHAINS else MAX_UNROLL // 2
    chains = (
        1  # where the number of rows is not known always: each row's sums must be the same whatever rows are beside it
    )
    while (
        isinstance(p.m, int)
        and size * chains < MIN_CHAINS
        and chains < unroll
        and size * chains * 2 <= tile_rows(isa, t.vectors) * t.vectors
    ):
        chains *= 2
    ahead = PREFETCH // size if size > MIN_CHAINS else 0  # small tiles read B faster than prefetches can be issued

    def advance(pointer: str, count: str | int, stride: Dim) -> str:
        return e.at(pointer, e.mul(str(count), dims(stride)), p.dtype.itemsize)

    def grouped(a: str, b: str, acc: list[str], rows: int) -> list[str]:
        """``acc += a[:, :rows] @ b``: one step over a group of interleaved rows, of which `rows` are loaded of A."""
        element = LLVM_TYPES[p.dtype]
        group = f"<{p.group * t.lanes} x {element}>"
        size = p.dtype.itemsize
        row = [e.load(group, e.at(b, str(v * p.group * t.lanes), size), size) for v in range(t.vectors)]
        words = []
        for i in range(t.rows):
            word = f"i{8 * size * rows}"
            value = e.load(word, e.at(a, e.mul(str(i), dims(p.a_m)), size), size)
            words.append(value if word == "i32" else e.op(f"zext {word} {value} to i32"))
        return group_step(e, isa, p, t.lanes, words, row, acc)

    def step(a: str, b: str, acc: list[str]) -> list[str]:
        """One step of k: ``acc += a[:, None] * b``, or of a group of rows."""
        if p.group > 1:
            return grouped(a, b, acc, p.group)
        for line in range(0, t.vectors * t.lanes * p.dtype.itemsize if ahead else 0, 64):
            e.line(
                f"call void @llvm.prefetch.p0(ptr {e.at(advance(b, ahead, p.b_k), str(line), 1)}, i32 0, i32 3, i32 1)"
            )
        row = [load(low, b, v, p.dtype.itemsize, t.masked and not p.padded) for v in range(t.vectors)]
        result = []
        for i in range(t.rows):
            element = e.load(low, e.at(a, e.mul(str(i), dims(p.a_m)), p.dtype.itemsize), p.dtype.itemsize)
            factor = e.splat(vector, scalar, widened(element, p.dtype, 1))
            for v in range(t.vectors):
                result.append(multiply_add(factor, row[v], acc[i * t.vectors + v]))
        return result

    def over_k(a: str, b: str, state: list[str]) -> list[str]:
        """Accumulators of chain c take steps ``k = c (mod chains)``; the rest goes to chain 0."""

        a_step = p.a_k * p.group

        def last_rows(count: int) -> Callable[[str, Carried], list[str]]:
            def body(_: str, carried: Carried) -> list[str]:
                (_, a_now), (_, b_now), (_, next_now), *accs = carried
                values = [v for _, v in accs]
                return [a_now, b_now, next_now, *grouped(a_now, b_now, values[:size], count), *values[size:]]

            return body

        def steps(count: int) -> Callable[[str, Carried], list[str]]:
            def body(_: str, carried: Carried) -> list[str]:
                (_, a_now), (_, b_now), (_, next_now), *accs = carried
                values = [v for _, v in accs]
                if t.streams and count > 1:
                    e.line(f"call void @llvm.prefetch.p0(ptr {next_now}, i32 0, i32 2, i32 1)")
                if ahead and p.a_k == 1 and count > 1:
                    for i in range(t.rows):
                        line = e.at(e.at(a_now, e.mul(str(i), dims(p.a_m)), p.dtype.itemsize), str(LINE), 1)
                        e.line(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 3, i32 1)")
                for u in range(count):
                    c = u % chains if count > 1 else 0
                    values[c * size : (c + 1) * size] = step(
                        advance(a_now, u, a_step), advance(b_now, u, p.b_k), values[c * size : (c + 1) * size]
                    )
                following = e.at(next_now, "%next_step", 1) if t.streams and count > 1 else next_now
                return [advance(a_now, count, a_step), advance(b_now, count, p.b_k), following, *values]

            return body

        carried = [("ptr", a), ("ptr", b), *zip(kinds, state, strict=True)]
        k = e.divide(dims(p.k), p.group)
        main = e.loop("0", e.divide(k, unroll), "1", carried, steps(unroll))
        carried = [(kind, v) for (kind, _), v in zip(carried, main, strict=True)]
        if not (isinstance(p.k, int) and p.k // p.group % unroll == 0):
            main = e.loop("0", e.remainder(k, unroll), "1", carried, steps(1))
        left = e.remainder(dims(p.k), p.group)
        for count in range(1, p.group):  # rows of a last group that is not full: nothing after them is read of A
            if left.isdigit() and int(left) != count:
                continue
            trips = "1" if left.isdigit() else e.op(f"zext i1 {e.op(f'icmp eq i64 {left}, {count}')} to i64")
            carried = [(kind, v) for (kind, _), v in zip(carried, main, strict=True)]
            main = e.loop("0", trips, "1", carried, last_rows(count))
        return main[2:]

    def over(level: int, a: str, b: str, state: list[str]) -> list[str]:
        if level == len(p.reductions):
            return over_k(a, b, state)

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), *rest = carried
            inner = over(level + 1, a_now, b_now, [v for _, v in rest])
            return [advance(a_now, 1, p.a_r[level]), advance(b_now, 1, p.b_r[level]), *inner]

        carried = [("ptr", a), ("ptr", b), *zip(kinds, state, strict=True)]
        return e.loop("0", dims(p.reductions[level]), "1", carried, body)[2:]

    kinds = ["ptr", *[vector] * (size * chains)]
    _, *total = over(0, "%a", "%b", ["%next" if t.streams else "null", *["zeroinitializer"] * (size * chains)])
    while len(total) > size:
        half = len(total) // 2
        total = [e.add_numbers(vector, x, y) for x, y in zip(total[:half], total[half:], strict=True)]
    narrow = f"<{t.lanes} x {high}>"
    for i in range(t.rows):
        pointer = e.at("%c", e.mul(str(i), "%c_m"), p.c_dtype.itemsize)
        for v in range(t.vectors):
            value = total[i * t.vectors + v]
            if shifted:
                value = e.op(f"sub {vector} {value}, {total[t.rows * t.vectors + v]}")
            if t.accumulate:
                value = e.add_numbers(vector, value, load(high, pointer, v, p.c_dtype.itemsize, t.masked))
            if high != scalar:
                value = e.op(f"fptrunc {vector} {value} to {narrow}")
            where = e.at(pointer, str(v * t.lanes), p.c_dtype.itemsize)
            if t.masked and v == t.vectors - 1:
                e.masked_store(narrow, value, where, p.c_dtype.itemsize, mask)
            else:
                e.line(f"store {narrow} {value}, ptr {where}, align {p.c_dtype.itemsize}")
    parameters = ["ptr %a", "ptr %b", "ptr %c", "i64 %c_m"]
    parameters += ["i64 %columns"] if t.masked else []
    parameters += ["ptr %next", "i64 %next_step"] if t.streams else []
    parameters += [f"i64 %d{i}" for i in range(len(dims.dims))]
    name, text = named("tile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)

"""The register tile of vector instruction sets: multiply-adds of rows of B with broadcast elements of A."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....ir.symbolic import Dim
from ....ir.types import f32, f64
from ..conversions import loaded
from ..emitter import Carried, Emitter
from ..isa import Isa
from ..values import storage
from .problem import LLVM_TYPES, MIN_CHAINS, Arguments, Problem, named, tile_rows

PREFETCH = 384
"""Multiply-adds of vectors between asking for a row of B and using it: some 200 cycles, what a shared cache takes."""
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
    accumulator = f64 if p.c_dtype is f64 else f32
    scalar = LLVM_TYPES[accumulator]
    vector = f"<{t.lanes} x {scalar}>"
    low, high = storage(p.dtype, 1, isa.half), LLVM_TYPES[p.c_dtype]
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
            return e.splat(vector, scalar, loaded(e, isa, e.load(low, where, itemsize), p.dtype, 1))
        if guarded and index == t.vectors - 1:
            value = e.masked_load(narrow, where, itemsize, mask)
        else:
            value = e.load(narrow, where, itemsize)
        if element == low:
            return loaded(e, isa, value, p.dtype, t.lanes)
        return value if element == scalar else e.op(f"fpext {narrow} {value} to {vector}")

    size = t.rows * t.vectors
    unroll = MAX_UNROLL if size <= MIN_CHAINS else MAX_UNROLL // 2
    chains = 1
    while size * chains < MIN_CHAINS and chains < unroll and size * chains * 2 <= tile_rows(isa, t.vectors) * t.vectors:
        chains *= 2
    ahead = PREFETCH // size if size > MIN_CHAINS else 0  # small tiles read B faster than prefetches can be issued

    def advance(pointer: str, count: str | int, stride: Dim) -> str:
        return e.at(pointer, e.mul(str(count), dims(stride)), p.dtype.itemsize)

    def pair_step(a: str, b: str, acc: list[str], element: str) -> list[str]:
        """``acc += a[:, :2] @ b``: one step over a pair of interleaved rows; `element` is what is loaded of A, i32 or i16."""
        words, pairs = f"<{t.lanes} x i32>", f"<{2 * t.lanes} x bfloat>"
        row = [e.load(pairs, e.at(b, str(v * 2 * t.lanes), 2), 2) for v in range(t.vectors)]
        dots = isa.has("avx512bf16") and t.lanes * 32 == isa.vector_bits
        if not dots:  # a bf16 is the upper half of a float32
            raw = [e.op(f"bitcast {pairs} {x} to {words}") for x in row]
            sixteen, upper = e.splat(words, "i32", "16"), e.splat(words, "i32", "-65536")
            low = [e.op(f"bitcast {words} {e.op(f'shl {words} {x}, {sixteen}')} to {vector}") for x in raw]
            high = [e.op(f"bitcast {words} {e.op(f'and {words} {x}, {upper}')} to {vector}") for x in raw]
        result = []
        for i in range(t.rows):
            word = e.load(element, e.at(a, e.mul(str(i), dims(p.a_m)), 2), 2)
            word = word if element == "i32" else e.op(f"zext {element} {word} to i32")
            if dots:
                factor = e.op(f"bitcast {words} {e.splat(words, 'i32', word)} to {pairs}")
                call = f"call {vector} @llvm.x86.avx512bf16.dpbf16ps.{isa.vector_bits}"
                for v in range(t.vectors):
                    result.append(
                        e.op(f"{call}({vector} {acc[i * t.vectors + v]}, {pairs} {factor}, {pairs} {row[v]})")
                    )
                continue
            first = e.op(f"bitcast i32 {e.op(f'shl i32 {word}, 16')} to float")
            second = e.op(f"bitcast i32 {e.op(f'and i32 {word}, -65536')} to float")
            for v in range(t.vectors):
                total = e.fma(vector, e.splat(vector, "float", first), low[v], acc[i * t.vectors + v], isa.fma)
                result.append(e.fma(vector, e.splat(vector, "float", second), high[v], total, isa.fma))
        return result

    def step(a: str, b: str, acc: list[str]) -> list[str]:
        """One step of k: ``acc += a[:, None] * b``, or of a pair of rows."""
        if p.group == 2:
            return pair_step(a, b, acc, "i32")
        for line in range(0, t.vectors * t.lanes * p.dtype.itemsize if ahead else 0, 64):
            e.line(
                f"call void @llvm.prefetch.p0(ptr {e.at(advance(b, ahead, p.b_k), str(line), 1)}, i32 0, i32 3, i32 1)"
            )
        row = [load(low, b, v, p.dtype.itemsize, t.masked and not p.padded) for v in range(t.vectors)]
        result = []
        for i in range(t.rows):
            element = e.load(low, e.at(a, e.mul(str(i), dims(p.a_m)), p.dtype.itemsize), p.dtype.itemsize)
            factor = e.splat(vector, scalar, loaded(e, isa, element, p.dtype, 1))
            for v in range(t.vectors):
                result.append(e.fma(vector, factor, row[v], acc[i * t.vectors + v], isa.fma))
        return result

    def over_k(a: str, b: str, state: list[str]) -> list[str]:
        """Accumulators of chain c take steps ``k = c (mod chains)``; the rest goes to chain 0."""

        a_step = p.a_k * p.group

        def last_row(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, next_now), *accs = carried
            values = [v for _, v in accs]
            return [a_now, b_now, next_now, *pair_step(a_now, b_now, values[:size], "i16"), *values[size:]]

        def steps(count: int) -> Callable[[str, Carried], list[str]]:
            def body(_: str, carried: Carried) -> list[str]:
                (_, a_now), (_, b_now), (_, next_now), *accs = carried
                values = [v for _, v in accs]
                if t.streams and count > 1:
                    e.line(f"call void @llvm.prefetch.p0(ptr {next_now}, i32 0, i32 2, i32 1)")
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
        if p.group == 2 and not (
            isinstance(p.k, int) and p.k % 2 == 0
        ):  # the last row alone: nothing after it is read of A
            carried = [(kind, v) for (kind, _), v in zip(carried, main, strict=True)]
            main = e.loop("0", e.remainder(dims(p.k), 2), "1", carried, last_row)
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
        total = [e.op(f"fadd {vector} {x}, {y}") for x, y in zip(total[:half], total[half:], strict=True)]
    narrow = f"<{t.lanes} x {high}>"
    for i in range(t.rows):
        pointer = e.at("%c", e.mul(str(i), "%c_m"), p.c_dtype.itemsize)
        for v in range(t.vectors):
            value = total[i * t.vectors + v]
            if t.accumulate:
                value = e.op(f"fadd {vector} {value}, {load(high, pointer, v, p.c_dtype.itemsize, t.masked)}")
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

"""Indices of the first k elements of a row in sorted order: the LLVM function that `simd.argsort` calls.

Elements are mapped to unsigned keys in the requested order; the sort is stable. Up to `FEW` indices are kept
in a sorted list: vectors of keys are compared with its last key, which few keys precede. More indices come
from a radix sort, one byte at a time from the lowest; passes in which all keys agree are skipped.
"""

from __future__ import annotations

from ...ir.types import DType, boolean
from .conversions import from_storage
from .emitter import Emitter
from .index_expr import IndexCode
from .isa import Isa
from .values import KernelContext, register, storage

FEW = 64
"""Longest list that is kept sorted by insertion. A larger value replaces the radix sort for more elements."""
BINS = 256


def key_bits(dtype: DType) -> int:
    """The width in bits of the keys of elements of `dtype`."""
    return max(dtype.bits, 32)


def order_function(dtype: DType, largest: bool, isa: Isa) -> tuple[str, dict[str, str]]:
    """The name and the definitions of ``void f(ptr x, i64 step, i64 n, ptr indices, i64 out_step, i64 k, ptr
    keys, ptr places)``.

    `x` has `n` elements, `step` apart. The indices of the first `k <= n` elements in order are written to
    `indices` (i64, `out_step` apart). `keys` and `places` (i32) are scratch memory for ``2 * n`` elements
    each.
    """
    name = f"order_{dtype.label}_{'down' if largest else 'up'}"
    bits = key_bits(dtype)
    key, e = f"i{bits}", Emitter()
    g = KernelContext(e, IndexCode(e), isa)
    insert, insert_text = _insertion(bits)
    _write_keys(g, dtype, largest)
    last = e.alloca("ptr", 8)  # address of the sorted indices at the end
    few = e.op(f"icmp sle i64 %k, {FEW}")
    many = e.op(f"xor i1 {few}, true")
    with e.when(few):
        best, places = e.at("%keys", "%n", bits // 8), e.at("%places", "%n", 4)
        e.line(f"store ptr {places}, ptr {last}")
        _select(e, key, best, places, insert, isa)
    with e.when(many):
        _radix(e, key, dtype, last)
    sorted_places = e.load("ptr", last, 8)

    def copy(j: str, _: object) -> list[str]:
        place = e.op(f"zext i32 {e.load('i32', e.at(sorted_places, j, 4), 4)} to i64")
        e.line(f"store i64 {place}, ptr {e.at('%indices', e.mul(j, '%out_step'), 8)}")
        return []

    e.loop("0", "%k", "1", [], copy)
    parameters = (
        "ptr %x, i64 %step, i64 %n, ptr %indices, i64 %out_step, "
        "i64 %k, ptr noalias %keys, ptr noalias %places"
    )
    attributes = f'nounwind noinline "prefer-vector-width"="{isa.vector_bits}"'
    text = f"define internal void @{name}({parameters}) {attributes} {{\n{e.text()}}}\n"
    return name, {insert: insert_text, name: text, **g.helpers}


def _key(g: KernelContext, stored: str, dtype: DType, largest: bool, lanes: int) -> str:
    """Unsigned integers in the order of the elements; NaN is the largest, and zeros of both signs are
    equal.
    """
    e, bits = g.e, key_bits(dtype)
    kind = f"i{bits}" if lanes == 1 else f"<{lanes} x i{bits}>"

    def number(value: int) -> str:
        return str(value) if lanes == 1 else f"splat (i{bits} {value})"

    x = from_storage(g, stored, dtype, lanes)
    old = register(dtype, lanes)
    if dtype.is_float:
        zero = "0.0" if lanes == 1 else "zeroinitializer"
        whole = e.op(f"bitcast {old} {e.op(f'fadd {old} {x}, {zero}')} to {kind}")
        sign = e.op(
            f"or {kind} {e.op(f'ashr {kind} {whole}, {number(bits - 1)}')}, {number(-(1 << (bits - 1)))}"
        )
        key = e.op(f"xor {kind} {whole}, {sign}")
        key = e.op(
            f"select {register(boolean, lanes)} {e.op(f'fcmp uno {old} {x}, {x}')}, {kind} {number(-1)}, "
            f"{kind} {key}"
        )
    else:
        key = x if old == kind else e.op(f"zext {old} {x} to {kind}")
        if dtype.is_signed:
            key = e.op(
                f"xor {kind} {key}, "
                f"{number(1 << (dtype.bits - 1) if dtype.bits < bits else -(1 << (bits - 1)))}"
            )
    return e.op(f"xor {kind} {key}, {number(-1)}") if largest else key


def _write_keys(g: KernelContext, dtype: DType, largest: bool) -> None:
    """Fill `keys` and the first `n` `places`."""
    e, bits, size = g.e, key_bits(dtype), dtype.itemsize
    lanes = g.isa.lanes(bits)

    def write(i: str, lanes: int, index: str) -> None:
        kind = f"i{bits}" if lanes == 1 else f"<{lanes} x i{bits}>"
        stored = e.load(storage(dtype, lanes, g.isa.half), e.at("%x", index, size), size)
        e.line(
            f"store {kind} {_key(g, stored, dtype, largest, lanes)}, ptr {e.at('%keys', i, bits // 8)}, "
            f"align {bits // 8}"
        )

    def vector(i: str, _: object) -> list[str]:
        write(i, lanes, i)
        return []

    def single(i: str, _: object) -> list[str]:
        write(i, 1, e.op(f"mul i64 {i}, %step"))
        return []

    def place(i: str, _: object) -> list[str]:
        e.line(f"store i32 {e.op(f'trunc i64 {i} to i32')}, ptr {e.at('%places', i, 4)}, align 4")
        return []

    contiguous = e.op("icmp eq i64 %step, 1")
    whole = e.op(f"select i1 {contiguous}, i64 {e.op(f'and i64 %n, {-lanes}')}, i64 0")
    e.loop("0", whole, str(lanes), [], vector)
    e.loop(whole, "%n", "1", [], single)
    e.loop("0", "%n", "1", [], place)


def _insertion(bits: int) -> tuple[str, str]:
    """The function that inserts a key into a sorted list, after all keys that are not greater; element `at`
    is overwritten.
    """
    name, key, size = f"insert_key{bits}", f"i{bits}", bits // 8
    parameters = f"ptr noalias %keys, ptr noalias %places, i64 %at, {key} %key, i32 %place"
    text = f"""define internal void @{name}({parameters}) nounwind {{
entry:
  br label %next
next:
  %j = phi i64 [ %at, %entry ], [ %before, %move ]
  %first = icmp eq i64 %j, 0
  br i1 %first, label %found, label %compare
compare:
  %before = sub i64 %j, 1
  %p = getelementptr {key}, ptr %keys, i64 %before
  %other = load {key}, ptr %p, align {size}
  %greater = icmp ugt {key} %other, %key
  br i1 %greater, label %move, label %found
move:
  %q = getelementptr {key}, ptr %keys, i64 %j
  store {key} %other, ptr %q, align {size}
  %r = getelementptr i32, ptr %places, i64 %before
  %s = getelementptr i32, ptr %places, i64 %j
  %moved = load i32, ptr %r, align 4
  store i32 %moved, ptr %s, align 4
  br label %next
found:
  %to = getelementptr {key}, ptr %keys, i64 %j
  store {key} %key, ptr %to, align {size}
  %to.place = getelementptr i32, ptr %places, i64 %j
  store i32 %place, ptr %to.place, align 4
  ret void
}}
"""
    return name, text


def _select(e: Emitter, key: str, best: str, places: str, insert: str, isa: Isa) -> None:
    """Write the `k` lowest keys, sorted, to `best` and `places`."""
    size = int(key[1:]) // 8
    lanes = isa.lanes(8 * size)

    def load(i: str) -> str:
        return e.load(key, e.at("%keys", i, size), size)

    def put(i: str, at: str, value: str) -> None:
        place = e.op(f"trunc i64 {i} to i32")
        e.line(f"call void @{insert}(ptr {best}, ptr {places}, i64 {at}, {key} {value}, i32 {place})")

    def first(i: str, _: object) -> list[str]:
        put(i, i, load(i))
        return []

    worst = e.op("sub i64 %k, 1")
    limit = e.at(best, worst, size)

    def single(i: str, _: object) -> list[str]:
        value = load(i)
        with e.when(e.op(f"icmp ult {key} {value}, {e.load(key, limit, size)}")):
            put(i, worst, value)
        return []

    def vector(i: str, _: object) -> list[str]:
        kind = f"<{lanes} x {key}>"
        bound = e.splat(kind, key, e.load(key, limit, size))
        values = e.load(kind, e.at("%keys", i, size), size)
        below = e.op(f"icmp ult {kind} {values}, {bound}")
        some = e.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> {below})")
        with e.when(some):
            e.loop(i, e.op(f"add i64 {i}, {lanes}"), "1", [], single)
        return []

    e.loop("0", "%k", "1", [], first)
    rest = e.op(f"and i64 {e.op('sub i64 %n, %k')}, {-lanes}")
    stop = e.op(f"add i64 %k, {rest}")
    e.loop("%k", stop, str(lanes), [], vector)
    e.loop(stop, "%n", "1", [], single)


def _radix(e: Emitter, key: str, dtype: DType, last: str) -> None:
    """Sort keys and places byte by byte; `last` receives the pointer to the sorted places."""
    size = int(key[1:]) // 8
    count = size if dtype.is_float else dtype.itemsize  # The higher bytes of widened integers are all equal.
    counts = e.alloca(f"[{count * BINS} x i32]", 64)
    pointers = [e.alloca("ptr", 8) for _ in range(4)]  # Keys and places to read, keys and places to write.
    starts = ["%keys", "%places", e.at("%keys", "%n", size), e.at("%places", "%n", 4)]
    for slot, start in zip(pointers, starts, strict=True):
        e.line(f"store ptr {start}, ptr {slot}")
    e.line(f"call void @llvm.memset.p0.i64(ptr {counts}, i8 0, i64 {count * BINS * 4}, i1 false)")

    def bin_of(value: str, digit: int) -> str:
        byte = e.op(f"and {key} {e.op(f'lshr {key} {value}, {8 * digit}')}, {BINS - 1}")
        index = byte if key == "i64" else e.op(f"zext {key} {byte} to i64")
        return e.at(counts, e.add(index, str(digit * BINS)), 4)

    def counted(i: str, _: object) -> list[str]:
        value = e.load(key, e.at("%keys", i, size), size)
        for digit in range(count):
            where = bin_of(value, digit)
            old = e.load("i32", where, 4)
            e.line(f"store i32 {e.op(f'add i32 {old}, 1')}, ptr {where}, align 4")
        return []

    e.loop("0", "%n", "1", [], counted)
    total = e.op("trunc i64 %n to i32")
    any_key = e.load(key, "%keys", size)
    for digit in range(count):
        fullest = e.load("i32", bin_of(any_key, digit), 4)
        with e.when(e.op(f"icmp ne i32 {fullest}, {total}")):
            _pass(e, key, digit, counts, pointers, bin_of)
    e.line(f"store ptr {e.load('ptr', pointers[1], 8)}, ptr {last}")


def _pass(e: Emitter, key: str, digit: int, counts: str, pointers: list[str], bin_of: object) -> None:
    size = int(key[1:]) // 8
    keys, places, keys_out, places_out = (e.load("ptr", p, 8) for p in pointers)

    def begin(i: str, current: list[tuple[str, str]]) -> list[str]:
        where = e.at(counts, e.add(i, str(digit * BINS)), 4)
        own = e.load("i32", where, 4)
        ((_, before),) = current
        e.line(f"store i32 {before}, ptr {where}, align 4")
        return [e.op(f"add i32 {before}, {own}")]

    def move(i: str, _: object) -> list[str]:
        value = e.load(key, e.at(keys, i, size), size)
        where = bin_of(value, digit)  # type: ignore[operator]
        to = e.load("i32", where, 4)
        e.line(f"store i32 {e.op(f'add i32 {to}, 1')}, ptr {where}, align 4")
        wide = e.op(f"zext i32 {to} to i64")
        e.line(f"store {key} {value}, ptr {e.at(keys_out, wide, size)}, align {size}")
        e.line(f"store i32 {e.load('i32', e.at(places, i, 4), 4)}, ptr {e.at(places_out, wide, 4)}, align 4")
        return []

    e.loop("0", str(BINS), "1", [("i32", "0")], begin)
    e.loop("0", "%n", "1", [], move)
    for slot, value in zip(pointers, (keys_out, places_out, keys, places), strict=True):
        e.line(f"store ptr {value}, ptr {slot}")


__all__ = ["key_bits", "order_function"]

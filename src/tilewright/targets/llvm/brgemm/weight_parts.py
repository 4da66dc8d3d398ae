"""Quantized weights in registers: stored values from bit planes, numbers of a table, scales and minimums of a
group's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....dialects.weight_form import DIGITS, WeightForm, choice
from ....ir.types import DType
from ..conversions import loaded
from ..emitter import Emitter
from ..isa import Isa
from ..values import storage


def load_scales(e: Emitter, isa: Isa, where: str, dtype: DType, lanes: int, half: str | None = None) -> str:
    """`lanes` finite floats or integers of `dtype`, converted to float32. The least number of E8M0, 2**-127,
    becomes 0.

    `half`: bytes have two integers of 4 bits; an i64, whose lowest bit is 0 for the low ones.
    """
    if dtype.is_integer:
        convert = "sitofp" if dtype.kind == "int" else "uitofp"
        wide = load_integers(e, where, dtype, lanes, half)
        return e.op(f"{convert} <{lanes} x i32> {wide} to <{lanes} x float>")
    value = e.load(f"<{lanes} x {storage(dtype, 1, isa.half)}>", where, dtype.itemsize)
    if dtype.name == "f8E8M0FNU":  # the exponent of a float32
        wide = e.op(f"zext <{lanes} x i8> {value} to <{lanes} x i32>")
        bits = e.op(f"shl <{lanes} x i32> {wide}, splat (i32 23)")
        return e.op(f"bitcast <{lanes} x i32> {bits} to <{lanes} x float>")
    return loaded(e, isa, value, dtype, lanes, finite=True)


def load_integers(e: Emitter, where: str, dtype: DType, lanes: int, half: str | None = None) -> str:
    """`lanes` 8-bit integers of `dtype`, extended to 32 bits; with `half` of 4 bits, as in `load_scales`."""
    value, wide = e.load(f"<{lanes} x i8>", where, 1), f"<{lanes} x i32>"
    extend = "sext" if dtype.kind == "int" and half is None else "zext"
    value = e.op(f"{extend} <{lanes} x i8> {value} to {wide}")
    if half is None:
        return value
    bit = e.op(f"and i64 {half}, 1")
    shift = e.op(f"trunc i64 {e.op(f'shl i64 {bit}, 2')} to i32")
    moved = e.op(f"lshr {wide} {value}, {e.splat(wide, 'i32', shift)}")
    return e.op(f"and {wide} {moved}, splat (i32 15)")


def scale_and_minimum(
    e: Emitter,
    isa: Isa,
    form: WeightForm,
    types: Sequence[DType],
    rows: Sequence[str],
    group: str,
    first: int,
    lanes: int,
) -> tuple[str, str | None]:
    """The scales and the minimums (None: there are none) of `lanes` columns in a group.

    Args:
        e: Where to write.
        isa: The machine.
        form: The form of the weights.
        types: The types of the parts.
        rows: The addresses of the parts' rows for the group.
        group: The number of the group, i64.
        first: The first column.
        lanes: The number of columns.
    """
    floats = f"<{lanes} x float>"
    loads = {
        name: load_scales(
            e,
            isa,
            e.at(row, str(first), dtype.itemsize),
            dtype,
            lanes,
            group if name in form.nibbles else None,
        )
        for name, dtype, row in zip(form.parts, types, rows, strict=True)
    }
    scale = loads["scales"]
    if "units" in loads:
        scale = e.op(f"fmul {floats} {scale}, {loads['units']}")
    if "minimums" not in loads:
        return scale, None
    minimum, units = loads["minimums"], loads.get("minimum_units")
    if units is None and types[form.parts.index("minimums")].is_integer:
        units = scale
    return scale, minimum if units is None else e.op(f"fmul {floats} {minimum}, {units}")


def stored_values(
    e: Emitter,
    isa: Isa,
    lanes: int,
    form: WeightForm,
    quad: int,
    line: Callable[[int], str],
    top: bool = True,
) -> str:
    """The stored values of a chunk's quad `quad`, bytes ``<4 lanes x i8>``.

    Args:
        e: Where to write.
        isa: The machine.
        lanes: The columns.
        form: The form of the weights.
        quad: The number of the quad in its chunk.
        line: ``line(k)`` loads the k-th vector of bytes of the chunk.
        top: Whether the bits above the value must be 0.
    """
    raw, numbers = f"<{4 * lanes} x i8>", f"<{lanes} x i32>"
    value, first = "", 0
    if form.kind == "ternary":
        return digit(e, isa, lanes, line(form.line_of(quad)), quad % DIGITS)
    for width, low in form.planes:
        x = line(first + quad % width)
        shift = quad // width * width - low
        what, masked = "lshr" if shift > 0 else "shl", width < 8
        if shift and isa.has("neon"):
            x = e.op(f"{what} {raw} {x}, {e.splat(raw, 'i8', str(abs(shift)))}")
            masked = low > 0 or quad // width * width + width < 8  # else only the value is left
        elif shift:
            # Shifts of 32 bits move bits between bytes, which the mask removes.
            shifted = e.op(
                f"{what} {numbers} {e.op(f'bitcast {raw} {x} to {numbers}')}, splat (i32 {abs(shift)})"
            )
            x = e.op(f"bitcast {numbers} {shifted} to {raw}")
        if masked and (top or len(form.planes) > 1):
            mask = ((1 << width) - 1) << low
            x = e.op(f"and {raw} {x}, {e.splat(raw, 'i8', str(mask))}")
        value = e.op(f"or {raw} {value}, {x}") if value else x
        first += width
    return value


def digit(e: Emitter, isa: Isa, lanes: int, octets: str, place: int) -> str:
    """The digit of base 3 at a place of each byte, see `dialects.weight_form.joined_digits`."""
    raw, first = f"<{4 * lanes} x i8>", octets
    for _ in range(place):
        first = tripled(e, isa, lanes, first)

    def number(x: int) -> str:
        return e.splat(raw, "i8", str(x))

    if isa.has("avx512bw"):
        one, two = (e.op(f"icmp ugt {raw} {first}, {number(least)}") for least in (THIRD, 2 * THIRD - 256))
        bits = f"<{4 * lanes} x i1>"
        low = e.op(f"select {bits} {one}, {raw} {number(1)}, {raw} zeroinitializer")
        return e.op(f"select {bits} {two}, {raw} {number(2)}, {raw} {low}")
    # Comparisons of unsigned bytes take two instructions of AVX2.
    above, counted = first, []
    for _ in range(2):
        above = _of_two(e, raw, "usub.sat", above, number(THIRD))
        counted.append(_of_two(e, raw, "umin", above, number(1)))
    return e.op(f"add {raw} {counted[0]}, {counted[1]}")


THIRD = 255 // 3
"""The largest byte whose first digit of base 3 is 0; that of the digit 1 is twice as large."""


def tripled(e: Emitter, isa: Isa, lanes: int, octets: str) -> str:
    """Bytes times 3 modulo 256: without their first digits of base 3."""
    raw = f"<{4 * lanes} x i8>"
    three = e.op(f"add {raw} {e.op(f'add {raw} {octets}, {octets}')}, {octets}")
    # LLVM would make products with 9, 27 and 81 of several steps; vectors of bytes have no product.
    register = _register(isa, 32 * lanes)
    if register is None:
        return three
    return e.op(f'call {raw} asm "", "={register},0"({raw} {three}) nounwind memory(none)')


def _register(isa: Isa, bits: int) -> str | None:
    """The name in assembly templates of registers that hold vectors of a number of bits; None: the machine
    that LLVM compiles for has none, or this is not known. LLVM ends the process where a template needs one.
    """
    has = [feature.lstrip("+") for feature in isa.compiler_features]
    name, widest = {
        "x86_64": ("v", 512) if "avx512f" in has else ("x", 256 if "avx" in has else 128),
        "aarch64": ("w", 128),
        "armv7": ("w", 128),
        "wasm32": ("r", 128),
    }.get(isa.triple.partition("-")[0], ("", 0))
    return name if bits <= widest else None


def _of_two(e: Emitter, raw: str, name: str, a: str, b: str) -> str:
    kind = f"v{raw[1:].split(' ')[0]}i8"
    return e.op(f"call {raw} @llvm.{name}.{kind}({raw} {a}, {raw} {b})")


def looked_up(e: Emitter, isa: Isa, lanes: int, codes: str, table: Sequence[int]) -> str:
    """The bytes at the places `codes`, ``<4 lanes x i8>`` below 16, of a table of 16 unsigned bytes."""
    count = 4 * lanes
    raw = f"<{count} x i8>"
    # The instructions look up in each 16 bytes of the table separately.
    entries = ", ".join(f"i8 {x if x < 128 else x - 256}" for x in list(table) * (count // 16))
    name = {
        64: "x86.avx512.pshuf.b.512" if isa.has("avx512bw") else "",
        32: "x86.avx2.pshuf.b" if isa.has("avx2") else "",
        16: "x86.ssse3.pshuf.b.128" if isa.has("ssse3") else "",
    }.get(count, "")
    if not name and count == 16:
        if isa.has("simd128"):
            name = "wasm.swizzle"
        elif isa.triple.startswith("aarch64"):
            name = "aarch64.neon.tbl1.v16i8"
    if name:
        return e.op(f"call {raw} @llvm.{name}({raw} <{entries}>, {raw} {codes})")
    if count == 16 and isa.triple.startswith("armv7") and isa.has("neon"):
        return _by_halves(e, entries.split(", "), codes)

    def is_set(bit: int) -> str:
        masked = e.op(f"and {raw} {codes}, {e.splat(raw, 'i8', str(1 << bit))}")
        return e.op(f"icmp ne {raw} {masked}, zeroinitializer")

    def select(condition: str, a: str, b: str) -> str:
        return e.op(f"select <{count} x i1> {condition}, {raw} {a}, {raw} {b}")

    numbers = [e.splat(raw, "i8", str(x if x < 128 else x - 256)) for x in table]
    return str(choice(numbers, is_set, select))


def _by_halves(e: Emitter, entries: list[str], codes: str) -> str:
    """The numbers at 16 places of a table, eight at a time: NEON of ARMv7 reads two registers of 64 bits."""
    half, whole = "<8 x i8>", "<16 x i8>"
    table = ", ".join(f"{half} <{', '.join(part)}>" for part in (entries[:8], entries[8:]))
    found = []
    for first in (0, 8):
        places = e.shuffle(whole, codes, codes, [*range(first, first + 8)])
        found.append(e.op(f"call {half} @llvm.arm.neon.vtbl2({table}, {half} {places})"))
    return e.shuffle(half, found[0], found[1], [*range(16)])


__all__ = ["load_integers", "load_scales", "looked_up", "scale_and_minimum", "stored_values", "tripled"]

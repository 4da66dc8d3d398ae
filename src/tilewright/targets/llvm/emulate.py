"""Emulation of x86 instructions that a machine lacks, as plain LLVM IR, so that tests can run every code
path.

LLVM already legalizes vectors that are too wide for a machine. It cannot lower the x86 intrinsics that the
code generators call: `emulate` replaces each of them by a function that computes the same result. Emulated
code is slow.

Tile registers are thread-local memory. A tile product checks, like the hardware, that the configured shapes
fit, and traps otherwise.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (LDTILECFG, TDPBF16PS, TDPBSSD,
VDPBF16PS, VPDPBUSD, VGETEXPPS, VGETMANTPS, VREDUCEPS, VSCALEFPS, VRCP14PS).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .emitter import Carried, Emitter

_TILES, _CONFIG = "@tw.emulated.tiles", "@tw.emulated.config"
_TILE_BYTES = 1024
_ROW_BYTES = 64
_GLOBALS = "\n".join(
    f"{name} = linkonce_odr hidden thread_local global [{size} x i8] zeroinitializer, align 64"
    for name, size in ((_TILES, 8 * _TILE_BYTES), (_CONFIG, 64))
)

_INTRINSIC = re.compile(r"@llvm\.x86\.([\w.]+)")

_ROUND_TO_BF16 = """
@llvm.compiler.used = appending global [1 x ptr] [ptr @__truncsfbf2], section "llvm.metadata"
define linkonce_odr hidden bfloat @__truncsfbf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %upper = lshr i32 %bits, 16
  %odd = and i32 %upper, 1
  %half = add i32 %odd, 32767
  %rounded = add i32 %bits, %half
  %moved = lshr i32 %rounded, 16
  %quiet = or i32 %upper, 64
  %nan = fcmp uno float %x, %x
  %chosen = select i1 %nan, i32 %quiet, i32 %moved
  %stored = trunc i32 %chosen to i16
  %result = bitcast i16 %stored to bfloat
  ret bfloat %result
}
"""
"""The function of the compiler's runtime that LLVM calls to round float32 to bf16, to nearest even, where the
machine has no instruction. Moving a vector of bf16 is enough for such a call: LLVM takes it apart into
float32.
"""

_FEATURES: dict[str, str] = {
    "ldtilecfg": "amx-tile",
    "tilezero": "amx-tile",
    "tileloadd64": "amx-tile",
    "tileloaddt164": "amx-tile",
    "tilestored64": "amx-tile",
    "tilerelease": "amx-tile",
    "tdpbf16ps": "amx-bf16",
    **{f"tdpb{a}{b}d": "amx-int8" for a in "su" for b in "su"},
    **{f"avx512bf16.dpbf16ps.{bits}": "avx512bf16" for bits in (128, 256, 512)},
    "avx512bf16.cvtne2ps2bf16.512": "avx512bf16",
    **{f"avx2.vpdpb{signs}d.{bits}": "avxvnniint8" for signs in ("ss", "uu") for bits in (128, 256)},
    "avx512.pmaddw.d.512": "avx512bw",
    "avx2.pmadd.wd": "avx2",
    "avx512.permvar.sf.512": "avx512f",
    "avx512.vpermi2var.ps.512": "avx512f",
    "avx512.rcp14.ps.512": "avx512f",
    "avx512.mask.getexp.ps.512": "avx512f",
    "avx512.mask.getmant.ps.512": "avx512f",
    "avx512.mask.scalef.ps.512": "avx512f",
    "avx512.mask.reduce.ps.512": "avx512dq",
}
"""The extension of each intrinsic."""

EMULATED = tuple(dict.fromkeys((*_FEATURES.values(), "avx512vnni", "avxvnni")))
"""The extensions whose intrinsics have an emulation."""


def emulate(text: str, features: tuple[str, ...], *, threads: bool = True) -> str:
    """The module `text` with functions in place of the intrinsics of the extensions `features` (LLVM's names,
    ``amx-int8``).

    `threads` gives each thread its own tile registers; programs with one thread may share one set, where
    thread-local memory is not available.

    Raises:
        NotImplementedError: an intrinsic of one of these extensions has no emulation.
    """
    names = [name for name in dict.fromkeys(_INTRINSIC.findall(text)) if _is_missing(name, features)]
    for name in names:
        text = re.sub(rf"^declare [^\n]*@llvm\.x86\.{re.escape(name)}\(.*$", "", text, flags=re.MULTILINE)
        text = re.sub(rf"@llvm\.x86\.{re.escape(name)}(?![\w.])", f"@tw.emulated.{name}", text)
    parts = [text, *(_definition(name) for name in names)]
    if names:
        parts.append(_GLOBALS if threads else _GLOBALS.replace("thread_local ", ""))
    if "avx512bf16" in features and re.search(r"\bbfloat\b", text) and _ROUND_TO_BF16 not in text:
        parts.append(_ROUND_TO_BF16)
    return "\n".join(parts)


def _is_missing(name: str, features: tuple[str, ...]) -> bool:
    if name.startswith("avx512.vpdpbusd"):  # Both extensions have it, up to 256 bits.
        return "avx512vnni" in features and ("avxvnni" in features or name.endswith("512"))
    return _FEATURES.get(name) in features


def _definition(name: str) -> str:
    """The function that replaces an intrinsic: ``define linkonce_odr hidden TYPE @tw.emulated.NAME(...)``."""
    e = Emitter()
    result, parameters, value = _writer(name)(e)
    arguments = ", ".join(f"{kind} %p{i}" for i, kind in enumerate(parameters))
    body = e.text(f"{result} {value}" if value else "void")
    return (
        f"define linkonce_odr hidden {result} "
        f"@tw.emulated.{name}({arguments}) noinline nounwind {{\n{body}}}\n"
    )


_Written = tuple[str, tuple[str, ...], str]
"""The result type, the parameter types (``%p0``, ``%p1``, ...), and the returned value."""


def _writer(name: str) -> Callable[[Emitter], _Written]:
    if name in _WRITERS:
        return _WRITERS[name]
    if name.startswith("tdpb"):
        return lambda e: _tile_of_bytes(e, *name[4:6])
    if name.startswith("avx512.vpdpbusd"):
        return lambda e: _dot_of_bytes(e, int(name.rsplit(".", 1)[1]) // 32, "u", "s")
    if name.startswith("avx2.vpdpb"):
        return lambda e: _dot_of_bytes(e, int(name.rsplit(".", 1)[1]) // 32, *name[10:12])
    if name.startswith("avx512bf16.dpbf16ps"):
        return lambda e: _dot_of_bf16(e, int(name.rsplit(".", 1)[1]) // 32)
    raise NotImplementedError(f"no emulation of llvm.x86.{name}")


# -- Tile registers ----------------------------------------------------------------------------------------


def _rows(e: Emitter, tile: str) -> str:
    wide = e.op(f"zext i8 {tile} to i64")
    return e.op(f"zext i8 {e.load('i8', e.at(_CONFIG, e.add(wide, '48'), 1), 1)} to i64")


def _row_bytes(e: Emitter, tile: str) -> str:
    wide = e.op(f"zext i8 {tile} to i64")
    return e.op(f"zext i16 {e.load('i16', e.at(_CONFIG, e.add(e.mul(wide, '2'), '16'), 1), 2)} to i64")


def _memory(e: Emitter, tile: str) -> str:
    return e.at(_TILES, e.mul(e.op(f"zext i8 {tile} to i64"), str(_TILE_BYTES)), 1)


def _clear(e: Emitter, pointer: str, size: int) -> None:
    e.line(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 0, i64 {size}, i1 false)")


def _configure(e: Emitter) -> _Written:
    e.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {_CONFIG}, ptr %p0, i64 64, i1 false)")
    _clear(e, _TILES, 8 * _TILE_BYTES)
    return "void", ("ptr",), ""


def _release(e: Emitter) -> _Written:
    _clear(e, _CONFIG, 64)
    _clear(e, _TILES, 8 * _TILE_BYTES)
    return "void", (), ""


def _zero(e: Emitter) -> _Written:
    _clear(e, _memory(e, "%p0"), _TILE_BYTES)
    return "void", ("i8",), ""


def _move(e: Emitter, *, load: bool) -> _Written:
    tile, width = _memory(e, "%p0"), _row_bytes(e, "%p0")
    if load:
        _clear(e, tile, _TILE_BYTES)

    def row(i: str, _: Carried) -> list[str]:
        memory = e.at("%p1", e.mul(i, "%p2"), 1)
        register = e.at(tile, e.mul(i, str(_ROW_BYTES)), 1)
        to, source = (register, memory) if load else (memory, register)
        e.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {width}, i1 false)")
        return []

    e.loop("0", _rows(e, "%p0"), "1", [], row)
    return "void", ("i8", "ptr", "i64"), ""


def _check_shapes(e: Emitter) -> tuple[str, str]:
    """The rows of the result and the groups of the depth; traps if the shapes of the three registers do not
    fit.
    """
    depth = e.divide(_row_bytes(e, "%p1"), 4)
    pairs = [
        (_rows(e, "%p0"), _rows(e, "%p1")),
        (depth, _rows(e, "%p2")),
        (_row_bytes(e, "%p0"), _row_bytes(e, "%p2")),
    ]
    for left, right in pairs:
        with e.when(e.op(f"icmp ne i64 {left}, {right}")):
            e.line("call void @llvm.trap()")
    return pairs[0][0], depth


def _tile_of_bytes(e: Emitter, a_sign: str, b_sign: str) -> _Written:
    numbers = "<16 x i32>"
    rows, depth = _check_shapes(e)
    c, a, b = (_memory(e, f"%p{i}") for i in range(3))

    def row(m: str, _: Carried) -> list[str]:
        where = e.at(c, e.mul(m, str(_ROW_BYTES)), 1)

        def step(k: str, carried: Carried) -> list[str]:
            word = e.load("i32", e.at(a, e.add(e.mul(m, str(_ROW_BYTES)), e.mul(k, "4")), 1), 4)
            quads = e.load(numbers, e.at(b, e.mul(k, str(_ROW_BYTES)), 1), 64)
            return [_add_quads(e, 16, carried[0][1], e.splat(numbers, "i32", word), a_sign, quads, b_sign)]

        (total,) = e.loop("0", depth, "1", [(numbers, e.load(numbers, where, 64))], step)
        e.line(f"store {numbers} {total}, ptr {where}, align 64")
        return []

    e.loop("0", rows, "1", [], row)
    return "void", ("i8", "i8", "i8"), ""


def _tile_of_bf16(e: Emitter) -> _Written:
    """Even and odd elements of the depth are summed separately; both sums are added to the result at the
    end.
    """
    floats, numbers = "<16 x float>", "<16 x i32>"
    rows, depth = _check_shapes(e)
    c, a, b = (_memory(e, f"%p{i}") for i in range(3))

    def row(m: str, _: Carried) -> list[str]:
        def step(k: str, carried: Carried) -> list[str]:
            word = e.load("i32", e.at(a, e.add(e.mul(m, str(_ROW_BYTES)), e.mul(k, "4")), 1), 4)
            left = _bf16_halves(e, 16, e.splat(numbers, "i32", word))
            right = _bf16_halves(e, 16, e.load(numbers, e.at(b, e.mul(k, str(_ROW_BYTES)), 1), 64))
            pairs = zip(left, right, carried, strict=True)
            return [_flushed(e, 16, e.fma(floats, x, y, total, True)) for x, y, (_, total) in pairs]

        even, odd = e.loop("0", depth, "1", [(floats, "zeroinitializer")] * 2, step)
        where = e.at(c, e.mul(m, str(_ROW_BYTES)), 1)
        both = _flushed(e, 16, e.op(f"fadd {floats} {even}, {odd}"))
        before = _flushed(e, 16, e.load(floats, where, 64))
        total = _flushed(e, 16, e.op(f"fadd {floats} {before}, {both}"))
        e.line(f"store {floats} {total}, ptr {where}, align 64")
        return []

    e.loop("0", rows, "1", [], row)
    return "void", ("i8", "i8", "i8"), ""


# -- Products of vectors -----------------------------------------------------------------------------------


def _add_quads(e: Emitter, lanes: int, total: str, a: str, a_sign: str, b: str, b_sign: str) -> str:
    """``total + a . b`` over the four bytes of each lane, modulo 2**32."""
    numbers = f"<{lanes} x i32>"
    for byte in range(4):
        x, y = (
            e.op(
                f"{'ashr' if sign == 's' else 'lshr'} {numbers} "
                f"{e.op(f'shl {numbers} {value}, splat (i32 {24 - 8 * byte})')}, splat (i32 24)"
            )
            for value, sign in ((a, a_sign), (b, b_sign))
        )
        total = e.op(f"add {numbers} {total}, {e.op(f'mul {numbers} {x}, {y}')}")
    return total


def _dot_of_bytes(e: Emitter, lanes: int, a_sign: str, b_sign: str) -> _Written:
    numbers, raw = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    a, b = (e.op(f"bitcast {raw} %p{i} to {numbers}") for i in (1, 2))
    return numbers, (numbers, raw, raw), _add_quads(e, lanes, "%p0", a, a_sign, b, b_sign)


def _dot_of_words(e: Emitter, lanes: int) -> _Written:
    numbers, words = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    products = []
    for half in range(2):
        order = ", ".join(f"i32 {2 * i + half}" for i in range(lanes))
        x, y = (
            e.op(
                f"sext <{lanes} x i16> "
                f"{e.op(f'shufflevector {words} %p{i}, {words} poison, <{lanes} x i32> <{order}>')} to "
                f"{numbers}"
            )
            for i in range(2)
        )
        products.append(e.op(f"mul {numbers} {x}, {y}"))
    return numbers, (words, words), e.op(f"add {numbers} {products[0]}, {products[1]}")


def _dot_of_bf16(e: Emitter, lanes: int) -> _Written:
    floats, numbers, raw = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    left, right = (_bf16_halves(e, lanes, e.op(f"bitcast {raw} %p{i} to {numbers}")) for i in (1, 2))
    total = _flushed(e, lanes, "%p0")
    for x, y in reversed(list(zip(left, right, strict=True))):  # The odd elements come first.
        total = _flushed(e, lanes, e.fma(floats, x, y, total, True))
    return floats, (floats, raw, raw), total


def _bf16_halves(e: Emitter, lanes: int, x: str) -> tuple[str, str]:
    """The lower and the upper bf16 of each lane as float32, with subnormal numbers as zero."""
    numbers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
    low = e.op(f"shl {numbers} {x}, splat (i32 16)")
    high = e.op(f"and {numbers} {x}, splat (i32 -65536)")
    even, odd = (_flushed(e, lanes, e.op(f"bitcast {numbers} {half} to {floats}")) for half in (low, high))
    return even, odd


def _flushed(e: Emitter, lanes: int, x: str) -> str:
    """float32 with subnormal numbers replaced by zeros of the same sign."""
    numbers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
    bits = e.op(f"bitcast {floats} {x} to {numbers}")
    exponent = e.op(f"and {numbers} {bits}, splat (i32 {0xFF << 23})")
    sign = e.op(f"and {numbers} {bits}, splat (i32 {-(1 << 31)})")
    small = e.op(f"icmp eq {numbers} {exponent}, zeroinitializer")
    flushed = e.op(f"select <{lanes} x i1> {small}, {numbers} {sign}, {numbers} {bits}")
    return e.op(f"bitcast {numbers} {flushed} to {floats}")


# -- Functions of AVX-512 on sixteen float32 ---------------------------------------------------------------

_FLOATS, _NUMBERS, _MASK = "<16 x float>", "<16 x i32>", "<16 x i1>"


def _convert_pairs(e: Emitter) -> _Written:
    """Convert two vectors of float32 to one vector of bf16; the second operand becomes the lower half."""
    halves = [e.op(f"fptrunc {_FLOATS} {_flushed(e, 16, x)} to <16 x bfloat>") for x in ("%p1", "%p0")]
    order = ", ".join(f"i32 {i}" for i in range(32))
    both = e.op(f"shufflevector <16 x bfloat> {halves[0]}, <16 x bfloat> {halves[1]}, <32 x i32> <{order}>")
    return "<32 x bfloat>", (_FLOATS, _FLOATS), both


def _look_up(e: Emitter, entries: int) -> _Written:
    """The numbers of a table, in one register or two, at the indices in another."""
    kind, table, operands = _FLOATS, "%p0", [_FLOATS, _NUMBERS]
    if entries > 16:
        kind = f"<{entries} x float>"
        table = e.shuffle(_FLOATS, "%p0", "%p2", list(range(entries)))
        operands.append(_FLOATS)
    result = "poison"
    for i in range(16):
        index = e.op(f"and i32 {e.op(f'extractelement {_NUMBERS} %p1, i64 {i}')}, {entries - 1}")
        entry = e.op(f"extractelement {kind} {table}, i32 {index}")
        result = e.op(f"insertelement {_FLOATS} {result}, float {entry}, i64 {i}")
    return _FLOATS, tuple(operands), result


def _reciprocal(e: Emitter) -> _Written:
    """The reciprocal to 14 bits: the largest error that the instruction may have."""
    exact = e.op(f"fdiv {_FLOATS} splat (float 1.0), %p0")
    bits = e.op(f"and {_NUMBERS} {e.op(f'bitcast {_FLOATS} {exact} to {_NUMBERS}')}, splat (i32 -512)")
    cut = e.op(f"bitcast {_NUMBERS} {bits} to {_FLOATS}")
    nan = e.op(f"fcmp uno {_FLOATS} %p0, %p0")
    return _FLOATS, (_FLOATS, _FLOATS, "i16"), _choose(e, nan, "%p0", cut)


def _normal(e: Emitter, x: str) -> tuple[str, str]:
    """The bits of ``|x|`` scaled to a normal number, and its exponent, for finite ``x`` other than 0."""
    magnitude = e.op(f"call {_FLOATS} @llvm.fabs.v16f32({_FLOATS} {x})")
    small = e.op(f"fcmp olt {_FLOATS} {magnitude}, splat (float 0x3810000000000000)")  # 2**-126
    scaled = e.op(f"fmul {_FLOATS} {magnitude}, splat (float 8388608.0)")
    chosen = _choose(e, small, scaled, magnitude)
    bits = e.op(f"bitcast {_FLOATS} {chosen} to {_NUMBERS}")
    bias = e.op(f"select {_MASK} {small}, {_NUMBERS} splat (i32 150), {_NUMBERS} splat (i32 127)")
    exponent = e.op(f"sub {_NUMBERS} {e.op(f'lshr {_NUMBERS} {bits}, splat (i32 23)')}, {bias}")
    return bits, exponent


def _choose(e: Emitter, condition: str, x: str, otherwise: str) -> str:
    return e.op(f"select {_MASK} {condition}, {_FLOATS} {x}, {_FLOATS} {otherwise}")


_INFINITY = "0x7FF0000000000000"


def _exponent(e: Emitter) -> _Written:
    _, exponent = _normal(e, "%p0")
    value = e.op(f"sitofp {_NUMBERS} {exponent} to {_FLOATS}")
    magnitude = e.op(f"call {_FLOATS} @llvm.fabs.v16f32({_FLOATS} %p0)")
    special = e.op(f"fcmp ueq {_FLOATS} {magnitude}, splat (float {_INFINITY})")  # or NaN
    zero = e.op(f"fcmp oeq {_FLOATS} %p0, zeroinitializer")
    value = _choose(e, special, magnitude, value)
    return (
        _FLOATS,
        (_FLOATS, _FLOATS, "i16", "i32"),
        _choose(e, zero, "splat (float 0xFFF0000000000000)", value),
    )


def _significand(e: Emitter) -> _Written:
    """The significand in [0.75, 1.5) for the immediate 0b1111, the only one in use; NaN for negative
    numbers.
    """
    with e.when(e.op("icmp ne i32 %p1, 15")):
        e.line("call void @llvm.trap()")
    bits, _ = _normal(e, "%p0")
    fraction = e.op(f"and {_NUMBERS} {bits}, splat (i32 8388607)")
    upper = e.op(f"icmp uge {_NUMBERS} {fraction}, splat (i32 4194304)")
    exponent = e.op(
        f"select {_MASK} {upper}, {_NUMBERS} splat (i32 {126 << 23}), {_NUMBERS} splat (i32 {127 << 23})"
    )
    value = e.op(f"bitcast {_NUMBERS} {e.op(f'or {_NUMBERS} {fraction}, {exponent}')} to {_FLOATS}")
    magnitude = e.op(f"call {_FLOATS} @llvm.fabs.v16f32({_FLOATS} %p0)")
    infinite = e.op(f"fcmp oeq {_FLOATS} {magnitude}, splat (float {_INFINITY})")
    zero = e.op(f"fcmp oeq {_FLOATS} %p0, zeroinitializer")
    value = _choose(e, e.op(f"or {_MASK} {infinite}, {zero}"), "splat (float 1.0)", value)
    refused = e.op(f"fcmp ult {_FLOATS} %p0, zeroinitializer")  # or NaN
    value = _choose(e, refused, "splat (float 0x7FF8000000000000)", value)
    return _FLOATS, (_FLOATS, "i32", _FLOATS, "i16", "i32"), value


def _reduce(e: Emitter) -> _Written:
    """``x - floor(x)``, rounded down, for the immediate 1; ``x - nearest(x)`` for 0. Infinity gives 0."""
    with e.when(e.op("icmp ugt i32 %p1, 1")):
        e.line("call void @llvm.trap()")
    down = e.op("icmp eq i32 %p1, 1")
    floor = e.op(f"call {_FLOATS} @llvm.floor.v16f32({_FLOATS} %p0)")
    nearest = e.op(f"call {_FLOATS} @llvm.roundeven.v16f32({_FLOATS} %p0)")
    whole = e.op(f"select i1 {down}, {_FLOATS} {floor}, {_FLOATS} {nearest}")
    value = e.op(f"fsub {_FLOATS} %p0, {whole}")
    # The error of the subtraction (Knuth's two-sum) shows whether the nearest number lies above the exact
    # one.
    part = e.op(f"fadd {_FLOATS} {value}, {whole}")
    back = e.op(f"fsub {_FLOATS} {part}, {value}")
    left, right = e.op(f"fsub {_FLOATS} %p0, {part}"), e.op(f"fsub {_FLOATS} {back}, {whole}")
    above = e.op(f"fcmp olt {_FLOATS} {e.op(f'fadd {_FLOATS} {left}, {right}')}, zeroinitializer")
    bits = e.op(f"bitcast {_FLOATS} {value} to {_NUMBERS}")
    lower = e.op(f"bitcast {_NUMBERS} {e.op(f'sub {_NUMBERS} {bits}, splat (i32 1)')} to {_FLOATS}")
    rounded = _choose(e, above, lower, value)
    zero = e.op(f"fcmp oeq {_FLOATS} {value}, zeroinitializer")
    rounded = _choose(e, zero, "splat (float -0.0)", rounded)
    value = e.op(f"select i1 {down}, {_FLOATS} {rounded}, {_FLOATS} {value}")
    magnitude = e.op(f"call {_FLOATS} @llvm.fabs.v16f32({_FLOATS} %p0)")
    infinite = e.op(f"fcmp oeq {_FLOATS} {magnitude}, splat (float {_INFINITY})")
    value = _choose(e, infinite, "zeroinitializer", value)
    return _FLOATS, (_FLOATS, "i32", _FLOATS, "i16", "i32"), value


def _scale(e: Emitter) -> _Written:
    """``x * 2**floor(n)``, exact in float64 and rounded once. 0 * 2**inf and inf * 2**-inf are NaN."""
    wide, whole = "<16 x double>", "<16 x i64>"
    n = e.op(f"call {_FLOATS} @llvm.floor.v16f32({_FLOATS} %p1)")
    n = e.op(f"call {_FLOATS} @llvm.maxnum.v16f32({_FLOATS} {n}, {_FLOATS} splat (float -512.0))")
    n = e.op(f"call {_FLOATS} @llvm.minnum.v16f32({_FLOATS} {n}, {_FLOATS} splat (float 512.0))")
    number = e.op(f"fptosi {_FLOATS} {n} to {whole}")
    power = e.op(f"shl {whole} {e.op(f'add {whole} {number}, splat (i64 1023)')}, splat (i64 52)")
    factor = e.op(f"bitcast {whole} {power} to {wide}")
    product = e.op(f"fmul {wide} {e.op(f'fpext {_FLOATS} %p0 to {wide}')}, {factor}")
    value = e.op(f"fptrunc {wide} {product} to {_FLOATS}")
    # With infinite exponents the hardware multiplies by infinity or by zero; a NaN operand gives NaN.
    infinite = e.op(
        f"fcmp ueq {_FLOATS} {e.op(f'call {_FLOATS} @llvm.fabs.v16f32({_FLOATS} %p1)')}, splat (float "
        f"{_INFINITY})"
    )
    negative = e.op(f"fcmp oeq {_FLOATS} %p1, splat (float 0xFFF0000000000000)")
    extreme = e.op(f"fmul {_FLOATS} %p0, {_choose(e, negative, 'zeroinitializer', '%p1')}")
    value = _choose(e, infinite, extreme, value)
    return _FLOATS, (_FLOATS, _FLOATS, _FLOATS, "i16", "i32"), value


_WRITERS: dict[str, Callable[[Emitter], _Written]] = {
    "ldtilecfg": _configure,
    "tilerelease": _release,
    "tilezero": _zero,
    "tileloadd64": lambda e: _move(e, load=True),
    "tileloaddt164": lambda e: _move(e, load=True),
    "tilestored64": lambda e: _move(e, load=False),
    "tdpbf16ps": _tile_of_bf16,
    "avx512.pmaddw.d.512": lambda e: _dot_of_words(e, 16),
    "avx2.pmadd.wd": lambda e: _dot_of_words(e, 8),
    "avx512bf16.cvtne2ps2bf16.512": _convert_pairs,
    "avx512.permvar.sf.512": lambda e: _look_up(e, 16),
    "avx512.vpermi2var.ps.512": lambda e: _look_up(e, 32),
    "avx512.rcp14.ps.512": _reciprocal,
    "avx512.mask.getexp.ps.512": _exponent,
    "avx512.mask.getmant.ps.512": _significand,
    "avx512.mask.reduce.ps.512": _reduce,
    "avx512.mask.scalef.ps.512": _scale,
}


__all__ = ["EMULATED", "emulate"]

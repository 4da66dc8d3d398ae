"""`simd.dequantize` as LLVM IR text: the weights that quantized values stand for, as pairs of bf16."""

from __future__ import annotations

from collections.abc import Callable

from ....dialects import simd
from ....dialects.weight_form import WeightForm, choice
from ....ir.types import DType, bf16, f32
from .. import minifloats
from ..emitter import Carried, Emitter
from ..isa import Isa
from ..values import literal
from .problem import named
from .weight_parts import scale_and_minimum, stored_values


def dequantize_function(op: simd.Dequantize, isa: Isa) -> tuple[str, dict[str, str]]:
    """The name of the function, and ``{name: definition}``.

    ``void @name(ptr %b, ptr %y, ptr %part0...)`` takes pointers to the beginning of a panel and of its parts.

    Raises:
        NotImplementedError: a panel does not consist of whole vectors, or the result is not bf16.
    """
    isa = isa.narrow
    lanes = next((n for n in (isa.lanes(32), isa.lanes(32) // 2, 4) if n and op.nr % n == 0), 0)
    if not lanes or op.y.type.dtype is not bf16:
        raise NotImplementedError(f"simd.dequantize of panels of {op.nr} columns on {isa.name}")
    vectors, form = op.nr // lanes, WeightForm.of(op.form)
    types = [part.type.dtype for part in op.parts]
    e = Emitter()
    numbers, floats, raw = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{4 * lanes} x i8>"
    number_of = _numbers(e, isa, form, lanes)

    def weights(x: str, scale: str, minimum: str | None) -> list[str]:
        """Four weights from the stored values in each lane's bytes."""
        result = []
        for byte in range(4):
            code = e.op(f"lshr {numbers} {x}, splat (i32 {8 * byte})") if byte else x
            weight = e.op(f"fmul {floats} {number_of(code)}, {scale}")
            result.append(weight if minimum is None else e.op(f"fsub {floats} {weight}, {minimum}"))
        return result

    def store(even: str, odd: str, where: str) -> None:
        """Store two adjacent rows as pairs, rounded to nearest even."""
        if isa.has("avx512bf16") and lanes == 16:
            both = e.op(
                f"call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512({floats} {odd}, {floats} {even})"
            )
            pairs = e.shuffle("<32 x bfloat>", both, both, [k for i in range(16) for k in (i, i + 16)])
            e.line(f"store <32 x bfloat> {pairs}, ptr {where}, align 64")
            return
        rounded = []
        for x in (even, odd):
            bits = e.op(f"bitcast {floats} {x} to {numbers}")
            last = e.op(f"and {numbers} {e.op(f'lshr {numbers} {bits}, splat (i32 16)')}, splat (i32 1)")
            rounded.append(e.op(f"add {numbers} {e.op(f'add {numbers} {bits}, splat (i32 32767)')}, {last}"))
        below = e.op(f"lshr {numbers} {rounded[0]}, splat (i32 16)")
        above = e.op(f"and {numbers} {rounded[1]}, splat (i32 -65536)")
        e.line(f"store {numbers} {e.op(f'or {numbers} {below}, {above}')}, ptr {where}, align {4 * lanes}")

    taken, lines, quads, subgroups = form.chunk, form.lines, form.quads, form.subgroups(op.size)
    per = quads // subgroups

    def parts_of(g: str) -> list[tuple[str, str | None]]:
        rows = []
        for k, (name, dtype) in enumerate(zip(form.parts, types, strict=True)):
            row = e.mul(e.divide(g, form.covered_by(name)), str(op.nr))
            rows.append(e.at(f"%part{k}", row, dtype.itemsize))
        return [scale_and_minimum(e, isa, form, types, rows, g, v * lanes, lanes) for v in range(vectors)]

    def unit(u: str, _: Carried) -> list[str]:
        """Write a group, or the groups of a chunk."""
        groups = [parts_of(e.add(e.mul(u, str(subgroups)), str(k))) for k in range(subgroups)]
        chunks = max(1, op.size // taken)

        def chunk(i: str, _: Carried) -> list[str]:
            first = e.add(e.mul(u, str(chunks)), i)
            b = e.at("%b", e.mul(first, str(lines * op.nr * 4)), 1)
            y = e.at("%y", e.mul(first, str(taken * op.nr)), 2)
            for quad in range(quads):
                for v in range(vectors):

                    def line(k: int, v: int = v) -> str:
                        return e.load(raw, e.at(b, str((k * op.nr + v * lanes) * 4), 1), 4 * lanes)

                    stored = stored_values(e, isa, lanes, form, quad, line)
                    x = e.op(f"bitcast {raw} {stored} to {numbers}")
                    products = weights(x, *groups[quad // per][v])
                    for pair in range(2):
                        where = e.at(y, str(((2 * quad + pair) * op.nr + v * lanes) * 2), 2)
                        store(products[2 * pair], products[2 * pair + 1], where)
            return []

        e.loop("0", str(chunks), "1", [], chunk)
        return []

    e.loop("0", str(op.groups // subgroups), "1", [], unit)
    parameters = ["ptr %b", "ptr %y", *(f"ptr %part{k}" for k in range(len(types)))]
    name, text = named("dequantize", parameters, e, isa, "noinline nounwind")
    return name, {name: text}


def _numbers(e: Emitter, isa: Isa, form: WeightForm, lanes: int) -> Callable[[str], str]:
    """A function that maps 32-bit lanes, whose lowest byte is a stored value, to the floats that those stand
    for.
    """
    numbers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"

    def low(x: str) -> str:
        return e.op(f"and {numbers} {x}, splat (i32 {(1 << form.bits) - 1})")

    if not form.is_integer:
        return lambda x: minifloats.decode(e, low(x), DType.named(form.kind), lanes)
    table = form.table
    if form.bits == 4 and isa.avx512 and lanes == 16:
        if table is None:
            table = tuple(k - form.added for k in range(16))
        entries = f"<{', '.join(f'float {literal(x, f32)}' for x in table)}>"
        # The table lookup uses only the lowest four bits of an index.
        call = f"call {floats} @llvm.x86.avx512.permvar.sf.512({floats} {entries}, {numbers}"
        return lambda x: e.op(f"{call} {x})")
    if table is None:
        return lambda x: e.op(
            f"sitofp {numbers} {e.op(f'sub {numbers} {low(x)}, splat (i32 {form.added})')} to {floats}"
        )
    literals = [f"splat (float {literal(x, f32)})" for x in table]

    def selected(x: str) -> str:
        def is_set(bit: int) -> str:
            masked = e.op(f"and {numbers} {x}, splat (i32 {1 << bit})")
            return e.op(f"icmp ne {numbers} {masked}, zeroinitializer")

        def select(condition: str, a: str, b: str) -> str:
            return e.op(f"select <{lanes} x i1> {condition}, {floats} {a}, {floats} {b}")

        return str(choice(literals, is_set, select))

    return selected


__all__ = ["dequantize_function"]

"""Operators on the bits of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.types import boolean, f64, i32, i64
from ...unsupported import Unsupported
from ..gradient_rules import with_gradient
from ..importer import Node
from ..registry import importer
from .linalg import term
from .reduce import axes_of

_MANTISSA, _BIAS, _EXPONENT = 52, 1022, 0x7FF
"""float64's layout: the bits of its fraction, the exponent field of numbers in [1/2, 1), and the field's
largest value.
"""


@importer("aten.frexp.Tensor")
def frexp(n: Node, x: Value) -> tuple[Value, Value]:
    """Return a number of magnitude in [1/2, 1) and the exponent (i32) of the power of two to multiply it
    with; 0 for zeros, infinities and NaN.
    """
    wide = term(n, x).cast(f64)
    tiny = wide.abs() < 2.0**-1000  # Including float64's subnormal numbers.
    wide = tiny.select(wide * 2.0**54, wide)
    bits = wide.of(n.emit(g.Bitcast(wide.value, dtype=i64)))
    power = bits.of(n.binary("shr", bits.value, n.constant(_MANTISSA, i64))) & _EXPONENT
    plain = (power > 0) & (power < _EXPONENT)
    half = (bits & ~(_EXPONENT << _MANTISSA)) | (_BIAS << _MANTISSA)
    mantissa = plain.select(half.of(n.emit(g.Bitcast(half.value, dtype=f64))), wide)
    exponent = plain.select(power - _BIAS - tiny.select(power.number(54), 0), 0)
    return with_gradient(n, x, mantissa.cast(x.type.dtype).value, _scaled), exponent.cast(i32).value


def _scaled(x: Term, y: Term, dy: Term) -> Term:
    """The gradient of a mantissa: the power of two that divides the number is a constant."""
    plain = (x.abs() > 0) & (x.abs() < math.inf)
    power = plain.select(y / plain.select(x, 1), 1)
    return dy * power.apply("stop_gradient", power.value)


@importer("aten.hash_tensor.default")
def hash_tensor(
    n: Node, x: Value, dim: int | Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> Value:
    """Return the exclusive or of the elements' bits, as 64-bit numbers."""
    if mode:
        raise Unsupported(f"hash_tensor in mode {mode}")
    dtype = x.type.dtype
    wide = n.cast(
        x, f64 if dtype.is_float else i64 if dtype.is_signed or dtype is boolean else n.result_dtype()
    )
    bits = n.emit(g.Bitcast(wide, dtype=n.result_dtype()))
    if not x.type.rank:
        return bits
    return n.emit(g.ReduceXor(bits, axes=axes_of(x, dim), keepdims=keepdim))

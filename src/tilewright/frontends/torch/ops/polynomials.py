"""Orthogonal polynomials in float64, by recurrences of three terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....dialects.graph.term import Term, loop
from ....ir.core import Value
from ....ir.types import f64, i64
from ..importer import Node, Operand
from ..registry import importer

Next = Callable[[Term, Term, Term, Term], Term]
"""A recurrence: from the degree k, the argument, and the polynomials of degrees k and k - 1 to that of degree
k + 1.
"""

_MOST = 1 << 20
"""The largest degree; larger ones are replaced by it, which bounds the number of steps."""


def _orthogonal(name: str, first: Callable[[Term], Term], following: Next, limited: bool = False) -> None:
    """Register ``name(x, degree)``: 1 for degree 0, `first` for degree 1, 0 for negative degrees; if
    `limited`, NaN for degrees whose values leave the element type's range.
    """
    kinds = (f"aten.special_{name}.{kind}" for kind in ("default", "x_scalar", "n_scalar"))

    @importer(*kinds)
    def polynomial(n: Node, x: Operand, degree: Operand) -> Value:
        b = n.importer.builder
        argument, degree_term = (Term(b, n.as_tensor(v, f64)) for v in (x, degree))
        shape = broadcast_shapes(argument.shape, degree_term.shape)
        argument, degree_term = argument.broadcast(shape), degree_term.broadcast(shape)
        # A number beyond the integer type counts as negative, as in torch.
        known = degree_term.abs() < 2.0**63
        degrees = known.select(degree_term, -1.0).unary("trunc")
        bounded = degrees.of(n.emit(g.Clamp(degrees.value, minimum=-1.0, maximum=float(_MOST))))
        flat = bounded.reshape((bounded.value.type.size,)).cast(i64)
        highest = Term(b, n.emit(g.Concat([flat.value, n.constant([1], i64)], axis=0))).max(0)
        count = n.computed_size((highest - 1).value)

        def step(k: Term, *carried: Term) -> Any:
            inside, p, q = k.b, *carried
            here, wanted = Term(inside, argument.value), Term(inside, bounded.value)
            k = k.cast(f64)
            further = wanted > k
            return (further.select(q, p), further.select(following(k, here, q, p), q)), ()

        one = argument.number(1.0).broadcast(shape)
        (_, last), _ = loop(b, argument.iota(count, start=1), (one, first(argument)), step)
        y = (bounded < 1.0).select((bounded < 0.0).select(argument.number(0.0), 1.0), last)
        if limited:
            y = (bounded > (512.0 if n.result_dtype().bits == 64 else 128.0)).select(
                argument.number(float("nan")), y
            )
        return n.broadcast(n.cast(y.value, n.result_dtype()), n.result_shape())


def _chebyshev(_: Term, x: Term, q: Term, p: Term) -> Term:
    return (x + x) * q - p


def _shifted(_: Term, x: Term, q: Term, p: Term) -> Term:
    y = x + x - 1.0
    return (y + y) * q - p


for _kind, _slope, _offset in (("t", 1.0, 0.0), ("u", 2.0, 0.0), ("v", 2.0, -1.0), ("w", 2.0, 1.0)):

    def _line(x: Term, slope: float = _slope, offset: float = _offset) -> Term:
        return x * slope + offset

    def _shifted_line(x: Term, slope: float = _slope, offset: float = _offset) -> Term:
        return (x + x - 1.0) * slope + offset

    _orthogonal(f"chebyshev_polynomial_{_kind}", _line, _chebyshev)
    _orthogonal(f"shifted_chebyshev_polynomial_{_kind}", _shifted_line, _shifted)

_orthogonal(
    "hermite_polynomial_h", lambda x: x + x, lambda k, x, q, p: (x + x) * q - (k + k) * p, limited=True
)
_orthogonal("hermite_polynomial_he", lambda x: x, lambda k, x, q, p: x * q - k * p, limited=True)
_orthogonal(
    "laguerre_polynomial_l",
    lambda x: 1.0 - x,
    lambda k, x, q, p: ((k + k + 1.0 - x) * q - k * p) / (k + 1.0),
)
_orthogonal(
    "legendre_polynomial_p",
    lambda x: x,
    lambda k, x, q, p: ((k + k + 1.0) * x * q - k * p) / (k + 1.0),
)

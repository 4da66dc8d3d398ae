"""Derivatives of the elementwise functions of the scalar dialect, by name.

A function without an entry has no derivative: its results are booleans or integers. Ties and borders follow
PyTorch: `min` and `max` give half of the gradient to either operand where both are equal, `abs` and `sign`
give none at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .term import Term

_LN2 = math.log(2.0)

UNARY: dict[str, Callable[[Term, Term], Term | None]] = {
    "neg": lambda x, y: x.number(-1),
    "abs": lambda x, y: x.unary("sign"),
    "sign": lambda x, y: None,
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: -0.5 * y * y * y,
    "floor": lambda x, y: None,
    "ceil": lambda x, y: None,
    "trunc": lambda x, y: None,
    "round": lambda x, y: None,
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * _LN2,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log2": lambda x, y: 1 / (x * _LN2),
    "log1p": lambda x, y: 1 / (x + 1),
    "sin": lambda x, y: x.unary("cos"),
    "cos": lambda x, y: -x.unary("sin"),
    "tan": lambda x, y: y * y + 1,
    "asin": lambda x, y: (1 - x * x).unary("rsqrt"),
    "acos": lambda x, y: -(1 - x * x).unary("rsqrt"),
    "atan": lambda x, y: 1 / (x * x + 1),
    "sinh": lambda x, y: x.unary("cosh"),
    "cosh": lambda x, y: x.unary("sinh"),
    "tanh": lambda x, y: 1 - y * y,
    "asinh": lambda x, y: (x * x + 1).unary("rsqrt"),
    "acosh": lambda x, y: (x * x - 1).unary("rsqrt"),
    "atanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: (-(x * x)).unary("exp") * (2.0 / math.sqrt(math.pi)),
    "sigmoid": lambda x, y: y * (1 - y),
}
"""The derivative at `x`, where the function is `y`; None: it is 0 everywhere."""


def _extreme(first: Term, second: Term, dy: Term) -> tuple[Term, Term]:
    """The gradients of a minimum or maximum: `first` says where the first operand is it, `second` where the
    second is.
    """
    whole = first.cast(dy.dtype) + second.cast(dy.dtype)
    share = dy / whole
    return first.select(share, share.zeros()), second.select(share, share.zeros())


def _power(a: Term, b: Term, y: Term, dy: Term) -> tuple[Term, Term]:
    base = b.equals(0).select(b.zeros(), b * a ** (b - 1))
    # The limit of a^b log(a) for a -> 0 is 0 for exponents that are not negative.
    log = (a.equals(0) & (b >= 0)).select(y.zeros(), y * a.unary("log"))
    return dy * base, dy * log


def _angle(a: Term, b: Term, y: Term, dy: Term) -> tuple[Term, Term]:
    scaled = dy / (a * a + b * b)
    return scaled * b, -(scaled * a)


BINARY: dict[str, Callable[[Term, Term, Term, Term], tuple[Term | None, Term | None]]] = {
    "add": lambda a, b, y, dy: (dy, dy),
    "sub": lambda a, b, y, dy: (dy, -dy),
    "mul": lambda a, b, y, dy: (dy * b, dy * a),
    "div": lambda a, b, y, dy: (dy / b, -(dy * y / b)),
    "floordiv": lambda a, b, y, dy: (None, None),
    "mod": lambda a, b, y, dy: (dy, -(dy * (a // b))),
    "rem": lambda a, b, y, dy: (dy, -(dy * (a / b).unary("trunc"))),
    "pow": _power,
    "atan2": _angle,
    "min": lambda a, b, y, dy: _extreme(a <= b, b <= a, dy),
    "max": lambda a, b, y, dy: _extreme(a >= b, b >= a, dy),
}
"""The gradients of the operands `a` and `b` of result `y` with the gradient `dy`; None: 0 everywhere."""


__all__ = ["BINARY", "UNARY"]

"""Gradient rules for formulas whose own derivative is not that of the function: formulas that divide zero by
zero, approximate or iterate, or choose among bases of a space.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dialects import graph as g
from ...dialects.graph.scan import Yield
from ...dialects.graph.term import Term
from ...ir.builder import Builder
from ...ir.core import Block, Region, Value
from .importer import Node

Rule = Callable[[Term, Term, Term], Term]
"""From the input, the result and the gradient of the result to the gradient of the input."""


def with_gradient(n: Node, x: Value, y: Value, rule: Rule) -> Value:
    """Return `y`, a function of `x`, with a gradient rule; `x` and `y` are floating point.

    The rule is differentiated for derivatives of higher order.
    """
    if isinstance(y.defining_op, g.Constant) or not x.type.dtype.is_float:
        return y
    block = Block([y.type, y.type])
    b = Builder(block, location=n.location)
    dy, result = (Term(b, a) for a in block.args)
    b.insert(Yield([rule(dy.of(x), result, dy).value]))
    op = g.CustomGradient([x], [y], regions=[Region([block])], location=n.location)
    (ruled,) = n.emit_all(op)
    return ruled


__all__ = ["Rule", "with_gradient"]

"""Gradients that torch asks for by operators such as ``aten.gelu_backward``: those of the graph operators
that compute the function itself, by their own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...autodiff.reverse import backward
from ...dialects import graph as g
from ...ir.core import Value
from .importer import Node


def gradients(
    n: Node,
    grad: Value,
    operands: Sequence[Value],
    function: Callable[..., Value],
    result: Value | None = None,
) -> list[Value]:
    """Return the gradient with respect to each operand of a function, of the operand's type.

    Args:
        n: The call that asks for them.
        grad: The gradient with respect to the function's result, which is converted to the result's type.
        operands: The operands.
        function: Builds the function from its operands. Its values are removed, except those that the
            gradients read.
        result: The function's result, if it is known from the forward pass. The gradients then read it in
            place of the one that `function` computes.

    Raises:
        GradientError: An operator of the function has no gradient.
    """
    b = n.importer.builder
    # Each operand has a gradient of its own, also where two of them are the same value.
    first, *others = [b.insert(g.Identity(x)) for x in operands]
    twins = [op.result for op in (first, *others)]
    y = function(*twins)
    ops = b.block.between(first.previous, b.anchor)
    found = backward(b, ops, [(y, n.cast(grad, y.type.dtype))], twins)
    if result is not None:
        y.replace_by(result)
    return [
        n.broadcast(n.constant(0, x.type.dtype), x.type.shape) if dx is None else dx
        for x, dx in zip(operands, found, strict=True)
    ]


__all__ = ["gradients"]

"""Operators of ai.onnx.preview.training: one step of an optimizer.

Each takes a learning rate, the number of previous steps, then tensors in groups: all optimized tensors, all
gradients, and all tensors of each state. It returns the new tensors and states in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....ir.core import Value
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .shape import reshape

if TYPE_CHECKING:
    from ..node import Node

_TRAINING = "ai.onnx.preview.training"


def _each(n: Node, width: int, rule: Callable[..., Sequence[Value]]) -> list[Value]:
    """Apply `rule` (arithmetic, rate, steps, tensor, regularized gradient, states) to every optimized tensor,
    which has `width - 1` other tensors.
    """
    count, rest = divmod(len(n.inputs) - 2, width)
    if rest or not count:
        raise ValueError(
            f"the node has {len(n.inputs)} inputs; it must have 2 and {width} more for each tensor"
        )
    decay = n.attr("norm_coefficient", 0.0)
    results = []
    for k in range(count):
        x, gradient, *states = (n.value(2 + k + j * count) for j in range(width))
        a = Arithmetic(n, x.type.dtype)
        rate, steps = (cast(n, reshape(n, n.value(j), ()), x.type.dtype) for j in (0, 1))
        gradient = a.Add(a.Mul(decay, x), gradient) if decay else gradient
        results.append(rule(a, rate, steps, x, gradient, *states))
    return [result for column in zip(*results, strict=True) for result in column]


@importer("Adagrad", domain=_TRAINING)
def _adagrad(n: Node) -> list[Value]:
    decay, epsilon = n.attr("decay_factor", 0.0), n.attr("epsilon", 0.0)

    def rule(
        a: Arithmetic, rate: Value, steps: Value, x: Value, gradient: Value, squares: Value
    ) -> Sequence[Value]:
        squares = a.Add(squares, a.Mul(gradient, gradient))
        rate = a.Div(rate, a.Add(1, a.Mul(steps, decay)))
        return a.Sub(x, a.Div(a.Mul(rate, gradient), a.Add(a.Sqrt(squares), epsilon))), squares

    return _each(n, 3, rule)


@importer("Adam", domain=_TRAINING)
def _adam(n: Node) -> list[Value]:
    alpha, beta, epsilon = n.attr("alpha", 0.9), n.attr("beta", 0.999), n.attr("epsilon", 0.0)
    after = n.attr("norm_coefficient_post", 0.0)

    def rule(
        a: Arithmetic, rate: Value, steps: Value, x: Value, gradient: Value, mean: Value, square: Value
    ) -> Sequence[Value]:
        mean = a.Add(a.Mul(alpha, mean), a.Mul(1 - alpha, gradient))
        square = a.Add(a.Mul(beta, square), a.Mul(1 - beta, a.Mul(gradient, gradient)))
        # Both states start at zero. Later steps correct for this bias; the first step cannot.
        bias = a.Div(a.Sqrt(a.Sub(1, a.Pow(beta, steps))), a.Sub(1, a.Pow(alpha, steps)))
        rate = a.Select(a.Gt(steps, 0), a.Mul(rate, bias), rate)
        x = a.Sub(x, a.Mul(rate, a.Div(mean, a.Add(a.Sqrt(square), epsilon))))
        return a.Mul(1 - after, x) if after else x, mean, square

    return _each(n, 4, rule)


@importer("Momentum", domain=_TRAINING)
def _momentum(n: Node) -> list[Value]:
    alpha, beta, mode = n.attr("alpha"), n.attr("beta"), n.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise Unsupported(f"mode {mode}")

    def rule(
        a: Arithmetic, rate: Value, steps: Value, x: Value, gradient: Value, velocity: Value
    ) -> Sequence[Value]:
        share = a.Mul(a.Select(a.Gt(steps, 0), beta, 1), gradient)
        velocity = a.Add(a.Mul(alpha, velocity), share)
        move = a.Add(gradient, a.Mul(alpha, velocity)) if mode == "nesterov" else velocity
        return a.Sub(x, a.Mul(rate, move)), velocity

    return _each(n, 3, rule)


@importer("Gradient", domain=_TRAINING)
def _gradient(n: Node) -> Value:
    raise Unsupported(
        "derivatives of a part of a graph; export the model with its backward graph, "
        "or train it with torch.compile"
    )

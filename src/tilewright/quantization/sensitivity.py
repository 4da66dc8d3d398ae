"""Mixed precision: which layers need more than 8 bits, under a budget for the loss.

The model is compiled once, with an input that says the precision of each layer. With it, the error that each
layer alone causes is measured. Then layers are raised, the most sensitive first, from 8 to 16 bits and from
there to floating point, as far as the budget demands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dialects import graph
from ..dialects.graph.base import tensor_type
from ..driver.compile import compile
from ..ir.builder import Builder
from ..ir.core import Module, Value
from ..ir.types import TensorType, i32
from ..passes.graph.match import new_constant
from .calibrate import Batch, flat
from .insert import PRECISIONS, Scheme, add_correction, stored_weight
from .observers import Array
from .parameters import Parameters
from .plan import Layer, Plan
from .prepare import main_function
from .report import ratio_of

INPUT = "precision_of_layers"
"""The name of the input that chooses precisions: i32 (layers), a position in `PRECISIONS` for each."""

Metric = Callable[[Callable[..., Any]], float]


class Switched:
    """A model whose layers' precisions are chosen at each run."""

    def __init__(self, module: Module, plan: Plan, scheme: Scheme, threads: int | None = None) -> None:
        self.plan = plan
        mapping: dict[Value, Value] = {}
        changed = module.clone(mapping)
        function = main_function(changed)
        count = len(plan.layers)
        codes = function.body.add_arg(TensorType(i32, (count,)), INPUT)
        function.arg_names = (*function.arg_names, INPUT)
        if function.nested:
            inputs, outputs = function.nested
            function.nested = ((*inputs, (INPUT, len(function.inputs) - 1)), outputs)
        for k, layer in enumerate(plan.layers):
            op: Any = mapping[layer.op.result].defining_op
            b = Builder.before(op)
            code = b(graph.Reshape(b(graph.Slice(codes, starts=(k,), stops=(k + 1,), steps=(1,))), shape=()))
            below = [b(graph.Eq(code, new_constant(b, np.array(p, np.int32)))) for p in range(2)]
            x, w = op.operands[0], op.operands[1]
            group = plan.group_of[layer.x]
            for is_this, precision in zip(below, PRECISIONS, strict=False):
                rounded = _rounded(b, op.operands[0], scheme.parameters[group, precision])
                x = b(graph.Select(is_this, rounded, x))
            is_float = b(graph.Eq(code, new_constant(b, np.array(2, np.int32))))
            op.set_operand(0, x)
            op.set_operand(1, b(graph.Select(is_float, w, stored_weight(b, layer, scheme.weights))))
            if (correction := scheme.corrections.get(layer)) is not None:
                add_correction(op, correction, unless=is_float)
        self.library = compile(changed, threads=threads, cache=False)

    def model(self, codes: Sequence[int]) -> Callable[..., Any]:
        """The model with these precisions, called like a compiled model."""
        array = np.array(codes, np.int32)

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.library(*args, **kwargs, **{INPUT: array})

        return run

    def outputs(self, codes: Sequence[int], batches: Sequence[Batch]) -> list[Array]:
        """The outputs on batches with these precisions."""
        model = self.model(codes)
        return [y for batch in batches for y in flat(model(*batch.args, **batch.kwargs))]

    def sensitivities(self, batches: Sequence[Batch]) -> dict[Layer, float]:
        """The signal-to-noise ratio of the outputs, in decibels, with each layer alone in 8 bits."""
        count = len(self.plan.layers)
        expected = self.outputs([2] * count, batches)
        found = {}
        for k, layer in enumerate(self.plan.layers):
            codes = [0 if j == k else 2 for j in range(count)]
            found[layer] = ratio_of(expected, self.outputs(codes, batches))
        return found

    def choose(
        self,
        sensitivities: dict[Layer, float],
        precisions: Sequence[str],
        is_enough: Callable[[Sequence[int]], bool],
    ) -> list[int]:
        """The precisions of the layers, as few raised as `is_enough` demands, by bisection: layers are raised
        from the first of `precisions` to the second in the order of their sensitivity, then to the third.
        """
        order = sorted(range(len(self.plan.layers)), key=lambda k: sensitivities[self.plan.layers[k]])
        levels = [PRECISIONS.index(p) for p in precisions]

        def codes_after(steps: int) -> list[int]:
            codes = [levels[0]] * len(order)
            for k in range(steps):
                codes[order[k % len(order)]] = levels[1 + k // len(order)]
            return codes

        low, high = 0, len(order) * (len(levels) - 1)
        while low < high:
            middle = (low + high) // 2
            if is_enough(codes_after(middle)):
                high = middle
            else:
                low = middle + 1
        return codes_after(low)

    def close(self) -> None:
        self.library.close()


def _rounded(b: Builder, x: Value, p: Parameters) -> Value:
    constants = [new_constant(b, p.scale)]
    if p.zero:
        constants.append(new_constant(b, np.array(p.zero, p.dtype.numpy)))
    value: Value = b(graph.Dequantize(b(graph.Quantize(x, *constants, dtype=p.dtype)), *constants))
    assert tensor_type(value).dtype is tensor_type(x).dtype
    return value


__all__ = ["INPUT", "Metric", "Switched"]

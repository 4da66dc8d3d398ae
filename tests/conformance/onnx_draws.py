"""The ONNX suite's cases with random numbers. Their expected results are one draw of NumPy's generator, which
other generators cannot repeat, so distributions are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DRAWN = "drawn: of the right type, shape and distribution; the suite's own draw cannot be repeated"

SIGMAS = 5
"""How many standard deviations a frequency may be off its expectation."""


def draws(model: Any) -> bool:
    """Whether a model draws random numbers."""
    return bool({n.op_type for n in model.graph.node} & {"Bernoulli", "RandomUniformLike", "Dropout"})


def distribution(model: Any, inputs: list[Any], found: list[Any]) -> str:
    """A description of the error in an operator's random results, or "" if their distribution is right."""
    y = np.asarray(found[0], np.float64)
    x = np.asarray(inputs[0], np.float64)
    if any(n.op_type == "Dropout" for n in model.graph.node):
        stay = 1 - float(inputs[1]) if len(inputs) > 1 else 0.5
        kept = np.isclose(y, x / stay, rtol=1e-6)
        if not np.all(kept | (y == 0)):
            return "dropout gives other values than zero and x / (1 - ratio)"
        if len(found) > 1 and np.any(np.asarray(found[1]) != kept):
            return "dropout's mask is not of its result"
        return _share(kept, np.full(x.shape, stay))
    if not np.all((y == 0) | (y == 1)):
        return "bernoulli gives other values than 0 and 1"
    return _share(y, x)


def _share(hits: Any, chances: Any) -> str:
    deviation = np.sqrt(np.sum(chances * (1 - chances)))
    off = abs(np.sum(hits) - np.sum(chances)) / deviation
    return "" if off <= SIGMAS else f"{off:.1f} standard deviations off the expectation"


__all__ = ["DRAWN", "distribution", "draws"]

"""The graph dialect: what a model means, as operators on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import (
    attention,
    checks,
    contract,
    control_flow,
    conv,
    conv_weight,
    ctc,
    derivative_marks,
    elementwise,
    index,
    linalg,
    linear_quantization,
    norm,
    pool,
    quantized,
    random,
    reduce,
    scan,
    shape,
    winograd,
)
from .base import GraphOp

_modules = (
    elementwise,
    shape,
    index,
    reduce,
    contract,
    conv,
    conv_weight,
    ctc,
    pool,
    norm,
    attention,
    scan,
    control_flow,
    derivative_marks,
    checks,
    random,
    linalg,
    quantized,
    linear_quantization,
    winograd,
)
OPERATORS: dict[str, type[GraphOp]] = {
    value.__name__: value
    for module in _modules
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, GraphOp) and value.name.startswith("graph.")
}
"""All operator classes of the graph dialect by class name."""

globals().update(OPERATORS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = ["OPERATORS", "GraphOp", *OPERATORS]

"""What an artifact's metadata says of a model's tensors: their names, data types and shapes, and how symbols follow from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.shape_solver import Define, ShapeSolver
from ..ir.symbolic import Dim, bounds, free_symbols
from ..ir.types import BufferType, TensorType

Tensors = Sequence[tuple[str, TensorType | BufferType]]


def interface(inputs: Tensors, outputs: Tensors) -> dict[str, Any]:
    """Plain data, for JSON: ``inputs`` and ``outputs`` (name, dtype, shape; ``late``: sizes known after a run only), ``symbols`` (bounds by name), ``solver`` (the steps that
    `runtime.expressions.solve_symbols` takes). Sizes that are no numbers are formulas in text.
    """
    dims = [d for _, type_ in (*inputs, *outputs) for d in type_.shape]
    solver = ShapeSolver([(name, type_.shape) for name, type_ in inputs])

    def described(name: str, type_: TensorType | BufferType) -> dict[str, Any]:
        late = any(s not in solver.symbols for d in type_.shape for s in free_symbols(d))
        shape = [_text(d) for d in type_.shape]
        return {"name": name, "dtype": type_.dtype.label, "shape": shape, **({"late": True} if late else {})}

    return {
        "inputs": [described(*tensor) for tensor in inputs],
        "outputs": [described(*tensor) for tensor in outputs],
        "symbols": {s.name: list(bounds(s)) for d in dims for s in sorted(free_symbols(d), key=str)},
        "solver": [_step(step) for step in solver.steps],
    }


def _step(step: Any) -> dict[str, Any]:
    where: dict[str, Any] = {"input": step.input, "dim": step.dim}
    if not isinstance(step, Define):
        return {**where, "expr": _text(step.expr)}
    lower, upper = bounds(step.symbol)
    return {
        **where,
        "symbol": step.symbol.name,
        "coefficient": _text(step.coefficient),
        "offset": _text(step.offset),
        "lower": lower,
        "upper": upper,
    }


def _text(d: Dim) -> int | str:
    return d if isinstance(d, int) else str(d)


__all__ = ["interface"]

"""The option ``precision``: the data type of contractions' operands, and the error that it causes against
float32.

`operand_type` reads the option; `output_error` compares a library with one compiled in float32 on sample
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CompileError

if TYPE_CHECKING:
    from ..ir.types import DType
    from ..runtime.model import CompiledModel
    from ..targets.base import Target

FUTURE = ("int8", "int4")
"""Precisions that are not available yet: they need calibration or quantized weights."""


def operand_type(precision: str | None, target: Target) -> DType | None:
    """The 16-bit type of contractions' operands for the option `precision`; None for the model's own types,
    also where instructions round them.

    Raises:
        CompileError: There is no such precision, or the target has no instructions for it.
    """
    from ..ir.types import DType

    if precision is None or precision in target.roundings:
        return None
    if precision in FUTURE:
        raise CompileError(
            f"precision={precision!r} is not available yet; known: None (the model's own), 'bf16', 'f16'"
        )
    if precision not in ("bf16", "f16", "tf32"):
        raise CompileError(
            f"unknown precision {precision!r}; known: None (the model's own), 'bf16', 'f16', 'tf32'"
        )
    if precision not in target.precisions:
        known = ", ".join(map(repr, (*target.precisions, *target.roundings))) or "none but the model's own"
        raise CompileError(f"target {target.name!r} does not compute in {precision}; it has: {known}")
    return DType.named(precision)


def rounding_target(precision: str | None, target: Target) -> Target:
    """The target that the option `precision` asks for: `target`, or one whose instructions round factors."""
    return target.rounding(precision) if precision in target.roundings else target


@dataclass(frozen=True)
class OutputError:
    """The difference of the floating-point outputs from float32's on `samples` sets of random inputs.

    `largest`: the largest absolute difference over the largest magnitude of its output. `mean`: the root mean
    square of the differences over that of the output. Both are of the worst output.
    """

    largest: float
    mean: float
    samples: int

    def __str__(self) -> str:
        return (
            f"output error against float32: at most {self.largest:.2g} of an output's largest value, "
            f"{self.mean:.2g} in root mean squares ({self.samples} random inputs)"
        )


def output_error(library: CompiledModel, reference: CompiledModel, count: int = 2) -> OutputError:
    """Run both libraries on `count` sets of random inputs, of different sizes where the model has dynamic
    dimensions.
    """
    import numpy as np

    from .random_inputs import random_inputs, sample_sizes

    largest = mean = 0.0
    samples = 0
    for seed, sizes in enumerate(sample_sizes(library.metadata, count)):
        inputs = random_inputs(library.metadata, sizes, seed)
        results = [
            y if isinstance(y, tuple) else (y,)
            for y in (library(*inputs.values()), reference(*inputs.values()))
        ]
        samples += 1
        for actual, expected in zip(*results, strict=True):
            if expected.dtype.kind in "iub" or not expected.size:
                continue
            e = expected.astype(np.float64)
            finite = np.isfinite(e)
            with np.errstate(invalid="ignore"):
                difference = np.where(finite, np.abs(actual.astype(np.float64) - e), 0.0)
            e = np.where(finite, e, 0.0)
            scale, power = float(np.abs(e).max()), float(np.sqrt(np.mean(e * e)))
            largest = max(largest, float(difference.max()) / (scale or 1.0))
            mean = max(mean, float(np.sqrt(np.mean(difference * difference))) / (power or 1.0))
    return OutputError(largest, mean, samples)


Measure = Callable[[], OutputError | None]

__all__ = ["FUTURE", "Measure", "OutputError", "operand_type", "output_error", "rounding_target"]

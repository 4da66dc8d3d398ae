"""The report of a quantization: the error of each layer, what stays in floating point, accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .observers import Array
from .plan import Skipped


@dataclass(frozen=True)
class LayerReport:
    """One layer of a quantized model.

    Attributes:
        name: The operator's name in the model.
        kind: The operator.
        precision: ``int8``, ``int16`` or ``float``.
        low: The least number that the stored input can be; 0 where the layer stays in floating point.
        high: The greatest.
        sqnr: The ratio of the result's power to that of its error against the float model, in decibels,
            with the errors of all layers before it.
        largest: The largest error of the result.
        sensitivity: The ratio for the model's outputs with this layer alone in 8 bits, in decibels; None if
            it was not measured.
    """

    name: str
    kind: str
    precision: str
    low: float
    high: float
    sqnr: float
    largest: float
    sensitivity: float | None = None


@dataclass
class QuantizationReport:
    """The outcome of `tilewright.quantize`.

    Attributes:
        layers: The layers, in the order of the model.
        skipped: Products that stay in floating point, with the reason.
        output_sqnr: The ratio of the outputs' power to that of their error, in decibels.
        before: The metric of the float model; None without a metric.
        after: The metric of the quantized model.
    """

    layers: list[LayerReport] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    output_sqnr: float = math.inf
    before: float | None = None
    after: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types; a ratio without error is None."""
        return {
            "layers": [
                {k: None if v == math.inf else v for k, v in asdict(layer).items()} for layer in self.layers
            ],
            "skipped": [asdict(s) for s in self.skipped],
            "output_sqnr": None if self.output_sqnr == math.inf else self.output_sqnr,
            "metric": {"before": self.before, "after": self.after},
        }

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=5)
        lines = [f"{'layer':<{width}}  {'operator':<8}  {'type':<5}  {'SQNR dB':>7}  {'largest error':>13}"]
        for x in self.layers:
            ratio = "exact" if x.sqnr == math.inf else f"{x.sqnr:.1f}"
            lines.append(f"{x.name:<{width}}  {x.kind:<8}  {x.precision:<5}  {ratio:>7}  {x.largest:>13.3g}")
        lines += [f"in floating point: {s}" for s in self.skipped]
        counts = {p: sum(x.precision == p for x in self.layers) for p in ("int8", "int16", "float")}
        lines.append(", ".join(f"{n} layers in {p}" for p, n in counts.items() if n))
        lines.append(f"outputs: SQNR {self.output_sqnr:.1f} dB")
        if self.before is not None and self.after is not None:
            lines.append(f"metric: {self.before:.6g} before, {self.after:.6g} after")
        return "\n".join(lines)


class Ratio:
    """Sums for a ratio of signal to error over several tensors."""

    def __init__(self) -> None:
        self.signal = self.error = self.largest = 0.0

    def add(self, expected: Array, actual: Array) -> None:
        """Take a tensor and its approximation into account; integers are not compared."""
        if expected.dtype.kind in "iub" or not expected.size:
            return
        e, a = expected.astype("float64"), actual.astype("float64")
        difference = a - e
        self.signal += float((e * e).sum())
        self.error += float((difference * difference).sum())
        self.largest = max(self.largest, float(abs(difference).max()))

    @property
    def decibels(self) -> float:
        """10 times the decimal logarithm of the ratio; infinite without error."""
        if not self.error:
            return math.inf
        return 10 * math.log10(max(self.signal, 1e-300) / self.error)


def ratio_of(expected: Sequence[Array], actual: Sequence[Array]) -> float:
    """The ratio in decibels over all tensors of two lists."""
    total = Ratio()
    for e, a in zip(expected, actual, strict=True):
        total.add(e, a)
    return total.decibels


__all__ = ["LayerReport", "QuantizationReport", "Ratio", "ratio_of"]

"""`Inspection`: the values inside of a run, by the names that they have in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["InspectedValue", "Inspection"]


@dataclass(frozen=True)
class InspectedValue:
    """A value inside of a run, with statistics of its finite elements."""

    name: str
    """The path in the model, and the operator: ``layers.3.attention/softmax``."""
    place: str
    """The path with the line of the user's program that made the value, where it is known."""
    operator: str
    """The operator that computes it."""
    array: np.ndarray[Any, Any]
    """The elements."""

    @cached_property
    def _finite(self) -> np.ndarray[Any, Any]:
        elements = self.array.astype(np.float64).ravel()
        return elements[np.isfinite(elements)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.array.dtype

    @cached_property
    def nans(self) -> int:
        """The number of elements that are no numbers."""
        return int(np.isnan(self.array.astype(np.float64)).sum())

    @cached_property
    def infinities(self) -> int:
        """The number of infinite elements."""
        return int(np.isinf(self.array.astype(np.float64)).sum())

    @property
    def minimum(self) -> float:
        """The least finite element; NaN if there is none."""
        return float(self._finite.min()) if self._finite.size else float("nan")

    @property
    def maximum(self) -> float:
        """The largest finite element; NaN if there is none."""
        return float(self._finite.max()) if self._finite.size else float("nan")

    @property
    def mean(self) -> float:
        """The mean of the finite elements; NaN if there is none."""
        return float(self._finite.mean()) if self._finite.size else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation of the finite elements; NaN if there is none."""
        return float(self._finite.std()) if self._finite.size else float("nan")

    def histogram(self, bins: int = 20) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Count the finite elements in intervals of equal width.

        Args:
            bins: The number of intervals.

        Returns:
            The counts (bins) as int64, and the limits (bins + 1) of the intervals as float64.
        """
        counts, edges = np.histogram(self._finite, bins)
        return counts, edges


class Inspection(Mapping[str, InspectedValue]):
    """The inspected values of one run by the name that was asked for.

    Args:
        values: The values.
        names: The names of all values that the run could show, in the order of computation.
        first_nonfinite: The first value with a NaN or an infinity in that order, or None.
        sources: The operands of the operator that computes `first_nonfinite`; all their elements are finite,
            unless they are inputs or weights.
    """

    def __init__(
        self,
        values: Mapping[str, InspectedValue],
        names: list[str],
        first_nonfinite: InspectedValue | None,
        sources: list[InspectedValue],
    ) -> None:
        self._values = dict(values)
        self.names = names
        self.first_nonfinite = first_nonfinite
        self.sources = sources

    def __getitem__(self, name: str) -> InspectedValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def value(self) -> InspectedValue:
        """The only value that was asked for.

        Raises:
            ValueError: Several were, or none.
        """
        if len(self) != 1:
            raise ValueError(f"the inspection has {len(self)} values: choose one by name")
        return next(iter(self._values.values()))

    def text(self) -> str:
        """Return a table of the values in plain text, and where the first NaN or infinity comes from."""
        rows = [tuple("name shape dtype minimum maximum mean std NaN infinite".split())]
        for name, x in self.items():
            figures = (f"{v:.4g}" for v in (x.minimum, x.maximum, x.mean, x.std))
            rows.append((name, str(list(x.shape)), str(x.dtype), *figures, str(x.nans), str(x.infinities)))
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines = lines if len(rows) > 1 else []
        if self.first_nonfinite is None:
            return "\n".join([*lines, "all values are finite"])
        x = self.first_nonfinite
        lines.append(
            f"the first NaN or infinity: {x.operator} at {x.place}, {x.nans} NaN, {x.infinities} infinite"
        )
        for source in self.sources:
            lines.append(
                f"  from {source.operator} at {source.place}: {source.minimum:.4g} to {source.maximum:.4g}, "
                f"{source.nans} NaN, {source.infinities} infinite"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()

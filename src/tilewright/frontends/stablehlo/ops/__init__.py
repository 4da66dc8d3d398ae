"""What each operator of StableHLO and CHLO means in graph operators, in files by theme."""

from __future__ import annotations

from . import contract, control_flow, elementwise, index, reduce, shape, sort, special, window  # noqa: F401  (each registers its importers)
from .table import IMPORTERS, SCALAR, Unsupported

__all__ = ["IMPORTERS", "SCALAR", "Unsupported"]

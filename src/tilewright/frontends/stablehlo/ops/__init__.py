"""What each operator of StableHLO and CHLO means in graph operators, in files by theme."""

from __future__ import annotations

from . import (  # noqa: F401  (each registers its importers)
    broadcast,
    contract,
    control_flow,
    devices,
    elementwise,
    fourier,
    index,
    linear_algebra,
    norm,
    random,
    reduce,
    shape,
    sort,
    special,
    window,
)
from .table import COMPLEX, IMPORTERS, SCALAR, Unsupported

__all__ = ["COMPLEX", "IMPORTERS", "SCALAR", "Unsupported"]

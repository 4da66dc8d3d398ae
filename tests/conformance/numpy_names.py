"""Lists which of NumPy's functions take `tw.Tensor`: ``python -m tests.conformance.numpy_names`` writes
numpy_names.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import overrides

import tilewright as tw

DATA = Path(__file__).with_suffix(".json")


def outcome() -> dict[str, Any]:
    """How many of NumPy's overridable functions `tw.Tensor` implements, and the names of the others."""
    functions = {
        f"linalg.{f.__name__}" if f.__module__ == "numpy.linalg" else f.__name__: f
        for f in (
            *overrides.get_overridable_numpy_array_functions(),
            *overrides.get_overridable_numpy_ufuncs(),
        )
        if f is getattr(np, f.__name__, None) or f is getattr(np.linalg, f.__name__, None)
    }
    lacks = sorted(name for name, f in functions.items() if not tw.Tensor.implements(f))
    return {"numpy": np.__version__, "has": len(functions) - len(lacks), "lacks": lacks}


if __name__ == "__main__":
    DATA.write_text(json.dumps(outcome(), indent=1) + "\n")

"""Tilewright: a machine-learning compiler. Models in, small native artifacts that run without Python out.

    import tilewright as tw
    lib = tw.compile(model, args, target="cpu")
    out = lib(x)
    lib.save("model.so"); lib = tw.load("model.so")

Everything here is imported at its first use, so that `import tilewright` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright import nn, numpy
    from tilewright.compiler import compile, load
    from tilewright.errors import ArtifactError, CompileError, ShapeError, TilewrightError, UnsupportedOperatorError
    from tilewright.frontends.trace import State, Tensor, TraceError, cond, scan, tensor, where, while_loop
    from tilewright.just_in_time import jit
    from tilewright.reduction import reduce

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CompileError",
    "ShapeError",
    "State",
    "Tensor",
    "TilewrightError",
    "TraceError",
    "UnsupportedOperatorError",
    "__version__",
    "compile",
    "cond",
    "jit",
    "load",
    "nn",
    "numpy",
    "reduce",
    "scan",
    "tensor",
    "where",
    "while_loop",
]

_HOME = {
    "compile": "tilewright.compiler",
    "load": "tilewright.compiler",
    "ArtifactError": "tilewright.errors",
    "CompileError": "tilewright.errors",
    "ShapeError": "tilewright.errors",
    "TilewrightError": "tilewright.errors",
    "UnsupportedOperatorError": "tilewright.errors",
    "jit": "tilewright.just_in_time",
    "reduce": "tilewright.reduction",
    **dict.fromkeys(
        ("State", "Tensor", "TraceError", "cond", "scan", "tensor", "where", "while_loop"), "tilewright.frontends.trace"
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name in ("nn", "numpy"):
        return importlib.import_module(f"tilewright.{name}")
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

"""The StableHLO front end: it translates a result of ``jax.export``, or a file of StableHLO, to a module of
graph operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.core import Module
from ..dims import DimsArgument

if TYPE_CHECKING:
    from pathlib import Path

    import jax

__all__ = ["import_stablehlo"]


def import_stablehlo(model: str | Path | jax.export.Exported, dims: DimsArgument | None = None) -> Module:
    """Translate a StableHLO program to a module with one function ``main`` of graph operators.

    `model` is a ``jax.export.Exported``, or the path of an ``.mlir`` file: text or a portable artifact (MLIR
    bytecode) whose public function ``main`` is the model. Inputs are flat, in the order of JAX's tree, and
    have the names of the exported function's arguments (``params['w']`` becomes ``params_w``). Symbolic
    dimensions keep the names they were exported with; `dims` gives them bounds: ``{"x": {0: "batch<=8"}}``.
    Dimensions in a file have no names; one without an entry in `dims` is called ``<input>_<axis>``.

    Raises:
        CompileError: jaxlib is not installed, the model is not StableHLO, or `dims` do not fit.
        UnsupportedOperatorError: the program has operations that cannot be translated; it lists all of them
            with their places.
    """
    from .importer import Importer
    from .reading import read

    return Importer(read(model, dims)).run()

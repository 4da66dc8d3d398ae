"""The StableHLO front end: what ``jax.export`` makes, or a file of StableHLO, in; a module of ``graph.*`` operators out."""

from __future__ import annotations

from typing import Any

from ...ir.core import Module
from ..dims import DimsArgument

__all__ = ["import_stablehlo"]


def import_stablehlo(model: Any, dims: DimsArgument | None = None) -> Module:
    """The graph-level module of a StableHLO program.

    `model` is a ``jax.export.Exported``, or the path of an ``.mlir`` file: text or a portable artifact (MLIR bytecode), whose public function
    ``main`` is the model. Inputs are flat, in the order of JAX's tree, and called as the exported function calls its arguments
    (``params['w']`` becomes ``params_w``). Symbolic dimensions keep the names they were exported with; `dims` gives them bounds:
    ``{"x": {0: "batch<=8"}}``. In a file dimensions have no names, and one that `dims` does not name is called ``<input>_<axis>``.

    Raises:
        CompileError: jaxlib is not installed; not StableHLO; `dims` do not fit.
        UnsupportedOperatorError: lists every operator that cannot be imported, with its places.
    """
    from .importer import Importer
    from .reading import read

    return Importer(read(model, dims)).run()

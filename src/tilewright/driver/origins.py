"""The compilations that a library comes from, for tools that look at its kernels again."""

from __future__ import annotations

from ..errors import CompileError
from ..runtime.model import CompiledModel
from .cached_library import CompiledLater
from .compile import Compilation
from .mixed import MixedModel


def compiled_here(library: CompiledModel) -> list[Compilation]:
    """The compilations that made a library, one for each compiled part of its model. A model from the cache
    is compiled for it.

    Raises:
        CompileError: The library was loaded from a file.
    """
    if isinstance(library, MixedModel):
        return [origin for part in library.libraries for origin in compiled_here(part)]
    origin = library.origin
    if isinstance(origin, CompiledLater):
        origin = origin.compiled().origin
    if origin is None:
        raise CompileError("a library loaded from a file holds no IR: give what tilewright.compile returned")
    found: Compilation = origin
    return [found]


__all__ = ["compiled_here"]

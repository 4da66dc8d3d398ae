"""`LibraryPages`: the pages of a library's KV cache as bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArtifactError
from ..runtime.device_library import is_for_device
from ..runtime.library import Library

if TYPE_CHECKING:
    from ..runtime.model import CompiledModel


class LibraryPages:
    """Reads and writes pages in the memory of a library of the CPU, over all layers.

    Args:
        library: The library.
        pages: Its number of pages.
    """

    def __init__(self, library: Library, pages: int) -> None:
        self._library = library
        states = library.metadata.get("states", ())
        self._names = [e["name"] for e in states if e["name"].startswith("layer") and e["shape"][0] == pages]

    @property
    def size(self) -> int:
        """Bytes of a page."""
        return sum(self._library.state.view(name)[0].nbytes for name in self._names)

    @staticmethod
    def of(library: CompiledModel, pages: int) -> LibraryPages | None:
        """The pages of a library; None if its memory is not the process's own."""
        if not isinstance(library, Library) or is_for_device(library.metadata):
            return None
        return LibraryPages(library, pages)

    def identity(self) -> bytes:
        """A hash of the library's code, settings and weights.

        Raises:
            ArtifactError: It was not saved with its weights beside it, or its file cannot be read.
        """
        weights = self._library.metadata.get("weights")
        if weights is None:
            raise ArtifactError(
                "a library must be saved with its weights beside it, and loaded again, for its pages to be "
                "stored: use save_library and open_library"
            )
        try:
            code = Path(self._library.path).read_bytes()
        except OSError as error:
            raise ArtifactError(f"{self._library.path}: cannot be read: {error.strerror or error}") from error
        return hashlib.sha256(hashlib.sha256(code).digest() + json.dumps(weights).encode()).digest()

    def read(self, page: int) -> bytes:
        """The content of a page."""
        return b"".join(self._library.state.view(name)[page].tobytes() for name in self._names)

    def write(self, page: int, content: bytes) -> None:
        """Replace the content of a page."""
        at = 0
        for name in self._names:
            row = self._library.state.view(name)[page]
            row[...] = np.frombuffer(content, row.dtype, row.size, at).reshape(row.shape)
            at += row.nbytes


__all__ = ["LibraryPages"]

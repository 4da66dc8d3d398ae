"""`library_bytes`: the memory of a loaded library, from its files."""

from __future__ import annotations

from math import prod
from pathlib import Path

from ..artifact.trailer import read_metadata
from ..artifact.weights import find_beside
from ..errors import ArtifactError
from ..ir.types import DType


def library_bytes(path: str | Path) -> int:
    """Bytes of a library's code and weights and of the states that it keeps, such as its KV cache. Its
    working memory, which the lengths of calls decide, is not part of it.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    path = Path(path)
    try:
        metadata = read_metadata(path) or {}
        files = [path, *filter(None, [find_beside(path, metadata)])]
        size = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error
    states = metadata.get("states", ())
    return size + sum(prod(e["shape"]) * DType.named(e["dtype"]).numpy.itemsize for e in states)


__all__ = ["library_bytes"]

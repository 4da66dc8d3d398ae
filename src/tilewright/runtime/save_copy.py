"""Saving a library that came from a file: copying the file, or compiling the model again where a copy does
not do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.artifact.files import copy_whole
from tilewright.artifact.kinds import UNLINKED, check_suffix, suffix_of
from tilewright.artifact.package import write_headers
from tilewright.artifact.sources import PREFIX
from tilewright.artifact.trailer import Fingerprint, unchanged
from tilewright.artifact.weights import SUFFIX
from tilewright.errors import ArtifactError
from tilewright.runtime.model import goes_beside


@dataclass(frozen=True)
class Saved:
    """The file of a loaded artifact, for saving it again: its fingerprint when it was loaded, the file of its
    weights (None: inside), and the suffixes that its target allows.
    """

    path: Path
    known: Fingerprint
    weights: Path | None
    suffixes: Sequence[str]
    target: str
    metadata: Mapping[str, Any]

    def copy_to(self, path: Path, weights: str | None, prefix: str | None, origin: object) -> Path:
        """Copy the artifact, with the C header beside it.

        A model from the cache has an `origin` with ``compiled()``, which compiles it for what a copy cannot
        be: another kind of file, place of the weights, or prefix.

        Raises:
            ArtifactError: The suffix is that of another kind of artifact; the file has been replaced or
                removed; or its weights or prefix differ from what is asked for.
        """
        check_suffix(path, self.suffixes, self.target)
        problem = ""
        if suffix_of(path) != suffix_of(self.path) and suffix_of(path) in UNLINKED:
            what = UNLINKED[suffix_of(path)]
            problem = f"{self.path} is a linked library: to save {what}"
        elif weights is not None and goes_beside(path, weights) != (self.weights is not None):
            where = "inside" if self.weights is None else "beside"
            problem = f"the weights of {self.path} are {where} it: to save them elsewhere"
        elif prefix is not None and prefix != self.metadata.get("prefix"):
            present = self.metadata.get("prefix", PREFIX)
            problem = f"the functions of {self.path} have the prefix '{present}': to save another"
        elif not unchanged(self.path, self.known):
            problem = (
                f"{self.path}, from which this library was loaded, has been replaced or removed: to save it"
            )
        if problem and hasattr(origin, "compiled"):  # the model came from the cache
            saved: Path = origin.compiled().save(path, weights=weights, prefix=prefix)
            return saved
        if problem:
            raise ArtifactError(f"{path}: {problem}, compile the model again")
        if self.weights is not None:
            copy_whole(self.weights, path.with_suffix(SUFFIX))
        copy_whole(self.path, path)
        write_headers(path, self.metadata)
        return path


__all__ = ["Saved"]

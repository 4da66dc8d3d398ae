"""Source locations: where in the user's model an operation came from, carried from the front end to errors
and profiles.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """`name` is the node or module path (``encoder.layer.3/MatMul``); `file` and `line` are the source line
    that created the operation.

    `fused` lists the further locations of operations that were merged into this one. `operators` are the
    positions, in the optimized graph, of the operators that an operation below the graph level computes
    (`number_operators`); texts of the IR leave them out.
    """

    name: str = ""
    file: str = ""
    line: int = 0
    fused: tuple[Location, ...] = ()
    operators: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else ""
        return f"{self.name} ({where})" if self.name and where else self.name or where or "unknown place"

    @property
    def portable(self) -> Location:
        """The location without this machine's folders, as artifacts store it: ``torch/nn/modules/linear.py``,
        or the file's name alone.
        """
        fused = tuple(part.portable for part in self.fused)
        return Location(self.name, _portable(self.file), self.line, fused, self.operators)


_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def _portable(file: str) -> str:
    """A file's path relative to the folder on Python's search path that contains it; its name alone if none
    does.
    """
    if not os.path.isabs(file):
        return file
    inside = _PACKAGES.sub("", file)  # of whichever machine: exported programs tell where they were traced
    if inside == file:
        roots = [root for root in sys.path if len(root) > 1 and file.startswith(root.rstrip(os.sep) + os.sep)]
        inside = os.path.relpath(file, max(roots, key=len)) if roots else os.path.basename(file)
    return inside.replace(os.sep, "/")


UNKNOWN = Location()


def fuse_locations(*locations: Location) -> Location:
    """One location for several: the first known one, with the others in `fused`."""
    known: dict[Location, None] = {}
    for location in locations:
        for part in (location, *location.fused):
            plain = Location(part.name, part.file, part.line)
            if plain != UNKNOWN:
                known[plain] = None
    if not known:
        return UNKNOWN
    first, *rest = known
    return Location(first.name, first.file, first.line, tuple(rest[:7]))

"""Source locations: where in the user's model an operation came from, carried from the front end to errors and profiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """`name` is the node or module path (``encoder.layer.3/MatMul``); `file` and `line` are the stack line that made it.

    `fused` lists further places that were merged into the operation.
    """

    name: str = ""
    file: str = ""
    line: int = 0
    fused: tuple[Location, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else ""
        return f"{self.name} ({where})" if self.name and where else self.name or where or "unknown place"


UNKNOWN = Location()


def fuse_locations(*locations: Location) -> Location:
    """One location standing for all given: the first known one, with the others behind it."""
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

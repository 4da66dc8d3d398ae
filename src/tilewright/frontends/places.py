"""Where in a user's code an exception was raised."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from pathlib import Path

_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_OWN = Path(__file__).parents[1]
_SIZES = _OWN / "ir" / "symbolic.py"
"""Operators of sizes: whoever uses them calls Python's operators, not this package."""


def users_line(error: BaseException, libraries: str = "", innermost: bool = False) -> str | None:
    """The innermost line of a traceback that belongs to a user, as ``file:line: source``: not to this package, Python's library, or the installed packages that the
    regular expression `libraries` names. None where there is none, or, if `innermost`, where this package was called from there on."""
    found = None
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if Path(file) == _SIZES:
            pass
        elif Path(file).is_relative_to(_OWN):
            found = None if innermost else found
        elif os.path.isfile(file) and not _is_library(file, libraries):
            found = file, at.tb_lineno
        at = at.tb_next
    if found is None:
        return None
    source = linecache.getline(*found).strip()
    return f"{found[0]}:{found[1]}" + (f": {source}" if source else "")


def _is_library(file: str, libraries: str) -> bool:
    package = re.search(r"(site|dist)-packages[/\\]([^/\\]+)", file)
    if package is not None:
        return re.fullmatch(libraries, package[2]) is not None
    return Path(file).is_relative_to(_STANDARD)


__all__ = ["users_line"]

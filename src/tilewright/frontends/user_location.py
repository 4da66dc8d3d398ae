"""The place in the user's code where an exception was raised."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from pathlib import Path

_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_OWN = Path(__file__).parents[1]
_SIZES = _OWN / "ir" / "symbolic.py"
"""The operators of symbolic sizes. A user calls them as Python's operators, so their frames are skipped."""


def users_line(error: BaseException, libraries: str = "", innermost: bool = False) -> str | None:
    """Return the innermost line of a traceback that belongs to the user, as ``file:line: source``.

    Lines of this package, Python's library, and the installed packages whose names match the regular
    expression `libraries` are no user's. If `innermost`, the line must not be one from which this package was
    called. Returns None if there is no such line.
    """
    line = None
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if Path(file) == _SIZES:
            pass
        elif Path(file).is_relative_to(_OWN):
            line = None if innermost else line
        elif os.path.isfile(file) and not _is_library(file, libraries):
            line = file, at.tb_lineno
        at = at.tb_next
    if line is None:
        return None
    source = linecache.getline(*line).strip()
    return f"{line[0]}:{line[1]}" + (f": {source}" if source else "")


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = re.compile(r"[/\\]torch[/\\](nn|_|fx|functional|utils)")


def last_user_frame(stack: str) -> tuple[str, int]:
    """Return the file and line of the last call in a stack that PyTorch keeps as text, outside of torch if
    there is one; ``("", 0)`` without a call.
    """
    frames = _FRAME.findall(stack)
    frames = [frame for frame in frames if not _TORCH.search(frame[0])] or frames
    return (frames[-1][0], int(frames[-1][1])) if frames else ("", 0)


def _is_library(file: str, libraries: str) -> bool:
    package = re.search(r"(site|dist)-packages[/\\]([^/\\]+)", file)
    if package is not None:
        return re.fullmatch(libraries, package[2]) is not None
    return Path(file).is_relative_to(_STANDARD)


__all__ = ["last_user_frame", "users_line"]

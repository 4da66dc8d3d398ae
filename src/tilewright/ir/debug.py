"""The environment variable TILEWRIGHT_DEBUG: settings for work on the compiler.

Its value is a list separated by commas: ``TILEWRIGHT_DEBUG=check,dump=/tmp/passes``. See `DebugSettings`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import CompileError

VARIABLE = "TILEWRIGHT_DEBUG"
STRICT_SCHEDULES = "strict-schedules"


@dataclass(frozen=True)
class DebugSettings:
    """The settings; each is off unless the variable names it."""

    check: bool = False
    """``check``: as the option ``check=True`` of `tilewright.compile`, for every compilation."""
    dump: Path | None = None
    """``dump=FOLDER``: as the option ``dump`` of `tilewright.compile`, for every compilation."""
    strict_schedules: bool = False
    """``strict-schedules``: a kernel that its kind's schedule does not fit is an error; it takes no slower
    form.
    """
    traceback: bool = False
    """``traceback``: the command line prints the traceback of an error."""


def debug_settings() -> DebugSettings:
    """The settings in the environment now.

    Raises:
        CompileError: an unknown setting; the message lists the known ones.
    """
    return _parse(os.environ.get(VARIABLE, ""))


@functools.cache
def _parse(text: str) -> DebugSettings:
    flags: dict[str, bool] = {}
    dump = None
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        if name == "dump" and value:
            dump = Path(value)
        elif part in ("check", STRICT_SCHEDULES, "traceback"):
            flags[part.replace("-", "_")] = True
        else:
            raise CompileError(
                f"{VARIABLE}: unknown setting {part!r}; "
                f"known: check, dump=FOLDER, {STRICT_SCHEDULES}, traceback"
            )
    return DebugSettings(dump=dump, **flags)


__all__ = ["STRICT_SCHEDULES", "VARIABLE", "DebugSettings", "debug_settings"]

"""Text files with places for values.

A place is written ``@name@``, in the text of a file and in its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "templates"
_PLACE = re.compile(r"@([a-z_]+)@")


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its places filled.

    Raises:
        KeyError: There is no value for a place.
    """
    return _PLACE.sub(lambda match: values[match[1]], text)


def write_templates(name: str, folder: Path, values: Mapping[str, str]) -> None:
    """Write all files of the folder of templates `name` into `folder`, which may exist."""
    base = FOLDER / name
    for source in sorted(base.rglob("*")):
        if source.is_file():
            path = folder / filled(source.relative_to(base).as_posix(), values)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(filled(source.read_text(), values))


__all__ = ["FOLDER", "filled", "write_templates"]

"""The installed package is typed for its users."""

from __future__ import annotations

from pathlib import Path

import tilewright as tw


def test_annotations_are_for_users_too() -> None:
    assert (Path(tw.__file__).parent / "py.typed").is_file()

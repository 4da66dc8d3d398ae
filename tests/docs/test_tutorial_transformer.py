"""The code of docs/tutorial-transformer.md runs, from top to bottom; what it promises is asserted in it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-transformer.md"


def test_runs() -> None:
    text = PAGE.read_text()
    names: dict[str, object] = {"__name__": "tutorial_transformer"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 5
    for match in blocks:
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(PAGE), "exec"), names)

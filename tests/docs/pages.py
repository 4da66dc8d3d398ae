"""Running the code of a page of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str) -> dict[str, Any]:
    """Run a page's Python blocks from top to bottom as one program; the names that it defines. Errors have the page's lines."""
    page = DOCS / name
    text = page.read_text()
    names: dict[str, Any] = {"__name__": page.stem.replace("-", "_")}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 2
    for match in blocks:
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(page), "exec"), names)
    return names

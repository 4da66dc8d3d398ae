"""Running the code of a page of docs/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str, **given: Any) -> dict[str, Any]:
    """Run a page's Python blocks from top to bottom as one program that begins with the names `given`; the names that it defines. Errors have the page's lines."""
    page = DOCS / name
    text = page.read_text()
    names: dict[str, Any] = {"__name__": page.stem.replace("-", "_"), **given}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 2
    for match in blocks:
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(page), "exec"), names)
    return names


def run_page_with_commands(name: str, folder: Path) -> list[tuple[str, str]]:
    """Run a page's Python and shell blocks from top to bottom in `folder`, the current one; commands and what they print."""
    page = DOCS / name
    command = folder / "bin" / "tilewright"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    names: dict[str, Any] = {"__name__": page.stem.replace("-", "_")}
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert {kind for kind, _ in blocks} == {"python", "sh"}
    printed = []
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        done = subprocess.run(["sh", "-e"], input=code, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        printed.append((code, done.stdout))
    return printed

"""Runs the code blocks of a page of docs/. Blocks of the kinds ``python`` and ``sh`` are executed; blocks of
other kinds are only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXECUTED = ("python", "sh")
"""The kinds of code blocks that tests run."""


def code_blocks(text: str) -> list[tuple[str, str, int]]:
    """Kind, code and number of preceding lines of each fenced block that is not indented."""
    matches = re.finditer(r"^```([^\n]*)\n(.*?)^```[^\n]*$", text, re.DOTALL | re.MULTILINE)
    return [(match[1], match[2], text[: match.start(2)].count("\n")) for match in matches]


def run_page(name: str, folder: Path | None = None, **given: Any) -> dict[str, Any]:
    """Run a page's code from top to bottom and return the Python names that it defines.

    The Python blocks are one program that begins with the names `given`. Shell blocks need a `folder`, in
    which they run, and where ``tilewright`` runs in this interpreter. Their output is in the result's
    ``printed``, a list of pairs of code and text. Errors have the page's line numbers.
    """
    page = DOCS / name
    names: dict[str, Any] = {"__name__": page.stem.replace("-", "_"), **given}
    printed: list[tuple[str, str]] = []
    blocks = [block for block in code_blocks(page.read_text()) if block[0] in EXECUTED]
    assert blocks, f"{name} has no code to run"
    for kind, code, lines in blocks:
        if kind == "python":
            exec(compile("\n" * lines + code, str(page), "exec"), names)
        else:
            assert folder is not None, f"{name} has shell commands: run it in a folder"
            printed.append((code, _shell(code, folder)))
    return {**names, "printed": printed}


def _shell(code: str, folder: Path) -> str:
    """The standard output of a shell block that runs in `folder`.

    Raises:
        AssertionError: a command fails; the message contains its output.
    """
    command = folder / "bin" / "tilewright"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@"\n')
        command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e"], input=code, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout

"""Every code block of the documentation is run by a test or is of a kind that is only shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, EXECUTED, ROOT, code_blocks

SHOWN = {
    "bash": (
        "commands that install packages, need a network, files that are not in the repository, or a long time"
    ),
    "c": "C; tests/artifact compiles programs against the same header",
    "cpp": "C++; tests/packages builds programs with the same calls",
    "js": "JavaScript; tests/web and tests/models/test_web_threads.py run the package",
    "kotlin": "calls of a class that tests/packages compiles where there is a compiler",
    "py": "excerpts of a file of the repository; a test compares them",
    "rust": "Rust; tests/packages builds programs with the same calls",
    "swift": "Swift, for which there is no compiler; tests/packages includes the same header in C",
    "text": "output, formulas, excerpts of the IR",
    "toml": "excerpts of a package's pyproject.toml; tests of the page install a package with it",
}
"""The kinds of blocks that no test runs, and why."""

TESTS = "\n".join(
    path.read_text()
    for folder in ("docs", "llm/engine", "llm/parallel")
    for path in (ROOT / "tests" / folder).glob("test_*.py")
)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_shown(page: str) -> None:
    kinds = {kind for kind, _, _ in code_blocks((ROOT / page).read_text())}
    assert kinds <= {*EXECUTED, *SHOWN}, "give each block one of the kinds in SHOWN or EXECUTED"
    if kinds & set(EXECUTED):
        assert f'"{page.removeprefix("docs/")}"' in TESTS, (
            f"no test runs the code of {page}: add it to tests/docs/test_pages.py"
        )


def test_no_block_hides_from_the_runner() -> None:
    """No executed block is indented, because the runner finds only blocks at the beginning of a line."""
    indented = [
        page
        for page in PAGES
        if re.search(r"^[ \t]+```(python|sh)\b", Path(ROOT / page).read_text(), re.MULTILINE)
    ]
    assert indented == []

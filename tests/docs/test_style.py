"""The style of pages and sources: columns, how sentences begin, generated pictures, and the length of the
architecture's page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from .pages import DOCS, ROOT

COLUMNS = 110
FOLDERS = ("src", "tests", "bench", "examples", "docs")
WEB = ("web/src", "web/page", "web/explore", "web/test", "web/scripts")
"""The sources of `web/`, beside which tools and dependencies are installed."""
BUILT = [ROOT / "src" / "tilewright" / folder for folder in ("runtime/js", "explorer/built")]
"""Folders of what `web/` builds."""
SUFFIXES = (".c", ".h", ".ts", ".mjs", ".js", ".css", ".html", ".sh", ".yml", ".yaml", ".toml")
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(p for folder in (*FOLDERS, *WEB) for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES),
        *(ROOT / "scripts").iterdir(),
        *ROOT.glob(".ci/*"),
        *(p for p in ROOT.iterdir() if p.suffix in SUFFIXES),
    ]
    if path.is_file() and path.parent not in BUILT
)
"""The sources that ruff does not check: C, JavaScript, HTML, shell scripts and configuration files."""
MODULES = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def prose(page: str) -> list[str]:
    """The lines of a page outside of code, tables and headings."""
    text = re.sub(r"^```.*?^```[^\n]*$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.startswith(("|", "#", "    ", "!["))]


@pytest.mark.parametrize("page", PAGES)
def test_prose_has_at_most_110_columns(page: str) -> None:
    assert [line for line in prose(page) if len(line) > COLUMNS and " " in line[:COLUMNS]] == []


@pytest.mark.parametrize("source", SOURCES)
def test_sources_have_at_most_110_columns(source: str) -> None:
    assert [line for line in (ROOT / source).read_text().splitlines() if len(line) > COLUMNS] == []


def without_subject(text: str) -> list[str]:
    """The beginnings of sentences that begin with a word other than their subject."""
    text = re.sub(r"`+[^`]+`+", "code", text)
    start = r"(?:\A|\n\s*\n\s*(?:[-*] )?|\n\s*- |[.!:;?]\s+)"
    return re.findall(start + r"((?:Of|Who|Whose|Those|What)\s[^.\n]*)", text)


def docstrings(module: str) -> Iterator[str]:
    """The docstrings of a module, of its classes, functions and attributes, and the help of its options."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        match node:
            case ast.keyword("help", ast.Constant(str(text))):
                yield text
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            match part:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


@pytest.mark.parametrize("page", PAGES)
def test_sentences_begin_with_their_subject(page: str) -> None:
    assert without_subject("\n".join(prose(page))) == []


@pytest.mark.parametrize("page", PAGES)
def test_headings_begin_with_their_subject(page: str) -> None:
    text = re.sub(r"^```.*?^```[^\n]*$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    assert [found for heading in headings for found in without_subject(heading)] == []


def test_docstrings_begin_with_their_subject() -> None:
    found = [(m, s) for m in MODULES for text in docstrings(m) for s in without_subject(text)]
    assert found == []


def test_comments_begin_with_their_subject() -> None:
    start = re.compile(r"^\s*# (?:Of|Who|Whose|Those|What)\s.*", re.MULTILINE)
    assert [(m, s) for m in MODULES for s in start.findall((ROOT / m).read_text())] == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_end_with_a_newline(page: str) -> None:
    assert (ROOT / page).read_bytes().endswith(b"\n")


def test_a_sentence_without_its_subject_is_found() -> None:
    text = "A tile.\n\n    Args:\n        x: Those of `a`. What it is; of which\n\n    Of two"
    assert without_subject(text) == ["Those of code", "What it is; of which", "Of two"]


def test_the_architecture_is_short() -> None:
    assert len((DOCS / "internals" / "architecture.md").read_text().splitlines()) <= 200


def test_the_picture_is_drawn_by_its_script() -> None:
    spec = spec_from_file_location("pipeline_picture", DOCS / "tools" / "pipeline_picture.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PICTURE.read_text() == module.picture(), f"run {module.__doc__}"


def test_the_glossary_is_in_order() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 50 and terms == sorted(terms, key=str.lower)

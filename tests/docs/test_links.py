"""Links of the documentation lead to files and headings that exist, both in the repository and on the page of
a package index.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from .pages import DOCS, ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "bench" / "results").glob("*.md")]
)
EXTERNAL = ("http://", "https://", "mailto:")


def without_code(text: str) -> str:
    """The text of a page without code blocks and inline code, where brackets are not links."""
    text = re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", "code", text)


def links(text: str) -> list[str]:
    """The targets of links and pictures, in both forms ``[text](target)`` and ``[name]: target``."""
    plain = without_code(text)
    inline = re.findall(r"\]\(\s*([^()\s]+(?:\([^()]*\))?)(?:\s+\"[^\"]*\")?\s*\)", plain)
    return [*inline, *re.findall(r"^\[[^\]]+\]:\s*(\S+)", plain, re.MULTILINE)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page: those that repository browsers and MkDocs derive from headings, and explicit
    ones.
    """
    text = re.sub(r"^```.*?^```[^\n]*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    names: set[str] = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, re.MULTILINE):
        if explicit := re.search(r"\{\s*#([\w-]+)\s*\}$", heading):
            names.add(explicit[1])
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        names.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return frozenset(names)


def broken(page: Path, text: str) -> list[str]:
    """The relative links of a page whose file or heading does not exist."""
    wrong = []
    for link in links(text):
        if link.startswith(EXTERNAL):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    assert broken(path, path.read_text()) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `tw.name`: it's *here*\n[a](page.md#a-twname-its-here) [b](page.md#c) [d](no.md) "
        "![e](e.svg)\n`[f](g)`\n"
    )
    assert broken(page, page.read_text()) == [
        "page.md#c: no such heading",
        "no.md: no such file",
        "e.svg: no such file",
    ]


def test_paths_named_in_error_texts_exist() -> None:
    """Pages that error texts, comments and docstrings refer to exist."""
    wrong = []
    for folder in ("src", "tests", "bench", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            named = re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", path.read_text())
            wrong += [f"{path.relative_to(ROOT)}: {page}" for page in named if not (ROOT / page).exists()]
    assert wrong == []


@pytest.mark.parametrize("folder", ["internals", "decisions", "guide", "llm"])
def test_source_files_named_on_pages_exist(folder: str) -> None:
    """A path on a page, such as `ir/core.py`, exists in the package or in the repository."""
    roots = (ROOT, ROOT / "src" / "tilewright")
    wrong = []
    for page in (DOCS / folder).rglob("*.md"):
        for path in re.findall(r"`([\w-]+(?:/[\w-]+)+(?:\.(?:py|c|h|md|json)|/))`", page.read_text()):
            if not any((root / path).exists() for root in roots):
                wrong.append(f"{page.relative_to(DOCS)}: {path}")
    assert wrong == []


def index_page() -> str:
    """The text that a package index shows: the README with the substitutions of `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    page = "".join((ROOT / fragment["path"]).read_text() for fragment in hook["fragments"])
    for substitution in hook["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    return page


def test_links_resolve_on_a_package_index() -> None:
    """The page on a package index has only links to other sites and to its own headings, because an index has
    no files beside the page.
    """
    page = index_page()
    names = anchors(ROOT / "README.md")
    wrong = [
        link for link in links(page) if not link.startswith(EXTERNAL) and link.removeprefix("#") not in names
    ]
    assert wrong == []


def test_files_named_on_a_package_index_exist() -> None:
    """On a package index, a link into the repository is replaced by the file's name, and that file exists."""
    readme = (ROOT / "README.md").read_text()
    page = index_page()
    targets = {link.partition("#")[0] for link in links(readme) if not link.startswith((*EXTERNAL, "#"))}
    targets -= {target for target in targets if target.endswith((".svg", ".png"))}
    assert targets, "the README has no links into the repository"
    assert [target for target in targets if f"`{target}`" not in page or not (ROOT / target).exists()] == []

"""What an installed package is to others: typed, and described by a page whose links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import tilewright as tw

ROOT = Path(__file__).parents[1]


def test_annotations_are_for_users_too() -> None:
    assert (Path(tw.__file__).parent / "py.typed").is_file()


def test_the_page_on_an_index_has_no_links_into_the_repository() -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "fancy-pypi-readme"
    ]
    page = "".join((ROOT / fragment["path"]).read_text() for fragment in hook["fragments"])
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert any(not link.startswith("http") for link in links), "nothing to do"
    for substitution in hook["substitutions"]:
        page = re.sub(substitution["pattern"], substitution["replacement"], page)
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")] == []
    assert "docs/llm/quickstart.md" in page

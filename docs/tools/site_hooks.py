"""MkDocs hooks: folders in the navigation, pages from outside `docs/`, links to files of the repository.

- A navigation entry that ends with ``/`` stands for the pages of that folder, by name, that have no entry of
  their own.
- ``CONTRIBUTING.md``, ``CHANGELOG.md`` and the results of the benchmark are pages of the site although they
  lie outside `docs/`.
- A relative link leads to the same file as in the repository. A link to a file that is no page, such as a
  source file, becomes the name of the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "bench/results/*.md", "bench/results/*.svg")
"""Files outside `docs/` that the site has under the same path, as glob patterns."""

_LINK = r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?://|mailto:|#)([^()\s#]+)(#[^()\s]*)?\)"
_CODE_OR_LINK = re.compile(rf"^```.*?^```[^\n]*$|{_LINK}|`[^`\n]+`", re.DOTALL | re.MULTILINE)
"""The text of a link may contain code, but code contains no link."""


def on_config(config: Any) -> Any:
    """Replace folders in the navigation by their pages."""
    own: set[str] = set()
    _collect(config.nav, own)
    config.nav = _expand(config.nav, own)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside `docs/`."""
    for path in _outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite relative links from the repository's folders to the site's."""
    site_path = page.file.src_uri
    return _CODE_OR_LINK.sub(lambda m: m[0] if m[3] is None else _link(m, site_path, files), markdown)


def repository_path(site_path: str) -> str:
    """Where a file of the site lies in the repository, relative to the root."""
    return site_path if site_path in _outside() else f"docs/{site_path}"


def _link(match: re.Match[str], site_path: str, files: Files) -> str:
    mark, text, path, anchor = match[1], match[2], match[3], match[4] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(site_path)), path))
    uri = target.removeprefix("docs/")
    if files.get_file_from_path(uri) is not None:
        return f"{mark}[{text}]({posixpath.relpath(uri, posixpath.dirname(site_path) or '.')}{anchor})"
    if not (ROOT / target).exists():
        return match[0]  # MkDocs reports the broken link
    return text if text.startswith("`") else f"{text} (`{target}`)"


def _outside() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))]


def _pages(folder: str) -> list[str]:
    """The pages of a folder: `index.md` first, then by name."""
    root = ROOT / "docs" / folder
    root = root if root.exists() else ROOT / folder
    pages = sorted(path.name for path in root.glob("*.md"))
    return [f"{folder}{name}" for name in sorted(pages, key=lambda name: name != "index.md")]


def _collect(entry: Any, own: set[str]) -> None:
    """Add to `own` the pages that have an entry of their own."""
    if isinstance(entry, str):
        own.update([entry] if entry.endswith(".md") else [])
    for part in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        _collect(part, own)


def _expand(entry: Any, own: set[str]) -> Any:
    """A navigation entry with the pages of folders in their place: lists stand in the list around them."""
    if isinstance(entry, str):
        return [page for page in _pages(entry) if page not in own] if entry.endswith("/") else entry
    if isinstance(entry, dict):
        return {title: _expand(part, own) for title, part in entry.items()}
    expanded: list[Any] = []
    for part in entry:
        pages = _expand(part, own)
        expanded.extend(pages if isinstance(pages, list) else [pages])
    return expanded

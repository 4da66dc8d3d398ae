"""On the site, links to pages stay links, and links to other files of the repository become their names."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from .pages import DOCS


def test_links_and_code() -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "tools" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="extending/adding-a-pass.md"))
    files = SimpleNamespace(get_file_from_path=lambda uri: uri if uri == "reference/ir.md" else None)

    def on_site(text: str) -> str:
        return str(hooks.on_page_markdown(text, page, None, files))

    source = "../../src/tilewright/ir/core.py"
    assert on_site(f"see [`Value`]({source}).") == "see `Value`."
    assert on_site(f"see [values]({source}).") == "see values (`src/tilewright/ir/core.py`)."
    assert on_site("[`ir`](../reference/ir.md#types)") == "[`ir`](../reference/ir.md#types)"
    for code in (f"`[x]({source})`", f"```text\n[x]({source})\n```"):
        assert on_site(code) == code

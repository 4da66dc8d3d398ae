"""The chat page loads nothing from other sites, and states so to the browser."""

from __future__ import annotations

import re

import pytest

from .conftest import Running


def test_page(server: Running) -> None:
    answer = server.http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy"\s+content="([^"]*)"', answer.text)
    assert "default-src 'none'" in policy and "script-src 'self' 'wasm-unsafe-eval';" in policy
    assert "unsafe-inline" not in policy and "http" not in policy
    assert not re.search(r"https?:|@import|<script>|<style>", answer.text)


def test_parts_of_the_page(server: Running) -> None:
    text = server.http.get("/").text
    parts = re.findall(r'(?:href|src)="(page/[^"]*)"', text)
    assert sorted(part.rpartition(".")[2] for part in parts) == ["css", "js"]
    for part in parts:
        answer = server.http.get(f"/{part}")
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        kind = "text/css" if part.endswith("css") else "text/javascript"
        assert answer.headers["content-type"].startswith(kind)


@pytest.mark.parametrize("name", ["index.js", "package.json", "..%2f..%2fpyproject.toml", "none.js"])
def test_other_files_are_not_served(server: Running, name: str) -> None:
    assert server.http.get(f"/page/{name}").status_code == 404

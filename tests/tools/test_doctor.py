"""Checks of the machine, and the list of environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilewright
from tilewright.tools.doctor import VARIABLES, check_machine

PACKAGE = Path(tilewright.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "debugging.md"


def test_all_variables_are_listed() -> None:
    read = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r'"(TILEWRIGHT_[A-Z_]+)"', path.read_text())
    }
    assert read == set(VARIABLES)
    assert set(re.findall(r"^\| `(TILEWRIGHT_\w+)`", PAGE.read_text(), re.MULTILINE)) == read


def test_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_API_KEYS", "secret")
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "nonsense")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file" / "below"))
    findings = list(check_machine())
    assert not any("secret" in finding.text for finding in findings)
    failed = [finding.text for finding in findings if finding.state == "FAILED"]
    assert len(failed) == 2
    assert re.search("below cannot be made .*; set TILEWRIGHT_CACHE_DIR", failed[0])
    compilers = [f.text for f in findings if f.text.startswith("compiler for")]
    assert [text.partition(":")[0] for text in compilers[1:]] == [
        f"compiler for {what}" for what in ("NVIDIA's GPUs", "AMD's GPUs", "Vulkan")
    ]
    assert "clang of ziglang" in compilers[2]
    assert failed[1].startswith("TILEWRIGHT_DEBUG: TILEWRIGHT_DEBUG: unknown setting 'nonsense'")

"""The code of docs/jax.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


def test_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras")
    namespace: dict[str, Any] = {"__name__": "jax_page"}
    text = PAGE.read_text()
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(PAGE), "exec"), namespace)

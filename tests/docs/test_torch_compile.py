"""The code of docs/torch-compile.md runs, from top to bottom; what it promises is asserted in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "torch-compile.md"


@pytest.fixture(autouse=True)
def _backend() -> Iterator[None]:
    """The backend under its name also where Tilewright is run from its sources, not installed."""
    from tilewright.torch_backend import tilewright

    if "tilewright" not in torch._dynamo.list_backends(None):
        torch._dynamo.register_backend(tilewright)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_runs() -> None:
    text = PAGE.read_text()
    names: dict[str, object] = {"__name__": "torch_compile"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 4
    for match in blocks:
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(PAGE), "exec"), names)

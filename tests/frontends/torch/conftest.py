"""Fixtures of the tests of ``torch.compile(backend="tilewright")``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Let torch forget what it has compiled, before and after a test."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which the importer of every compiled graph is added."""
    from tilewright.integrations import torch_compile

    graphs: list[Any] = []
    real = torch_compile._library

    def counted(graph: Any, options: Any) -> Any:
        graphs.append(graph)
        return real(graph, options)

    monkeypatch.setattr(torch_compile, "_library", counted)
    return graphs

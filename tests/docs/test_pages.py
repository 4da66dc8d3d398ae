"""Pages whose code says itself, by assertions, what it promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .pages import run_page


def test_tutorial_transformer() -> None:
    run_page("tutorial-transformer.md")


def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras")
    run_page("jax.md")


@pytest.fixture
def torch_backend() -> Iterator[None]:
    """The backend under its name also where Tilewright is run from its sources, not installed; importers that a page registers go with it."""
    torch = pytest.importorskip("torch")
    from tilewright.frontends.torch import registry
    from tilewright.torch_backend import tilewright

    if "tilewright" not in torch._dynamo.list_backends(None):
        torch._dynamo.register_backend(tilewright)
    torch._dynamo.reset()
    known = set(registry.importers())
    yield
    torch._dynamo.reset()
    for name in set(registry.importers()) - known:
        del registry.importers()[name]


@pytest.mark.parametrize("page", ["torch-compile.md", "pytorch-operators.md"])
def test_torch(page: str, torch_backend: None) -> None:
    run_page(page)

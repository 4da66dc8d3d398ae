"""The code of pages runs; the assertions in it check what the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import run_page

PAGES = {
    "getting-started.md": ("torch",),
    "gpu.md": (),
    "guide/browser.md": (),
    "guide/dynamic-sizes.md": (),
    "guide/onnx.md": ("onnx", "onnxruntime"),
    "guide/deploying.md": (),
    "guide/other-targets.md": ("wasmtime",),
    "guide/own-models.md": (),
    "guide/performance.md": ("torch",),
    "guide/precision.md": (),
    "guide/pytorch.md": ("torch",),
    "guide/quantization.md": ("onnx",),
    "guide/training.md": ("torch", "tensorboardX"),
    "guide/tuning.md": ("sklearn",),
    "index.md": (),
    "internals/block-programs.md": (),
    "internals/collectives.md": (),
    "internals/differentiation.md": (),
    "internals/machine.md": (),
    "internals/tuning.md": (),
}
"""Pages and the packages that their code needs."""


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PAGES[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras")
    run_page("guide/jax.md")


@pytest.fixture
def torch_backend() -> Iterator[None]:
    """Register the backend of torch.compile, which is otherwise found only if Tilewright is installed.
    Importers that a page registers are removed afterwards.
    """
    torch = pytest.importorskip("torch")
    from tilewright.frontends.torch import registry
    from tilewright.integrations.torch_compile import tilewright

    if "tilewright" not in torch._dynamo.list_backends(None):
        torch._dynamo.register_backend(tilewright)
    torch._dynamo.reset()
    known = set(registry.importers())
    yield
    torch._dynamo.reset()
    for name in set(registry.importers()) - known:
        del registry.importers()[name]


@pytest.mark.parametrize("page", ["guide/torch-compile.md", "extending/pytorch-operators.md"])
def test_torch(page: str, torch_backend: None) -> None:
    run_page(page)

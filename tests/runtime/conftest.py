from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from build import build


@pytest.fixture(scope="session")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The affine model as a shared library with its weights inside."""
    return build(tmp_path_factory.mktemp("affine") / "affine.so")


@pytest.fixture(scope="session")
def affine_wasm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The affine model as a WebAssembly module."""
    return build(tmp_path_factory.mktemp("affine_wasm") / "affine.wasm", wasm=True)

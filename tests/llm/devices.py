"""How tests compile language models for devices."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def without_nvrtc() -> Iterator[None]:
    """Compile for CUDA without machine code, which simulated devices do not need: it takes seconds."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "target cuda: not needed")
        patch.setattr("tilewright.targets.cuda.toolchain.missing", lambda: "not needed")
        yield


__all__ = ["without_nvrtc"]

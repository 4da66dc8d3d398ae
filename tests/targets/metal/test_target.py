"""Libraries for Macs are linked on any machine."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.artifact.kinds import kind_of
from tilewright.errors import ArtifactError, CompileError

X = np.ones((4, 8), np.float32)


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.skipif(platform.system() == "Darwin", reason="the library is one for this machine")
def test_a_library_for_macs(tmp_path: Path) -> None:
    weight = tw.Tensor(np.ones((8, 3), np.float32))
    library = tw.compile(lambda x: tw.numpy.exp(x @ weight), (X,), target="metal:macos", cache=False)
    path = library.save(tmp_path / "model.dylib")
    assert (kind_of(path).format, kind_of(path).machine) == ("Mach-O", "aarch64")
    data = path.read_bytes()
    for text in (
        b"_tw_create_on",
        b"_tw_run_bound",
        b"objc_msgSend",
        b"Metal.framework/Metal",
        b"kernel void tw_",
    ):
        assert text in data
    with pytest.raises(ArtifactError, match="compiled for metal:macos, which is not this machine"):
        library(X)
    with pytest.raises(ArtifactError, match="a shared library for macOS on aarch64"):
        tw.load(path)


def test_unknown_features_are_refused() -> None:
    with pytest.raises(CompileError, match="unknown target 'metal:m9'; known: metal, metal:macos"):
        tw.compile(lambda x: x, (X,), target="metal:m9")

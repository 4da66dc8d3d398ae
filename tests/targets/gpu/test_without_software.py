"""Artifacts for GPUs on a machine without drivers and compilers, and what is told about what is missing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompileError, DeviceError
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.targets.cuda import toolchain as cuda
from tilewright.targets.hip import toolchain as hip
from tilewright.targets.vulkan import toolchain as vulkan

X = np.arange(6, dtype=np.float32)
SYSTEM = {
    "cuda": "libcuda.so.1",
    "hip": "libamdhip64.so",
    "opencl": "libOpenCL.so.1",
    "vulkan": "libvulkan.so.1",
    "metal": "/System/Library/Frameworks/Metal.framework/Metal",
}


def compiled(target: str) -> Any:
    if target == "vulkan" and (reason := vulkan.missing()) is not None:
        pytest.skip(reason)
    return tw.compile(lambda x: x * 2 + 1, (X,), target=target, cache=False)


def found(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("target", SYSTEM)
def test_the_library_that_was_looked_for_is_named(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"TILEWRIGHT_{target.upper()}_DRIVER"
    library = compiled(target)
    path = library.save(tmp_path / "m.so")
    names = ["/nowhere/driver.so", *([] if found(SYSTEM[target]) else [SYSTEM[target]])]
    for name in names:
        if name.startswith("/nowhere"):
            monkeypatch.setenv(variable, name)
        else:
            monkeypatch.delenv(variable)
        for call in (lambda: library(X), lambda: tw.load(path)):
            with pytest.raises(DeviceError) as caught:
                call()
            assert f"its library {name} was not found" in str(caught.value)
            assert variable in str(caught.value)


@pytest.mark.parametrize("target", ["cuda", "hip", "opencl", "metal"])
def test_artifacts_are_built_without_any_software_for_gpus(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers are not opened, and without a compiler the artifact has the source."""
    monkeypatch.setenv(f"TILEWRIGHT_{target.upper()}_DRIVER", "/nowhere/driver.so")
    for toolchain in (cuda, hip):
        monkeypatch.setattr(toolchain, "missing", lambda: "the compiler is not installed: pip install it")
    if target in ("cuda", "hip"):
        sentence = f"target {target}: the compiler is not installed: pip install it; until then .* source"
        with pytest.warns(UserWarning, match=sentence):
            library = compiled(target)
    else:
        library = compiled(target)
    path = library.save(tmp_path / "m.so")
    assert [image.kind for image in library.images] == [f"source-{target}"]
    if target != "opencl":
        np.testing.assert_array_equal(tw.load(path, simulate=True)(X), X * 2 + 1)


def test_vulkan_says_what_compiles_its_shaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_compiler", lambda: None)
    with pytest.raises(CompileError, match="no compiler from GLSL to SPIR-V was found: .*install"):
        tw.compile(lambda x: x * 2.5 + 1, (X,), target="vulkan", cache=False)


@pytest.mark.parametrize("target", ["cuda", "hip", "metal"])
def test_models_without_kernels(target: str) -> None:
    library = tw.compile(lambda x: x, (X,), target=target, cache=False)
    assert isinstance(library, DeviceLibrary) and not library.kernels
    for checked in (False, True):
        np.testing.assert_array_equal(library.simulated(checked=checked)(X), X)

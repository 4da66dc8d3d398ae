"""Compilation for the target ``cuda``: images, what is known about their code, and levels of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.cuda import sass, toolchain
from tilewright.tools.gpu_report import reports

X = np.zeros((64, 32), np.float32)

needs_nvrtc = pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))


def compiled(target: str) -> Any:
    return tw.compile(lambda x: tw.numpy.exp(x) + 1, (X,), dims={"x": {0: "n<=4096"}}, target=target)


@needs_nvrtc
def test_kernels_are_described_for_every_architecture() -> None:
    library = compiled("cuda")
    assert {image.kind for image in library.images} == {"cubin", "ptx", "source-cuda"}
    assert library.metadata["target"]["compiler"] == toolchain.compiler()
    found = {arch: rows for arch, _, rows in reports(library.metadata, {"n": 4096})}
    assert set(found) == {"sm_80", "sm_90"}
    (row,) = found["sm_80"]
    assert row.kernel["name"] in library.kernels
    assert row.blocks * row.kernel["device"]["threads"] >= 4096 * 32 / 16
    assert row.resources.registers > 0 and row.prediction.bound == "launch"


@needs_nvrtc
@pytest.mark.skipif(sass.missing() is not None, reason=str(sass.missing()))
def test_levels_of_text() -> None:
    library = compiled("cuda:sm_90")
    assert "__global__" in library.ir("cuda") and ".target sm_90" in library.ir("ptx")
    assert all(f".text.tw_{name}:" in library.ir("sass") for name in library.kernels)
    assert "define" in library.ir("llvm")
    known = "graph, tensor, loop, host, cuda, ptx, sass, llvm, asm"
    with pytest.raises(tw.CompileError, match=f"no level 'spirv'; known: {known}$"):
        library.ir("spirv")


@needs_nvrtc
@pytest.mark.skipif(sass.missing() is not None, reason=str(sass.missing()))
def test_instructions_are_counted_for_reports_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real, disassembled = sass.disassemble, list[int]()

    def disassemble(cubin: bytes) -> str:
        disassembled.append(len(cubin))
        return real(cubin)

    monkeypatch.setattr(sass, "disassemble", disassemble)
    library = compiled("cuda:sm_80")
    (row,) = next(reports(library.metadata, {"n": 4096}))[2]
    assert row.resources.count("global load") is None and disassembled == []
    (row,) = next(reports(library.metadata, {"n": 4096}, library.images))[2]
    assert row.resources.count("global load 16") == 1
    assert len(disassembled) == 1


def test_without_nvrtc_a_library_has_the_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "missing", lambda: "not installed")
    with pytest.warns(UserWarning, match="target cuda: not installed"):
        library = compiled("cuda")
    assert [image.kind for image in library.images] == ["source-cuda"]
    assert library.metadata["target"]["compiler"] is None
    assert list(reports(library.metadata, {"n": 1})) == []

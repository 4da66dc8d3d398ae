"""Compilation of LLVM IR in this process."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

import pytest

from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.llvm import toolchain


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_keeps_no_memory() -> None:
    """Compiling many kernels frees its memory. llvmlite does not free pass managers by itself, which have 50
    KB each.
    """
    text = "define void @f(ptr %p) {\n  %x = load float, ptr %p\n  store float %x, ptr %p\n  ret void\n}\n"

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def compile_some() -> None:
        for _ in range(60):
            toolchain._compile(text, host_isa(), 2)

    compile_some()
    before = resident()
    compile_some()
    assert resident() - before < 60 * 20_000


@pytest.mark.parametrize("module", ["toolchain", "emulate", "emitter", "isa"])
def test_keys_of_objects_change_with_what_makes_them(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of the code that optimizes or emulates changes the cache's key, without a version number to
    maintain.
    """
    key = toolchain._key("text", host_isa(), 2)
    edited = tmp_path / "edited.py"
    found = importlib.import_module(f"tilewright.targets.llvm.{module}")
    edited.write_bytes(Path(found.__file__ or "").read_bytes() + b"# another one")
    monkeypatch.setattr(found, "__file__", str(edited))
    toolchain._sources.cache_clear()
    try:
        assert toolchain._key("text", host_isa(), 2) != key
    finally:
        toolchain._sources.cache_clear()

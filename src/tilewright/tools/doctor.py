"""Checks of the machine: packages, compiler, cache, processor, GPU and environment variables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import CompileError

State = Literal["ok", "missing", "FAILED"]
"""``ok``; ``missing``: something optional is absent; ``FAILED``: Tilewright does not work without it."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    state: State
    text: str


PACKAGES = {
    "needed": (
        "numpy", "ml_dtypes", "llvmlite", "ziglang", "xxhash", "click", "rich", "platformdirs", "filelock"
    ),
    "for ONNX models": ("onnx",),
    "for PyTorch models": ("torch",),
    "for the webgpu target": ("wgpu",),
    "to run wasm32 artifacts": ("wasmtime",),
    "for bench and --verify": ("onnxruntime", "onnxscript", "threadpoolctl"),
}  # fmt: skip
"""Python packages by purpose."""

VARIABLES = {
    "TILEWRIGHT_DEBUG": "settings for debugging: check, dump=FOLDER, strict-schedules, traceback",
    "TILEWRIGHT_CPU": "the feature set of the target cpu, in place of this machine's",
    "TILEWRIGHT_CC": "the C compiler for the runtime and for linking",
    "TILEWRIGHT_CXX": "the C++ compiler for kernels of your own",
    "TILEWRIGHT_CACHE_DIR": "the folder of the cache",
    "TILEWRIGHT_CACHE_BYTES": "the largest size of the cache in bytes",
    "TILEWRIGHT_API_KEYS": "keys that `tilewright llm serve` accepts, separated by commas",
}
"""All environment variables that Tilewright reads."""
_SECRET = "TILEWRIGHT_API_KEYS"


def check_machine() -> Iterator[Finding]:
    """Check everything that Tilewright needs of this machine."""
    is_supported = sys.version_info >= (3, 11) and sys.maxsize > 2**32
    python = f"Python {platform.python_version()}, {platform.platform()}"
    yield Finding("ok" if is_supported else "FAILED", python)
    yield from _packages()
    for name, check in (
        ("compiler for the runtime", _c_compiler),
        ("cache", _cache),
        ("processor", _processor),
        ("TILEWRIGHT_DEBUG", _debug),
    ):
        yield _check(name, check)
    try:
        yield Finding("ok", f"WebGPU adapter: {_webgpu()}")
    except Exception as error:  # no package, no driver, or an error of either
        yield Finding("missing", f"WebGPU adapter: {error} (only the webgpu target needs it)")
    yield from _gpu_compilers()
    from ..targets.registry import targets_by_family

    yield Finding("ok", f"targets: {targets_by_family()}")
    for name, purpose in VARIABLES.items():
        if (value := os.environ.get(name)) is not None and name != "TILEWRIGHT_DEBUG":
            yield Finding("ok", f"{name}={'...' if name == _SECRET else value} ({purpose})")


def _packages() -> Iterator[Finding]:
    for purpose, names in PACKAGES.items():
        present, absent = [], []
        for name in names:
            try:
                present.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                absent.append(name)
        if present:
            yield Finding("ok", f"{purpose}: {', '.join(present)}")
        if absent:
            state: State = "FAILED" if purpose == "needed" else "missing"
            yield Finding(state, f"{purpose}: {', '.join(absent)} (pip install {' '.join(absent)})")


def _check(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", f"{name}: {check()}")
    except Exception as error:  # any failure is the finding
        return Finding("FAILED", f"{name}: {error}")


def _c_compiler() -> str:
    return shutil.which("cc") or "python -m ziglang cc (no system compiler was found; this one is slower)"


def _cache() -> str:
    from ..artifact.disk_cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{folder} cannot be made ({error.strerror}); set TILEWRIGHT_CACHE_DIR to a folder"
        ) from error
    if not os.access(folder, os.W_OK):
        raise OSError(f"{folder} cannot be written; set TILEWRIGHT_CACHE_DIR")
    return str(folder)


def _processor() -> str:
    import llvmlite.binding as llvm

    features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    shown = [f for f in ("avx2", "fma", "avx512f", "avx512bf16", "amx-tile", "neon", "sve") if f in features]
    extensions = ", ".join(shown) or "no vector extension known here"
    return f"{platform.machine()}, {os.cpu_count()} cores, {extensions}"


def _debug() -> str:
    from ..ir.debug import VARIABLE, debug_settings

    debug_settings()  # raises for an unknown setting
    return f"{os.environ.get(VARIABLE) or 'not set'} ({VARIABLES[VARIABLE]})"


def _gpu_compilers() -> Iterator[Finding]:
    from ..targets.cuda import sass
    from ..targets.cuda.toolchain import compiler as cuda
    from ..targets.hip.toolchain import compiler as hip
    from ..targets.vulkan.toolchain import compiler as vulkan

    checks = {"NVIDIA's GPUs": cuda, "AMD's GPUs": hip, "Vulkan": vulkan}
    for what, compiler in checks.items():
        try:
            yield Finding("ok", f"compiler for {what}: {compiler()}")
        except CompileError as error:
            yield Finding("missing", f"compiler for {what}: {error}")
    if (reason := sass.missing()) is not None:
        yield Finding("missing", f"machine code of NVIDIA's GPUs as text: {reason}")


def _webgpu() -> str:
    import wgpu

    adapter = wgpu.gpu.request_adapter_sync()
    return str(adapter.info.get("device") or adapter.summary)


__all__ = ["PACKAGES", "VARIABLES", "Finding", "check_machine"]

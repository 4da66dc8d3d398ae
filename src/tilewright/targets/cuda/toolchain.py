"""From CUDA C++ text to cubins and PTX by NVRTC, without an SDK, a driver or a GPU.

NVRTC comes as the Python package ``nvidia-cuda-nvrtc``; a library that an SDK installed is used, too. The
results are cached on disk.
"""

from __future__ import annotations

import base64
import ctypes
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...artifact import disk_cache
from ...artifact.device_code import DeviceImage
from ...errors import CompileError, InternalError
from ..gpu.images import DeviceCode
from ..gpu.performance import KernelResources
from .headers import headers_of

INSTALL = "pip install 'tilewright[cuda]'"
ARCHITECTURES = ("sm_80", "sm_90a")
"""The architectures that artifacts have machine code for. Code for ``sm_90a`` runs on the same GPUs as code
for ``sm_90`` and may use their matrix instructions.
"""
FALLBACK = "compute_80"
"""The virtual architecture of the PTX that drivers compile for GPUs without a cubin of their own."""
FALLBACK_VERSION = "7.0"
"""The first version of PTX for `FALLBACK`: CUDA 11.0."""

_KIND = "cuda"
_OPTIONS = ("--std=c++17", "--ptxas-options=-v")  # the second reports the resources of each kernel


@dataclass(frozen=True)
class CudaImage:
    """One module compiled for one architecture."""

    arch: str
    """``sm_80``, ``sm_90a``: machine code; ``compute_80``: PTX only."""

    ptx: str
    """The text of the intermediate code."""

    cubin: bytes
    """The machine code, an ELF file; empty for a virtual architecture."""

    log: str
    """NVRTC's messages: warnings, and the resources of each kernel."""

    @property
    def resources(self) -> dict[str, KernelResources]:
        """The resources of each kernel by its name, from the log; empty for a virtual architecture."""
        return _resources(self.log)


def missing() -> str | None:
    """Return why CUDA text cannot be compiled here, with the command that helps; None if it can."""
    try:
        _nvrtc()
    except CompileError as error:
        return str(error)
    return None


def compiler() -> str:
    """Return the name and version of the compiler.

    Raises:
        CompileError: NVRTC is not installed.
    """
    major, minor = nvrtc_version()
    return f"NVRTC {major}.{minor}"


def nvrtc_version() -> tuple[int, int]:
    """The version of CUDA that NVRTC belongs to.

    Raises:
        CompileError: NVRTC is not installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_image(text: str, arch: str, name: str = "kernels.cu") -> CudaImage:
    """Compile a translation unit.

    Args:
        text: CUDA C++. It may include the headers of `headers.HEADERS`, and NVIDIA's where they are
            installed.
        arch: ``sm_80``, ``sm_90``, ``sm_90a`` for machine code and PTX; ``compute_80`` for PTX only.
        name: The name of the text, for messages.

    Raises:
        CompileError: NVRTC is not installed, or does not know the architecture; the message says what to do.
        InternalError: NVRTC rejects the text; the message shows its log, and the kernel with the first error.
    """
    if arch not in architectures() and not arch.startswith("compute_"):
        known = ", ".join(architectures())
        raise CompileError(f"{compiler()} does not compile for {arch}; it knows {known}")
    version = ".".join(map(str, nvrtc_version()))
    headers, options = headers_of(text)
    key = disk_cache.digest("2", version, _build(), arch, name, *_OPTIONS, *options, *headers.values(), text)
    if (kept := disk_cache.read(_KIND, key)) is not None:
        entry = json.loads(kept)
        return CudaImage(arch, entry["ptx"], base64.b64decode(entry["cubin"]), entry["log"])
    image = _compile(text, arch, name, headers, options)
    relaxed = without_spills(text, image.resources)
    if relaxed != text:
        image = _compile(relaxed, arch, name, headers, options)
    entry = {"ptx": image.ptx, "cubin": base64.b64encode(image.cubin).decode(), "log": image.log}
    disk_cache.write(_KIND, key, json.dumps(entry).encode())
    return image


def without_spills(text: str, resources: Mapping[str, KernelResources]) -> str:
    """The text with leave to use all registers for kernels that spill some though others are free.

    ptxas may give a thread few registers so that more blocks run at the same time, and spill what does not
    fit. Launch bounds that ask for one block at least let it use as many as it needs.
    """
    for entry, found in resources.items():
        if found.spill_bytes:
            text = re.sub(
                rf"__launch_bounds__\((\d+)\) {re.escape(entry)}\(",
                rf"__launch_bounds__(\1, 1) {entry}(",
                text,
            )
    return text


@cache
def architectures() -> tuple[str, ...]:
    """The architectures that NVRTC makes machine code for: ``sm_80``, ``sm_90``, ``sm_90a``, ...

    Raises:
        CompileError: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(numbers)
    # The list lacks the variants with instructions of one generation only, such as wgmma's.
    return tuple(name for n in numbers for name in ((f"sm_{n}", f"sm_{n}a") if n >= 90 else (f"sm_{n}",)))


def device_code(text: str, archs: Sequence[str] = ARCHITECTURES) -> DeviceCode:
    """Return an artifact's images of a translation unit: machine code for `archs`, PTX for other GPUs, and
    the text. Without NVRTC it is the text alone, which only the simulator runs.

    Raises:
        InternalError: See `compile_image`.
    """
    source = DeviceImage("source-cuda", text.encode())
    if missing() is not None:
        return DeviceCode((source,), {})
    compiled = {arch: compile_image(text, variant_of(arch, text)) for arch in archs}
    # Drivers read up to a zero byte.
    ptx = (
        ()
        if WARPGROUPS in text
        else (DeviceImage("ptx", portable_ptx(text, archs).encode() + b"\0", FALLBACK),)
    )
    return DeviceCode(
        (*(DeviceImage("cubin", image.cubin, arch) for arch, image in compiled.items()), *ptx, source),
        {arch: image.resources for arch, image in compiled.items()},
    )


WARPGROUPS = "wgmma."
"""A part of a text with instructions of compute capability 9.0 that no later one has."""


def variant_of(arch: str, text: str) -> str:
    """An architecture as the compiler names it: ``sm_90a`` where the text has instructions of it alone."""
    return f"{arch}a" if arch == "sm_90" and WARPGROUPS in text else arch


def portable_ptx(text: str, archs: Sequence[str] = ()) -> str:
    """Return the PTX of a translation unit for GPUs without machine code of their own. `archs` are those that
    it has been compiled for.

    A driver refuses PTX that declares a later version than its own, and NVRTC declares the version of its own
    release. Code for `FALLBACK` has only what the first version for it has, so that version is declared.

    Raises:
        CompileError, InternalError: See `compile_image`.
    """
    same = FALLBACK.replace("compute_", "sm_")  # whose image comes with the same PTX
    ptx = compile_image(text, same if same in archs else FALLBACK).ptx
    return re.sub(r"^\.version \d+\.\d+$", f".version {FALLBACK_VERSION}", ptx, count=1, flags=re.M)


def code_text(text: str, level: str, arch: str) -> str | None:
    """Return a translation unit at a level of device code.

    Args:
        text: See `compile_image`.
        level: ``cuda`` for the text itself, ``ptx``, or ``sass`` for machine code.
        arch: See `compile_image`.

    Returns:
        The text; None if there is no such level.

    Raises:
        CompileError: A compiler or the disassembler is not installed; the message says what to do.
    """
    if level == "cuda":
        return text
    if level == "ptx":
        return compile_image(text, variant_of(arch, text)).ptx
    if level == "sass":
        from .sass import disassemble

        return disassemble(compile_image(text, variant_of(arch, text)).cubin)
    return None


def with_instructions(image: CudaImage) -> dict[str, KernelResources]:
    """Return the resources of each kernel of an image, with the instructions counted if a disassembler is
    installed.
    """
    from . import sass

    counts = sass.instructions_of(image.cubin)
    return {name: replace(r, instructions=counts.get(name, ())) for name, r in image.resources.items()}


@cache
def _nvrtc() -> ctypes.CDLL:
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise CompileError(
            f"the package cuda-pathfinder, for finding NVIDIA's compilers, is not installed: {INSTALL}"
        ) from error
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise CompileError(f"NVRTC, the compiler of CUDA kernels, is not installed: {INSTALL}") from error
    return ctypes.CDLL(path)


@cache
def _build() -> str:
    """The versions of the installed packages: one version of CUDA has several builds."""
    from importlib.metadata import distributions

    names = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    return ",".join(f"{d.name} {d.version}" for d in distributions() if d.name in names)


def _compile(
    text: str, arch: str, name: str, headers: Mapping[str, str], options: Sequence[str]
) -> CudaImage:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    contents, names = (
        (ctypes.c_char_p * len(headers))(*(x.encode() for x in part))
        for part in (headers.values(), headers.keys())
    )
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), len(headers), contents, names
        )
    )
    try:
        given = [option.encode() for option in (f"--gpu-architecture={arch}", *_OPTIONS, *options)]
        status = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = _result(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            raise InternalError(_rejection(log, text, arch, name))
        ptx = _result(nvrtc, program, "PTX").rstrip(b"\0").decode()
        cubin = b"" if arch.startswith("compute_") else _result(nvrtc, program, "CUBIN")
        return CudaImage(arch, ptx, cubin, log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _result(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(max(size.value, 1))
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, data))
    return data.raw[: size.value]


def _check(status: int) -> None:
    if status:
        nvrtc = _nvrtc()
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise InternalError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status).decode()}")


def _rejection(log: str, text: str, arch: str, name: str) -> str:
    """The message about a rejected text: the log, and the function around the first error."""
    head = f"NVRTC rejects {name} for {arch}:\n{log.strip()}"
    place = re.search(rf"^{re.escape(name)}\((\d+)\): (?:catastrophic )?error", log, re.M)
    if place is None:
        return head
    lines = text.splitlines()
    line = int(place[1])
    starts = [n for n, content in enumerate(lines[:line]) if content[:1].strip() not in ("", "}", "#", "/")]
    first = max(starts[-1] if starts else 0, line - 40)
    shown = (f"{n + 1:5}  {content}" for n, content in enumerate(lines[: line + 5]) if n >= first)
    return f"{head}\n" + "\n".join(shown)


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


def _resources(log: str) -> dict[str, KernelResources]:
    found: dict[str, KernelResources] = {}
    entry, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, stack, spills = match[1], 0, 0
        elif match := _SPILLS.search(line):
            stack, spills = int(match[1]), int(match[2])
        elif entry and (match := _USED.search(line)):
            shared = _SHARED.search(match[2])
            found[entry] = KernelResources(int(match[1]), int(shared[1]) if shared else 0, stack, spills)
            entry = ""
    return found


__all__ = [
    "ARCHITECTURES",
    "FALLBACK",
    "INSTALL",
    "CudaImage",
    "architectures",
    "code_text",
    "compile_image",
    "compiler",
    "device_code",
    "missing",
    "nvrtc_version",
    "portable_ptx",
    "with_instructions",
]

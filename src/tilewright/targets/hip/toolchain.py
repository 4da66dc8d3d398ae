"""From HIP C++ text to code objects for AMD's GPUs by the clang of the Python package ``ziglang``.

Neither ROCm nor its device libraries are needed, so the text must not call mathematical functions that LLVM
does not lower to instructions (``__builtin_expf`` is one, ``__builtin_erff`` is not). The results are cached
on disk.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...artifact import disk_cache, link
from ...artifact.device_code import DeviceImage
from ...errors import CompileError, InternalError
from ..gpu.images import DeviceCode
from ..gpu.performance import KernelResources, count_instructions

PATTERNS = {
    "global load": r"(global|flat)_load",
    "global load 16": r"(global|flat)_load_(dwordx4|b128)",
    "global store": r"(global|flat)_store",
    "global store 16": r"(global|flat)_store_(dwordx4|b128)",
    "async copy": r"(global|buffer)_load_(lds|async)",
    "matrix": r"v_(s?mfma|smfmac|wmma|swmmac)",
    "warpgroup matrix": r"$^",
    "local": r"scratch_|buffer_(load|store)(?!_lds)",
    "barrier": r"s_barrier",
    "shuffle": r"ds_(b?permute|swizzle)|v_permlane|v_readlane|v_\w+_dpp",
    "atomic": r"(global|flat|buffer)_atomic|ds_(add|sub|min|max|inc|dec|and|or|xor|cmpst)",
}
"""Buffer instructions occur for private memory only: generated code reads global memory by addresses."""

_KIND = "hip"
_OPTIONS = (
    *("-x", "hip", "--cuda-device-only", "-target", "x86_64-linux-gnu", "-std=c++17", "-O3"),
    # No headers and no libraries of ROCm.
    *("-nogpulib", "-nogpuinc", "-nostdinc", "-fno-math-errno"),
    "-mcode-object-version=5",  # ROCm 5.6 and later
)


@dataclass(frozen=True)
class HipImage:
    """One module compiled for one architecture."""

    arch: str
    """``gfx90a``, ``gfx942``, ``gfx1100``."""

    assembly: str
    """The machine code as text, with the resources of each kernel as YAML at its end."""

    hsaco: bytes
    """The code object: a shared library in ELF that the driver loads."""

    @property
    def resources(self) -> dict[str, KernelResources]:
        """The resources of each kernel by its name."""
        return _resources(self.assembly)


def missing() -> str | None:
    """Return why HIP text cannot be compiled here, with the command that helps; None if it can."""
    if _zig_version() == "":
        return "the package ziglang, for compiling HIP kernels, is not installed: pip install ziglang"
    if not _has_amdgpu():
        return "clang in the installed package ziglang has no AMDGPU target: pip install --upgrade ziglang"
    return None


def compiler() -> str:
    """Return the name and version of the compiler.

    Raises:
        CompileError: There is none; the message says what to install.
    """
    if (reason := missing()) is not None:
        raise CompileError(reason)
    return f"clang of ziglang {_zig_version()}"


def compile_image(text: str, arch: str, name: str = "kernels.hip") -> HipImage:
    """Compile a translation unit.

    Args:
        text: HIP C++ that includes no headers and defines ``__global__`` and the like itself.
        arch: ``gfx90a``, ``gfx942``, ``gfx1100``, or another that LLVM knows.
        name: The name of the text, for messages.

    Raises:
        CompileError: clang is not installed, or does not know the architecture.
        InternalError: clang rejects the text; the message shows its errors.
    """
    key = disk_cache.digest(_zig_version(), arch, name, *_OPTIONS, text)
    if (kept := disk_cache.read(_KIND, key)) is not None:
        entry = json.loads(kept)
        return HipImage(arch, entry["assembly"], base64.b64decode(entry["hsaco"]))
    compiler()
    image = _compile(text, arch, name)
    entry = {"assembly": image.assembly, "hsaco": base64.b64encode(image.hsaco).decode()}
    disk_cache.write(_KIND, key, json.dumps(entry).encode())
    return image


def device_code(text: str, archs: Sequence[str]) -> DeviceCode:
    """Return an artifact's images of a translation unit: a code object for each architecture, and the text.
    Without clang it is the text alone, which ROCm's compiler at run time or the simulator takes.

    Raises:
        InternalError: See `compile_image`.
    """
    source = DeviceImage("source-hip", text.encode())
    if missing() is not None:
        return DeviceCode((source,), {})
    compiled = [compile_image(text, arch) for arch in archs]
    return DeviceCode(
        (*(DeviceImage("hsaco", image.hsaco, image.arch) for image in compiled), source),
        {image.arch: image.resources for image in compiled},
    )


def code_text(text: str, level: str, arch: str) -> str | None:
    """Return a translation unit at a level of device code: ``hip`` for the text itself, ``amdgcn`` for
    machine code; None if there is no such level.

    Raises:
        CompileError: See `compile_image`.
    """
    if level == "hip":
        return text
    return compile_image(text, arch).assembly if level == "amdgcn" else None


def _compile(text: str, arch: str, name: str) -> HipImage:
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        source, assembly, code, linked = (
            Path(folder, file) for file in ("kernels.hip", "kernels.s", "kernels.o", "kernels.hsaco")
        )
        source.write_text(f'#line 1 "{name}"\n{text}')
        done = _zig("clang", *_OPTIONS, f"--offload-arch={arch}", "-S", str(source), "-o", str(assembly))
        if done.returncode:
            if re.search(r"(unsupported|invalid|unknown).*(arch|target|processor)", done.stderr):
                raise CompileError(f"clang in the installed package ziglang does not know {arch}")
            raise InternalError(f"clang rejects {name} for {arch}:\n{done.stderr.strip()}")
        target = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-mcode-object-version=5")
        done = _zig("clang", *target, "-c", str(assembly), "-o", str(code))
        if not done.returncode:
            done = _zig("ld.lld", "-shared", "--no-undefined", str(code), "-o", str(linked))
        if done.returncode:
            raise InternalError(f"the code of {name} for {arch} cannot be linked:\n{done.stderr.strip()}")
        return HipImage(arch, assembly.read_text(), linked.read_bytes())


def _zig(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*link.zig_command(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def _zig_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ziglang")
    except PackageNotFoundError:
        return ""


@cache
def _has_amdgpu() -> bool:
    return re.search(r"^\s*amdgcn\b", _zig("clang", "--print-targets").stdout, re.M) is not None


_ENTRY = re.compile(r"^  - (?=\.)", re.M)
_FIELD = re.compile(r"^    \.(\w+): +(\S+)$", re.M)


def _resources(assembly: str) -> dict[str, KernelResources]:
    """Read the metadata that clang writes for the driver; see "Code Object V5 Metadata" in LLVM's user guide
    for the AMDGPU backend.
    """
    _, _, metadata = assembly.partition("\t.amdgpu_metadata\n")
    _, _, kernels = metadata.partition("amdhsa.kernels:\n")
    counts = _instructions(assembly)
    found: dict[str, KernelResources] = {}
    for entry in _ENTRY.split(kernels.partition("\namdhsa.")[0])[1:]:
        fields = dict(_FIELD.findall("    " + entry))
        found[fields["name"]] = KernelResources(
            int(fields["vgpr_count"]),
            int(fields["group_segment_fixed_size"]),
            int(fields["private_segment_fixed_size"]),
            4 * int(fields["vgpr_spill_count"]),
            counts.get(fields["name"], ()),
        )
    return found


_LABEL = re.compile(r"^([A-Za-z_]\w*):")
_INSTRUCTION = re.compile(r"^\t([a-z]\w+)(?:\s|$)")


def _instructions(assembly: str) -> dict[str, tuple[tuple[str, int], ...]]:
    found: dict[str, Counter[str]] = {}
    names: Counter[str] | None = None
    for line in assembly.splitlines():
        if match := _LABEL.match(line):
            names = found[match[1]] = Counter()
        elif line.startswith(("\t.section", "\t.amdhsa", ".Lfunc_end")):
            names = None
        elif names is not None and (match := _INSTRUCTION.match(line)):
            names[match[1]] += 1
    return {name: count_instructions(counts, PATTERNS) for name, counts in found.items()}


__all__ = ["HipImage", "code_text", "compile_image", "compiler", "device_code", "missing"]

"""Running artifacts of other targets: which emulator runs them, and a program that runs their models.

Shared libraries of Linux are loaded by a program for the C library in a folder of the system (Debian:
``libc6-arm64-cross``, ``libc6-armhf-cross``, ``libc6-riscv64-cross``); static libraries are linked into a
program. Android's get glibc where the system has it for the processor (on armv7 ``libc6-armel-cross``); all
others get musl, which takes zig a minute to build. Windows' libraries are loaded by a program in Wine.

QEMU 7.2 for RISC-V fails its own assertion (``decode_save_opc``) on a vector conversion with a static
rounding mode, such as ``vfcvt.rtz.x.f.v``, unless an instruction before it in the block sets the mode. QEMU
10 does not. The first emulator in ``PATH`` is taken.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.artifact import link, temporary
from tilewright.artifact.sources import INCLUDE_DIR
from tilewright.artifact.systems import system_of
from tilewright.ir.core import Module
from tilewright.ir.types import DType
from tilewright.runtime.tensors import DTYPES
from tilewright.targets.cpu.isa import isa_named
from tilewright.targets.llvm.isa import Isa

RUNNER = Path(__file__).with_name("runner.c")
ANDROID = Path(__file__).with_name("android.c")
"""Functions of Android's C library that the others lack."""
GUARDED = Path(__file__).with_name("guarded.c")
"""An allocator whose blocks end where memory ends."""
SECONDS = 280.0
"""The time that a program may take in an emulator."""

_STATIC = ("linux-musl", "android")
"""Systems whose static libraries are linked into a program."""
_PROCESSORS = {"aarch64": "aarch64", "armv7": "arm", "riscv64": "riscv64", "hexagon": "hexagon"}
_FOLDERS = {"aarch64": "aarch64-linux-gnu", "armv7": "arm-linux-gnueabihf", "riscv64": "riscv64-linux-gnu"}
_MODELS = {"riscv64": "rv64,v=true,vlen={bits}", "armv7": "max", "hexagon": "v67"}


class NoEmulator(Exception):
    """This machine cannot run programs of the target; the text says what is missing."""


def command_of(target: str) -> list[str]:
    """The beginning of the command that runs a program of the target.

    Raises:
        NoEmulator: it cannot be run here.
    """
    isa = isa_named(target)
    processor, system = isa.triple.partition("-")[0], system_of(isa.triple)
    if system.name == "windows":
        if processor != "x86_64" or (wine := shutil.which("wine64") or shutil.which("wine")) is None:
            raise NoEmulator(f"{target}: Wine is not installed, or does not run this processor's programs")
        return [wine]
    if system.name not in ("linux", *_STATIC):
        raise NoEmulator(f"{target}: no emulator runs programs of {system.title}")
    if processor == "x86_64":
        return []
    name = _PROCESSORS[processor]
    emulator = shutil.which(f"qemu-{name}-static") or shutil.which(f"qemu-{name}")
    if emulator is None:
        raise NoEmulator(f"{target}: qemu-{name} is not installed (Debian: qemu-user-static)")
    model = _aarch64(isa) if processor == "aarch64" else _MODELS[processor]
    command = [emulator, "-cpu", model.format(bits=max(128, isa.vector_bits))]
    if system.name == "linux" and not (folder := _glibc(isa.triple)).is_dir():
        raise NoEmulator(f"{target}: there is no C library in {folder}")
    if system.name == "linux" or _has_glibc(isa.triple):
        command += ["-L", str(_glibc(isa.triple))]
    return command


def _aarch64(isa: Isa) -> str:
    """A processor that has no more than what code is made for, so that other instructions end the program."""
    if isa.sve_bits:
        return f"max,sve{isa.sve_bits}=on,sve-default-vector-length={isa.sve_bits // 8}"
    if isa.has("i8mm") or isa.has("bf16"):
        return "max"
    return "neoverse-n1" if isa.has("dotprod") else "cortex-a53"


def _glibc(triple: str) -> Path:
    """The folder of the system with the glibc that programs of a target need. On armv7 Android's functions
    take numbers in other registers than those of Linux, as Debian's armel does.
    """
    processor = triple.partition("-")[0]
    if processor == "armv7" and system_of(triple).name == "android":
        return Path("/usr/arm-linux-gnueabi")
    return Path("/usr") / _FOLDERS[processor]


def _has_glibc(triple: str) -> bool:
    """Whether programs of Android's static libraries get glibc."""
    if system_of(triple).name != "android":
        return False
    return platform.libc_ver()[0] == "glibc" if triple.startswith("x86_64") else _glibc(triple).is_dir()


@cache
def version_of(target: str) -> str:
    """The name and version of the emulator, for records of outcomes; ``native`` where none is needed.

    Raises:
        NoEmulator: programs of the target cannot be run here.
    """
    command = command_of(target)
    if not command:
        return "native"
    said = subprocess.run([command[0], "--version"], check=True, capture_output=True, text=True)
    return said.stdout.splitlines()[0].partition(" (")[0]


@cache
def _program(target: str) -> Path:
    """The runner, for shared libraries of a target's system."""
    triple = isa_named(target).triple
    system = system_of(triple)
    path = temporary.folder() / f"runner-{triple}{'.exe' if system.format == 'PE' else ''}"
    options = ["-O1", "-s", f"-I{INCLUDE_DIR}", *(["-ldl"] if system.format == "ELF" else [])]
    _compile(triple, [str(RUNNER), *options], path)
    return path


def _compile(triple: str, arguments: Sequence[str], path: Path) -> None:
    command = [*link.zig_command(), "cc", "-target", link.zig_target(triple)]
    subprocess.run([*command, *arguments, "-o", str(path)], check=True, capture_output=True)


def _link_statically(triple: str, arguments: Sequence[str], path: Path) -> None:
    """Make a program of sources and objects, which may be for Android."""
    more = [str(ANDROID)] if system_of(triple).name == "android" else []
    if _has_glibc(triple):
        triple, options = triple.removesuffix("21").replace("android", "gnu"), ["-lm", "-ldl"]
    else:
        triple, options = triple.replace("android", "musl"), ["-static"]
    _compile(triple, ["-O1", *arguments, *more, *options], path)


def run_static(target: str, objects: Sequence[Path], arguments: Sequence[str]) -> str:
    """The text that a program of objects for a target prints, linked as static libraries are.

    Raises:
        NoEmulator: It cannot be run here.
    """
    command, program = command_of(target), objects[0].with_name("program")
    _link_statically(isa_named(target).triple, [str(file) for file in objects], program)
    done = subprocess.run([*command, str(program), *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def run_model(
    library: Any,
    target: str,
    inputs: Sequence[Sequence[np.ndarray]],
    seconds: float = SECONDS,
    tokens: int = 0,
    guarded: bool = False,
) -> list[list[np.ndarray]]:
    """The outputs of function 0 of a compiled library, for each list of inputs, computed in an emulator.

    With `tokens` the library maps a row of tokens to logits; the output is the row with so many more tokens,
    each the one with the largest logit. With `guarded` the weights and all blocks of memory of a statically
    linked program end where a page begins that cannot be accessed: an access beyond an end fails.

    Raises:
        NoEmulator: it cannot be run here.
        RuntimeError: the program failed; the text has the runtime's message, or the signal.
    """
    command, triple = command_of(target), isa_named(target).triple
    folder = Path(temporary.folder()) / f"port-{os.urandom(6).hex()}"
    folder.mkdir()
    try:
        if system_of(triple).name in _STATIC:
            model, program = library.save(folder / "model.a"), folder / "program"
            sources = [str(RUNNER), *([str(GUARDED)] if guarded else [])]
            _link_statically(triple, ["-DLINKED", f"-I{INCLUDE_DIR}", *sources, str(model)], program)
            file = "-"
            if guarded and library.built.weights.size:
                file = str(folder / "weights")
                library.built.weights.tofile(file)
        else:
            file = str(library.save(folder / f"model{system_of(triple).suffixes[0]}"))
            program = _program(target)
        given, wanted = folder / "inputs", folder / "outputs"
        entry = library.metadata
        outputs = len(entry["outputs"])
        _write(given, inputs, [DType.named(x["dtype"]) for x in entry["inputs"]], outputs)
        done = subprocess.run(
            [*command, str(program), file, str(given), str(wanted), *([str(tokens)] if tokens else [])],
            capture_output=True,
            timeout=seconds,
            env={**os.environ, "WINEDEBUG": "-all"},
        )
        if done.returncode:
            raise RuntimeError(f"{target}: exit status {done.returncode}: {done.stderr.decode()[-300:]}")
        results = [x["dtype"] for x in entry["inputs" if tokens else "outputs"]]
        return _read(wanted.read_bytes(), len(inputs), [DType.named(x) for x in results])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_for(target: str, precision: str | None = None, opt: str = "O2", guarded: bool = False) -> Any:
    """A `tests.differential.check.Run` that compiles for a target and runs in an emulator; `guarded` as for
    `run_model`.
    """

    def run(module: Module, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        with tw.compile(module.clone(), target=target, precision=precision, opt=opt, cache=False) as library:
            return run_model(library, target, inputs, guarded=guarded)

    return run


def _write(path: Path, runs: Sequence[Sequence[np.ndarray]], dtypes: Sequence[DType], outputs: int) -> None:
    parts = [struct.pack("<iii", len(runs), len(dtypes), outputs)]
    for arrays in runs:
        for array, dtype in zip(arrays, dtypes, strict=True):
            data = np.ascontiguousarray(array, dtype.numpy)
            code, bits = DTYPES[data.dtype]
            shape = np.shape(array)
            parts.append(struct.pack(f"<iii{len(shape)}qq", code, bits, len(shape), *shape, data.nbytes))
            parts.append(data.tobytes())
    path.write_bytes(b"".join(parts))


def _read(data: bytes, runs: int, dtypes: Sequence[DType]) -> list[list[np.ndarray]]:
    at, results = 0, []
    for _ in range(runs):
        outputs = []
        for dtype in dtypes:
            (code,) = struct.unpack_from("<i", data, at)
            if code == -1:
                raise RuntimeError(data[at + 4 :].decode(errors="replace"))
            _, _, rank = struct.unpack_from("<iii", data, at)
            *shape, size = struct.unpack_from(f"<{rank}qq", data, at + 12)
            at += 20 + 8 * rank
            outputs.append(np.frombuffer(data, dtype.numpy, size // dtype.numpy.itemsize, at).reshape(shape))
            at += size
        results.append(outputs)
    return results


__all__ = ["NoEmulator", "command_of", "run_for", "run_model", "version_of"]

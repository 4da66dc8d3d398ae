"""From LLVM IR text to relocatable objects and assembly, through llvmlite; objects are cached on disk.

llvmlite admits one thread at a time, so several modules are divided between this process and helper
processes. A helper runs this file as a program: requests arrive on standard input, objects leave on standard
output.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ...artifact import disk_cache
from ...errors import InternalError
from .emitter import REDUCED
from .emulate import emulate
from .isa import Isa
from .masks import expanded

_ALONE = 400_000
"""Characters of IR that one process compiles faster than a helper starts.

A helper takes about 0.3 s to start; compilation takes about 6 microseconds per character.
"""
_KIND = "objects"
_SVE_UNIT = 128
"""Bits of which the registers of AArch64's SVE have a multiple, LLVM's ``vscale``."""
_WIDE_MASK = re.compile(r"\b[if]cmp [\w ]*<\d+ x (i64|double)>")
"""Comparisons of vectors of 64-bit numbers. LLVM 22 ends the process ("Cannot select") where their masks in
SVE's registers choose narrower numbers; without a known width of SVE, it takes vectors apart into NEON's.
"""
_HVX_BYTES = 128
"""Bytes of a vector register of Hexagon's HVX."""


def compile_object(text: str, isa: Isa) -> bytes:
    """The relocatable, position-independent object of a module.

    Raises:
        InternalError: LLVM rejects the text; the message shows the line.
    """
    return compile_objects([text], isa)[0]


def compile_objects(
    texts: Sequence[str], isa: Isa, processes: int | None = None, llvm_opt_level: int = 2
) -> list[bytes]:
    """The objects of several modules, in order.

    `processes` (default: all cores) bounds the number of working processes; `llvm_opt_level` is LLVM's level,
    0 to 3.

    Raises:
        InternalError: as for `compile_object`.
    """
    keys = [_key(text, isa, llvm_opt_level) for text in texts]
    objects: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for key, text in zip(keys, texts, strict=True):
        if key in objects or key in missing:
            continue
        cached = disk_cache.read(_KIND, key)
        if cached is None:
            missing[key] = text
        else:
            objects[key] = cached
    shares = _divide(missing, processes or _cores())
    helpers = [_Helper(share, isa, llvm_opt_level) for share in shares[1:]]
    try:
        for key, text in shares[0]:
            objects[key] = _compile(text, isa, llvm_opt_level)
            disk_cache.write(_KIND, key, objects[key])
        for helper in helpers:
            # Modules that a helper failed to compile (it may have been killed) are compiled here, where
            # errors can be reported.
            for (key, text), data in zip(helper.share, helper.results(), strict=True):
                objects[key] = data if data is not None else _compile(text, isa, llvm_opt_level)
                disk_cache.write(_KIND, key, objects[key])
    finally:
        for helper in helpers:
            helper.stop()
    return [objects[key] for key in keys]


def assembly(text: str, isa: Isa, llvm_opt_level: int = 2) -> str:
    """The target's assembly of a module, as compiled for its object."""
    machine, module = _optimized(text, isa, llvm_opt_level)
    return str(machine.emit_assembly(module))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _sources() -> str:
    """A digest of the source files that, in addition to its text, determine a module's object."""
    from . import emitter, emulate, isa, masks

    files = [__file__, *(str(module.__file__) for module in (emitter, emulate, isa, masks))]
    return disk_cache.digest(*(Path(file).read_bytes() for file in files))


def _key(text: str, isa: Isa, llvm_opt_level: int) -> str:
    import llvmlite

    return disk_cache.digest(
        _sources(),
        str(llvm_opt_level),
        llvmlite.__version__,
        isa.triple,
        isa.cpu,
        ",".join(isa.features),
        ",".join(isa.emulated),
        str(isa.sve_bits),
        text,
    )


def _divide(missing: dict[str, str], processes: int) -> list[list[tuple[str, str]]]:
    """Shares of about equal size; the first is for this process."""
    total = sum(map(len, missing.values()))
    count = max(1, min(processes, len(missing), 1 + total // _ALONE))
    shares: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for key, text in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0])):
        least = sizes.index(min(sizes))
        shares[least].append((key, text))
        sizes[least] += len(text)
    return shares


_initialized = False
_initializing = threading.Lock()


def _llvm() -> Any:
    """llvmlite's binding with all targets initialized."""
    import llvmlite.binding as llvm

    global _initialized
    with _initializing:
        if not _initialized:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _initialized = True
    return llvm


@cache
def _without_mve_gathers() -> None:
    """Let loads and stores of vectors of pointers become those of single elements on Arm's MVE.

    LLVM 22 moves the scaling of a gather's index into the loop's counter, whose other use, the test for the
    loop's end, keeps the unscaled bound: the loop does not end. LLVM has no switch for this step alone. The
    option holds for the process, and only MVE has it.
    """
    _llvm().set_option("tilewright", "-enable-arm-maskedgatscat=false")


def _machine(llvm: ModuleType, isa: Isa, llvm_opt_level: int) -> Any:
    if isa.has("mve.fp"):
        _without_mve_gathers()
    features = ",".join(f if f[0] in "+-" else f"+{f}" for f in isa.compiler_features)
    # The name of a feature level would enable the features that are emulated.
    cpu = "x86-64" if isa.emulated else isa.cpu
    try:
        target = llvm.Target.from_triple(isa.triple)
        return target.create_target_machine(
            cpu=cpu,
            features=features,
            opt=llvm_opt_level,
            reloc="static" if "-none-" in isa.triple else "pic",
            codemodel="default",
            abiname=_abi(isa.triple),
        )
    except RuntimeError as error:
        raise InternalError(f"LLVM cannot generate code for {isa.triple} ({isa.cpu}): {error}") from error


def _abi(triple: str) -> str:
    return "lp64d" if triple.startswith("riscv64") else ""


def parsed(text: str) -> Any:
    """The module of a text, verified.

    Raises:
        InternalError: LLVM rejects the text; the message shows the line.
    """
    llvm = _llvm()
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"generated LLVM IR is not valid: {error}") from error
    return module


def _optimized(text: str, isa: Isa, llvm_opt_level: int = 2) -> tuple[Any, Any]:
    """The target machine, and the module parsed, verified and optimized."""
    from llvmlite.binding.newpassmanagers import NewPassManager

    llvm = _llvm()
    machine = _machine(llvm, isa, llvm_opt_level)
    text = emulate(text, isa.emulated)
    if isa.triple.startswith("hexagon"):
        text = expanded(text)
    if isa.sve_bits and not _WIDE_MASK.search(text):
        count = isa.sve_bits // _SVE_UNIT
        text = _DEFINITION.sub(lambda found: f"{found[0][:-1]}vscale_range({count},{count}) {{", text)
    # Accesses without an alignment get that of their type in the layout that is known when they are read.
    module = parsed(f'target datalayout = "{machine.target_data}" {text}')
    module.triple = isa.triple
    options = llvm.create_pipeline_tuning_options(speed_level=llvm_opt_level)
    # Schedules decide on vectors and tiles, so LLVM's vectorizers are off. Loops are unrolled only where
    # metadata asks for it.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    if _is_reduced(text, isa, llvm_opt_level):
        manager = llvm.create_new_module_pass_manager()
        manager.add_instruction_combine_pass()
    else:
        manager = builder.getModulePassManager()
    manager.run(module, builder)
    # llvmlite's pass manager class inherits two methods that free it, and finds first the one that does
    # nothing.
    NewPassManager._dispose(manager)
    manager.detach()
    if isa.has("hvx-length128b"):
        _check_loads_of_hvx(str(module))
    return machine, module


_LOAD = re.compile(r"\bload <(\d+) x i(8|16|32)>")


def _check_loads_of_hvx(text: str) -> None:
    """Raise InternalError if a module loads a vector that LLVM 22 extends to a whole register of Hexagon's
    HVX, of which it is half or more: code would read beyond the end of the data.
    """
    for count, bits in _LOAD.findall(text):
        if _HVX_BYTES // 2 <= int(count) * int(bits) // 8 < _HVX_BYTES:
            raise InternalError(f"code for HVX loads <{count} x i{bits}>, which is a part of a register")


_DEFINITION = re.compile("^define .*$", re.MULTILINE)


def _is_reduced(text: str, isa: Isa, llvm_opt_level: int) -> bool:
    """Whether all functions of a module are `REDUCED`, and LLVM needs no further passes for this machine.

    Only x86 computes most addresses within instructions; elsewhere their calculation has to leave the loops.
    """
    return (
        isa.triple.startswith("x86_64")
        and llvm_opt_level < 3
        and all(REDUCED in line for line in _DEFINITION.findall(text))
    )


def _compile(text: str, isa: Isa, llvm_opt_level: int) -> bytes:
    machine, module = _optimized(text, isa, llvm_opt_level)
    return bytes(machine.emit_object(module))


# -- Helper processes -------------------------------------------------------------------------------------- A
# request is a list of texts, a reply a list of objects: each u64 length, then the bytes. A process that ends
# early leaves a short list.

_LENGTH = struct.Struct("<Q")


def _pack(items: Sequence[bytes]) -> bytes:
    return b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))


def _unpack(data: bytes) -> list[bytes]:
    items, at = [], 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            break
        items.append(data[at : at + length])
        at += length
    return items


class _Helper:
    """A process that compiles `share`, a list of (key, text) pairs."""

    def __init__(self, share: list[tuple[str, str]], isa: Isa, llvm_opt_level: int) -> None:
        self.share = share
        self._output = b""
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        request = _pack(
            [json.dumps([llvm_opt_level, asdict(isa)]).encode(), *(text.encode() for _, text in share)]
        )
        self._reader = threading.Thread(target=self._talk, args=(request,), daemon=True)
        self._reader.start()

    def _talk(self, request: bytes) -> None:
        self._output, _ = self._process.communicate(request)

    def results(self) -> list[bytes | None]:
        """An object for each text; None for those that the process did not compile."""
        self._reader.join()
        done = _unpack(self._output)
        return [*done, *[None] * (len(self.share) - len(done))]

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._reader.join()


def _serve() -> None:
    head, *texts = (item.decode() for item in _unpack(sys.stdin.buffer.read()))
    llvm_opt_level, fields = json.loads(head)
    isa = Isa(**{**fields, "features": tuple(fields["features"]), "emulated": tuple(fields["emulated"])})
    for text in texts:
        sys.stdout.buffer.write(_pack([_compile(text, isa, llvm_opt_level)]))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()

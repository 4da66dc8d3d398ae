"""The machine code of NVIDIA's GPUs as text, and the instructions in it, by NVIDIA's disassembler.

The program ``nvdisasm`` comes as the Python package ``nvidia-cuda-nvdisasm``, and with every SDK.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from ...errors import CompileError, InternalError
from ..gpu.performance import count_instructions

PATTERNS = {
    "global load": r"LDG?\b|LD\.",
    "global load 16": r"LDG?\.(\w+\.)*128",
    "global store": r"STG?\b|ST\.",
    "global store 16": r"STG?\.(\w+\.)*128",
    "async copy": r"LDGSTS|UBLKCP|UTMALDG|UTMASTG",
    "matrix": r"[HIDBQ]G?MMA\b",
    "warpgroup matrix": r"[HIQ]GMMA\b",
    "local": r"LDL|STL",
    "barrier": r"BAR\b|UCGABAR",
    "shuffle": r"SHFL|REDUX|VOTE",
    "atomic": r"ATOM|RED\b",
}


def missing() -> str | None:
    """Return why machine code cannot be disassembled here, with the command that helps; None if it can."""
    if _nvdisasm() is None:
        return "nvdisasm, which shows machine code as text, is not installed: pip install 'tilewright[cuda]'"
    return None


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin as text: one section for each kernel.

    Raises:
        CompileError: There is no disassembler; the message says how to install it.
        InternalError: The disassembler does not know the code.
    """
    program = _nvdisasm()
    if program is None:
        raise CompileError(str(missing()))
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder, "module.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"nvdisasm: {done.stderr.strip()}")
    return done.stdout


_SECTION = re.compile(r"^\.text\.(\S+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def instructions(text: str) -> dict[str, tuple[tuple[str, int], ...]]:
    """Count the instructions of each kernel by their kind; see `performance.KINDS`. `text` is that of
    `disassemble`.
    """
    found: dict[str, Counter[str]] = {}
    names = Counter[str]()
    for line in text.splitlines():
        if match := _SECTION.match(line):
            names = found[match[1]] = Counter()
        elif match := _INSTRUCTION.match(line):
            names[match[1]] += 1
    # A kernel is padded with NOPs to a multiple of the length of a cache line.
    return {
        kernel: count_instructions({n: c for n, c in counts.items() if n != "NOP"}, PATTERNS)
        for kernel, counts in found.items()
    }


def instructions_of(cubin: bytes) -> dict[str, tuple[tuple[str, int], ...]]:
    """Count the instructions of each kernel of a cubin by their kind; empty without code or a disassembler.
    The disassembler takes as long as the compiler, so this is for reports alone.

    Raises:
        InternalError: The disassembler does not know the code.
    """
    return instructions(disassemble(cubin)) if cubin and missing() is None else {}


@cache
def _nvdisasm() -> str | None:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    path: str | None = find_nvidia_binary_utility("nvdisasm")
    return path


__all__ = ["disassemble", "instructions", "instructions_of", "missing"]

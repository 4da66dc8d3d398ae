"""The targets ``cortex-m4``, ``-m7``, ``-m33``, ``-m55``: a static library of machine code, with C sources
for the model's functions and memory.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact import elf, link, temporary
from ...artifact.static_package import NAMES, PREFIX
from ...artifact.symbols import prefixed
from ...errors import CompileError
from ...runtime.model import CompiledModel
from ..llvm.isa import Isa
from ..llvm.machine import UNITS, stated
from ..llvm.static_target import StaticTarget, save_archive
from ..llvm.target import ForeignLibrary
from .isa import CORTEX_M

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary

_MEMORIES = ("flash", "ram")
_BUFFER = re.compile(r"= alloca \[(\d+) x i8\]")


class McuLibrary(ForeignLibrary):
    """A library for a microcontroller, which can be saved and inspected."""

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        name = prefix or PREFIX
        objects = prefixed(self.built.objects, name, (), NAMES)
        return save_archive(
            path,
            self.built,
            {f"lib{name}_code.a": archive(objects, self.built.isa)},
            weights=weights,
            prefix=prefix,
            notes=[
                f"Code: {sum(map(elf.loaded_bytes, objects))} bytes, in lib{name}_code.a, for "
                f"{self.built.isa.name} with hardware floating point (-mfloat-abi=hard).",
                f"Stack: {buffers_on_stack(self.built.texts)} bytes for buffers, beside that of calls.",
                "Link lib*_code.a after the sources, then libgcc or compiler-rt, and libm.",
                "Constants are in .rodata, which the linker's script places in flash.",
                "An interrupt may not call the model while it runs.",
            ],
        )


def buffers_on_stack(texts: Sequence[str]) -> int:
    """The bytes of buffers on the stack that the most demanding of some modules of LLVM IR needs."""
    return max((sum(map(int, _BUFFER.findall(text))) for text in texts), default=0)


def archive(objects: Sequence[bytes], isa: Isa) -> bytes:
    """A static library of objects."""
    with tempfile.TemporaryDirectory(dir=temporary.folder()) as folder:
        path = Path(folder) / "library.a"
        link.archive(objects, path, isa)
        return path.read_bytes()


class McuTarget(StaticTarget):
    """A microcontroller, with the bytes of its memories if the target's name states them."""

    code_levels = ("llvm", "asm")
    runs_here = False

    def __init__(self, name: str, isa: Isa, limits: Mapping[str, int]) -> None:
        super().__init__(name, isa)
        self.limits = limits

    def link(self, path: Path, objects: Sequence[bytes], metadata: dict[str, Any]) -> None:
        path.write_bytes(b"")  # Nothing is linked: the program's own linker does it.

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        self._check_limits(built)
        return McuLibrary(built, self.name, f"compiled for {self.name}: save the model and run it there")

    def _check_limits(self, built: BuiltLibrary) -> None:
        memory = built.metadata["static"]
        if not self.limits or memory["refused"]:
            return
        needed = {
            "flash": built.weights_size + sum(map(elf.loaded_bytes, built.objects)),
            "ram": memory["arena"]
            + memory["scratch"]
            + sum(memory["states"].values())
            + buffers_on_stack(built.texts),
        }
        missing = [
            f"{needed[kind]} bytes of {kind} of {limit}, {needed[kind] - limit} too many"
            for kind, limit in self.limits.items()
            if needed[kind] > limit
        ]
        if missing:
            raise CompileError(f"the model does not fit on {self.name}: it needs {' and '.join(missing)}")


def mcu_target(name: str) -> McuTarget:
    """Return the target ``cortex-m4``, or ``cortex-m4:flash=1M+ram=256K`` with the sizes of its memories.

    Raises:
        CompileError: An unknown fact, or a value that is no size.
    """
    family, _, rest = name.partition(":")
    limits, facts = {}, []
    for part in filter(None, rest.split("+")):
        kind, _, text = part.partition("=")
        if kind not in _MEMORIES:
            facts.append(part)
        elif match := re.fullmatch(r"([1-9]\d*)([KMG]?)", text):
            limits[kind] = int(match[1]) * UNITS[match[2]]
        else:
            raise CompileError(f"target {name!r}: {part!r} has no valid value; an example is {kind}=256K")
    isa = CORTEX_M[family]
    return McuTarget(name, replace(isa, machine=stated(isa.machine, facts, f"target {name!r}")), limits)


__all__ = ["McuTarget", "mcu_target"]

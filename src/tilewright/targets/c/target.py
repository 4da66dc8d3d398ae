"""The target ``c``: kernels and host program as portable C11 sources."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact import link, package
from ...runtime.library import Library
from ...runtime.model import CompiledModel
from ..cpu.machine import common
from ..llvm.isa import Isa
from ..llvm.machine import stated
from ..llvm.static_target import StaticTarget, save_archive
from ..llvm.target import BuiltCode
from .translate import to_c

if TYPE_CHECKING:
    from ..llvm.build import BuiltLibrary

_GLOBAL = re.compile(r"^\w[\w* ]*?\b(\w+)\([^;]*\) \{$", re.MULTILINE)
"""The definition of a function."""

FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fvisibility=hidden")

ISA = Isa(
    "c", "c-unknown-unknown", "generic", (), 64, 16, masked=False, fma=False, halves=True,
    machine=common(32, 256, cores=1),
)  # fmt: skip
"""Vectors of two floats: each lane becomes a variable, and a compiler joins what its processor joins."""


@cache
def _prelude() -> str:
    return (Path(__file__).parent / "prelude.h").read_text()


class BuiltCLibrary(BuiltCode, Library):
    """A library whose sources this machine's C compiler has compiled."""

    def __init__(self, built: BuiltLibrary, threads: int | None) -> None:
        self.built = built
        super().__init__(built.path, num_threads=threads or 1, verify=False)

    @property
    def weights(self) -> Any:
        """The weights that the compiler packed; no file holds them yet."""
        return self.built.weights

    def save(self, path: str | Path, *, weights: str | None = None, prefix: str | None = None) -> Path:
        sources = {f"code{k}.c": text for k, text in enumerate(self.built.objects)}
        prelude = _prelude().replace("#include", '#include "names.h"\n#include', 1)
        return save_archive(
            path,
            self.built,
            {"prelude.h": prelude.encode(), **sources},
            symbols=_GLOBAL.findall("\n".join(text.decode() for text in sources.values())),
            weights=weights,
            prefix=prefix,
        )

    def code_text(self, level: str) -> str | None:
        """Return the C sources; None for another level."""
        return "\n".join(text.decode() for text in self.built.objects) if level == "c" else None


class CTarget(StaticTarget):
    """C11 for any compiler. The `objects` of its libraries are sources."""

    code_levels = ("c",)

    def compile_modules(self, texts: Sequence[str], llvm_opt_level: int) -> list[bytes]:
        return [to_c(text).encode() for text in texts]

    def link(self, path: Path, objects: Sequence[bytes], metadata: dict[str, Any]) -> None:
        here = link.host_triple()

        def compiled(numbered: tuple[int, bytes]) -> bytes:
            number, text = numbered
            source = text.decode().replace('#include "prelude.h"', "", 1)
            return link.compile_text(source, f"source{number}.c", here, FLAGS, _prelude())

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            parts = list(pool.map(compiled, enumerate(objects)))
        package.link_library(path, parts, metadata, here)

    def load(self, built: BuiltLibrary, threads: int | None) -> CompiledModel:
        return BuiltCLibrary(built, threads)


def c_target(name: str) -> CTarget:
    """Return the target ``c``, or ``c:cores=1+l1=16K`` with facts of the machine.

    Raises:
        CompileError: An unknown fact.
    """
    facts = [part for part in name.partition(":")[2].split("+") if part]
    return CTarget(name, replace(ISA, machine=stated(ISA.machine, facts, f"target {name!r}")))


__all__ = ["CTarget", "c_target"]

"""Targets whose artifacts are archives of a model with static memory (`artifact.static_package`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifact.kinds import check_suffix
from ...artifact.static_package import save_static
from ...runtime.model import goes_beside
from .isa import Isa
from .static_memory import static_memory
from .target import LlvmTarget

if TYPE_CHECKING:
    from ...lowering.pipeline import Lowered
    from .build import BuiltLibrary
    from .kernel import KernelCode

SUFFIXES = (".tar",)


class StaticTarget(LlvmTarget):
    """A target for programs without an operating system."""

    def __init__(self, name: str, isa: Isa) -> None:
        super().__init__(name, isa)
        self.suffixes = SUFFIXES
        self.precisions = ()

    def more_metadata(self, lowered: Lowered, codes: Mapping[str, KernelCode]) -> dict[str, Any]:
        return {"static": static_memory(lowered.module, codes)}


def save_archive(
    path: str | Path,
    built: BuiltLibrary,
    code: Mapping[str, bytes],
    *,
    symbols: Sequence[str] = (),
    weights: str | None,
    prefix: str | None,
    notes: Sequence[str] = (),
) -> Path:
    """Write the archive of a library; `code`, `symbols` and `notes` as of `save_static`, the others as of
    `CompiledModel.save`.
    """
    check_suffix(path, SUFFIXES, built.isa.name)
    return save_static(
        Path(path),
        code,
        symbols,
        built.metadata,
        built.weights,
        prefix=prefix,
        beside=goes_beside(path, weights),
        notes=notes,
    )


__all__ = ["StaticTarget", "save_archive"]

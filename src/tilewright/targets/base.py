"""What the compiler asks of a target: how it wants groups lowered, and how its code becomes a library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import CompileError, UnsupportedOperator
from ..ir.constant import Constant
from ..lowering.pipeline import Lowered, LoweringOptions

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""


Weights = Iterable[tuple[int, Constant]]
"""Offsets and data."""


class Target(ABC):
    """One kind of device. Everything known about it stands in its own folder."""

    name: str
    """As the user may write it: ``cpu:x86-64-v4``."""
    code_level: str = "llvm"
    """Name of the level of its code text, for ``lib.ir``."""

    precisions: tuple[str, ...] = ()
    """What `precision` of `tilewright.compile` may ask for, beside the model's own arithmetic."""

    suffixes: tuple[str, ...] = (".so", ".tar")
    """What the names of its artifacts may end in; the first is what the cache calls them."""

    @property
    def suffix(self) -> str:
        """Of artifacts in the cache."""
        return self.suffixes[0]

    has_checks: bool = True
    """Whether a run can end with an error: where not, indices and divisors go unchecked."""

    runs_here: bool = True
    """Whether this process can load and run what is compiled."""

    @property
    @abstractmethod
    def lowering(self) -> LoweringOptions:
        """Packing and schedule rules."""

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        """All that this device cannot express of a lowered model."""
        return []

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the metadata says of the target: name, triple, features."""

    @abstractmethod
    def build(
        self,
        lowered: Lowered,
        plan: Any,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        effort: int = 2,
    ) -> Any:
        """Generate code, with an effort of 0 (fastest) to 3, and return the loaded library, a `runtime.model.CompiledModel` with ``ir_text(level)`` and ``save(path)``."""

    def keep(self, library: Any) -> tuple[Any, Weights] | None:
        """What the cache holds of a library just built: something that can be pickled, and its weights apart; None where it holds nothing."""
        return None

    def restore(self, kept: Any, weights: Callable[[], Weights], threads: int | None, source: dict[str, str]) -> Any:
        """The library that `keep` took apart, as `build` returns it, of the same model under another name: `source` is what its metadata say of it.

        Raises:
            ArtifactError: the system cannot load it.
        """
        raise NotImplementedError


def resolve(name: str) -> Target:
    """The target called `name`.

    Raises:
        CompileError: unknown target; lists the known ones.
    """
    kind, _, variant = name.partition(":")
    if kind in ("cpu", "aarch64-linux"):
        from .cpu.target import cpu_target

        return cpu_target(name)
    if kind == "wasm32" and not variant:
        from .wasm.target import WasmTarget

        return WasmTarget()
    if kind == "webgpu" and not variant:
        from .webgpu.target import WebgpuTarget

        return WebgpuTarget()
    raise CompileError(
        f"unknown target {name!r}; known: cpu, cpu:x86-64-v2, cpu:x86-64-v3, cpu:x86-64-v4, aarch64-linux, wasm32, webgpu"
    )

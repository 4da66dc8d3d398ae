"""The interface of a target: its description, how groups become kernels, and how kernels become a loaded
library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CompileError, UnsupportedOperator
from ..ir.constant import Constant
from ..ir.symbolic import Dim
from ..ir.target_info import TargetInfo
from ..lowering.memory_plan import MemoryPlan
from ..lowering.pipeline import Lowered, LoweringOptions
from ..runtime.model import CompiledModel

if TYPE_CHECKING:
    from ..dialects import loop
    from ..dialects.kernels import KernelDefinition

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""


Weights = Iterable[tuple[int, Constant]]
"""Pairs of an offset in bytes and the constant that lies there."""


@dataclass(frozen=True)
class KernelObjects:
    """A kernel compiled apart from a model, for measuring it."""

    objects: list[bytes]
    """Relocatable objects, to be linked to a shared library that exports `symbol`."""
    symbol: str
    extent: Dim
    """The number of iterations of a launch."""
    grain: Dim
    """A thread gets at least so many of them."""
    scratch: Dim
    """Bytes of each thread's private memory."""


class Target(ABC):
    """A kind of device that `tilewright.compile` generates code for. `targets.registry` gives it a name."""

    name: str
    """The name that the user gives: ``cpu:x86-64-v4``."""
    code_levels: tuple[str, ...] = ("llvm", "asm")
    """The levels of the target's code, for ``library.ir(level)``: ``("wgsl",)``, ``("cuda", "ptx", "sass")``.
    """

    precisions: tuple[str, ...] = ()
    """Values of `precision` in `tilewright.compile` beside None, the model's own arithmetic: ``bf16``,
    ``f16``.
    """

    roundings: tuple[str, ...] = ()
    """Further values of `precision`: formats to which instructions round factors of float32 as they multiply
    them, ``tf32``.
    """

    suffixes: tuple[str, ...] = (".so", ".tar")
    """Suffixes that names of artifacts may have. The cache uses the first."""

    @property
    def suffix(self) -> str:
        """The suffix of artifacts in the cache."""
        return self.suffixes[0]

    has_checks: bool = True
    """Whether a run can end with an error. If not, indices and divisors are not checked."""

    runs_here: bool = True
    """Whether this process can load and run compiled code."""

    def rounding(self, to: str) -> Target:
        """This target with instructions that round to a format of `roundings`.

        Raises:
            CompileError: It has none.
        """
        raise CompileError(f"target {self.name!r} has no instructions that round to {to}")

    @property
    @abstractmethod
    def info(self) -> TargetInfo:
        """The description of the device that passes and schedules read."""

    @property
    @abstractmethod
    def lowering(self) -> LoweringOptions:
        """Packing, schedule rules and the description, for the passes below the graph level."""

    def refusals(self, lowered: Lowered) -> list[UnsupportedOperator]:
        """Return everything in a lowered model that this device cannot express; nothing by default."""
        return []

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the metadata's description of the target: name, features. It is a part of the cache's
        keys.
        """

    def kernel_code(self, kernel: loop.Kernel) -> str:
        """Return a text that is equal for finalized kernels of equal code. A database of measured choices
        keeps a digest of it; by default it is the kernel's own text.
        """
        from ..ir.printer import print_op

        return print_op(kernel)

    measures_kernels: bool = False
    """Whether `kernel_objects` compiles kernels apart from a model, so that `tilewright.tune` can measure
    them.
    """

    def kernel_objects(self, kernels: Sequence[loop.Kernel], llvm_opt_level: int) -> list[KernelObjects]:
        """Compile finalized kernels, each for itself, with LLVM's optimization level `llvm_opt_level`."""
        raise NotImplementedError

    def kernel_compilers(self, kernels: Iterable[KernelDefinition]) -> str:
        """Return a text that identifies the compilers of the code of the user's `kernels` for this target. It
        is a part of the cache's keys.
        """
        return ""

    @abstractmethod
    def build(
        self,
        lowered: Lowered,
        plan: MemoryPlan,
        metadata: dict[str, Any],
        progress: Progress,
        threads: int | None,
        llvm_opt_level: int = 2,
    ) -> CompiledModel:
        """Generate code and return the loaded library.

        Args:
            lowered: The host program with its scheduled kernels.
            plan: Where each buffer of the host program lies.
            metadata: The description of the model, which the library keeps.
            progress: Called with the name of each stage as it begins.
            threads: Limit of the worker threads at run time; None for all cores of the process.
            llvm_opt_level: 0 (fastest compilation) to 3 (most optimization); other compilers than LLVM may
                ignore it.
        """

    def keep(self, library: CompiledModel) -> tuple[Any, Weights] | None:
        """Return what the cache keeps of a library just built: an object that can be pickled, and the weights
        apart. None, the default, keeps nothing.
        """
        return None

    def restore(
        self, kept: Any, weights: Callable[[], Weights], threads: int | None, source: dict[str, str]
    ) -> CompiledModel:
        """Return the library whose parts `keep` returned, as `build` would, for an equal model of another
        name.

        Args:
            kept: The object that `keep` returned.
            weights: Loads the weights.
            threads: See `build`.
            source: The metadata's description of where the model came from.

        Raises:
            ArtifactError: The system cannot load it.
        """
        raise NotImplementedError

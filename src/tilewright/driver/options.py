"""The options of `tilewright.compile`: `CompileOptions`, and the functions that check what the caller
gave.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from ..errors import CompileError
from .opt_levels import DEFAULT, LEVELS, OptLevel

if TYPE_CHECKING:
    from ..dialects.kernels import KernelDefinition
    from ..ir.passes import Watcher
    from ..ir.types import DType
    from ..schedule.kernel_schedule import KernelSchedule
    from ..targets.base import Target
    from .tuned import Tuned


def _no_progress(stage: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """How a model is compiled: the options of `tilewright.compile`, checked and resolved."""

    target: Target
    """The target that code is generated for."""
    precision: DType | None = None
    """The 16-bit type of contractions' operands; None: the model's own types."""
    opt: OptLevel = LEVELS[DEFAULT]
    """The level of optimization."""
    checks: bool = True
    """Whether the artifact compares indices with their dimensions and integer divisors with zero."""
    threads: int | None = None
    """The most threads that a run uses; None: all cores of the process."""
    use_cache: bool = True
    """Whether the cache of compiled models is read and written."""
    disable: frozenset[str] = frozenset()
    """Passes that the caller leaves out, beside those that `opt` leaves out."""
    check: bool = False
    """Whether the interpreter runs the module before and after each pass and compares the results."""
    dump: Path | Watcher | None = None
    """The folder that the module is written to after each pass, or a function that is called around each."""
    replace: tuple[KernelDefinition, ...] = ()
    """Kernels that take the place of equal subgraphs."""
    libraries: tuple[str, ...] = ()
    """Libraries of vendors that compute products; of several that take one, the first counts."""
    schedules: tuple[KernelSchedule, ...] = ()
    """The caller's schedules of kernels; of several that fit a kernel, the first counts."""
    tuned: Tuned | None = None
    """Measured choices for kernels without a schedule of the caller's."""
    memory_budget: int | None = None
    """The most bytes of working memory, for which a backward pass computes values of the forward pass again;
    None: it computes again what costs no time.
    """
    extra_metadata: Mapping[str, Any] = field(default_factory=dict)
    """Entries to add to the artifact's metadata."""
    progress: Callable[[str], None] = _no_progress
    """Called with the name of each stage as it begins."""

    @property
    def disabled(self) -> frozenset[str]:
        """All passes that do not run."""
        return self.disable | self.opt.without

    @property
    def keeps_checks(self) -> bool:
        """Whether the artifact has checks: they are wanted, and the target can end a run with an error."""
        return self.checks and self.target.has_checks

    @property
    def may_use_cache(self) -> bool:
        """Whether the cache of compiled models may be read and written; options for debugging rule it out."""
        debugging = self.disable or self.check or self.dump
        return self.use_cache and self.target.runs_here and not debugging and not self.extra_metadata


def thread_count(threads: SupportsIndex | None) -> int | None:
    """The option `threads`, checked: a number of threads, or None for all cores.

    Raises:
        CompileError: It is not a whole number above 0.
    """
    if threads is None:
        return None
    try:
        count = operator.index(threads)
        if isinstance(threads, bool) or count < 1:
            raise TypeError
    except TypeError:
        raise CompileError(
            f"threads={threads!r}: give a whole number above 0, or None for all cores"
        ) from None
    return count


def kernels_to_place(replace: Iterable[object]) -> tuple[KernelDefinition, ...]:
    """The option `replace`, checked: kernels with patterns.

    Raises:
        CompileError: One is no kernel, or has no pattern.
    """
    from ..dialects.kernels import KernelDefinition

    found = []
    for kernel in (replace,) if isinstance(replace, KernelDefinition) else replace:
        if not isinstance(kernel, KernelDefinition):
            raise CompileError(f"replace: {kernel!r} is no kernel; tilewright.kernel makes one")
        if kernel.pattern is None:
            raise CompileError(
                f"replace: the kernel {kernel.name!r} has no pattern; define it with pattern=, a function on "
                "tilewright.Tensor of the same arguments"
            )
        found.append(kernel)
    return tuple(found)


def pass_names(disable: str | Iterable[str]) -> frozenset[str]:
    """The names of passes to disable, checked.

    Raises:
        CompileError: There is no such pass (the message lists similar names), or nothing can be compiled
            without it.
    """
    from ..passes.registry import all_passes

    if isinstance(disable, str):
        disable = (disable,)
    known = {info.name: info for info in all_passes()}
    for name in disable:
        if name in known and known[name].required:
            raise CompileError(f"disable: the pass {name!r} is required and cannot be left out")
        if name not in known:
            like = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(map(repr, like))}?"
                if like
                else f"the passes are {', '.join(known)}"
            )
            raise CompileError(f"disable: there is no pass {name!r}; {hint}")
    return frozenset(disable)


def kernel_schedules(schedules: object) -> tuple[KernelSchedule, ...]:
    """The option `schedules`, checked: what `pin`, `schedule_kernel` and `load_schedules` return.

    Raises:
        CompileError: It is something else.
    """
    from ..schedule.kernel_schedule import KernelSchedule

    entries = (schedules,) if isinstance(schedules, KernelSchedule) else schedules
    if isinstance(entries, (str, bytes)) or not isinstance(entries, Iterable):
        raise CompileError(f"schedules is {_kind(schedules)}: give a list of what tw.pin(...) returns")
    result = tuple(entries)
    for k, entry in enumerate(result):
        if not isinstance(entry, KernelSchedule):
            hint = " (decorate the function with @tw.schedule_kernel(NAME))" if callable(entry) else ""
            raise CompileError(f"schedules[{k}] is {_kind(entry)}, no schedule of a kernel{hint}")
    return result


def dump_folder(dump: str | Path | Watcher | None) -> Path | Watcher | None:
    """The option `dump` as a folder, which is made, or the function that it is.

    Raises:
        CompileError: The path is a file, or the folder cannot be made.
    """
    if dump is None or not isinstance(dump, str | Path):
        return dump
    folder = Path(dump)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise CompileError(f"dump: {folder} is a file; give a folder") from None
    except OSError as error:
        raise CompileError(f"dump: {folder} cannot be made: {error.strerror or error}") from error
    return folder


def check_arguments(args: object, kwargs: object, dims: object) -> None:
    """Check the form of example inputs and of dynamic dimensions.

    Raises:
        CompileError: One is not of the form that `tilewright.compile` takes; the message shows the form.
    """
    if args is not None and (isinstance(args, (str, bytes)) or not isinstance(args, (Sequence, Mapping))):
        raise CompileError(
            f"args is {_kind(args)}: give a tuple of example inputs, or a dictionary by name: args=(x, y)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CompileError(f"kwargs is {_kind(kwargs)}: give a dictionary of example inputs by name")
    if dims is None:
        return
    example = 'write dims={"input_ids": {0: "batch<=8"}}'
    if not isinstance(dims, Mapping):
        raise CompileError(f"dims is {_kind(dims)}, not a dictionary: {example}")
    for name, entries in dims.items():
        if not isinstance(entries, Mapping):
            raise CompileError(f"dims[{name!r}] is {_kind(entries)}, not a dictionary by axis: {example}")


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


__all__ = [
    "CompileOptions",
    "check_arguments",
    "dump_folder",
    "kernels_to_place",
    "kernel_schedules",
    "pass_names",
    "thread_count",
]

"""Lowers an optimized graph to a host program and scheduled kernels.

The passes of the tensor level (`passes.pipelines`) turn graph operators into computations and fuse these to
groups. Each distinct group becomes a scheduled kernel of the loop level, and the rest a host program that
launches kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..dialects import func, tensor
from ..errors import CompileError
from ..ir import notes
from ..ir.core import Module
from ..ir.passes import Pass, pass_name
from ..ir.symbolic import Dim
from ..ir.target_info import TargetInfo
from ..ir.types import DType
from ..passes.info import PassContext
from ..passes.registry import bound_passes
from ..passes.tensor.lower_precision import CONVERSION
from ..passes.tensor.lower_to_tensor import lower_to_tensor
from ..passes.tensor.pack_operands import PanelRule, RowMajorRule
from ..passes.tensor.write_in_place import write_in_place
from ..schedule.kernel_schedule import KernelSchedule
from ..schedule.rules import ScheduleRule
from ..schedule.tuned import TunedKernels
from .bufferize import bufferize
from .groups_to_kernels import KernelInfo, groups_to_kernels, moved_bytes


@dataclass(frozen=True)
class LoweringOptions:
    """Properties of a target that lowering depends on."""

    panel: PanelRule | None
    """The layout of packed right operands of contractions; None: operands are not packed."""

    rules: Mapping[str, ScheduleRule]
    """The target's schedule rules by kind of group. The rule for `GroupKind.PLAIN` serves kinds without
    one.
    """

    info: TargetInfo = field(default_factory=TargetInfo)
    """The description of the device, for passes and schedules."""

    row_groups: bool = True
    """Whether one worker can compute whole rows.

    Reductions may then share a kernel with their neighbours, and one worker sorts a row.
    """

    in_place: bool = True
    """Whether a kernel's input and output may be the same memory."""

    variants: bool = False
    """Whether host programs can choose between variants of a kernel by sizes."""

    row_major: RowMajorRule | None = None
    """Which right operands of contractions are row-major matrices instead of panels; None: none is."""

    def context(self, precision: DType | None = None) -> PassContext:
        """The properties that passes may read, with the precision that was asked for."""
        return PassContext(self.info, precision, self.panel, self.row_groups, self.in_place, self.row_major)


@dataclass
class Lowered:
    """The host program with its kernels (in `module`), and the effect of fusion.

    `unfused` and `fused` are numbers of kernels and of bytes moved, before and after fusion.
    """

    module: Module
    kernels: dict[str, KernelInfo]
    unfused: tuple[int, Dim]
    fused: tuple[int, Dim]
    contractions: dict[str, int] = field(default_factory=dict)
    """The number of contractions by the data type of their factors."""
    unfit: Mapping[int, str] = field(default_factory=dict)
    """The numbers of the user's schedules that no kernel has, and why: see `kernel_schedule.refuse_unfit`."""

    @property
    def conversions(self) -> int:
        """The number of kernel launches that only convert to a lower precision."""
        return sum(k.launches for k in self.kernels.values() if k.origins == (CONVERSION,))


def tensor_passes(options: LoweringOptions, precision: DType | None = None) -> list[Pass]:
    """The passes of the tensor level that run for a target, in order.

    `precision` is the 16-bit type that contractions read their operands in; None keeps the model's own types.
    """
    return bound_passes("tensor", options.context(precision))


def lower(
    module: Module,
    options: LoweringOptions,
    run_pass: Callable[[Pass, Module], object],
    precision: DType | None = None,
    schedules: Sequence[KernelSchedule] = (),
    tuned: TunedKernels | None = None,
    on_named: Callable[[Mapping[tensor.Group, str]], None] | None = None,
) -> Lowered:
    """Lower a graph-level module in place to its host program and scheduled kernels.

    `run_pass` runs a pass on a module; it may time, check or skip the pass. `schedules` are the user's, for
    some of the kernels, and `tuned` measured choices for some of the others. `on_named` is called with the
    groups, which still are in the module, and the names of their kernels.

    Raises:
        UnsupportedOperatorError: an operator has no lowering.
        CompileError: one of `schedules` does not fit.
    """
    unfused: tuple[int, Dim] = (0, 0)
    fused: tuple[int, Dim] | None = None
    for step in tensor_passes(options, precision):
        if pass_name(step) == pass_name(write_in_place):
            fused = _moved(module)  # of kernels that do not overwrite their inputs
        run_pass(step, module)
        if pass_name(step) == pass_name(lower_to_tensor):
            unfused = _moved(module)
    contractions = _contractions(module)
    if fused is None:
        fused = _moved(module)
    if not options.variants and (own := next((x for x in schedules if x.when), None)) is not None:
        raise CompileError(
            f"schedules: the one of {own.kernel!r} has when={own.when!r}, but the target {options.info.name} "
            "has no variants of kernels; leave the condition out"
        )
    names, kernels, unfit = groups_to_kernels(
        module, options.rules, options.info, schedules, tuned, measured_variants=options.variants
    )
    if on_named is not None:
        on_named(names)
    bufferize(module, lambda group: [names[group]], {k.name: k.guarded for k in kernels.values()})
    return Lowered(module, kernels, unfused, fused, contractions, unfit)


def _moved(module: Module) -> tuple[int, Dim]:
    counts = [moved_bytes(function.body) for function in module.functions(func.Func)]
    total: Dim = 0
    for _, moved in counts:
        total = total + moved
    return sum(kernels for kernels, _ in counts), total


def _contractions(module: Module) -> dict[str, int]:
    """The number of contractions by the data type of their factors."""
    contractions = (
        op for op in module.walk() if isinstance(op, tensor.Compute) and notes.CONTRACTION.present(op)
    )
    return dict(Counter(op.reads[-1].source.type.dtype.name for op in contractions))

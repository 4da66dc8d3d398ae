"""The way down from the graph level: a table of contents.

graph (after `transforms.pipeline`) -> tensor: `TENSOR_PASSES` -> loop: one scheduled kernel per distinct group -> host program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..dialects import func, tensor
from ..ir.cleanup import cse, dce
from ..ir.core import Module
from ..ir.passes import pass_name
from ..ir.symbolic import Dim
from ..ir.types import DType, bf16, f32, i8, u8
from ..transforms.collapse_axes import collapse_axes
from ..transforms.compose import absorb_permutations, compose
from ..transforms.defer_row_scales import defer_row_scales
from ..transforms.expand_orders import expand_orders
from ..transforms.form_groups import form_groups
from ..transforms.hoist import hoist_invariants
from ..transforms.join_pieces import join_pieces
from ..transforms.lower_precision import CONVERSION, lower_precision
from ..transforms.pack_operands import PanelRule, pack_operands
from ..transforms.roles import CONTRACTION
from ..transforms.split_reductions import split_reductions
from ..transforms.transpose_weights import transpose_weights
from ..transforms.widen_depth import widen_depth
from .bufferize import bufferize
from .graph_to_tensor import lower_to_tensor
from .groups_to_kernels import KernelInfo, ScheduleRule, groups_to_kernels, moved_bytes
from .in_place import write_in_place


@dataclass(frozen=True)
class LoweringOptions:
    """What a target asks of lowering: its layout of packed operands (None: they are not packed), its schedule rule, whether one
    worker can compute whole rows, so that reductions share a kernel with their neighbours and rows are sorted by one, and whether a kernel's
    inputs and outputs may be the same memory."""

    panel: PanelRule | None
    rule: ScheduleRule
    row_groups: bool = True
    in_place: bool = True


@dataclass
class Lowered:
    """The host program with its kernels (in `module`), and what fusion achieved."""

    module: Module
    kernels: dict[str, KernelInfo]
    unfused: tuple[int, Dim]
    fused: tuple[int, Dim]
    contractions: dict[str, int] = field(default_factory=dict)
    """How many contractions have factors of each data type."""

    @property
    def conversions(self) -> int:
        """Kernel launches that only convert to a lower precision."""
        return sum(k.launches for k in self.kernels.values() if k.origins == (CONVERSION,))


def eliminate(module: Module) -> None:
    """Common subexpressions and dead code."""
    cse(module)
    dce(module)


def tensor_passes(options: LoweringOptions, precision: DType | None = None) -> list[Callable[[Module], object]]:
    """The passes from the graph level to fused groups, in order; `precision`: a 16-bit type for the factors of contractions."""

    def narrow(module: Module) -> None:
        assert precision is not None
        lower_precision(module, precision)

    def widen(module: Module) -> None:
        assert options.panel is not None
        pairs = precision is not None and options.panel(precision, precision, None).group > 1
        widen_depth(module, (i8, u8, *([f32] if pairs else [])))

    def pack(module: Module) -> None:
        assert options.panel is not None
        pack_operands(module, options.panel)

    def group(module: Module) -> None:
        form_groups(module, row_groups=options.row_groups)

    for step, name in (
        (narrow, "lower_precision"),
        (widen, "widen_depth"),
        (pack, "pack_operands"),
        (group, "form_groups"),
    ):
        step.__name__ = name

    return [
        lower_to_tensor,
        hoist_invariants,
        *([] if options.row_groups else [expand_orders]),
        eliminate,
        compose,
        absorb_permutations,
        defer_row_scales,
        eliminate,
        *([widen] if options.panel is not None else []),
        *([narrow] if precision is not None else []),
        *([pack, transpose_weights, hoist_invariants] if options.panel is not None else []),
        join_pieces,
        split_reductions,
        group,
        collapse_axes,
    ]


def pass_names() -> list[str]:
    """Names of the passes between the graph level and the kernels that some target or precision runs."""
    steps = tensor_passes(LoweringOptions(_no_panel, _no_rule, row_groups=False), bf16)
    return list(dict.fromkeys(pass_name(step) for step in (*steps, write_in_place)))


def _no_panel(*_: object) -> Any:
    raise NotImplementedError


_no_rule: Any = _no_panel


def lower(
    module: Module,
    options: LoweringOptions,
    run_pass: Callable[[Callable[[Module], object], Module], object],
    precision: DType | None = None,
) -> Lowered:
    """Lower a graph-level module in place to its host program and scheduled kernels.

    Raises:
        UnsupportedOperatorError: operators without a lowering.
    """
    unfused: tuple[int, Dim] = (0, 0)
    for step in tensor_passes(options, precision):
        run_pass(step, module)
        if step is lower_to_tensor:
            unfused = _moved(module)
    fused, contractions = _moved(module), _contractions(module)
    if options.in_place:
        run_pass(write_in_place, module)
    names, kernels = groups_to_kernels(module, options.rule)
    bufferize(module, lambda group: [names[group]])
    return Lowered(module, kernels, unfused, fused, contractions)


def _moved(module: Module) -> tuple[int, Dim]:
    counts = [moved_bytes(function.body) for function in module.functions(func.Func)]
    total: Dim = 0
    for _, moved in counts:
        total = total + moved
    return sum(kernels for kernels, _ in counts), total


def _contractions(module: Module) -> dict[str, int]:
    """How many contractions have factors of each data type."""
    found = (op for op in module.walk() if isinstance(op, tensor.Compute) and CONTRACTION in op.attributes)
    return dict(Counter(op.reads[-1].source.type.dtype.name for op in found))

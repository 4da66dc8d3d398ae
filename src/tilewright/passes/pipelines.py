"""The compiler's own passes of both levels, in the order in which they run.

This is the only list of passes. It also has the lowest level of optimization that runs a pass (`min_opt`; 2
is the default level) and the targets for which it runs (`condition`). Passes that a target needs, and passes
that make the program smaller, which saves the time they take, run at every level. No pass may change a result
by more than rounding. `registry` adds passes that users have registered.
"""

from __future__ import annotations

from functools import partial

from ..ir.cleanup import cse, dce
from ..ir.core import Module
from .graph.choose_layout import choose_layout
from .graph.drop_derivative_marks import drop_derivative_marks
from .graph.flatten_indices import flatten_indices
from .graph.fold_batch_norm import fold_batch_norm
from .graph.fold_constants import fold_constants
from .graph.hoist import hoist, hoist_invariants
from .graph.integer_contractions import integer_contractions
from .graph.merge_matmuls import merge_matmuls
from .graph.recognize import recognize
from .graph.rematerialize import recompute_attention
from .graph.remove_checks import drop_known_checks
from .graph.simplify import simplify
from .graph.start_early import start_early
from .graph.update_slices import update_slices
from .graph.winograd import winograd
from .info import Condition, PassInfo, describe
from .tensor.absorb_borders import absorb_borders
from .tensor.align_epilogues import align_epilogues
from .tensor.collapse_axes import collapse_axes
from .tensor.copy_changed import copy_changed
from .tensor.defer_row_scales import defer_row_scales
from .tensor.expand_argsort import expand_argsort
from .tensor.form_groups import form_groups
from .tensor.free_early import free_early
from .tensor.fuse_elementwise import absorb_permutations, fuse_elementwise
from .tensor.lower_precision import lower_precision, round_factors
from .tensor.lower_to_tensor import lower_to_tensor
from .tensor.mark_contractions import mark_contractions
from .tensor.narrow_results import narrow_results
from .tensor.pack_constants import pack_constants
from .tensor.pack_operands import pack_operands
from .tensor.pad_reductions import pad_reductions
from .tensor.recompute import recompute
from .tensor.shrink_results import shrink_results
from .tensor.split_borders import split_borders
from .tensor.split_concat import split_concat
from .tensor.split_cumulative import split_cumulative
from .tensor.split_keys import split_keys
from .tensor.split_reductions import split_reductions
from .tensor.transpose_weights import transpose_weights
from .tensor.write_in_place import write_in_place


def eliminate(module: Module) -> None:
    """Remove common subexpressions and dead code."""
    cse(module)
    dce(module)


_graph = partial(describe, level="graph")
_tensor = partial(describe, level="tensor")
_packing = partial(_tensor, condition=Condition.PACKED_OPERANDS)

PASSES: tuple[PassInfo, ...] = (
    # min_opt=1: saves memory traffic or work in many models, for little compile time.
    # min_opt=2: rearranges weights and tensors for fewer and better kernels.
    _graph(drop_derivative_marks, required=True),
    _graph(cse),
    _graph(recompute_attention, min_opt=2),
    _graph(update_slices),
    _graph(integer_contractions, min_opt=1),
    _graph(fold_constants),
    _graph(drop_known_checks),
    _graph(simplify),
    _graph(drop_known_checks),
    _graph(cse),
    _graph(recognize, min_opt=1),
    _graph(fold_batch_norm, min_opt=1),
    _graph(hoist, min_opt=1),
    _graph(merge_matmuls, min_opt=2),
    _graph(choose_layout, min_opt=2),
    _graph(winograd, min_opt=2, condition=Condition.PACKED_OPERANDS, arguments=("info", "precision")),
    _graph(flatten_indices, min_opt=2),
    _graph(simplify),
    _graph(cse),
    _graph(dce),
    _graph(start_early, min_opt=1),
    # The first pass of the tensor level replaces operators by computations; form_groups decides the kernels.
    _tensor(lower_to_tensor, required=True, arguments=("info",)),
    _tensor(hoist_invariants, min_opt=1),
    _tensor(expand_argsort, condition=Condition.UNSORTED, arguments=("info",)),
    _tensor(eliminate),
    _tensor(fuse_elementwise, arguments=("info",)),
    _tensor(absorb_permutations, min_opt=1, arguments=("info",)),
    _tensor(defer_row_scales, min_opt=2, arguments=("info",)),
    _tensor(eliminate),
    _tensor(shrink_results, min_opt=1),
    _packing(pad_reductions, min_opt=2, arguments=("panel", "precision", "info")),
    _tensor(lower_precision, condition=Condition.LOWER_PRECISION, arguments=("precision",)),
    _tensor(round_factors, min_opt=1, condition=Condition.GPU, arguments=("info",)),
    _packing(pack_operands, arguments=("panel", "row_major")),
    _tensor(mark_contractions, min_opt=1, condition=Condition.OPERANDS_IN_PLACE),
    _tensor(transpose_weights, min_opt=2),
    _tensor(pack_constants, condition=Condition.GPU),
    _packing(hoist_invariants, min_opt=1),
    _packing(align_epilogues, min_opt=1),
    _tensor(recompute, min_opt=2, arguments=("info",)),
    _tensor(split_borders, min_opt=1),
    _packing(absorb_borders, min_opt=2, arguments=("info",)),
    _tensor(split_concat),
    _tensor(split_keys, min_opt=1, condition=Condition.GPU, arguments=("info",)),
    _tensor(split_reductions, min_opt=1, arguments=("info",)),
    _tensor(split_cumulative, min_opt=1, condition=Condition.GPU),
    _tensor(form_groups, required=True, arguments=("info", "row_groups")),
    _tensor(narrow_results, min_opt=1),
    _tensor(collapse_axes),
    _tensor(free_early, min_opt=1),
    _tensor(write_in_place, condition=Condition.IN_PLACE),
    _tensor(copy_changed, arguments=("info",)),
)

__all__ = ["PASSES", "eliminate"]

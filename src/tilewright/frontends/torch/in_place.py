"""Operators that overwrite their first operand, replaced by the operators that return a new tensor.

torch does the same in `run_decompositions`, which traces the whole program again and takes as long as the
export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NEW_MEMORY = frozenset(
    f"aten.{name}"
    for name in (
        "adaptive_avg_pool1d.default",
        "adaptive_avg_pool2d.default",
        "avg_pool2d.default",
        "batch_norm.default",
        "cat.default",
        "clone.default",
        "conv1d.default",
        "conv2d.default",
        "conv2d.padding",
        "conv3d.default",
        "conv_transpose2d.input",
        "group_norm.default",
        "layer_norm.default",
        "linear.default",
        "matmul.default",
        "max_pool2d.default",
        "relu6.default",
    )
)
"""Operators that are not pointwise, or made of others, whose result never shares memory with an operand. The
schemas of such operators do not tell.
"""


def make_functional(graph: torch.fx.Graph) -> bool:
    """Replace calls that overwrite a tensor where that tensor is the result of another call and shares its
    memory with no other value; return whether there were any. Other calls are left as they are.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    changed = False
    for node in order:
        functional = _functional_overload(node)
        if functional is None:
            continue
        if _is_identity(node):
            node.target = functional
        elif _is_unshared(node, order):
            written = node.args[0]
            node.target = functional
            later = [user for user in written.users if order[user] > order[node]]
            for user in later:
                user.replace_input_with(written, node)
        else:
            continue
        changed = True
    return changed


def _functional_overload(node: torch.fx.Node) -> Any:
    """The operator that returns what the operator of this call writes; None if the call writes nothing, or
    there is no such operator with an importer."""
    import torch

    from .registry import importers

    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    name = target._schema.name.partition("::")[2]
    if target.namespace != "aten" or not target._schema.is_mutable or not name.endswith("_"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    functional = getattr(packet, target._overloadname, None)
    return functional if str(functional) in importers() else None


def _is_identity(node: torch.fx.Node) -> bool:
    """Whether a call is a dropout outside of training, which changes nothing."""
    return str(node.target) == "aten.dropout_.default" and node.args[2:] == (False,)


def _is_unshared(node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> bool:
    """Whether only `node` and later calls that name the overwritten tensor see that it changes, and the new
    tensor has its type.
    """
    import torch

    written = node.args[0]
    if not (isinstance(written, torch.fx.Node) and _has_new_memory(written)):
        return False
    if not _has_new_memory(node, overwriting=True):
        return False
    types = {
        value.dtype
        for value in (x.meta.get("val") for x in node.all_input_nodes)
        if isinstance(value, torch.Tensor)
    }
    if len(types) != 1 or not next(iter(types)).is_floating_point:
        return False
    return all(
        user is node
        or (order[user] > order[node] and user.op != "output")
        or (order[user] < order[node] and _has_new_memory(user))
        for user in written.users
    )


def _has_new_memory(node: torch.fx.Node, overwriting: bool = False) -> bool:
    """Whether the result of a call is one tensor that shares memory with no operand.

    Args:
        node: The call.
        overwriting: Whether to judge the result that the call would have if it did not write to its first
            operand.
    """
    import torch

    target = node.target
    if (
        node.op != "call_function"
        or not isinstance(target, torch._ops.OpOverload)
        or not isinstance(node.meta.get("val"), torch.Tensor)
        or target._schema.is_mutable is not overwriting
    ):
        return False
    name = str(target).replace("_.", ".") if overwriting else str(target)
    if name in _NEW_MEMORY:
        return True
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    shares = not overwriting and any(result.alias_info is not None for result in target._schema.returns)
    return torch.Tag.pointwise in target.tags and not composed and not shares

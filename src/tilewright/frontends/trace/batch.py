"""`vmap`: a function of one element as a function of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...dialects.graph.batching import batched
from ...dialects.graph.scan import Yield
from ...errors import ShapeError
from ...ir.core import Block, Value
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import TensorType
from .gradient import recording
from .operands import as_tensor, value_of
from .shapes import broadcast_to, expand_dims, moveaxis
from .tensor import Tensor, traced
from .tracing import current, user_location
from .tree import flatten, unflatten


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Return a function that computes `function` for every element of a batch.

    Operators of the function take the batch as a further dimension; those that cannot run in a loop over it.
    The function may be one that `tw.grad` returns (gradients for each example), and the result may be
    differentiated.

    Args:
        function: A function of one element: of tensors in lists, tuples and dictionaries.
        in_axes: The dimension of the arguments that counts the elements; None: the argument is the same for
            all. A tuple has an entry for each argument, which may be a tree like the argument.
        out_axes: The dimension of the results that counts the elements; for several results, a tree.

    Returns:
        A function of the same positional arguments. Keyword arguments are the same for all elements.

    Raises:
        ShapeError: When it is called: arguments have no such dimension, or differ in it, or no argument is
            batched.
        CompileError: The shape of a result depends on the element.
        TraceError: Python's control flow depends on the element.
    """

    @functools.wraps(function, updated=())
    def of_batch(*args: Any, **kwargs: Any) -> Any:
        leaves, names, structure = flatten(args)
        given = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        if len(given) != len(args):
            raise ShapeError(
                f"in_axes has {len(given)} entries for {len(args)} arguments (at {user_location('')})"
            )
        axes = [a for x, axis in zip(args, given, strict=True) for a in _spread(axis, x, "in_axes")]
        with recording() as finish:
            trace = current()
            assert trace is not None
            block, elements = Block([]), list(leaves)
            values: dict[Value, Value] = {}
            size: Dim | None = None
            for k, (name, leaf, axis) in enumerate(zip(names, leaves, axes, strict=True)):
                if axis is None or leaf is None or hasattr(leaf, "named_parameters"):
                    continue
                x = as_tensor(leaf)
                if not -x.ndim <= axis < x.ndim:
                    raise ShapeError(
                        f"argument {name} of shape {list(x.shape)} has no dimension {axis} to map over (at "
                        f"{user_location('')})"
                    )
                x = moveaxis(x, axis, 0)
                if size is not None and not prove_eq(size, x.shape[0]):
                    raise ShapeError(
                        f"argument {name} has {x.shape[0]} elements to map over, others have {size} (at "
                        f"{user_location('')})"
                    )
                size = x.shape[0]
                arg = block.add_arg(TensorType(x.type.dtype, x.shape[1:]))
                values[arg] = value_of(x)
                elements[k] = traced(arg)
            if size is None:
                raise ShapeError(f"no argument is mapped over: give one an axis (at {user_location('')})")
            with trace.inside(block):
                result = function(*unflatten(structure, iter(elements)), **kwargs)
                outputs, _, output_structure = flatten(result)
                trace.builder.insert(Yield([value_of(as_tensor(x)) for x in outputs]))
            found = batched(trace.builder, block, values, size)
            for op in block.ops:  # the values from outside must not count operators that do not run
                op.drop_all()
            places = _spread(out_axes, result, "out_axes")
            moved = [
                _placed(traced(v), own, size, axis) for (v, own), axis in zip(found, places, strict=True)
            ]
            return finish(unflatten(output_structure, iter(moved)))

    return of_batch


def _placed(x: Tensor, own: bool, size: Dim, axis: int | None) -> Tensor:
    """A result with the batch at `axis`."""
    if axis is None:
        if own:
            raise ShapeError(f"a result with out_axes None depends on the element (at {user_location('')})")
        return x
    if not own:
        x = broadcast_to(expand_dims(x, 0), (size, *x.shape))
    return moveaxis(x, 0, axis)


def _spread(axes: Any, tree: Any, name: str) -> Sequence[int | None]:
    """An entry for each leaf of a tree; one for a part of the tree counts for all of its leaves."""
    if axes is None or isinstance(axes, int):
        return [axes] * len(flatten(tree)[0])
    if isinstance(tree, dict) and isinstance(axes, dict) and axes.keys() == tree.keys():
        return [a for k in tree for a in _spread(axes[k], tree[k], name)]
    if isinstance(tree, (tuple, list)) and isinstance(axes, (tuple, list)) and len(axes) == len(tree):
        return [a for k, x in enumerate(tree) for a in _spread(axes[k], x, name)]
    raise ShapeError(f"{name} {axes!r} does not have the structure of the values (at {user_location('')})")


__all__ = ["vmap"]

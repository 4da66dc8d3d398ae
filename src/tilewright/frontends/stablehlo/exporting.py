"""Export of JAX's functions with the shapes of examples, and with symbolic sizes for dynamic dimensions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import CompileError
from ..dims import DimsArgument, check_dims_argument, parse_dim

if TYPE_CHECKING:
    import jax


def export_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dims: DimsArgument | None = None,
) -> jax.export.Exported:
    """Return the export of a function of JAX.

    Args:
        function: A function, compiled by ``jax.jit`` or not.
        args: Example arguments: trees of arrays.
        kwargs: Example arguments by name.
        dims: Dynamic dimensions by input. An input is called as its argument, followed by its place in the
            argument's tree: ``params_w``.

    Raises:
        CompileError: `dims` name an input or an axis that there is not, or the function needs to know a size
            that they call dynamic.
    """
    import jax

    arguments = (tuple(args), dict(kwargs or {}))
    leaves, structure = jax.tree_util.tree_flatten_with_path(arguments)
    labels = _labels(function, arguments, [path for path, _ in leaves])
    arrays = [(label, tuple(jax.numpy.shape(x))) for label, (_, x) in zip(labels, leaves, strict=True)]
    axes = check_dims_argument(dims, arrays)
    conditions: dict[str, None] = {}
    shapes: list[str] = []
    for name, shape in arrays:
        sizes = []
        for axis, size in enumerate(shape):
            text = parse_dim(axes.get(name, {}).get(axis, size), f"dims[{name!r}][{axis}]")
            sizes.append(text.expression)
            if text.low is not None and (text.names != (text.expression,) or text.low > 1):
                conditions[f"{text.expression} >= {text.low}"] = None  # JAX's symbols are at least 1
            if text.high is not None:
                conditions[f"{text.expression} <= {text.high}"] = None
        shapes.append(", ".join(sizes))
    compiled = function if hasattr(function, "lower") else jax.jit(function)
    export = jax.export.export(compiled, platforms=["cpu"])
    if not axes:
        exported: jax.export.Exported = export(*arguments[0], **arguments[1])
        return exported
    try:
        scope = jax.export.SymbolicScope(list(conditions))
        specs = [
            jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), jax.numpy.result_type(x))
            for s, (_, x) in zip(shapes, leaves, strict=True)
        ]
        positional, named = jax.tree_util.tree_unflatten(structure, specs)
        exported = export(*positional, **named)
    except (ValueError, TypeError, jax.core.InconclusiveDimensionOperation) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise CompileError(
            f"JAX cannot export {getattr(function, '__name__', 'the function')} with the dynamic dimensions "
            f"in dims: {first}. Leave out the dimension, or give it a bound or a multiple, such as '4*n'"
        ) from error
    return exported


def _labels(function: Callable[..., Any], arguments: tuple[Any, ...], paths: Sequence[Any]) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``: that of the argument, and the place in its tree."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    labels = []
    for side, argument, *rest in paths:
        first = argument.idx if side.idx == 0 else argument.key
        label = names[first] if isinstance(first, int) and first < len(names) else str(first)
        rest_label = "_".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in rest)
        labels.append(re.sub(r"\W+", "_", f"{label}_{rest_label}").strip("_"))
    return labels


__all__ = ["export_function"]

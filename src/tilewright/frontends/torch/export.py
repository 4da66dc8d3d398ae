"""Export of the user's model (a module with example inputs, an exported program, a file) to a functional
``ExportedProgram``.

Dynamic dimensions become ``torch.export.Dim`` objects; torch's error messages are condensed to one paragraph.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...errors import CompileError
from ...ir.substitution import evaluate, linear_in
from ...ir.symbolic import Dim, Expr
from ..dims import DimsArgument, DimTable, DimText, check_dims_argument, parse_dim
from .archive import load_program
from .checkpoints import mark_checkpoints
from .dynamic import DynamicShapes, export_for, solver_failed
from .failures import first_lines, quiet, untraceable
from .in_place import make_functional
from .recurrent import keep_calls_whole

if TYPE_CHECKING:
    import torch

TorchModel: TypeAlias = "torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str]"
"""A model of PyTorch: a module, an exported program, or the path of a ``.pt2`` file."""

T = TypeVar("T")


def export_program(
    model: TorchModel, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dims: DimsArgument | None
) -> Any:
    """Return an ``ExportedProgram`` of torch's functional operators, or composites that have an importer.

    Raises:
        CompileError: See `import_torch`.
    """
    import torch

    if isinstance(model, (str, os.PathLike)):
        model = load_program(Path(model))
    if isinstance(model, torch.nn.Module):
        model = _export(model, args, kwargs, dims)
        if make_functional(model.graph):
            model.graph_module.recompile()
    elif not isinstance(model, torch.export.ExportedProgram):
        raise CompileError(
            f"cannot import a {type(model).__name__}: expected a torch.nn.Module, a "
            "torch.export.ExportedProgram or a .pt2 path"
        )
    return _functional(model)


def _functional(program: torch.export.ExportedProgram) -> Any:
    """Return the program without mutation, and with operators decomposed that have no importer; the same
    object if there are none.

    Decomposing traces the whole program again, which takes as long as exporting it.
    """
    from .registry import decomposition_table

    if not _needs_decomposition(program.graph_module):
        return program
    try:
        with quiet():
            return program.run_decompositions(decomposition_table())
    except Exception as error:
        tied = _tied(program)
        hint = (
            f" (The buffers {tied} share memory. Copy them by clone() so that each has its own.)"
            if tied
            else ""
        )
        raise CompileError(
            f"torch cannot bring the exported program into functional form: {first_lines(error)}{hint}"
        ) from None


def _tied(program: torch.export.ExportedProgram) -> str:
    """Return the names of buffers that share memory, which torch cannot make functional."""
    places: dict[int, list[str]] = {}
    for name, buffer in program.named_buffers():
        places.setdefault(buffer.untyped_storage().data_ptr(), []).append(f"'{name}'")
    return "; ".join(" and ".join(names) for at, names in places.items() if at and len(names) > 1)


def _needs_decomposition(module: torch.fx.GraphModule) -> bool:
    """Return whether a graph module has a call, also in its subgraphs, that mutates something, or whose
    result is used and that has no importer.
    """
    return any(_is_foreign(n, module) for n in module.graph.nodes if n.op == "call_function")


def _is_foreign(node: torch.fx.Node, module: torch.fx.GraphModule) -> bool:
    import torch

    from .registry import importers

    functions = [getattr(module, x.target, None) for x in node.all_input_nodes if x.op == "get_attr"]
    if functions := [f for f in functions if isinstance(f, torch.fx.GraphModule)]:
        return str(node.target) not in importers() or any(map(_needs_decomposition, functions))
    if (
        isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))
        or node.target is operator.getitem
    ):
        return False
    schema = getattr(node.target, "_schema", None)
    if _updates_statistics(node):
        return True
    if schema is not None and str(node.target) in importers():
        return False
    return bool(node.users) or schema is None or schema.is_mutable


def _updates_statistics(node: torch.fx.Node) -> bool:
    """Return whether a call is a batch normalization in training mode: it changes running statistics, but
    torch's schema does not say so.
    """
    if str(node.target) != "aten.batch_norm.default":
        return False
    mean, training = node.args[3], node.args[5]
    return training and mean is not None


def _export(
    model: torch.nn.Module,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dims: DimsArgument | None,
) -> Any:
    import torch

    if args is None and not kwargs:
        raise CompileError(
            "a torch.nn.Module needs example inputs: pass args=(tensor, ...) in the order of forward()'s "
            "parameters"
        )
    if isinstance(args, torch.Tensor) or not isinstance(args, (Sequence, type(None))):
        args = (args,)
    own_args, own_kwargs = _distinct((tuple(args or ()), dict(kwargs or {})))
    failure: Exception | None = None
    for step in range(3):  # torch's algebra of sizes fails for some examples and not for others.
        examples, specs, sizes = _dynamic_inputs(model, own_args, own_kwargs, dims, step)
        _check_signature(model, *examples)

        def run(shapes: DynamicShapes | None, examples: tuple[Any, Any] = examples) -> Any:
            return torch.export.export(model, *examples, dynamic_shapes=shapes, strict=False)

        try:
            with quiet(), torch.no_grad(), keep_calls_whole(), mark_checkpoints():
                return export_for(run, specs, sizes)
        except CompileError:
            raise
        except Exception as error:
            failure = failure or error
            if not solver_failed(error):
                break
    assert failure is not None
    raise untraceable(model, failure) from None


def _distinct(examples: T) -> T:
    """Return the inputs with a copy of each tensor that occurs several times, since torch traces one object
    as one input.
    """
    import torch
    from torch.utils import _pytree

    seen: set[int] = set()

    def copied(leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in seen:
                return leaf.clone()
            seen.add(id(leaf))
        return leaf

    renewed: T = _pytree.tree_map(copied, examples)
    return renewed


def _lower(symbol: Expr) -> int:
    return 1 if symbol.lower is None else symbol.lower


def _check_signature(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(model.forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CompileError(
            f"the example inputs do not fit {type(model).__name__}.forward{signature}: {error}"
        ) from None


def _combined_arguments(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the inputs by parameter of ``forward()``, as torch.export arranges them.

    Raises:
        CompileError: They do not fit its signature, or some have no parameter of their own.
    """
    bound = _check_signature(model, args, kwargs)
    signature = bound.signature
    combined: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            listing = ", ".join(value)
            raise CompileError(
                f"{listing}: inputs that {type(model).__name__}.forward takes as **{name} cannot go with "
                "dynamic dimensions (torch.export refuses "
                "them); wrap the model in a module whose forward() names them"
            )
        combined[name] = value
    return combined


def _dynamic_inputs(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dims: DimsArgument | None,
    step: int = 0,
) -> tuple[tuple[Any, Any], DynamicShapes | None, dict[tuple[str, int], Dim]]:
    """Return example inputs whose dynamic dimensions are at least 2, torch's ``dynamic_shapes`` (None if
    everything is fixed), and the sizes by name of input and axis.

    Sizes are `step` larger than the examples', as far as bounds permit.
    """
    import torch
    from torch.utils import _pytree

    if not dims:
        return (args, kwargs), None, {}
    combined = _combined_arguments(model, args, kwargs)
    leaves, structure = _pytree.tree_flatten_with_path(combined)
    named = [(leaf_name(path), leaf) for path, leaf in leaves]
    tensors = [(name, leaf) for name, leaf in named if isinstance(leaf, torch.Tensor)]
    dynamic_axes = check_dims_argument(dims, [(name, list(t.shape)) for name, t in tensors])
    table = DimTable()
    texts: dict[tuple[str, int], DimText] = {}
    for name, entries in dynamic_axes.items():
        for axis, text in entries.items():
            where = f"dims[{name!r}][{axis}]"
            texts[name, axis] = parse_dim(text, where)
            table.add(texts[name, axis], where)
    table.check()
    sizes = _example_sizes(tensors, texts, table)
    for name, size in sizes.items():
        most = _symbol(table, name).upper
        sizes[name] = size + step if most is None else min(size + step, most)
    torch_dims: dict[str, Any] = {}
    specs, enlarged = [], []
    for name, leaf in named:
        spec = {}
        for (owner, axis), text in texts.items():
            if owner == name and text.names:
                wanted = int(evaluate(table.resolve(text), sizes))
                leaf = _resized(leaf, axis, wanted)
                if wanted > 1:
                    spec[axis] = _torch_dim(text, table, torch_dims)
        enlarged.append(leaf)
        specs.append(spec if spec else None)
    renewed = _pytree.tree_unflatten(enlarged, structure)
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    positional = {n: renewed[n] for n in bound.arguments if n in renewed}
    new_args, new_kwargs = _rearranged(model, args, kwargs, renewed, positional)
    dynamic = {key: table.resolve(text) for key, text in texts.items() if text.names}
    return (new_args, new_kwargs), _pytree.tree_unflatten(specs, structure), dynamic


def _rearranged(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    renewed: dict[str, Any],
    positional: dict[str, Any],
) -> tuple[Any, Any]:
    """Return renewed inputs as positional and keyword arguments, divided like the original ones."""
    new_args: list[Any] = []
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if len(new_args) >= len(args) or name not in positional:
            break
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            new_args.extend(positional[name])
        else:
            new_args.append(positional[name])
    return tuple(new_args), {name: renewed[name] for name in kwargs}


def leaf_name(path: Sequence[Any]) -> str:
    """Return torch.export's name of the input at a path of nested containers: keys joined by ``_``."""
    parts = []
    for key in path:
        value = getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))
        parts.append(str(value))
    return "_".join(parts)


def _example_sizes(
    tensors: Sequence[tuple[str, Any]], texts: Mapping[tuple[str, int], DimText], table: DimTable
) -> dict[str, int]:
    """Return a size for each symbol: the examples' if it is at least 2 and agrees everywhere, else one
    nearby.

    Raises:
        CompileError: The examples contradict `dims`.
    """
    sizes: dict[str, int] = {}
    shapes = {name: tuple(t.shape) for name, t in tensors}
    for (name, axis), text in texts.items():
        size = int(shapes[name][axis])
        if not text.names:
            if size != int(text.expression):
                raise CompileError(
                    f"dims[{name!r}][{axis}] is {text.expression}, but the example has {size} there"
                )
            continue
        if len(text.names) > 1:
            continue
        symbol = _symbol(table, text.names[0])
        parts = linear_in(table.resolve(text), symbol)
        if parts is None or not isinstance(parts[0], int) or not isinstance(parts[1], int):
            continue
        value, rest = divmod(size - parts[1], parts[0])
        low, high = _lower(symbol), symbol.upper
        if size == 1 or rest:
            continue
        if value < low or (high is not None and value > high):
            raise CompileError(
                f"the example has {size} in dimension {axis} of '{name}', outside of the bounds given in "
                f"dims: {low} <= {text.names[0]}" + ("" if high is None else f" <= {high}")
            )
        if sizes.setdefault(text.names[0], value) != value:
            raise CompileError(
                f"dims call two dimensions '{text.names[0]}', but the examples have {sizes[text.names[0]]} "
                f"and {value} there"
            )
    for text in texts.values():
        for n in text.names:
            if n not in sizes:
                symbol = _symbol(table, n)
                smallest = max(_lower(symbol), 2)
                while smallest in sizes.values():
                    smallest += 1
                sizes[n] = smallest if symbol.upper is None else min(smallest, symbol.upper)
    return sizes


def _symbol(table: DimTable, name: str) -> Expr:
    symbol = table.resolve(DimText(name, None, None, (name,)))
    assert isinstance(symbol, Expr)
    return symbol


def _resized(tensor: torch.Tensor, axis: int, size: int) -> Any:
    """Return `tensor` repeated or cut along `axis` to `size`, so its values remain values of the user's."""
    import torch

    have = tensor.shape[axis]
    if have == size:
        return tensor
    return tensor.index_select(axis, torch.arange(size) % max(have, 1)) if have else tensor


def _torch_dim(text: DimText, table: DimTable, torch_dims: dict[str, Any]) -> Any:
    """Return ``torch.export.Dim`` of a name, a linear expression of one, or a hint that torch determines the
    relation itself.
    """
    from torch.export import Dim as TorchDim

    e = table.resolve(text)
    name = text.names[0]
    symbol = _symbol(table, name)
    parts = linear_in(e, symbol) if len(text.names) == 1 else None
    if (
        parts is None
        or not isinstance(parts[0], int)
        or not isinstance(parts[1], int)
        or not isinstance(symbol, Expr)
    ):
        return TorchDim.AUTO
    if name not in torch_dims:
        torch_dims[name] = TorchDim(name, min=symbol.lower, max=symbol.upper)
    scaled = torch_dims[name] if parts[0] == 1 else parts[0] * torch_dims[name]
    return scaled if parts[1] == 0 else scaled + parts[1]

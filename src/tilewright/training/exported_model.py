"""Exported programs of PyTorch for training: their modules, modes, and dynamic dimensions.

An exported program has one mode, that of the module at the time of the export. Its operators still have the
arguments that decide about it, unless the program was decomposed; here they are changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CompileError
from ..frontends.torch.symbols import input_shapes
from ..ir.symbolic import Dim, Expr, is_symbol
from .models import ModelFile
from .request import Found, Request, targets_of
from .torch_model import torch_model

if TYPE_CHECKING:
    import torch

    from ..frontends.dims import DimsArgument

_MODES = ("training", "train", "use_input_stats")
"""Names of operators' arguments that are true in training mode."""
_DROPOUT = "dropout_p"
"""The name of an argument that is zero in inference mode."""


def exported_model(request: Request) -> Found:
    """Return an exported program of PyTorch, or the file of one, whose parameters are trained.

    The program's dynamic dimensions stay dynamic. The first dimension of the loss's arguments is dynamic, as
    that of a model's input is, where the examples have the same size there and `dims` say nothing else.

    Raises:
        CompileError: The file cannot be read, `dims` do not fit the program, or the program has no inference
            mode.
    """
    import torch

    from ..frontends.torch.archive import load_program

    path = request.model if isinstance(request.model, (str, Path)) else None
    program = request.model if path is None else load_program(Path(path))
    module = _module_of(program)
    names = request.names_of(module.forward)
    dims = {**_dims_of(program, request.dims_of(names)), **(request.dims or {})}
    if request.loss is not None and not request.by_name:
        targets = dict(zip(targets_of(request.loss), request.examples[len(names) :], strict=False))
        dims = {**_batch_dims(names, request.examples, dims, targets), **dims}
    request.dims = dims
    found = torch_model(replace(request, model=module), _mode_of)
    found.model.file = ModelFile(lambda place: torch.export.save(program, place), path)
    return found


def _module_of(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Return a program as a module, which has the program's parameters and buffers, not copies.

    Checks of sizes at its entrance are left out: the importer checks sizes by their ranges.
    """
    module = program.module(check_guards=False)
    module._forward_pre_hooks.clear()
    return module


@contextmanager
def _mode_of(module: torch.fx.GraphModule, training: bool) -> Iterator[None]:
    """Switch the operators of an exported program to a mode, and back.

    A program that was exported in training mode trains as it is, with the layers that the user froze in it.
    One that has no operator in training mode is switched as a whole, as `torch.nn.Module.train` does.

    Raises:
        CompileError: An operator draws random numbers in both modes, so that there is no inference mode.
    """
    found = [(node, k) for node in _calls(module) for k in _modes(node)]
    trains = any(_argument(node, k) for node, k in found)
    before = [(node, node.args, node.kwargs) for node, _ in found]
    try:
        if not training:
            _refuse_draws(module)
            for node, k in found:
                _assign(node, k, 0.0 if node.target._schema.arguments[k].name == _DROPOUT else False)
        elif not trains:
            for node, k in found:
                if node.target._schema.arguments[k].name != _DROPOUT:
                    _assign(node, k, True)
        _recompile(module)
        yield
    finally:
        for node, args, kwargs in reversed(before):
            node.args, node.kwargs = args, kwargs
        _recompile(module)


def _refuse_draws(module: torch.fx.GraphModule) -> None:
    """Raise the error for a program without an inference mode.

    Raises:
        CompileError: An operator draws random numbers whatever the mode is.
    """
    from ..frontends.torch.importer import RANDOM, location_of

    for node in _calls(module):
        if RANDOM.search(node.target._schema.name) and not list(_modes(node)):
            raise CompileError(
                f"{node.target} at {location_of(node)} draws random numbers also in inference mode, "
                "so that there is no prediction: draw by dropout, which the mode turns off, or export a "
                "module that returns the loss (loss=None)"
            )


def _dims_of(program: torch.export.ExportedProgram, dims: DimsArgument | None) -> dict[str, Any]:
    """Return the program's dynamic dimensions with the names and bounds that the user gives.

    Args:
        program: The program.
        dims: The user's choice for the program's inputs.

    Returns:
        Names and bounds by input and axis, as `tilewright.compile` takes them.

    Raises:
        CompileError: `dims` name a dimension that the program fixes.
    """
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    kept = [(n, nodes[n].meta["val"].shape) for n in names if hasattr(nodes[n].meta.get("val"), "shape")]
    _, shapes = input_shapes(kept, program.range_constraints, dims)
    found = {
        name: {axis: _text(d) for axis, d in enumerate(shape) if isinstance(d, Expr)}
        for (name, _), shape in zip(kept, shapes, strict=True)
    }
    return {name: axes for name, axes in found.items() if axes}


def _batch_dims(
    names: Sequence[str], examples: Sequence[Any], known: Mapping[str, Any], targets: Mapping[str, Any]
) -> dict[str, Any]:
    """Return dimensions of the loss's arguments that the user did not give: the first one is dynamic, as that
    of a model's input is, where the examples have the same size there.
    """
    sizes = {x.shape[0]: known[n][0] for n, x in zip(names, examples, strict=False) if 0 in known.get(n, {})}
    return {n: {0: sizes[x.shape[0]]} for n, x in targets.items() if len(x.shape) and x.shape[0] in sizes}


def _text(size: Dim) -> str:
    assert isinstance(size, Expr)
    if not is_symbol(size):
        return str(size)
    low = "" if size.lower is None else f"{size.lower}<="
    return f"{low}{size}" + ("" if size.upper is None else f"<={size.upper}")


def _graphs(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """The module's graph and those of its loops and branches."""
    import torch

    yield from (m for m in module.modules() if isinstance(m, torch.fx.GraphModule))


def _recompile(module: torch.fx.GraphModule) -> None:
    for part in _graphs(module):
        part.recompile()


def _calls(module: torch.fx.GraphModule) -> Iterator[Any]:
    for part in _graphs(module):
        for node in part.graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_schema"):
                yield node


def _modes(node: Any) -> Iterator[int]:
    """The numbers of a call's arguments that decide about its mode."""
    for k, argument in enumerate(node.target._schema.arguments):
        is_flag = argument.name in _MODES and str(argument.type) in ("bool", "Optional[bool]")
        if is_flag or argument.name == _DROPOUT:
            yield k


def _argument(node: Any, k: int) -> Any:
    argument = node.target._schema.arguments[k]
    return node.args[k] if k < len(node.args) else node.kwargs.get(argument.name, argument.default_value)


def _assign(node: Any, k: int, value: Any) -> None:
    if k < len(node.args):
        node.update_arg(k, value)
    else:
        node.update_kwarg(node.target._schema.arguments[k].name, value)


__all__ = ["exported_model"]

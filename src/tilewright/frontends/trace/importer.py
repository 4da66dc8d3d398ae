"""Import of a Python function on tensors: it is called on traced tensors, which record graph operators."""

from __future__ import annotations

import dis
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...dialects.func import Func, Return
from ...dialects.graph import Constant
from ...errors import CompileError, SizeError, TilewrightError
from ...ir.cleanup import dce
from ...ir.constant import Constant as ConstantData
from ...ir.core import Module
from ...ir.interpreter import Array
from ...ir.types import TensorType
from ..dims import DimsArgument, DimTable, check_dims_argument, parse_dim
from ..user_location import users_line
from .operands import as_tensor, value_of
from .state import close_states
from .tensor import Tensor, traced
from .tracing import Trace, tracing
from .tree import flatten, unflatten

_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_FRONT_ENDS = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("nn", "trace"))


@dataclass
class Arguments:
    """The arguments of a call as leaves: tensors under their names, and constants of the compiled function
    (numbers, strings, None).
    """

    structure: Any
    names: list[str]
    leaves: list[Any]

    @staticmethod
    def of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Flatten the arguments of a call. Leaves are named after the function's parameters; arrays of any
        kind become tensors.

        Raises:
            TypeError: The function does not take these arguments.
        """
        function = getattr(function, "forward", function)
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
        leaves, _, structure = flatten((bound.args, bound.kwargs))
        # Keyword arguments come last in both trees.
        named = dict(bound.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named.update(named.pop(name, {}))
        _, names, _ = flatten(named)
        unique = [n if names.count(n) == 1 else f"{n}_{names[:k].count(n)}" for k, n in enumerate(names)]
        return Arguments(structure, unique, [_leaf(x) for x in leaves])

    @property
    def tensors(self) -> list[tuple[str, Tensor]]:
        return [(n, x) for n, x in zip(self.names, self.leaves, strict=True) if isinstance(x, Tensor)]


def _leaf(x: Any) -> Any:
    if (
        isinstance(x, Tensor)
        or x is None
        or isinstance(x, (bool, int, float, str, bytes))
        and not isinstance(x, np.generic)
    ):
        return x
    if hasattr(x, "__array__") or hasattr(x, "__dlpack__"):
        return as_tensor(x)
    return x


@dataclass
class Traced:
    """The result of tracing a function.

    `known` has, for each leaf of the results, None if the module computes it, else a tuple of its constant
    value. `observed` lists the attributes of `tw.nn` modules that the function read, as (module, name,
    value).
    """

    module: Module
    structure: Any
    known: list[Any]
    observed: list[tuple[Any, str, Any]]


def trace_function(
    function: Callable[..., Any], arguments: Arguments, dims: DimsArgument | None = None
) -> Traced:
    """Trace `function` on the arguments' element types and shapes; `dims` names the dimensions that are
    dynamic.

    Raises:
        CompileError: `dims` do not fit, or the function computes no tensor.
        TraceError: The function needs a value that only a run has.
    """
    types = _input_types(arguments.tensors, dims)
    module = Module()
    names = tuple(n for n, _ in arguments.tensors)
    main = module.body.append(Func(sym_name="main", arg_names=names))
    inputs = iter([traced(main.body.add_arg(t, n)) for n, t in zip(names, types, strict=True)])
    leaves = [next(inputs) if isinstance(x, Tensor) else x for x in arguments.leaves]
    args, kwargs = unflatten(arguments.structure, iter(leaves))
    with tracing(Trace(main)) as trace:
        results, paths, structure = flatten(function(*args, **kwargs))
        results = [as_tensor(x) if isinstance(x, np.ndarray) else x for x in results]
        computed = [k for k, x in enumerate(results) if isinstance(x, Tensor)]
        if not computed and not trace.states:
            raise CompileError(f"{_name(function)} returns no tensor but {results!r}")
        trace.builder.insert(Return([*(value_of(results[k]) for k in computed), *close_states(trace)]))
    labels = [paths[k] or "output" for k in computed]
    main.result_names = tuple(f"output{n}" if n.isdigit() else n for n in labels)
    dce(module)
    _name_parameters(module, trace)
    known = [None if isinstance(x, Tensor) else (x,) for x in results]
    return Traced(module, structure, known, list(trace.observed.values()))


def _name_parameters(module: Module, trace: Trace) -> None:
    """Name constants after the module attributes whose elements they show."""
    names: dict[object, tuple[str, TensorType]] = {}
    for owner, name, value in trace.observed.values():
        if isinstance(value, Tensor) and not value.is_traced:
            with suppress(CompileError):  # A placeholder has a shape, but no elements.
                names[_place(value._data)] = f"{owner.path}.{name}".lstrip("."), value.type
    for op in module.walk():
        if isinstance(op, Constant):
            value, attribute = op.value, names.get(_place(op.value))
            if attribute is not None and not value.name:
                value.name = attribute[0]
                if value.shape != attribute[1].shape:
                    value.origins = (attribute,)
                    value.steps = ("transpose" if value.shape == attribute[1].shape[::-1] else "reshape",)


def _place(data: Array | ConstantData) -> object:
    """Return a key that is equal for arrays and constants of the same elements: address and number of
    elements, or the object that computes them.
    """
    source = data.source if isinstance(data, ConstantData) else data
    return (source.__array_interface__["data"][0], source.size) if isinstance(source, np.ndarray) else source


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _input_types(tensors: Sequence[tuple[str, Tensor]], dims: DimsArgument | None) -> list[TensorType]:
    dynamic = check_dims_argument(dims, [(n, x.shape) for n, x in tensors])
    table = DimTable()
    texts = {}
    for name, axes in dynamic.items():
        for axis, text in axes.items():
            dim = texts[name, axis] = parse_dim(text, f"dims[{name!r}][{axis}]")
            table.add(dim, f"dims[{name!r}][{axis}]")
    table.check()
    return [
        TensorType(
            x.type.dtype,
            tuple(table.resolve(texts[n, d]) if (n, d) in texts else s for d, s in enumerate(x.shape)),
        )
        for n, x in tensors
    ]


_OF_ARGUMENTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""The errors of an argument that a function of this front end or of `tw.nn` does not take."""


def _is_about_arguments(error: Exception) -> bool:
    """Return whether an error arose in this front end or `tw.nn`, or in a library they called there, for an
    argument of the user's.

    An error that no statement raises on purpose is a bug of the front end where all arguments of the function
    that the user has called are of the types that it declares.
    """
    if not isinstance(error, _OF_ARGUMENTS):
        return False
    innermost, entry, before = None, None, ""
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            innermost = at
            if not before.startswith(_PACKAGE):
                entry = at.tb_frame
        before = file
        at = at.tb_next
    if innermost is None or not innermost.tb_frame.f_code.co_filename.startswith(_FRONT_ENDS):
        return False
    raises = innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    if raises or innermost.tb_next is not None or not isinstance(error, (TypeError, AttributeError)):
        return True
    return entry is None or not _takes_its_arguments(entry)


def _takes_its_arguments(frame: types.FrameType) -> bool:
    """Whether the arguments that a function was called with are of the types that it declares; False where
    that is not known."""
    function: Any = frame.f_globals
    for name in frame.f_code.co_qualname.split("."):
        function = function.get(name) if isinstance(function, dict) else getattr(function, name, None)
    function = inspect.unwrap(function) if callable(function) else None
    if getattr(function, "__code__", None) is not frame.f_code:
        return False
    try:
        declared = typing.get_type_hints(function)
    except (NameError, TypeError):  # a name that only type checkers import
        return False
    return all(_fits(frame.f_locals[name], hint) for name, hint in declared.items() if name in frame.f_locals)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is certainly of a declared type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if hint is float:
        return isinstance(value, numbers.Real)
    if hint in (int, typing.SupportsIndex):  # arrays have the method, but most of them refuse
        return isinstance(value, numbers.Integral)
    if hint is Any:
        return False
    if origin is not None and isinstance(value, (list, tuple)) and isinstance(origin, type):
        known = [part for part in parts if part is not ...]
        return isinstance(value, origin) and all(any(_fits(v, part) for part in known) for v in value)
    return isinstance(hint, type) and isinstance(value, hint)


def import_function(
    function: Callable[..., Any],
    args: Sequence[Any] | None,
    dims: DimsArgument | None,
    kwargs: Mapping[str, Any] | None,
) -> Module:
    """Return the graph-level module of a function on tensors. Its results are the tensors that the function
    returns, in order.

    Raises:
        CompileError: The arguments do not fit, or the function raises; the message names the line.
    """
    try:
        arguments = Arguments.of(function, args or (), kwargs or {})
    except TypeError as error:
        raise CompileError(f"the example inputs do not fit {_name(function)}: {error}") from None
    try:
        return trace_function(function, arguments, dims).module
    except SizeError as error:
        place = users_line(error, "numpy")
        raise SizeError(f"{error}\n  at {place}" if place is not None else str(error)) from error
    except TilewrightError:
        raise
    except Exception as error:
        place = users_line(error, "numpy", innermost=not _is_about_arguments(error))
        if place is None:
            raise
        raise CompileError(
            f"{_name(function)} raises {type(error).__name__}: {error}\n  at {place}"
        ) from error


__all__ = ["Arguments", "Traced", "import_function", "trace_function"]

"""`load_weights`: makes the arrays of a checkpoint the parameters of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CompileError
from ..frontends.nn import Deferred, Parameter
from ..frontends.trace.tensor import array_of, concrete
from ..ir.constant import Constant
from .models.base import Destination, LanguageModel
from .weights.checkpoint import LazyTensor


def load_weights(model: LanguageModel, weights: Mapping[str, Any]) -> None:
    """Assign a checkpoint's arrays, given by their names there, to a model's parameters, converted to the
    parameters' types.

    An array of the right type is used without a copy and must not be modified afterwards. Large tensors of a
    `Checkpoint` are read again whenever their elements are needed, and are not kept.

    Raises:
        CompileError: arrays are missing, unknown, duplicated or of another shape; the message lists them.
    """
    model.adapt(weights)
    parameters = dict(model.named_parameters())
    sources: dict[Destination, str] = {}
    unknown, twice = [], []
    for name in weights:
        destination = model.destination(name)
        if destination is None:
            continue
        if destination.name not in parameters or not (
            destination.part is None or destination.part < parameters[destination.name].shape[0]
        ):
            unknown.append(name)
        elif destination in sources:
            twice.append(f"{name} and {sources[destination]}")
        sources[destination] = name
    parts = {name: {t.part for t in sources if t.name == name} for name in {t.name for t in sources}}
    missing = [n for n, p in parameters.items() if parts.get(n) not in ({None}, set(range(p.shape[0])))]
    _refuse(model, missing=missing, unknown=unknown, twice=twice)
    modules, misshapen = dict(model.named_modules()), []
    joined: dict[str, np.ndarray[Any, Any]] = {}
    for destination, name in sources.items():
        parameter = parameters[destination.name]
        path, _, attribute = destination.name.rpartition(".")
        if (
            isinstance(weights[name], LazyTensor)
            and destination.part is None
            and parameter.size > Constant.COMPARED
        ):
            lazy = _lazy(weights[name], destination.transposed, parameter.dtype)
            if lazy.shape == parameter.shape:
                setattr(modules[path], attribute, Deferred(lazy))
                continue
        array = array_of(weights[name])
        array = _transposed(array) if destination.transposed else array
        shape = parameter.shape if destination.part is None else parameter.shape[1:]
        if array.shape != shape:
            misshapen.append(f"{name} {list(array.shape)}, here {list(shape)}")
            continue
        array = array_of(array, parameter.dtype)
        if destination.part is not None:
            whole = joined.setdefault(destination.name, np.empty(parameter.shape, parameter.dtype))
            whole[destination.part] = array
            array = whole
        setattr(modules[path], attribute, concrete(array, Parameter))
    _refuse(model, misshapen=misshapen)


def _lazy(tensor: LazyTensor, transposed: bool, dtype: npt.DTypeLike) -> Constant:
    """A tensor of a checkpoint that is read whenever it is needed."""

    def write(out: np.ndarray[Any, Any]) -> None:
        array = tensor.read()
        out[...] = array_of(_transposed(array) if transposed else array, dtype)

    shape = tensor.shape
    if transposed and len(shape) > 1:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return Constant.made(shape, dtype, write, recipe=("read", id(tensor), transposed))


def _transposed(array: Any) -> Any:
    """A matrix, or each of an array of matrices, transposed."""
    return array.swapaxes(-1, -2) if array.ndim > 1 else array


def _refuse(model: LanguageModel, **wrong: list[str]) -> None:
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:8])}{', ...' * (len(names) > 8)}"
        for kind, names in wrong.items()
        if names
    ]
    if problems:
        raise CompileError(f"the weights do not fit {type(model).__name__}: {'; '.join(problems)}")


__all__ = ["load_weights"]

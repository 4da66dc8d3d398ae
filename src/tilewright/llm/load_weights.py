"""`load_weights`: a checkpoint's arrays become a model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import CompileError
from ..frontends.nn import Deferred, Parameter
from ..frontends.trace.tensor import array_of, concrete
from ..ir.constant import Constant
from .models.base import LanguageModel, Target
from .weights.checkpoint import LazyTensor


def load_weights(model: LanguageModel, weights: Mapping[str, Any]) -> None:
    """Make the arrays of a checkpoint, by their names there, the model's parameters, converted to the data types those have.

    An array of the right type is taken over, not copied: nobody may write to it afterwards. Large tensors of a `Checkpoint` are read again whenever their
    elements are needed, and not kept.

    Raises:
        CompileError: arrays are missing, unknown, given twice or of another shape; the message lists them.
    """
    own = dict(model.named_parameters())
    places: dict[Target, str] = {}
    unknown, twice = [], []
    for name in weights:
        target = model.target(name)
        if target is None:
            continue
        if target.name not in own or not (target.part is None or target.part < own[target.name].shape[0]):
            unknown.append(name)
        elif target in places:
            twice.append(f"{name} and {places[target]}")
        places[target] = name
    parts = {name: {t.part for t in places if t.name == name} for name in {t.name for t in places}}
    missing = [n for n, p in own.items() if parts.get(n) not in ({None}, set(range(p.shape[0])))]
    _refuse(model, missing=missing, unknown=unknown, twice=twice)
    modules, misshapen = dict(model.named_modules()), []
    joined: dict[str, np.ndarray[Any, Any]] = {}
    for target, name in places.items():
        parameter = own[target.name]
        path, _, attribute = target.name.rpartition(".")
        if isinstance(weights[name], LazyTensor) and target.part is None and parameter.size > Constant.COMPARED:
            lazy = _lazy(weights[name], target.transposed, parameter.dtype)
            if lazy.shape == parameter.shape:
                setattr(modules[path], attribute, Deferred(lazy))
                continue
        array = array_of(weights[name])
        array = array.T if target.transposed else array
        shape = parameter.shape if target.part is None else parameter.shape[1:]
        if array.shape != shape:
            misshapen.append(f"{name} {list(array.shape)}, here {list(shape)}")
            continue
        array = array_of(array, parameter.dtype)
        if target.part is not None:
            whole = joined.setdefault(target.name, np.empty(parameter.shape, parameter.dtype))
            whole[target.part] = array
            array = whole
        setattr(modules[path], attribute, concrete(array, Parameter))
    _refuse(model, misshapen=misshapen)


def _lazy(tensor: LazyTensor, transposed: bool, dtype: Any) -> Constant:
    """A tensor of a checkpoint that is read whenever it is needed."""

    def write(out: np.ndarray[Any, Any]) -> None:
        array = tensor.read()
        out[...] = array_of(array.T if transposed else array, dtype)

    shape = tensor.shape[::-1] if transposed else tensor.shape
    return Constant.made(shape, dtype, write, recipe=("read", id(tensor), transposed))


def _refuse(model: LanguageModel, **wrong: list[str]) -> None:
    found = [
        f"{len(names)} {kind}: {', '.join(names[:8])}{', ...' * (len(names) > 8)}"
        for kind, names in wrong.items()
        if names
    ]
    if found:
        raise CompileError(f"the weights do not fit {type(model).__name__}: {'; '.join(found)}")


__all__ = ["load_weights"]

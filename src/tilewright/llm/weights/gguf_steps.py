"""Changes that converters to GGUF make in tensors, and the steps that undo them.

A step works on tensors by GGUF's names, before they get Hugging Face's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import Quantized
from .checkpoint import LazyTensor

Config = Mapping[str, Any]
_LAYER = re.compile(r"(blk\.\d+\.)?(.+)")


@dataclass(frozen=True)
class Each:
    """Applies `change` to each tensor whose name, without ``blk.N.``, matches the pattern `names`."""

    names: str
    change: Callable[[LazyTensor, Config], LazyTensor]

    def __call__(self, tensors: Mapping[str, LazyTensor], config: Config) -> dict[str, LazyTensor]:
        def changed(name: str, tensor: LazyTensor) -> LazyTensor:
            match = _LAYER.fullmatch(name)
            fits = match and re.fullmatch(self.names, match[2])
            return self.change(tensor, config) if fits else tensor

        return {name: changed(name, tensor) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Joined:
    """Makes one tensor, `name`, of the tensors `parts` of a layer; weights and biases separately."""

    parts: tuple[str, ...]
    name: str
    join: Callable[[Sequence[LazyTensor], Config], LazyTensor]

    def __call__(self, tensors: Mapping[str, LazyTensor], config: Config) -> dict[str, LazyTensor]:
        result = dict(tensors)
        for name, tensor in tensors.items():
            match = re.fullmatch(rf"(blk\.\d+\.){re.escape(self.parts[0])}(\.weight|\.bias)", name)
            if not match:
                continue
            names = [f"{match[1]}{part}{match[2]}" for part in self.parts]
            if missing := [other for other in names if other not in tensors]:
                raise WeightsError(f"{tensor.where}: the file lacks {', '.join(missing)}")
            result[f"{match[1]}{self.name}{match[2]}"] = self.join([result.pop(n) for n in names], config)
        return result


Step = Each | Joined


def undone(steps: Sequence[Step], tensors: Mapping[str, LazyTensor], config: Config) -> dict[str, LazyTensor]:
    """Return the tensors after all steps, by GGUF's names or by those of joined tensors.

    Raises:
        WeightsError: a tensor does not have the shape that the configuration tells, or is missing.
    """
    result = dict(tensors)
    for step in steps:
        result = step(result, config)
    return result


# Orders of rows


def _reordered(tensor: LazyTensor, order: Array) -> LazyTensor:
    return tensor.map(lambda a: a[order], parts=lambda a: a[order])


def halves_from_pairs(heads: str) -> Callable[[LazyTensor, Config], LazyTensor]:
    """Restore the row order of rotary halves; `heads` is the key of the number of heads.

    Files by llama.cpp have the rows of a head in the order 0, d/2, 1, d/2 + 1, ..., because its rotary
    embedding rotates neighboring elements.
    """

    def change(tensor: LazyTensor, config: Config) -> LazyTensor:
        rows, count = tensor.shape[0], config[heads]
        if rows % (2 * count):
            raise WeightsError(f"{tensor.where}: has {rows} rows, which are not {count} heads")
        order = np.arange(rows).reshape(count, rows // count // 2, 2).swapaxes(1, 2).reshape(-1)
        return _reordered(tensor, order)

    return change


def groups_of_heads(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore the row order of joint projections by head: the queries that share a key, the key, the value.

    GGUF files have all queries, then all keys, then all values.
    """
    rows, heads, groups = tensor.shape[0], config["num_attention_heads"], config["num_key_value_heads"]
    if heads % groups or rows % (heads + 2 * groups):
        raise WeightsError(
            f"{tensor.where}: has {rows} rows, which are not {heads} heads of queries and {groups} of keys "
            "and of values"
        )
    size = rows // (heads + 2 * groups)
    heads_of = np.arange(rows).reshape(-1, size)
    q, k, v = np.split(heads_of, [heads, heads + groups])
    order = np.concatenate([q.reshape(groups, -1), k, v], 1).reshape(-1)
    return _reordered(tensor, order)


# Values


def less_one(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Subtract the 1 that files add to weights of normalizations."""
    return tensor.map(lambda a: (a.astype(np.float32) - np.float32(1)).astype(a.dtype))


def logarithm_of_decay(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore the logarithms of the decay of state spaces. Files have A = -exp(A_log)."""

    def change(a: Array) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            result: Array = np.log(-a)
        return result

    return tensor.map(change)


# Shapes


def _reshaped(tensor: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    if int(np.prod(shape)) != int(np.prod(tensor.shape)):
        raise WeightsError(f"{tensor.where}: has shape {list(tensor.shape)}, which is not {list(shape)}")
    load = tensor.load
    return replace(
        tensor, shape=shape, load=lambda: load().reshape(shape), scheme=None, load_quantized=None, stored=None
    )


def channels_of_convolution(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore the axis of length 1 of a convolution's weight [channels, 1, width]."""
    return _reshaped(tensor, (tensor.shape[0], 1, tensor.shape[-1]))


def flat(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore a vector that files have in two dimensions."""
    return _reshaped(tensor, (int(np.prod(tensor.shape)),))


def as_row(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore a matrix of one row."""
    return _reshaped(tensor, (1, int(np.prod(tensor.shape))))


def transposed(tensor: LazyTensor, config: Config) -> LazyTensor:
    """Restore matrices [..., in, out]; GGUF files have [..., out, in]."""
    return tensor.transpose()


# Joined tensors


def _of_rows(tensors: Sequence[LazyTensor], join: Callable[[Sequence[Array]], Array]) -> LazyTensor:
    """Join the rows of matrices [..., rows, in], or of vectors [..., rows]. The result is quantized if all
    tensors have the same scheme.
    """
    first = tensors[0]
    axis = -1 if first.name.endswith(".bias") else -2
    shapes = [list(t.shape) for t in tensors]
    rows = [shape.pop(axis) if len(shape) >= -axis else 0 for shape in shapes]
    if any(shape != shapes[0] for shape in shapes):
        whole = " and ".join(str(list(t.shape)) for t in tensors)
        raise WeightsError(f"{first.where}: cannot be joined with its other part, of shapes {whole}")
    shape = list(first.shape)
    shape[axis] = sum(rows)

    def joined(arrays: Sequence[Array]) -> Array:
        return np.moveaxis(join([np.moveaxis(a, axis, 0) for a in arrays]), 0, axis)

    result = replace(
        first,
        shape=tuple(shape),
        load=lambda: joined([t.load() for t in tensors]),
        scheme=None,
        load_quantized=None,
        stored=sum(t.stored or 0 for t in tensors) or None,
    )
    scheme, loads = first.scheme, [t.load_quantized for t in tensors]
    if scheme is None or None in loads or any(t.scheme != scheme for t in tensors):
        return result

    def quantized() -> Quantized:
        parts = [load() for load in loads if load]
        arrays = {name: joined([q.arrays[name] for q in parts]) for name in parts[0].arrays}
        return Quantized.of(scheme, tuple(shape), arrays)

    return replace(result, scheme=scheme, load_quantized=quantized)


def rows_one_after_another(tensors: Sequence[LazyTensor], config: Config) -> LazyTensor:
    """Restore one matrix with the rows of the first, then those of the second."""
    return _of_rows(tensors, np.concatenate)


def rows_in_turn(tensors: Sequence[LazyTensor], config: Config) -> LazyTensor:
    """Restore one matrix with a row of the first, then one of the second, and so on."""
    first = tensors[0]
    if any(t.shape != first.shape for t in tensors):
        raise WeightsError(f"{first.where}: has another shape than {tensors[1].where}, its other part")

    def join(arrays: Sequence[Array]) -> Array:
        result: Array = np.stack(arrays, 1)
        return result.reshape(-1, *result.shape[2:])

    return _of_rows(tensors, join)


def groups_of_states(tensors: Sequence[LazyTensor], config: Config) -> LazyTensor:
    """Restore the joint projection of a gated delta rule by groups: a query, a key, the values and the gates
    that share them. Files have all queries, all keys and all values in one tensor, and all gates in another.
    """
    groups, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    both, gates = (tensor.shape[0] for tensor in tensors)
    if values % groups or both != 2 * groups * size + values or gates != values:
        raise WeightsError(
            f"{tensors[0].where}: has {both} rows, and gates have {gates}; {groups} heads of {size} keys and "
            f"{values} values should have {2 * groups * size + values} and {values}"
        )
    edges = np.cumsum([groups * size, groups * size, values])
    parts = np.split(np.arange(both + gates), edges)
    order = np.concatenate([part.reshape(groups, -1) for part in parts], 1).reshape(-1)
    return _of_rows(tensors, lambda arrays: np.concatenate(arrays)[order])


def keys_and_values_of_latent(tensors: Sequence[LazyTensor], config: Config) -> LazyTensor:
    """Restore the projection of latent vectors to the keys and values of heads, [heads * (k + v), rank].

    Files have the matrices of keys transposed, [heads, rank, k], and those of values, [heads, v, rank].
    """
    keys, values = tensors
    if (
        len(keys.shape) != 3
        or len(values.shape) != 3
        or (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2])
    ):
        raise WeightsError(f"{keys.where}: {list(keys.shape)} does not fit {list(values.shape)} of values")
    heads, rank, size = keys.shape
    rows = size + values.shape[1]

    def load() -> Array:
        parts = [keys.load().astype(np.float32).swapaxes(1, 2), values.load().astype(np.float32)]
        whole: Array = np.concatenate(parts, 1).reshape(heads * rows, rank)
        return whole.astype(keys.dtype)

    return replace(keys, shape=(heads * rows, rank), load=load, scheme=None, load_quantized=None, stored=None)

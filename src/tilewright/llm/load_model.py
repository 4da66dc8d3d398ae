"""`model_of`: the model of a checkpoint, with its weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..dialects.weight_form import TERNARY
from ..frontends.nn import Deferred, Embedding, Linear
from ..frontends.trace import Tensor
from ..frontends.trace.tensor import concrete
from ..ir.constant import Constant
from .experts import GroupedLinear
from .load_weights import load_weights
from .models.base import LanguageModel, build
from .parallel.divide import Division
from .parallel.place import Place
from .quantization import Quantized
from .quantization.schemes import BLOCK
from .quantization.tables import TABLES
from .quantized_linear import (
    PackedEmbedding,
    QuantizedEmbedding,
    QuantizedGroupedLinear,
    QuantizedLinear,
    replace_linears,
)
from .weights import Checkpoint, LazyTensor


def model_of(
    checkpoint: Checkpoint, context: int | None = None, place: Place | None = None, images: bool = True
) -> LanguageModel:
    """The model of a checkpoint, with its weights; of several processes, the part of the one at `place`;
    without `images`, without its image encoder.

    Linear layers, including those of experts, stay quantized if products can use their groups.

    Raises:
        CompileError: The model cannot be divided like this, or its weights do not fit it.
    """
    model = build(checkpoint.config, context=context, images=images)
    model.adapt(checkpoint)
    division = Division(model, place) if place is not None and place.size > 1 else None
    tensors: Mapping[str, LazyTensor] = checkpoint if division is None else division.weights(checkpoint)
    quantized: dict[str, dict[int | None, LazyTensor]] = {}
    for name, tensor in tensors.items():
        destination = model.destination(name)
        keeps = destination is not None and destination.transposed == tensor.transposed and _stays(tensor)
        if destination is not None and keeps and destination.name.endswith(".weight"):
            quantized.setdefault(destination.name.removesuffix(".weight"), {})[destination.part] = tensor
    kept: set[str] = set()

    def replacement(path: str, layer: Linear | Embedding) -> QuantizedLinear | QuantizedEmbedding | None:
        tensor = quantized.get(path, {}).get(None)
        if tensor is None:
            return None
        weights = tensor.read_quantized()
        parts = parts_of(weights)
        order = None if weights.permutation is None else concrete(weights.permutation)
        if isinstance(layer, Linear):
            kept.add(tensor.name)
            return QuantizedLinear(**parts, bias=layer.bias, permutation=order)
        if order is not None:
            return None
        kept.add(tensor.name)
        scheme = weights.scheme
        if scheme.bits < 8 and getattr(model, "lm_head", None) is not None:  # no product reads it
            parts["octets"] = concrete(weights.qweight)
            del parts["qvalues"]
            return PackedEmbedding(**parts, columns=weights.shape[-1], added=scheme.added)
        return QuantizedEmbedding(**parts)

    def grouped(path: str, layer: GroupedLinear) -> QuantizedGroupedLinear | None:
        """The quantized layer of matrices that are one tensor, or all stored in the same way."""
        tensors = quantized.get(path, {})
        if tensors.keys() == {None}:
            weights = tensors[None].read_quantized()
            kept.add(tensors[None].name)
            return QuantizedGroupedLinear(**parts_of(weights))
        if tensors.keys() != {*range(layer.count)} or len({t.scheme for t in tensors.values()}) > 1:
            return None
        each = [tensors[k].read_quantized() for k in range(layer.count)]
        if any(w.permutation is not None for w in each):
            return None
        kept.update(t.name for t in tensors.values())
        made = [parts_of(w) for w in each]
        tensors_of = {n: [parts[n] for parts in made] for n, x in made[0].items() if isinstance(x, Tensor)}
        return QuantizedGroupedLinear(**made[0] | {n: _stacked(x) for n, x in tensors_of.items()})

    replace_linears(model, replacement)
    replace_linears(model, replacement, Embedding)
    replace_linears(model, grouped, GroupedLinear)
    load_weights(model, {name: tensor for name, tensor in tensors.items() if name not in kept})
    if division is not None:
        division.connect()
    return model


def _stays(tensor: LazyTensor) -> bool:
    """Whether products can use a tensor's quantized values directly."""
    scheme = tensor.scheme
    if scheme is None or len(tensor.shape) not in (2, 3):
        return False
    columns = tensor.shape[-2 if tensor.transposed else -1]
    size, groups = scheme.group or columns, scheme.groups(columns)
    return (
        columns % size == 0
        and all(groups % part.covered == 0 for part in scheme.stored_parts)
        and scheme.form.fits(groups, size)
    )


_VALUES = {"int8": ml_dtypes.int4, "uint8": ml_dtypes.uint4}
"""The types of values of at most 4 bits, by the types that they have without packing."""


def parts_of(quantized: Quantized) -> dict[str, Any]:
    """The arguments of `QuantizedMatrix` for a quantized matrix.

    Anything stored in another form is converted when it is needed.
    """
    scheme, shape = quantized.scheme, quantized.shape
    if scheme.kind == "fp8":  # a scale for each row of a block
        scales = np.repeat(quantized.scales, BLOCK, -2)[..., : shape[-2], :]
        return {"qvalues": concrete(quantized.qweight), "scales": concrete(np.ascontiguousarray(scales))}
    parts: dict[str, Any] = {
        name: _of_4_bits(quantized, array) if name in scheme.nibbles else concrete(array)
        for name, array in quantized.stored_parts.items()
    }
    if scheme.bits == 8:
        return {"qvalues": concrete(quantized.qweight), **parts}
    dtype = np.dtype(np.int8 if scheme.symmetric else np.uint8)
    dtype = np.dtype(_VALUES[dtype.name]) if scheme.bits <= 4 else dtype

    def write(out: np.ndarray[Any, Any]) -> None:
        out[...] = quantized.values().reshape(shape).astype(dtype)

    qvalues = _deferred(shape, dtype, write, ("unpacked", id(quantized.qweight)))
    bits = TERNARY if scheme.is_ternary else scheme.bits
    return {"qvalues": qvalues, "bits": bits, "table": TABLES.get(scheme.values), **parts}


def _of_4_bits(quantized: Quantized, octets: np.ndarray[Any, Any]) -> Tensor:
    """A part whose bytes have two integers of 4 bits."""
    shape = (*quantized.shape[:-1], quantized.scheme.groups(quantized.shape[-1]))

    def write(out: np.ndarray[Any, Any]) -> None:
        out[...] = quantized.integers_of(octets).astype(out.dtype)

    return _deferred(shape, ml_dtypes.uint4, write, ("split", id(octets)))


def _deferred(
    shape: tuple[int, ...], dtype: npt.DTypeLike, write: Callable[[Any], None], recipe: Hashable
) -> Tensor:
    made = Constant.made(shape, dtype, write, recipe=recipe)
    return Deferred(made) if made.is_made else concrete(made.array)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of equal shape, stacked, in the widest of their types."""
    dtype = np.result_type(*{p.dtype for p in parts})

    def write(out: np.ndarray[Any, Any]) -> None:
        for k, part in enumerate(parts):
            out[k] = part.numpy()

    return _deferred((len(parts), *parts[0].shape), dtype, write, ("stacked", tuple(map(id, parts))))


__all__ = ["model_of", "parts_of"]

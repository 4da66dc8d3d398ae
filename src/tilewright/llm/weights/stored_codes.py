"""Readers of quantized Hugging Face checkpoints whose tensors keep their layout: 8-bit floats, MXFP4,
compressed-tensors and bitsandbytes. Codes are moved, not rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import Quantized, Scheme, dequantize, pack_bits, scheme_of, unpack_bits
from ..quantization.schemes import BLOCK
from ..quantization.tables import TABLES
from .checkpoint import Checkpoint, LazyTensor

_FLOATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""The prefix of schemes with the values of a type."""


def quantized_tensor(
    name: str,
    shape: tuple[int, ...],
    where: str,
    scheme: Scheme,
    load: Callable[[], Quantized],
    transposed: bool = False,
) -> LazyTensor:
    """A tensor whose quantized form is `load`'s result, the transpose of which it is if `transposed`."""

    def read() -> Array:
        values = dequantize(load())
        return values.swapaxes(-1, -2) if transposed else values

    return LazyTensor(name, shape, np.dtype(np.float32), where, read, scheme, load, transposed)


def floats(checkpoint: Checkpoint, entry: Mapping[str, Any], where: str) -> dict[str, LazyTensor]:
    """8-bit floats ``X.weight`` that are multiplied by ``X.weight_scale_inv`` or ``X.weight_scale``: one
    number, one for each row, or one for each block of 128 x 128. ``X.input_scale`` belongs to activations.
    """
    result = {}
    for name, tensor in checkpoint.items():
        part = name.rpartition(".")[2]
        if part in ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale"):
            continue
        scales = checkpoint.get(f"{name}_scale_inv") or checkpoint.get(f"{name}_scale")
        if scales is None or tensor.dtype.name not in _FLOATS:
            result[name] = tensor
            continue
        out, columns = tensor.shape[-2:]
        blocks = (*tensor.shape[:-2], -(-out // BLOCK), -(-columns // BLOCK))
        count = int(np.prod(scales.shape))
        in_blocks = scales.shape == blocks and tensor.dtype.name == "float8_e4m3fn" and count not in (1, out)
        if entry.get("weight_block_size") == [BLOCK, BLOCK] and scales.shape == blocks:
            in_blocks = True
        if not in_blocks and (count not in (1, out) or len(tensor.shape) != 2):
            raise WeightsError(
                f"{where}: {name} {list(tensor.shape)} has scales of shape {list(scales.shape)}; one number, "
                "one for each row, or one for each block of 128 x 128 are supported"
            )
        scheme = scheme_of("fp8_e4m3" if in_blocks else _FLOATS[tensor.dtype.name])

        def load(
            tensor: LazyTensor = tensor,
            scales: LazyTensor = scales,
            scheme: Scheme = scheme,
            in_blocks: bool = in_blocks,
        ) -> Quantized:
            numbers = scales.read().astype(np.float32)
            if not in_blocks:
                numbers = np.broadcast_to(numbers.reshape(-1, 1), (tensor.shape[0], 1)).copy()
            return Quantized.of(scheme, tensor.shape, {"qweight": tensor.read(), "scales": numbers})

        result[name] = quantized_tensor(name, tensor.shape, tensor.where, scheme, load)
    return result


def mxfp4(checkpoint: Checkpoint, entry: Mapping[str, Any], where: str) -> dict[str, LazyTensor]:
    """GPT-OSS' experts: ``X_blocks`` u8 [experts, out, in / 32, 16], two floats of 4 bits in a byte, the
    first in the lower bits, with exponents ``X_scales`` u8 [experts, out, in / 32]. X is [experts, in, out].
    """
    result = {}
    scheme = scheme_of("mxfp4")
    for name, tensor in checkpoint.items():
        base, _, part = name.rpartition("_")
        if part not in ("blocks", "scales") or f"{base}_blocks" not in checkpoint:
            result[name] = tensor
            continue
        if part == "scales":
            continue
        exponents = checkpoint.get(f"{base}_scales")
        if exponents is None:
            raise WeightsError(f"{tensor.where}: there is no {base}_scales")
        *lead, out, groups, half = tensor.shape
        inner = (*lead, out, groups * half * 2)
        if exponents.shape != (*lead, out, groups) or half != 16:
            raise WeightsError(f"{tensor.where}: {list(tensor.shape)} does not fit {list(exponents.shape)}")

        def load(
            tensor: LazyTensor = tensor, exponents: LazyTensor = exponents, inner: tuple[int, ...] = inner
        ) -> Quantized:
            arrays = {
                "qweight": tensor.read().reshape(*inner[:-1], -1),
                "scales": exponents.read().view(ml_dtypes.float8_e8m0fnu),
            }
            return Quantized.of(scheme, inner, arrays)

        shape = (*lead, inner[-1], out)
        result[base] = quantized_tensor(base, shape, tensor.where, scheme, load, transposed=True)
    return result


def compressed(checkpoint: Checkpoint, entry: Mapping[str, Any], where: str) -> dict[str, LazyTensor]:
    """compressed-tensors: ``pack-quantized`` (integers in words of 32 bits), ``int-quantized`` and
    ``naive-quantized`` (bytes), ``float-quantized``.
    """
    groups = entry.get("config_groups") or {}
    described = [g.get("weights") or {} for g in groups.values()] if isinstance(groups, dict) else []
    form = entry.get("format")
    if form == "float-quantized" or (described and all(g.get("type") == "float" for g in described)):
        return floats(checkpoint, entry, where)
    if form not in ("pack-quantized", "int-quantized", "naive-quantized") or not described:
        raise WeightsError(
            f"{where}: format {form!r} of compressed-tensors is not supported; pack-quantized, "
            "int-quantized, naive-quantized and float-quantized are"
        )
    width = described[0].get("num_bits")
    if width not in (2, 3, 4, 8) or any(g.get("num_bits") != width for g in described):
        raise WeightsError(f"{where}: weights of {width} bits, or of several numbers, are not supported")
    kinds = (
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_shape",
        "weight_g_idx",
        "input_scale",
    )
    result = {}
    for name, tensor in checkpoint.items():
        base, _, part = name.rpartition(".")
        packed = part == "weight_packed"
        if packed or (part == "weight" and tensor.dtype == np.int8 and f"{name}_scale" in checkpoint):
            parts = {p: checkpoint[f"{base}.{p}"] for p in kinds if f"{base}.{p}" in checkpoint}
            result[f"{base}.weight"] = _compressed(f"{base}.weight", tensor, parts, width, where)
        elif part not in kinds or f"{base}.weight_scale" not in checkpoint:
            result[name] = tensor
    return result


def require_shape(tensor: LazyTensor, shape: tuple[int, ...]) -> None:
    """Check a part of a quantized matrix.

    Raises:
        WeightsError: it has another shape.
    """
    if tensor.shape != shape:
        raise WeightsError(f"{tensor.where}: has shape {list(tensor.shape)}, not {list(shape)}")


def words_of(n: int, bits: int) -> int:
    """The words of 32 bits that hold a stream of n values."""
    return -(-n * bits // 32)


def _require_words(tensor: LazyTensor, axis: int, shape: tuple[int, int], bits: int) -> None:
    """Check that words hold codes of a matrix of this shape along `axis` in a layout that `_codes` reads.

    Raises:
        WeightsError: the words have another shape, or one that both layouts have.
    """
    n, other = shape[axis], shape[1 - axis]
    dense, padded = words_of(n, bits), -(-n // (32 // bits))
    if len(tensor.shape) != 2 or tensor.shape[1 - axis] != other or tensor.shape[axis] not in (dense, padded):
        wanted = [[*shape[:axis], count, *shape[axis + 1 :]] for count in sorted({dense, padded})]
        raise WeightsError(
            f"{tensor.where}: has shape {list(tensor.shape)}; {list(shape)} values of {bits} bits take "
            f"{' or '.join(map(str, wanted))} words"
        )
    if dense == padded > 1 and 32 % bits:
        raise WeightsError(
            f"{tensor.where}: {n} values of {bits} bits take {dense} words with and without unused bits, so "
            "that the layout is not known; give the model before it was quantized"
        )


def _codes(words: Array, bits: int, n: int) -> Array:
    """The codes uint8 [rows, n] in int32 [rows, words]: a stream of bits, or, as older versions of
    compressed-tensors wrote them, ``32 // bits`` codes in the lower bits of each word.
    """
    if words.shape[1] == words_of(n, bits):
        return unpack_bits(np.ascontiguousarray(words).view(np.uint8), bits, n)
    places = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    codes = (words.view(np.uint32)[..., None] >> places) & np.uint32((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(words), -1)[:, :n]


def _compressed(
    name: str, tensor: LazyTensor, parts: Mapping[str, LazyTensor], bits: int, where: str
) -> LazyTensor:
    """A matrix [out, in]: ``weight_packed`` int32 [out, words], 2 ** (bits - 1) added to values, or int8
    [out, in]; ``weight_shape``, out and in; ``weight_scale`` [out, groups]; ``weight_zero_point`` int8
    [out, groups], or int32 [words, groups]; ``weight_g_idx`` [in], the group of each column.
    """
    packed = tensor.dtype == np.int32
    scales = parts.get("weight_scale")
    if scales is None:
        raise WeightsError(f"{where}: {name} has no weight_scale")
    if len(tensor.shape) != 2:
        raise WeightsError(f"{tensor.where}: has shape {list(tensor.shape)}; only matrices are supported")
    out = tensor.shape[0]
    columns = tensor.shape[1] * 32 // bits if packed else tensor.shape[1]
    if packed and "weight_shape" in parts:
        require_shape(parts["weight_shape"], (2,))
        out, columns = map(int, parts["weight_shape"].read())
    if packed:
        _require_words(tensor, 1, (out, columns), bits)
    count = scales.shape[-1] if len(scales.shape) == 2 else 1
    if not count or columns % count or (count > 1 and (columns // count) % 8):
        raise WeightsError(f"{where}: {name} has {count} scales for {columns} columns")
    if math.prod(scales.shape) not in (count, out * count):
        require_shape(scales, (out, count))
    zeros, middle = parts.get("weight_zero_point"), 1 << (bits - 1)
    if zeros is not None and zeros.dtype == np.int32:
        _require_words(zeros, 0, (out, count), bits)
    elif zeros is not None and math.prod(zeros.shape) not in (count, out * count):
        require_shape(zeros, (out, count))
    if "weight_g_idx" in parts:
        require_shape(parts["weight_g_idx"], (columns,))
    group = "" if count == 1 else f"_g{columns // count}"
    scheme = scheme_of(f"int{bits}{group}{'' if zeros is None else '_asym'}")

    def load() -> Quantized:
        if packed:
            stored = _codes(tensor.read(), bits, columns)
        else:
            stored = (tensor.read().astype(np.int16) + middle).astype(np.uint8)
        arrays: dict[str, Array] = {}
        numbers = scales.read().reshape(-1, count)
        arrays["scales"] = np.ascontiguousarray(np.broadcast_to(numbers, (out, count)))
        if zeros is not None:
            points = zeros.read()
            if points.dtype == np.int32:
                points = _codes(points.T, bits, out).T
            else:
                points = (points.astype(np.int16) + middle).astype(np.uint8)
            arrays["zeros"] = np.ascontiguousarray(np.broadcast_to(points.reshape(-1, count), (out, count)))
        if "weight_g_idx" in parts:
            stored, order = by_group(stored, parts["weight_g_idx"].read(), columns // count)
            if order is not None:
                arrays["permutation"] = order
        if bits == 8 and zeros is None:
            arrays["qweight"] = (stored.astype(np.int16) - middle).astype(np.int8)
        else:
            arrays["qweight"] = pack_bits(stored, bits)
        return Quantized.of(scheme, (out, columns), arrays)

    return quantized_tensor(name, (out, columns), tensor.where, scheme, load)


def by_group(q: Array, groups: Array, size: int) -> tuple[Array, Array | None]:
    """Sort the columns of q [out, in] by the group of each, and return their order; None if it is theirs.

    Raises:
        WeightsError: the groups do not have `size` columns each.
    """
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], np.arange(len(order)) // size):
        raise WeightsError(f"g_idx does not put {size} columns into each group")
    if np.array_equal(order, np.arange(len(order))):
        return q, None
    return q[:, order], order


def bitsandbytes(checkpoint: Checkpoint, entry: Mapping[str, Any], where: str) -> dict[str, LazyTensor]:
    """bitsandbytes: ``X.weight`` u8 with the state ``X.weight.quant_state.bitsandbytes__nf4`` (or fp4), or
    int8 [out, in] with the largest magnitudes ``X.SCB`` [out].
    """
    result = {}
    states = {name.partition(".quant_state.")[0]: name for name in checkpoint if ".quant_state." in name}
    for name, tensor in checkpoint.items():
        base = name.removesuffix(".weight")
        if name in states:
            result[name] = _four_bits(name, tensor, checkpoint, checkpoint[states[name]])
        elif f"{base}.SCB" in checkpoint and name != base:
            result[name] = _bytes_by_row(name, tensor, checkpoint[f"{base}.SCB"])
        elif not _is_state(name, states) and not name.endswith((".SCB", ".weight_format")):
            result[name] = tensor
    return result


def _is_state(name: str, states: Iterable[str]) -> bool:
    owner = name.rpartition(".quant_state.")[0] or name.rpartition(".")[0]
    return owner in states


def _four_bits(
    name: str, tensor: LazyTensor, checkpoint: Mapping[str, LazyTensor], state: LazyTensor
) -> LazyTensor:
    """Codes of consecutive elements of the flattened matrix, the first of two in the upper bits of a byte;
    ``absmax`` for each block of `blocksize` elements, which may be quantized itself.
    """
    described = json.loads(bytes(state.read()))
    kind, size, shape = described["quant_type"], int(described["blocksize"]), tuple(described["shape"])
    if kind not in ("nf4", "fp4") or len(shape) != 2 or shape[1] % size:
        raise WeightsError(
            f"{tensor.where}: {kind} of {list(shape)} in blocks of {size} is not supported; nf4 and fp4 "
            "are, in rows of whole blocks"
        )
    scheme = scheme_of(f"{kind}_g{size}")

    def load() -> Quantized:
        table = checkpoint[f"{name}.quant_map"].read()
        if not np.allclose(table, TABLES[kind], atol=1e-5):
            raise WeightsError(f"its numbers are not those of {kind}")
        octets = tensor.read().reshape(-1)
        absmax = checkpoint[f"{name}.absmax"].read()
        nested = absmax.dtype == np.uint8
        if nested:
            steps = checkpoint[f"{name}.nested_quant_map"].read()[absmax]
            spread = np.repeat(checkpoint[f"{name}.nested_absmax"].read(), int(described["nested_blocksize"]))
            absmax = (steps * spread[: len(steps)]).astype(np.float32)
            absmax = absmax + np.float32(described["nested_offset"])
        scales: Array = absmax.reshape(shape[0], -1).astype(np.float32)
        halves = scales.astype(np.float16)
        # Scales of a byte in the file take two here, unless float16 loses more than its last bit.
        if nested and np.isfinite(halves).all() and (np.abs(halves) >= np.finfo(np.float16).tiny).all():
            scales = halves
        swapped = (octets >> np.uint8(4)) | (octets << np.uint8(4))
        return Quantized.of(scheme, shape, {"qweight": swapped.reshape(shape[0], -1), "scales": scales})

    return quantized_tensor(name, shape, tensor.where, scheme, load)


def _bytes_by_row(name: str, tensor: LazyTensor, largest: LazyTensor) -> LazyTensor:
    scheme = scheme_of("int8")

    def load() -> Quantized:
        scales = (largest.read().astype(np.float32) / np.float32(127)).reshape(-1, 1)
        return Quantized.of(scheme, tensor.shape, {"qweight": tensor.read(), "scales": scales})

    return quantized_tensor(name, tensor.shape, tensor.where, scheme, load)


__all__ = [
    "bitsandbytes",
    "by_group",
    "compressed",
    "floats",
    "mxfp4",
    "quantized_tensor",
    "require_shape",
    "words_of",
]

"""Quantized Hugging Face checkpoints, read without loss into the schemes of `..quantization`: GPTQ and AWQ
here, the methods of `_READERS` by `stored_codes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import Quantized, Scheme, pack_bits, scheme_of, unpack_bits
from .checkpoint import Checkpoint, LazyTensor
from .stored_codes import (
    bitsandbytes,
    by_group,
    compressed,
    floats,
    mxfp4,
    quantized_tensor,
    require_shape,
    words_of,
)

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of eight, in each nibble of an AWQ word, from the lowest nibble on."""


def with_quantized_tensors(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with each quantized matrix under its usual name, ``X.weight``.

    Raises:
        WeightsError: the checkpoint is quantized in an unsupported way.
    """
    entry = checkpoint.config.get("quantization_config")
    if not entry:
        return checkpoint
    where = f"{checkpoint.path / 'config.json'}: quantization_config"
    if not isinstance(entry, dict):
        raise WeightsError(f"{where}: is not an object")
    method = entry.get("quant_method")
    if method == "gptq":
        tensors = _packed(checkpoint, entry, where, _gptq)
    elif method == "awq":
        tensors = _packed(checkpoint, entry, where, _awq)
    elif isinstance(method, str) and method in _READERS:
        tensors = _READERS[method](checkpoint, entry, where)
    else:
        known = ", ".join(("gptq", "awq", *_READERS))
        raise WeightsError(
            f"{where}: weights quantized by {method!r} are not supported; {known} are. Give the model before "
            "it was quantized"
        )
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    return Checkpoint(checkpoint.path, tensors, config, checkpoint.files, checkpoint.sources)


def _packed(
    checkpoint: Checkpoint,
    entry: dict[str, Any],
    where: str,
    read: Callable[[str, Mapping[str, LazyTensor], Scheme, int, dict[str, Any]], LazyTensor],
) -> dict[str, LazyTensor]:
    bits, group = entry.get("bits", entry.get("w_bit")), entry.get("group_size", entry.get("q_group_size"))
    if bits not in (2, 3, 4, 8) or not isinstance(group, int) or (group != -1 and (group < 8 or group % 8)):
        raise WeightsError(f"{where}: bits {bits} and group_size {group} are not supported")
    scheme = scheme_of(f"int{bits}{'' if group == -1 else f'_g{group}'}_asym")
    result: dict[str, LazyTensor] = {}
    for name, tensor in checkpoint.items():
        base, _, part = name.rpartition(".")
        if f"{base}.qweight" not in checkpoint or part not in ("qweight", "qzeros", "scales", "g_idx"):
            result[name] = tensor
        elif part == "qweight":
            missing = [p for p in ("qzeros", "scales") if f"{base}.{p}" not in checkpoint]
            if missing:
                raise WeightsError(f"{tensor.where}: there is no {base}.{missing[0]}")
            parts = {
                p: checkpoint[f"{base}.{p}"]
                for p in ("qweight", "qzeros", "scales", "g_idx")
                if f"{base}.{p}" in checkpoint
            }
            result[f"{base}.weight"] = read(
                f"{base}.weight", parts, scheme, checkpoint[f"{base}.scales"].shape[-1], entry
            )
    return result


def _gptq(
    name: str, parts: Mapping[str, LazyTensor], scheme: Scheme, out: int, entry: dict[str, Any]
) -> LazyTensor:
    """Read a GPTQ matrix.

    qweight int32 [in * bits / 32, out] and qzeros int32 [groups, out * bits / 32] are streams of bits along
    `in` and `out`; scales [groups, out]; g_idx [in] is the group of each column. The first version of the
    format stores zeros minus one.
    """
    words = parts["qweight"]
    bits = scheme.bits
    shape = (out, words.shape[0] * 32 // bits)
    require_shape(words, (shape[1] * bits // 32, out))
    _require_groups(parts, scheme.groups(shape[1]), out, words_of(out, bits))
    if "g_idx" in parts:
        require_shape(parts["g_idx"], (shape[1],))
    less = 0 if entry.get("checkpoint_format") == "gptq_v2" else 1
    symmetric = bool(entry.get("sym", False))

    def load() -> Quantized:
        q = unpack_bits(_octets(words.read().T), bits, shape[1])  # [out, in]
        zeros = (
            unpack_bits(_octets(parts["qzeros"].read()), bits, out).T.astype(np.int32) + less
        )  # [out, groups]
        if zeros.max(initial=0) > 255:
            raise WeightsError("has zero points of 256, which do not fit a byte")
        permutation = None
        if "g_idx" in parts:
            q, permutation = by_group(q, parts["g_idx"].read(), scheme.group or shape[1])
        return _integers(scheme, shape, q, parts["scales"].read().T, zeros, permutation, symmetric)

    stored = scheme_of(scheme.name.removesuffix("_asym")) if symmetric else scheme
    return quantized_tensor(name, shape, words.where, stored, load)


def _awq(
    name: str, parts: Mapping[str, LazyTensor], scheme: Scheme, out: int, entry: dict[str, Any]
) -> LazyTensor:
    """Read an AWQ matrix.

    qweight int32 [in, out / 8] and qzeros int32 [groups, out / 8] hold eight nibbles of the `out` axis in
    AWQ's order; scales [groups, out].
    """
    words = parts["qweight"]
    if scheme.bits != 4 or entry.get("version", "gemm").lower() != "gemm":
        raise WeightsError(f"{words.where}: AWQ is only supported with 4 bits in version gemm")
    shape = (out, words.shape[0])
    require_shape(words, (shape[1], words_of(out, 4)))
    _require_groups(parts, scheme.groups(shape[1]), out, words_of(out, 4))

    def nibbles(packed: Array) -> Array:
        values = unpack_bits(_octets(packed), 4, out).reshape(len(packed), -1, 8)
        ordered = np.empty_like(values)
        ordered[..., _AWQ_ORDER] = values
        return ordered.reshape(len(packed), -1).T

    def load() -> Quantized:
        q, zeros = nibbles(words.read()), nibbles(parts["qzeros"].read())
        return _integers(scheme, shape, q, parts["scales"].read().T, zeros, None, False)

    return quantized_tensor(name, shape, words.where, scheme, load)


def _require_groups(parts: Mapping[str, LazyTensor], groups: int, out: int, words: int) -> None:
    """Check the shapes of scales [groups, out] and qzeros [groups, words].

    Raises:
        WeightsError: one is another, so that bits would be read as other values.
    """
    require_shape(parts["scales"], (groups, out))
    require_shape(parts["qzeros"], (groups, words))


def _integers(
    scheme: Scheme,
    shape: tuple[int, ...],
    q: Array,
    scales: Array,
    zeros: Array,
    permutation: Array | None,
    symmetric: bool,
) -> Quantized:
    arrays: dict[str, Array] = {"scales": np.ascontiguousarray(scales)}
    if symmetric:
        middle = 1 << (scheme.bits - 1)
        if (zeros != middle).any():
            raise WeightsError(f"is declared symmetric, but has zero points other than {middle}")
        scheme = scheme_of(scheme.name.removesuffix("_asym"))
        q = (q.astype(np.int16) - middle).astype(np.int8) if scheme.bits == 8 else q
    else:
        arrays["zeros"] = np.ascontiguousarray(zeros, np.uint8)
    arrays["qweight"] = np.ascontiguousarray(q) if scheme.bits == 8 else pack_bits(q, scheme.bits)
    if permutation is not None:
        arrays["permutation"] = permutation
    return Quantized.of(scheme, shape, arrays)


_READERS = {
    "fp8": floats,
    "fbgemm_fp8": floats,
    "mxfp4": mxfp4,
    "compressed-tensors": compressed,
    "bitsandbytes": bitsandbytes,
}
"""Readers of quantization methods: from the checkpoint, its quantization_config, and where that is."""


def _octets(words: Array) -> Array:
    """View int32 [n, m] as uint8 [n, 4 m]."""
    return np.ascontiguousarray(words).view(np.uint8)

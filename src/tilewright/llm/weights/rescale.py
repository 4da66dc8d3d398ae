"""Activation-aware scaling of a whole checkpoint: finds matrices that share an input, and folds the inverse
scales into its producer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...artifact.disk_cache import digest
from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import ActivationStatistics, find_scaling
from .checkpoint import Checkpoint, LazyTensor
from .convert import Conversion
from .folder import checksum_of
from .safetensors import read_safetensors, write_safetensors

_FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "phi3",
    "starcoder2",
)
_ABSOLUTE, _SQUARE = ".mean_absolute", ".mean_square"


@dataclass(frozen=True)
class Folding:
    """`targets` are matrices that share their input. `sources` produce it: a norm's weight and bias, or those
    of a linear layer.

    `offset`: the norm multiplies by ``offset + weight``.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    offset: float = 0


def foldings(checkpoint: Checkpoint) -> list[Folding]:
    """Return the places where scales can be folded.

    These are the norms before attention and feed-forward layers, ``up_proj`` before ``down_proj``, and
    ``v_proj`` before ``o_proj`` if each head has its own values.

    Raises:
        WeightsError: the model's family is not supported.
    """
    config = checkpoint.config
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise WeightsError(
            f"{checkpoint.path}: activation-aware scaling does not support {family}; supported: "
            f"{', '.join(_FAMILIES)}"
        )
    offset = 1.0 if family.startswith("gemma") else 0.0
    heads = config.get("num_attention_heads")
    result = []
    for name in checkpoint:
        prefix, marker, rest = name.rpartition("self_attn.o_proj.weight")
        if not marker or rest:
            continue
        before_mlp = (
            "pre_feedforward_layernorm" if offset and family != "gemma" else "post_attention_layernorm"
        )
        candidates = [
            (
                "input_layernorm",
                [f"self_attn.{m}" for m in ("q_proj", "k_proj", "v_proj", "qkv_proj")],
                offset,
            ),
            (before_mlp, [f"mlp.{m}" for m in ("gate_proj", "up_proj", "gate_up_proj", "c_fc")], offset),
            ("mlp.up_proj", ["mlp.down_proj"], 0.0),
        ]
        if config.get("num_key_value_heads", heads) == heads:
            candidates.append(("self_attn.v_proj", ["self_attn.o_proj"], 0.0))
        for source, matrices, add in candidates:
            sources = [n for part in ("weight", "bias") if (n := f"{prefix}{source}.{part}") in checkpoint]
            targets = [n for m in matrices if (n := f"{prefix}{m}.weight") in checkpoint]
            if sources and targets:
                result.append(Folding(tuple(sources), tuple(targets), add))
    return result


def rescaled(
    checkpoint: Checkpoint, statistics: Mapping[str, ActivationStatistics], conversion: Conversion
) -> Checkpoint:
    """Return the checkpoint scaled for quantization with the options `conversion`.

    It computes the same values up to rounding. Its matrices have the `importance` of their columns.
    `statistics` has the input's statistics by a matrix' name without ``.weight``; one of the matrices that
    share an input suffices.

    Raises:
        WeightsError: there are no statistics for this checkpoint, they do not fit, or matrices are quantized
            already.
    """
    columns: dict[str, Array] = {}  # factors of a matrix' columns
    # divisors of a norm's weight or a matrix' rows, and the norm's offset
    divisors: dict[str, tuple[Array, float]] = {}
    importance = {
        f"{name}.weight": of.mean_square.astype(np.float32)
        for name, of in statistics.items()
        if f"{name}.weight" in checkpoint
    }
    if not importance:
        raise WeightsError(
            f"{checkpoint.path}: the calibration has no statistics of the inputs of its matrices"
        )
    for target, squares in importance.items():
        tensor = checkpoint[target]
        if tensor.scheme:
            raise WeightsError(
                f"{tensor.where}: is quantized already; apply activation-aware scaling to the original "
                "weights"
            )
        if tensor.shape[-1:] != squares.shape:
            raise WeightsError(
                f"{tensor.where}: statistics of {len(squares)} channels do not fit {list(tensor.shape)}"
            )
    for folding in foldings(checkpoint):
        known = [s for t in folding.targets if (s := statistics.get(t.removesuffix(".weight")))]
        if not known:
            continue
        tensors = [checkpoint[target] for target in folding.targets]
        try:
            scaling = find_scaling(
                [tensor.read() for tensor in tensors], known[0], conversion.scheme_for(tensors[0])
            )
        except WeightsError as error:
            raise WeightsError(f"{tensors[0].where}: {error}") from None
        importance |= dict.fromkeys(folding.targets, scaling.importance)
        if scaling.exponent:
            columns |= dict.fromkeys(folding.targets, scaling.scales)
            for source in folding.sources:
                divisors[source] = scaling.scales, folding.offset if source.endswith(".weight") else 0.0
    changed = {
        name: replace(_scaled(tensor, columns.get(name), divisors.get(name)), importance=importance.get(name))
        for name, tensor in checkpoint.items()
    }
    noted = digest(*(f"{name} {checksum_of(a)}" for by in (columns, importance) for name, a in by.items()))
    edits = (*checkpoint.edits, noted)
    return Checkpoint(
        checkpoint.path, changed, checkpoint.config, checkpoint.files, checkpoint.sources, edits
    )


def _scaled(tensor: LazyTensor, columns: Array | None, divisor: tuple[Array, float] | None) -> LazyTensor:
    if columns is None and divisor is None:
        return tensor

    def scale(values: Array) -> Array:
        result = values.astype(np.float32)
        if columns is not None:
            result *= columns
        if divisor is not None:
            scales, offset = divisor
            result = (result + np.float32(offset)) / (
                scales if result.ndim == 1 else scales[:, None]
            ) - np.float32(offset)
        return result

    return tensor.map(
        scale, dtype=np.dtype(np.float32)
    )  # rounding a norm to bfloat16 again would lose some of the gain


def write_statistics(path: str | Path, statistics: Mapping[str, ActivationStatistics]) -> None:
    """Write statistics to a file for ``tilewright llm convert --calibration``."""
    arrays = {}
    for name, of in statistics.items():
        arrays[name + _ABSOLUTE], arrays[name + _SQUARE] = of.mean_absolute, of.mean_square
    write_safetensors(Path(path), arrays, {})


def read_statistics(path: str | Path) -> dict[str, ActivationStatistics]:
    """Read the file of `write_statistics`.

    Raises:
        WeightsError: it is not such a file.
    """
    tensors, _ = read_safetensors(Path(path))
    parts: defaultdict[str, dict[str, LazyTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        base, _, part = name.rpartition(".")
        parts[base]["." + part] = tensor
    result = {}
    for name, of in parts.items():
        if (
            set(of) != {_ABSOLUTE, _SQUARE}
            or len({t.shape for t in of.values()}) != 1
            or len(of[_SQUARE].shape) != 1
        ):
            raise WeightsError(
                f"{path}: {name}: statistics are {name}{_ABSOLUTE} and {name}{_SQUARE}, both [channels]"
            )
        result[name] = ActivationStatistics.of(of[_ABSOLUTE].read(), of[_SQUARE].read())
    return result

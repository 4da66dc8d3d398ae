"""Low-rank adapters (LoRA, Hu et al. 2021) in the folders that PEFT writes: `adapter_config.json` and
`adapter_model.safetensors`.

An adapter adds ``scale * B @ A`` to some matrices [out, in] of a model, with A [rank, in] and B [out, rank].
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from .checkpoint import Checkpoint, LazyTensor, read_json, reading
from .roles import is_transposed
from .safetensors import read_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_STORED = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)(?:\.default)?\.weight")
_REFUSED_TENSORS = {
    r"\.lora_magnitude_vector": "DoRA",
    r"\.lora_embedding_[AB]": "an adapter of an embedding",
    r"\.lora_B(\.default)?\.bias": "a bias (lora_bias)",
    r"\.modules_to_save\.": "whole modules (modules_to_save)",
}
"""Parts of names of tensors that cannot be used, with what they belong to."""

_WITHOUT_EFFECT = frozenset(
    "base_model_name_or_path base_model_class revision inference_mode task_type auto_mapping peft_version "
    "lora_dropout fan_in_fan_out exclude_modules layers_to_transform layers_pattern megatron_core "
    "loftq_config eva_config runtime_config ensure_weight_tying qalora_group_size"
    "".split()
)
"""Keys of the configuration that concern training, or choose modules, which the tensors' names tell."""
_READ = frozenset(
    "peft_type r lora_alpha use_rslora rank_pattern alpha_pattern target_modules bias init_lora_weights"
    "".split()
)
_FIRST_VALUES = (True, False, None, "gaussian", "orthogonal", "eva")
"""The kinds of first values that leave the model's own matrices as they are."""


@dataclass(frozen=True)
class LowRank:
    """The change ``scale * B @ A`` of one matrix [out, in]."""

    name: str
    """The module's name in the model, without ``.weight``."""
    a: LazyTensor
    """[rank, in]."""
    b: LazyTensor
    """[out, rank]."""
    scale: float

    @property
    def rank(self) -> int:
        """The number of rows of A."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape [out, in] of the matrix that it changes."""
        return self.b.shape[0], self.a.shape[1]

    def product(self) -> Array:
        """Return the change, float32 [out, in].

        Raises:
            WeightsError: The file is damaged, or values are not finite.
        """
        a, b = (tensor.read().astype(np.float32) for tensor in (self.a, self.b))
        result: Array = np.float32(self.scale) * (b @ a)
        return result


class Adapter(Mapping[str, LowRank]):
    """An adapter's changes by the names of the modules that they concern, in the order of the file.

    Args:
        path: The adapter's folder.
        config: The content of adapter_config.json.
        matrices: The changes.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], matrices: Mapping[str, LowRank]) -> None:
        self.path, self.config = path, config
        self._matrices = dict(matrices)

    @cached_property
    def rank(self) -> int:
        """The largest rank of a matrix."""
        return max(matrix.rank for matrix in self.values())

    @property
    def origin(self) -> str:
        """The name of the model that it was trained for, for messages; empty if the file has none."""
        return str(self.config.get("base_model_name_or_path") or "")

    def __getitem__(self, name: str) -> LowRank:
        return self._matrices[name]

    def __iter__(self) -> Any:
        return iter(self._matrices)

    def __len__(self) -> int:
        return len(self._matrices)


def read_adapter(folder: str | Path) -> Adapter:
    """Open an adapter; of the tensors only the header is read.

    Args:
        folder: A folder that PEFT's `save_pretrained` wrote.

    Raises:
        WeightsError: A file is missing, not readable or damaged, or the adapter is of a kind that is not
            supported.
    """
    folder = Path(folder)
    with reading(folder):
        if not folder.is_dir():
            raise WeightsError(
                f"{folder}: no such folder; an adapter is a folder with {CONFIG} and {WEIGHTS}"
            )
        in_pickle = not (folder / WEIGHTS).is_file() and (folder / "adapter_model.bin").is_file()
    config = read_json(folder / CONFIG)
    _check_config(folder / CONFIG, config)
    if in_pickle:
        raise WeightsError(
            f"{folder}: has its weights in a pickle file, which is not supported because it can run code; "
            f"save the adapter again with PEFT, which writes {WEIGHTS}"
        )
    halves: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in read_safetensors(folder / WEIGHTS)[0].items():
        found = _STORED.fullmatch(name)
        if found is None:
            what = next((w for p, w in _REFUSED_TENSORS.items() if re.search(p, name)), "no low-rank matrix")
            raise WeightsError(f"{tensor.where}: is {what}, which is not supported")
        halves.setdefault(found[1], {})[found[2]] = tensor
    matrices = {name: _matrix(folder, config, name, parts) for name, parts in halves.items()}
    if not matrices:
        raise WeightsError(f"{folder / WEIGHTS}: has no matrices")
    _check_targets(folder, config.get("target_modules"), list(matrices))
    return Adapter(folder, config, matrices)


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type", "LORA")
    if str(kind).upper() != "LORA":
        raise WeightsError(f"{path}: peft_type is {kind!r}; only LORA is supported")
    if (bias := config.get("bias", "none")) != "none":
        raise WeightsError(f"{path}: bias is {bias!r}; only 'none' is supported")
    first = config.get("init_lora_weights")
    if first not in _FIRST_VALUES:
        raise WeightsError(
            f"{path}: init_lora_weights is {first!r}, which changes the model's own matrices; convert the "
            "adapter with PEFT's path_initial_model_for_weight_conversion"
        )
    for name in config.keys() - _WITHOUT_EFFECT - _READ:
        if config[name]:
            raise WeightsError(f"{path}: {name} is {config[name]!r}, which is not supported")
    for name in ("r", "lora_alpha"):
        if not isinstance(config.get(name), int | float) or config[name] <= 0:
            raise WeightsError(f"{path}: {name} is {config.get(name)!r}; it must be a number above 0")
    for name in ("rank_pattern", "alpha_pattern"):
        values = config.get(name) or {}
        if not isinstance(values, dict) or not all(
            isinstance(v, int | float) and v > 0 for v in values.values()
        ):
            raise WeightsError(f"{path}: {name} must give a number above 0 for each expression")


def _matrix(folder: Path, config: Mapping[str, Any], name: str, parts: dict[str, LazyTensor]) -> LowRank:
    if parts.keys() != {"A", "B"}:
        raise WeightsError(f"{folder / WEIGHTS}: {name} has lora_{next(iter(parts))} only")
    a, b = parts["A"], parts["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise WeightsError(
            f"{a.where}: has shape {list(a.shape)} and lora_B {list(b.shape)}; A must be [rank, in] and B "
            "[out, rank]"
        )
    rank = _of_pattern(folder, config, "rank_pattern", name, config["r"])
    if a.shape[0] != rank:
        raise WeightsError(f"{a.where}: has rank {a.shape[0]}, but {CONFIG} says {rank}")
    alpha = _of_pattern(folder, config, "alpha_pattern", name, config["lora_alpha"])
    # Rank-stabilized adapters: Kalajdzievski 2023.
    return LowRank(name, a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _of_pattern(folder: Path, config: Mapping[str, Any], key: str, name: str, default: float) -> float:
    """The value of the first expression that is the name or its last parts, as PEFT reads them."""
    for pattern, value in (config.get(key) or {}).items():
        if _matches(folder, key, rf"(.*\.)?({pattern})", name):
            return float(value)
    return default


def _matches(folder: Path, key: str, pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise WeightsError(f"{folder / CONFIG}: {key}: {pattern!r} is not an expression: {error}") from None


def _check_targets(folder: Path, targets: Any, names: list[str]) -> None:
    """Check that the modules with matrices are those that the configuration names.

    Args:
        folder: The adapter's folder.
        targets: A regular expression for whole names; a list of names or their last parts; "all-linear"; or
            None.
        names: The modules that have matrices.

    Raises:
        WeightsError: They are others, so that PEFT would not use all that the file has.
    """
    where = f"{folder / CONFIG}: target_modules"
    if targets is None or targets == "all-linear":
        return
    if isinstance(targets, str):
        extra = [name for name in names if not _matches(folder, "target_modules", targets, name)]
    elif isinstance(targets, list) and all(isinstance(target, str) for target in targets):
        extra = [name for name in names if not any(f".{name}".endswith(f".{end}") for end in targets)]
    else:
        raise WeightsError(f"{where} must be a string or a list of strings")
    if extra:
        raise WeightsError(f"{where} does not name {extra[0]}, of which {WEIGHTS} has matrices")


def merged(checkpoint: Checkpoint, adapter: Adapter) -> Checkpoint:
    """Return a checkpoint with an adapter's changes added to its matrices. Matrices that were quantized
    become floats, which a conversion can quantize again.

    Raises:
        WeightsError: The adapter is of another model: a matrix is missing or has another shape.
    """
    tensors = dict(checkpoint)
    for name, change in adapter.items():
        tensor = tensors.get(f"{name}.weight")
        if tensor is None:
            raise WeightsError(f"{of_another(adapter)}: {checkpoint.path} has no {name}.weight")
        turned = is_transposed(tensor.name, checkpoint.config)
        if tensor.shape != (change.shape[::-1] if turned else change.shape):
            raise WeightsError(
                f"{of_another(adapter)}: {name}.weight is {list(tensor.shape)} in {checkpoint.path}, the "
                f"change {list(change.shape)}"
            )
        tensors[tensor.name] = _changed(tensor, change, turned)
    files = [adapter.path / name for name in (CONFIG, WEIGHTS)]
    noted = "; ".join(f"{file.resolve()} {file.stat().st_mtime_ns}" for file in files)
    return Checkpoint(
        checkpoint.path, tensors, checkpoint.config, checkpoint.files, checkpoint.sources,
        (*checkpoint.edits, f"merged {noted}"),
    )  # fmt: skip


def _changed(tensor: LazyTensor, change: LowRank, turned: bool) -> LazyTensor:
    def added(values: Array) -> Array:
        product = change.product()
        result: Array = (values.astype(np.float32) + (product.T if turned else product)).astype(values.dtype)
        return result

    return tensor.map(added)


def of_another(adapter: Adapter) -> str:
    """The beginning of a message that refuses an adapter of another model."""
    trained = f" (trained for {adapter.origin!r})" if adapter.origin else ""
    return f"{adapter.path}: the adapter{trained} does not fit the model"


__all__ = ["Adapter", "LowRank", "merged", "of_another", "read_adapter"]

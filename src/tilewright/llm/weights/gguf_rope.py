"""Rotary embedding's part of config.json, from a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import WeightsError
from .gguf_file import GGUFFile
from .gguf_names import Family

_NUMBER = (int, float)
TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors whose content config.json expresses."""


def rope_parameters(file: GGUFFile, family: Family, config: dict[str, Any]) -> dict[str, Any]:
    """Return rope_theta and rope_scaling.

    Raises:
        WeightsError: config.json cannot express the scaling.
    """
    if family.theta is None:
        return {}
    a = file.need("general.architecture", str)
    theta = float(file.get(f"{a}.rope.freq_base", 10000.0, _NUMBER))
    result: dict[str, Any] = {family.theta: theta}
    original = file.get(f"{a}.rope.scaling.original_context_length", None, int)
    kind = file.get(f"{a}.rope.scaling.type", "none", str)
    factor = file.get(f"{a}.rope.scaling.factor", None, _NUMBER)
    magnitude = _magnitude(file, a)
    if "rope_factors_long.weight" in file.tensors:
        long, short = (file.tensors[f"rope_factors_{k}.weight"].read().tolist() for k in ("long", "short"))
        scaling = {"type": "longrope", "long_factor": long, "short_factor": short}
        return result | {
            "rope_scaling": scaling | magnitude,
            "original_max_position_embeddings": original or config["max_position_embeddings"],
        }
    if kind != "yarn" and magnitude.get("attention_factor", 1) != 1:
        raise WeightsError(
            f"{file.path}: {a}.rope.scaling.attn_factor is {magnitude['attention_factor']} with "
            f"{a}.rope.scaling.type {kind!r}, which is not supported"
        )
    if "rope_freqs.weight" in file.tensors:
        factors = file.tensors["rope_freqs.weight"].read().astype(np.float64)
        return result | {"rope_scaling": _llama3(file, factors, theta, original)}
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return result
    if kind not in ("linear", "yarn") or factor is None:
        raise WeightsError(
            f"{file.path}: {a}.rope.scaling.type {kind!r} with factor {factor} is not supported"
        )
    scaling = {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn":
        scaling |= _yarn(file, a, family) | (
            {"original_max_position_embeddings": original} if original else {}
        )
    return result | {"rope_scaling": scaling}


def _magnitude(file: GGUFFile, a: str) -> dict[str, Any]:
    """Return the factor of cosines and sines, if the file has one."""
    keys = [f"{a}.rope.scaling.{name}" for name in ("attn_factor", "yarn_attn_factor")]
    found = [value for key in keys if (value := file.get(key, None, _NUMBER)) is not None]
    return {"attention_factor": float(found[0])} if found else {}


def _yarn(file: GGUFFile, a: str, family: Family) -> dict[str, Any]:
    """Return the settings of YaRN beside its factors and original context."""
    result: dict[str, Any] = {}
    for name in ("beta_fast", "beta_slow"):
        value = file.get(f"{a}.rope.scaling.yarn_{name}", None, _NUMBER)
        if value is not None:
            result[name] = float(value)
    if (extrapolation := file.get(f"{a}.rope.scaling.yarn_ext_factor", 1.0, _NUMBER)) != 1:
        raise WeightsError(
            f"{file.path}: {a}.rope.scaling.yarn_ext_factor is {extrapolation}; only 1 is supported"
        )
    if family.model_type == "gpt_oss":
        result["truncate"] = False
    if a == "deepseek2":
        # A tenth of the weight of the gain; the two weights in config.json are equal in all models.
        gain = file.get(f"{a}.rope.scaling.yarn_log_multiplier", 0.0, _NUMBER)
        weight = float(str(np.float32(10 * gain)))
        result |= {"mscale": weight, "mscale_all_dim": weight} if gain else {}
    return result


def _llama3(
    file: GGUFFile, factors: np.ndarray[Any, Any], theta: float, original: int | None
) -> dict[str, Any]:
    """Find the parameters of Llama 3's scaling that give the file's factors.

    The file has only the factor of each frequency.
    """
    factor = float(factors.max())
    waves = 2 * math.pi * theta ** (np.arange(len(factors)) / len(factors))
    for context in dict.fromkeys((original or 8192, 8192)):
        for low, high in ((1.0, 4.0), (1.0, 1.0)):  # Llama 3 and EXAONE 4; Llama 4
            with np.errstate(divide="ignore", invalid="ignore"):
                smooth = np.clip((context / waves - low) / (high - low), 0, 1)
            expected = 1 / ((1 - smooth) / factor + smooth)
            if np.allclose(expected, factors, rtol=1e-4):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": context,
                }
    raise WeightsError(
        f"{file.path}: rope_freqs.weight scales frequencies in a way that is not Llama 3's, which is not "
        "supported"
    )

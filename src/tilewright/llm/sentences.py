"""Modules after a model's hidden states in the folders of sentence-transformers (Reimers and Gurevych, 2019).

``modules.json`` lists the modules: a transformer, a pooling, and projections and normalizations of its
vector. `config_sentence_transformers.json` has the prompts that precede texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CompileError, WeightsError
from ..frontends.nn import LayerNorm, Linear, Module, ModuleList, Parameter
from ..frontends.nn import functional as F
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.tensor import TensorLike, concrete
from .layers import POOLINGS, of_length_1, pooled
from .text_use import TextUse
from .weights import Checkpoint
from .weights.hugging_face import MODULES, listed_modules
from .weights.safetensors import read_safetensors

PROMPTS = "config_sentence_transformers.json"
_ACTIVATIONS = {"Identity": lambda x: x, "Tanh": F.tanh, "ReLU": F.relu, "GELU": F.gelu, "SiLU": F.silu}


class OfLength1(Module):
    """Gives vectors of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of the shape (..., n) of `x`."""
        return of_length_1(x)


class Projection(Module):
    """``activation(linear(x))``, and `x` itself added to it if it is `residual`.

    Args:
        linear: The layer.
        name: The activation's name, a class of PyTorch.
        residual: Whether `x` is added.

    Raises:
        CompileError: The activation is unknown.
    """

    def __init__(self, linear: Linear, name: str, residual: bool) -> None:
        super().__init__()
        if name not in _ACTIVATIONS:
            raise CompileError(
                f"activation {name!r} of a Dense module is unknown; known: {list(_ACTIVATIONS)}"
            )
        self.linear, self.name, self.residual = linear, name, residual

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., out) for `x` (..., in)."""
        y: Tensor = _ACTIVATIONS[self.name](self.linear(x))
        return x + y if self.residual else y


class Sentence(Module):
    """The vector of a text: poolings of its tokens' vectors, joined, and further modules.

    Args:
        poolings: As for `layers.pooled`.
        stages: Modules from vectors to vectors.
    """

    def __init__(self, poolings: Sequence[str], stages: Sequence[Module]) -> None:
        super().__init__()
        self.poolings, self.stages = tuple(poolings), ModuleList(stages)

    def forward(self, hidden: Tensor, mask: TensorLike | None = None) -> Tensor:
        """Return [batch, m] for `hidden` [batch, n, hidden]; `mask` [batch, n] is nonzero where there is a
        token.
        """
        x: Tensor = tnp.concatenate([pooled(hidden, mask, kind) for kind in self.poolings], -1)
        for stage in self.stages:
            x = stage(x)
        return x


@dataclass(frozen=True)
class Texts:
    """The work of a library on whole texts."""

    task: str
    """As `LanguageModel.task`."""
    sentence: Sentence
    """Computes the vector of a text from the hidden states."""
    compared: tuple[int, int] | None = None
    """The tokens whose logits' difference is the score; None: a classifier scores."""


def modules_of(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The modules of a checkpoint of sentence-transformers, each with its class and folder; empty for other
    checkpoints.

    Raises:
        WeightsError: modules.json is not one that `listed_modules` reads.
    """
    read = checkpoint.files.get(MODULES)
    return listed_modules(checkpoint.path, read()) if read else []


def sentence_of(checkpoint: Checkpoint, pooling: str | None = None) -> Sentence:
    """The modules after the hidden states of a checkpoint; by default the mean, with length 1.

    Args:
        checkpoint: The checkpoint.
        pooling: A pooling in place of the checkpoint's own.

    Raises:
        CompileError: A module, or one of its settings, is unknown.
        WeightsError: A module's weights are missing or damaged.
    """
    modules = modules_of(checkpoint)
    if not modules:
        return Sentence([_pooling(pooling or "mean")], [OfLength1()])
    poolings: list[str] = ["mean"]
    stages: list[Module] = []
    for kind, folder in modules:
        settings = _settings(checkpoint, folder)
        if kind == "Transformer":
            if folder:
                raise CompileError(
                    f"{checkpoint.path}: its transformer is in {folder!r}; save it with a newer version of "
                    "sentence-transformers, which writes it to the folder itself"
                )
        elif kind == "Pooling":
            poolings = [_pooling(name) for name in _poolings(settings)]
            if settings.get("include_prompt") is False and _prompts(checkpoint).get("prompts"):
                raise CompileError(
                    f"{checkpoint.path}: poolings without the prompt (include_prompt) are not supported"
                )
        elif kind == "Normalize":
            stages.append(OfLength1())
        elif kind in ("Dense", "LayerNorm"):
            stages.append(_with_weights(checkpoint, kind, folder, settings))
        elif kind != "LogitScore":
            raise CompileError(
                f"{checkpoint.path}: module {kind} of {MODULES} is not supported; known: Transformer, "
                "Pooling, Dense, LayerNorm, Normalize, LogitScore"
            )
    return Sentence([_pooling(pooling)] if pooling else poolings, stages)


def judges(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """The tokens whose logits a reranker of sentence-transformers compares; None: it is none.

    Raises:
        CompileError: It compares no two tokens.
    """
    for kind, folder in modules_of(checkpoint):
        if kind == "LogitScore":
            settings = _settings(checkpoint, folder)
            found = settings.get("true_token_id"), settings.get("false_token_id")
            if not all(isinstance(token, int) for token in found):
                raise CompileError(f"{checkpoint.path}: LogitScore needs true_token_id and false_token_id")
            return int(found[0] or 0), int(found[1] or 0)
    return None


def use_of(checkpoint: Checkpoint, texts: Texts, segments: bool, prompted: bool) -> TextUse:
    """How texts are given to the model of a checkpoint; see `TextUse`.

    Raises:
        CompileError: The prompts of the checkpoint are not readable.
    """
    about = _prompts(checkpoint)
    names = about.get("prompts") or {}
    older = checkpoint.config.get("sbert_ce_default_activation_function")
    function = (checkpoint.config.get("sentence_transformers") or {}).get("activation_fn", older) or ""
    return TextUse(
        texts.task,
        {str(name): str(text) for name, text in names.items()},
        about.get("default_prompt_name"),
        segments,
        prompted,
        str(function).endswith(".Identity"),
    )


def _prompts(checkpoint: Checkpoint) -> dict[str, Any]:
    return _json(checkpoint, PROMPTS)


def _settings(checkpoint: Checkpoint, folder: str) -> dict[str, Any]:
    return _json(checkpoint, f"{folder}/config.json") if folder else {}


def _json(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    read = checkpoint.files.get(name)
    try:
        value = json.loads(read()) if read else {}
    except ValueError as error:
        raise CompileError(f"{checkpoint.path}/{name}: not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _poolings(settings: Mapping[str, Any]) -> list[str]:
    named = settings.get("pooling_mode")
    if named is not None:
        return [str(named)] if isinstance(named, str) else [str(name) for name in named]
    # older files have a switch for each
    switches = {"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
    switches |= {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    }
    switches |= {"pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken"}
    return [kind for name, kind in switches.items() if settings.get(name)] or ["mean"]


def _pooling(name: str) -> str:
    if name not in POOLINGS:
        raise CompileError(f"pooling {name!r} is unknown; known: {', '.join(POOLINGS)}")
    return name


def _with_weights(checkpoint: Checkpoint, kind: str, folder: str, settings: Mapping[str, Any]) -> Module:
    """A Dense or LayerNorm module with its weights."""
    path = checkpoint.path / folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"{path}: no such file; weights in pickle files are not supported because they can run code"
        )
    arrays, _ = read_safetensors(path)

    def array(key: str) -> Parameter:
        if key not in arrays:
            raise WeightsError(f"{path}: has no {key}")
        return concrete(np.asarray(arrays[key], np.float32), Parameter)

    if kind == "LayerNorm":
        weight = array("norm.weight")
        norm = LayerNorm(weight.shape[0], 1e-5)
        norm.weight, norm.bias = weight, array("norm.bias")
        return norm
    residual = bool(settings.get("use_residual", False))
    if residual and "residual.weight" in arrays:
        raise CompileError(
            f"{checkpoint.path}/{folder}: a Dense module with a projected residual is not supported"
        )
    weight = array("linear.weight")
    linear = Linear(weight.shape[1], weight.shape[0], "linear.bias" in arrays)
    linear.weight = weight
    if "linear.bias" in arrays:
        linear.bias = array("linear.bias")
    function = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    return Projection(linear, function.rpartition(".")[2], residual)


__all__ = ["Projection", "Sentence", "Texts", "judges", "modules_of", "sentence_of", "use_of"]

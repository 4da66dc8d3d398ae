"""The role of a tensor by its Hugging Face name: matrices that are quantized, and tensors that are kept."""

from __future__ import annotations

import re
from typing import Any, Literal

from ...errors import CompileError
from ..config import Config
from ..models.base import family_of
from .checkpoint import LazyTensor

Role = Literal["embedding", "head", "matrix", "other"]

_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|embed_tokens_per_layer|wte|embed_in|word_embeddings|embeddings|token_embedding"
    r"|shared)\.weight$"
)
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
# Routers choose experts, positions are added, AltUp mixes streams of hidden states: they are small, and their
# errors do not average out. Encoders of images and audio are small beside their language models, and errors
# in their vectors reach all tokens.
_KEPT = re.compile(
    r"(^|\.)(wpe|embed_positions|position_embeddings|token_type_embeddings|position_embedding"
    r"|relative_attention_bias)\.weight$"
    r"|\.(gate|router|shared_expert_gate)(\.wg)?\.weight$|norm|\bln_|conv1d|(^|\.)(A_log|D|dt_bias)$"
    r"|(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|connector|embed_vision)\."
    r"|(^|\.)(audio_tower|embed_audio|altup)\."
)
_EXPERTS = re.compile(r"\.experts\.(gate_up_proj|gate_proj|up_proj|down_proj)(\.weight)?$")


def role_of(tensor: LazyTensor) -> Role:
    """Return the role of a tensor."""
    if tensor.dtype.kind not in "fV" or _KEPT.search(tensor.name):  # V: the narrow floats of ml_dtypes
        return "other"
    if len(tensor.shape) == 3:
        return "matrix" if _EXPERTS.search(tensor.name) else "other"
    if len(tensor.shape) != 2:
        return "other"
    if _EMBEDDING.search(tensor.name):
        return "embedding"
    if _HEAD.search(tensor.name):
        return "head"
    return "matrix" if tensor.name.endswith(".weight") else "other"


def is_transposed(name: str, config: dict[str, Any]) -> bool:
    """Whether a matrix, or each of an array of matrices, is stored as [in, out], as all of GPT-2's and the
    experts of GPT-OSS: the model's definition says so. Models without a definition have none.
    """
    try:
        return family_of(Config(config)).translated(name).transposed
    except CompileError:
        return False

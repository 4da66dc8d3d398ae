"""`keep_stage`: leaves in a model the layers of one stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CompileError
from ...frontends.nn import Module
from ..models.base import CausalLM
from .exchange import AbsentEmbedding, Passed, Received, Sent
from .place import Place


def keep_stage(model: CausalLM, place: Place) -> list[Callable[[], None]]:
    """Leave the layers of a stage; the first stage also has the embedding, the last normalization and the
    head.

    Hidden states go from stage to stage, and from the last one back to the first.

    Returns:
        Functions to call when the weights are loaded.

    Raises:
        CompileError: There are fewer layers than stages, or the model has parts beside its layers.
    """
    layers, stages, stage = model.config.layers, place.pipeline, place.stage
    if layers < stages:
        raise CompileError(f"{layers} layers cannot be divided into {stages} stages")
    if type(model).hidden is not CausalLM.hidden:
        raise CompileError(f"{type(model).__name__} cannot be divided into stages: its layers form no row")
    # The first stage has the head as well, so it gets fewer layers where they are not equal.
    first, last = layers * stage // stages, layers * (stage + 1) // stages
    for k in range(layers):
        if not first <= k < last:
            setattr(model.model.layers, str(k), Passed())
    sent, received = place.groups[f"stage{stage}"], place.groups[f"stage{(stage - 1) % stages}"]

    def exchange() -> None:
        rows = model.model.layers
        setattr(rows, str(last - 1), Sent(rows[last - 1], sent))
        if place.first:
            model.model.norm = Received(received, model.model.norm)
        else:
            setattr(rows, str(first - 1), Received(received))

    if not place.first:
        absent: dict[str, Module] = {"embed_tokens": AbsentEmbedding(model.config.hidden), "norm": Passed()}
        for name, module in absent.items():
            setattr(model.model, name, module)
        if model.lm_head is not None:
            head: Any = Passed()
            model.lm_head = head
    return [exchange]


__all__ = ["keep_stage"]

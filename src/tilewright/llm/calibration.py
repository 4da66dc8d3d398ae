"""`calibrate`: what the matrices of a model see of a text, for activation-aware scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiler import compile
from ..errors import CompileError, RequestError
from ..frontends.nn import Linear, Module
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as _tnp
from .cache import NoCache
from .library import model_of
from .models.base import CausalLM
from .quantization import ActivationStatistics
from .quantized_linear import replace_linears
from .runner import Ints
from .weights import Checkpoint

tnp: Any = _tnp


class _Observed(Module):
    """A linear layer that notes its input."""

    def __init__(self, linear: Linear, path: str, inputs: dict[str, Tensor]) -> None:
        super().__init__()
        self.linear, self._path, self._inputs = linear, path, inputs

    def forward(self, x: Tensor) -> Tensor:
        self._inputs[self._path] = x
        return self.linear(x)  # type: ignore[no-any-return]


def calibrate(
    checkpoint: Checkpoint,
    tokens: Ints,
    *,
    window: int = 512,
    precision: str | None = "bf16",
    target: str = "cpu",
    progress: Callable[..., None] | None = None,
) -> dict[str, ActivationStatistics]:
    """Statistics of the inputs of a causal model's matrices over `tokens` [n], read in windows of so many, by the matrices' names without ``.weight``.

    Routed experts, of which each sees a part of the tokens only, have none.

    Raises:
        CompileError: the model predicts no tokens, or there is no definition for it; RequestError: there are no tokens.
    """
    if not len(tokens):
        raise RequestError("a text without tokens tells nothing about a model's activations")
    model = model_of(checkpoint, window)
    if not isinstance(model, CausalLM):
        raise CompileError(
            f"{checkpoint.path}: {model.config.model_type} is an encoder: calibration is for causal models"
        )
    window = min(window, model.config.context)
    inputs: dict[str, Tensor] = {}
    replace_linears(model, lambda path, linear: _Observed(linear, path, inputs))

    def sums(tokens: Tensor) -> list[Tensor]:
        """Over the tokens, of the absolute values and of the squares of each input."""
        inputs.clear()
        model(tokens[None], NoCache(tokens[None]))
        distinct = {id(x): x for x in inputs.values()}.values()  # layers may share theirs
        wide = [tnp.astype(x, "float32").reshape(-1, x.shape[-1]) for x in distinct]
        return [total for x in wide for total in (tnp.sum(tnp.abs(x), 0), tnp.sum(tnp.square(x), 0))]

    function = (sums, (np.zeros(2, np.int32),), {"tokens": {0: f"tokens<={window}"}})
    with compile(
        {"sums": function}, target=target, precision=precision, progress=progress, checks=False, cache=False
    ) as library:
        by_input = {id(x): ActivationStatistics(x.shape[-1]) for x in inputs.values()}
        for start in range(0, len(tokens), window):
            if progress:
                progress("calibration", start, len(tokens))
            part = np.asarray(tokens[start : start + window], np.int32)
            totals = library.functions["sums"](part)
            for of, absolute, square in zip(by_input.values(), totals[::2], totals[1::2], strict=True):
                of.add(absolute, square, len(part))
    found: dict[str, ActivationStatistics] = {}
    for name in checkpoint:
        place = model.target(name)
        path = "" if place is None else place.name.removesuffix(".weight")
        if path in inputs and name.endswith(".weight"):
            found[name.removesuffix(".weight")] = by_input[id(inputs[path])]
    return found


__all__ = ["calibrate"]

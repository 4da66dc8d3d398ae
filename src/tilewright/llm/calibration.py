"""`calibrate`: statistics of the inputs of a model's matrices on a text, for activation-aware scaling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..driver.compile import compile
from ..errors import CompileError, RequestError
from ..frontends.nn import Linear, Module
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from .cache import NoCache
from .library import model_of
from .models.base import CausalLM
from .models.encoder_decoder import EncoderDecoder
from .quantization import ActivationStatistics
from .quantized_linear import replace_linears
from .runner import Ints
from .weights import Checkpoint


class _Observed(Module):
    """A linear layer that records its input."""

    def __init__(self, linear: Linear, path: str, inputs: dict[str, Tensor]) -> None:
        super().__init__()
        self.linear, self._path, self._inputs = linear, path, inputs

    def forward(self, x: Tensor) -> Tensor:
        self._inputs[self._path] = x
        result: Tensor = self.linear(x)
        return result


def calibrate(
    checkpoint: Checkpoint,
    tokens: Ints,
    *,
    window: int = 512,
    precision: str | None = "bf16",
    target: str = "cpu",
    progress: Callable[..., None] | None = None,
) -> dict[str, ActivationStatistics]:
    """Statistics of the inputs of a causal model's matrices over `tokens` [n].

    The tokens are processed in windows of `window` tokens. The result is keyed by the matrices' names without
    ``.weight``. Routed experts, which see only a part of the tokens, have no statistics.

    Raises:
        CompileError: the model does not predict tokens, or has no definition.
        RequestError: there are no tokens.
    """
    if not len(tokens):
        raise RequestError("a text without tokens gives no activations to calibrate with")
    model = model_of(checkpoint, window)
    if not isinstance(model, CausalLM) or isinstance(model, EncoderDecoder):
        raise CompileError(
            f"{checkpoint.path}: {model.config.model_type} is an encoder, or has one: "
            "calibration is for causal models"
        )
    window = min(window, model.config.context)
    inputs: dict[str, Tensor] = {}
    replace_linears(model, lambda path, linear: _Observed(linear, path, inputs))

    def sums(tokens: Tensor) -> list[Tensor]:
        """The sums over the tokens of the absolute values and of the squares of each input."""
        inputs.clear()
        model(tokens[None], NoCache(tokens[None]))
        distinct = {id(x): x for x in inputs.values()}.values()  # Layers may share an input.
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
    by_matrix: dict[str, ActivationStatistics] = {}
    for name in checkpoint:
        destination = model.destination(name)
        path = "" if destination is None else destination.name.removesuffix(".weight")
        if path in inputs and name.endswith(".weight"):
            by_matrix[name.removesuffix(".weight")] = by_input[id(inputs[path])]
    return by_matrix


__all__ = ["calibrate"]

"""Perplexity of a language model on a text: the exponential of the mean negative log-likelihood of its
tokens.

Source: Jelinek et al., 1977.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..driver.compile import compile
from ..errors import CompileError, RequestError
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..ir.types import DType, i8
from .library import PROMPT_FACTORS, LibraryOptions, for_target, model_of
from .models.base import CausalLM
from .models.encoder_decoder import EncoderDecoder
from .paged_cache import PagedCache, Pages
from .quantized_linear import factors
from .runner import PAGE, Floats, Ints, Runner
from .weights import Checkpoint

NUMERICS = ("prefill", "decode")
"""The library functions. They may multiply quantized weights with operands of different types, so that
prompts and generated tokens are rounded differently.
"""


@dataclass(frozen=True)
class Perplexity:
    """The number of predicted `tokens` and the sum of their negative log-likelihoods in nats.

    The text was scored in windows of `window` tokens that begin `stride` tokens apart.
    """

    tokens: int
    nats: float
    window: int
    stride: int

    @property
    def value(self) -> float:
        try:
            return math.exp(self.nats / self.tokens)
        except OverflowError:
            return math.inf


class Scorer(Protocol):
    """Computes the likelihood of a text's tokens."""

    context: int
    """Largest number of tokens of a window."""

    def __call__(self, window: Ints) -> Floats:
        """The negative log-likelihoods [n - 1], in nats, of the tokens of `window` [n] given the tokens
        before them.

        The first token has none.
        """
        ...


def perplexity(
    score: Scorer,
    tokens: Ints,
    *,
    window: int | None = None,
    stride: int | None = None,
    progress: Callable[..., None] | None = None,
) -> Perplexity:
    """The perplexity of `tokens` [n].

    Windows begin `stride` tokens apart; each scores the tokens that no earlier window has scored.

    Args:
        window: tokens of a window; None: the scorer's context.
        stride: None: half a window, so that every token after the first window has at least half a window
            before it.
        progress: is called with ("perplexity", tokens done, all tokens).

    Raises:
        RequestError: there are fewer than two tokens, or the window exceeds the context, or the stride the
            window.
    """
    window = score.context if window is None else window
    stride = max(1, window // 2) if stride is None else stride
    if not 2 <= window <= score.context:
        raise RequestError(f"window is {window} tokens; it must be 2 to {score.context}, the model's context")
    if not 1 <= stride < window:
        raise RequestError(f"stride is {stride} tokens; it must be 1 to {window - 1}, less than the window")
    if len(tokens) < 2:
        raise RequestError(f"the text has {len(tokens)} tokens; it must have at least 2")
    nats, counted = 0.0, 1  # the number of scored tokens, including the first, which is not predicted
    for start in range(0, len(tokens), stride):
        part = tokens[start : start + window]
        if progress:
            progress("perplexity", counted, len(tokens))
        losses = score(part)
        nats += float(losses[counted - start - 1 :].sum(dtype=np.float64))
        counted = start + len(part)
        if counted == len(tokens):
            break
    return Perplexity(counted - 1, nats, window, stride)


class CompiledScorer:
    """Scores with functions compiled for this purpose, in the numerics of ``prefill`` and of ``decode``.

    `scorer` gives the scorer for one of `NUMERICS`.
    """

    def __init__(
        self, checkpoint: Checkpoint, options: LibraryOptions, numerics: Collection[str] = NUMERICS, *,
        target: str = "cpu", progress: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        """`options.context` is the longest window, `options.chunk` the number of its tokens per call.

        Raises:
            CompileError: the model does not predict tokens.
        """
        model = model_of(checkpoint, options.context)
        if not isinstance(model, CausalLM) or isinstance(model, EncoderDecoder):
            raise CompileError(
                f"{checkpoint.path}: {model.config.model_type} is an encoder, or has one: it predicts no text"
            )
        if model.has_state:
            raise CompileError(
                f"{checkpoint.path}: {model.config.model_type} keeps state outside of the KV cache: compile "
                "a library and measure its perplexity"
            )
        self.options = replace(
            for_target(options, target),
            context=min(options.context, model.config.context),
            max_batch=1,
            pages=None,
        )
        pages = Pages(self.options.page_count, self.options.cache_dtype)
        self.library = compile(
            {name: self._function(model, pages, self._factors(name)) for name in numerics},
            target=target, precision=options.precision, progress=progress, checks=False, cache=False,
        )  # fmt: skip

    def _factors(self, numerics: str) -> DType:
        return i8 if numerics == "decode" else PROMPT_FACTORS[self.options.prompt_factors or "bfloat16"]

    def _function(self, model: CausalLM, pages: Pages, dtype: DType) -> Any:
        options = self.options

        def score(tokens: Tensor, following: Tensor, start: Tensor, table: Tensor) -> Tensor:
            with factors(dtype):
                hidden = model.hidden(
                    tokens[None], PagedCache(pages, tokens.shape[0], start[None], table[None])
                )[0]
            logits = tnp.astype(model.head(hidden), "float32")
            chosen = tnp.take_along_axis(logits, tnp.astype(following, "int64")[:, None], 1)[:, 0]
            result: Tensor = tnp.logsumexp(logits, 1) - chosen
            return result

        ints = np.zeros(2, np.int32)
        bounds = {0: f"tokens<={options.chunk}"}
        dims = {"tokens": bounds, "following": bounds, "table": {0: f"pages<={options.pages_of_sequence}"}}
        return score, (ints, ints, np.zeros((), np.int32), ints), dims

    def scorer(self, numerics: str) -> Scorer:
        return _Compiled(self.options.context, self.options, self.library.functions[numerics])

    def close(self) -> None:
        self.library.close()

    def __enter__(self) -> CompiledScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Compiled:
    context: int
    options: LibraryOptions
    function: Any

    def __call__(self, window: Ints) -> Floats:
        window = np.asarray(window, np.int32)
        pages = np.arange(self.options.pages_of_sequence, dtype=np.int32)
        return np.concatenate([
            self.function(window[a:b], window[a + 1 : b + 1], np.asarray(a, np.int32), pages[: -(-b // PAGE)])
            for a, b in _chunks(len(window) - 1, self.options.chunk)
        ])  # fmt: skip


class LibraryScorer:
    """Scores with the functions of a model library, ``prefill`` or ``decode`` as `numerics` selects.

    It needs one call per token, since the functions return the logits of a sequence's last token only.
    """

    def __init__(self, runner: Runner, numerics: str) -> None:
        self.runner, self.numerics = runner, numerics
        self.context = min(runner.context, runner.pages * PAGE)

    def __call__(self, window: Ints) -> Floats:
        window = np.asarray(window, np.int32)
        self.runner.reset(0)
        return np.concatenate(
            [
                _losses(self._logits(window[i : i + 1], i), window[i + 1 : i + 2])
                for i in range(len(window) - 1)
            ]
        )

    def _logits(self, token: Ints, place: int) -> Floats:
        pages = np.arange(place // PAGE + 1, dtype=np.int32)
        if self.numerics == "prefill":
            return self.runner.prefill(token, place, pages, 0)[None]
        return self.runner.decode(token, np.array([place], np.int32), pages[None], np.zeros(1, np.int32))


def _chunks(count: int, size: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + size, count)) for a in range(0, count, size))


def _losses(logits: Floats, following: Ints) -> Floats:
    """Negative log-likelihoods [n] of tokens [n], given logits [n, vocabulary]."""
    most = logits.max(1)
    sums = np.log(np.exp(logits - most[:, None]).sum(1))
    result: Floats = most + sums - logits[np.arange(len(following)), following]
    return result


__all__ = ["NUMERICS", "CompiledScorer", "LibraryScorer", "Perplexity", "Scorer", "perplexity"]

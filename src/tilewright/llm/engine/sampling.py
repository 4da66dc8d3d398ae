"""From logits to tokens: penalties, truncation, draws that a seed repeats, log-probabilities.

The order is: repetition, frequency and presence penalties, logit bias, grammar, temperature, min-p, top-k, top-p; each of the last three sees what the one
before left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import RequestError
from .grammar import Constraint

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SamplingParameters:
    """How a request's tokens are chosen."""

    temperature: float = 1.0
    """0, or less than 1e-5, takes the most probable token (of equal ones the first)."""
    top_p: float = 1.0
    """Only the most probable tokens that together have this probability (Holtzman et al. 2020)."""
    top_k: int = 0
    """Only so many most probable tokens; 0 for all."""
    min_p: float = 0.0
    """Only tokens at least so probable, relative to the most probable one (Nguyen et al. 2024)."""
    repetition_penalty: float = 1.0
    """Logits of tokens that occur in prompt or output are divided by it if positive, else multiplied (Keskar et al. 2019)."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time it occurs in the output."""
    presence_penalty: float = 0.0
    """Taken from a token's logit if it occurs in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits; -inf forbids a token."""
    logprobs: int | None = None
    """Log-probabilities of the model itself, before all of the above: of each chosen token and of so many most probable ones."""
    seed: int | None = None
    """Equal seeds give equal outputs, whatever else the engine serves. None draws a seed."""

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def check(self, vocabulary: int) -> None:
        """
        Raises:
            RequestError: a parameter is out of its range.
        """
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, above=True)
        _within("top_k", self.top_k, 0, math.inf)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)  # else logits overflow
        _within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _within("presence_penalty", self.presence_penalty, -100.0, 100.0)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, vocabulary)
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocabulary:
                raise RequestError(f"logit_bias names token {token}; the model has tokens 0 to {vocabulary - 1}")
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"logit_bias of token {token} is {bias}; it must be a number or -inf")


def _within(name: str, value: float, least: float, most: float, above: bool = False) -> None:
    if not (least < value <= most if above else least <= value <= most):  # also what is not a number
        bounds = f"{'more than' if above else 'at least'} {least:g}" + (
            f", at most {most:g}" if most < math.inf else ""
        )
        raise RequestError(f"{name} is {value}; it must be {bounds}")


@dataclass(frozen=True)
class TokenLogprob:
    """How probable the model found a token, and which ones it found most probable: natural logarithms."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Chooser:
    """What choosing one sequence's next token depends on beside the logits: parameters, the tokens before, the grammar's state, the seed."""

    __slots__ = (
        "_before",
        "_bias",
        "_ids",
        "_output",
        "_places",
        "_prompt",
        "adjusts",
        "constraint",
        "parameters",
        "seed",
    )

    def __init__(
        self, parameters: SamplingParameters, prompt: Sequence[int], seed: int, constraint: Constraint | None
    ) -> None:
        self.parameters = parameters
        self.seed = seed
        self.constraint = self._before = constraint
        self._places: dict[int, int] | None = None
        """Where in `_ids` a token stands, if there are penalties; those of the prompt come first."""
        self._prompt = 0
        self._ids = np.empty(0, np.int64)
        self._output = np.empty(0, np.float32)  # how often the output has them
        self._bias: tuple[Floats, Floats] | None = None
        if p := parameters.logit_bias:
            self._bias = np.fromiter(p.keys(), np.int64), np.fromiter(p.values(), np.float32)
        if (parameters.repetition_penalty, parameters.frequency_penalty, parameters.presence_penalty) != (1, 0, 0):
            seen = list(dict.fromkeys(prompt))
            self._places = {token: i for i, token in enumerate(seen)}
            self._prompt = len(seen)
            self._ids = np.array(seen, np.int64)
            self._output = np.zeros(len(seen), np.float32)
        self.adjusts = self._bias is not None or self._places is not None or constraint is not None
        """Whether `adjust` does anything."""

    def accept(self, token: int) -> None:
        """The output goes on with this token."""
        if self._places is not None:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.append(self._ids, np.zeros(place + 16, np.int64))
                self._output = np.append(self._output, np.zeros(place + 16, np.float32))
            self._ids[place] = token
            self._output[place] += 1
        if self.constraint is not None:
            self.constraint.accept(token)

    def look_ahead(self) -> None:
        """What is accepted from here on are guesses, until `look_back`."""
        if self.constraint is not None:
            self._before, self.constraint = self.constraint, self.constraint.fork()

    def look_back(self, tokens: Sequence[int]) -> None:
        """Take back what was accepted since `look_ahead`, these tokens."""
        if self._places is not None:
            for token in tokens:
                self._output[self._places[token]] -= 1
        if self.constraint is not None:
            self.constraint = self._before

    def adjust(self, logits: Floats) -> None:
        """Penalties, bias and grammar, in place: f32 [vocabulary]."""
        p = self.parameters
        if self._places is not None:
            ids, output = self._ids[: len(self._places)], self._output[: len(self._places)]
            values, written = logits[ids], output > 0
            seen = written.copy()
            seen[: self._prompt] = True
            if (r := p.repetition_penalty) != 1:
                values = np.where(seen, np.where(values > 0, values / r, values * r), values)
            logits[ids] = values - p.frequency_penalty * output - p.presence_penalty * written
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self.constraint is not None:
            logits += _forbidding(self.constraint.mask(), len(logits))

    def uniform(self, step: int, purpose: int = 0) -> float:
        """The number in [0, 1) by which output token `step` is drawn, or another decision about it is made."""
        return (_mix(self.seed ^ _mix(4 * step + purpose)) >> 11) * 2.0**-53


_BITS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
_FORBIDDEN: Floats = _BITS.astype(np.float32)


def _forbidding(mask: bytes, n: int) -> Floats:
    """0 for tokens whose bit is set, -inf for all others: f32 [n]."""
    found = _FORBIDDEN[np.frombuffer(mask, np.uint8)[: -(-n // 8)]].reshape(-1)[:n]
    return found if len(found) == n else np.append(found, np.full(n - len(found), -np.inf, np.float32))


def _mix(x: int) -> int:
    """A 64-bit hash (the finalizer of splitmix64, Steele et al. 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def seed_of_choice(seed: int, index: int) -> int:
    """The seed of one of a request's choices."""
    return _mix(_mix(seed & 0xFFFFFFFFFFFFFFFF) + index)


def choose(logits: Floats, rows: Sequence[tuple[Chooser, int]]) -> Floats:
    """The token of each row: i64 [rows]; -1 for a row that allows none, or holds what is no number.

    Args:
        logits: f32 [rows, vocabulary], adjusted.
        rows: of each row the chooser, and which token of the output it is.
    """
    chosen = logits.argmax(axis=1)  # the first NaN where there is one
    best = logits[np.arange(len(rows)), chosen]
    for i, (chooser, step) in enumerate(rows):
        if not math.isfinite(best[i]):
            chosen[i] = -1
        elif not chooser.parameters.greedy:
            chosen[i] = draw(*weights(logits[i], chooser.parameters, best[i]), chooser.uniform(step))
    return chosen


def weights(logits: Floats, parameters: SamplingParameters, best: float) -> tuple[Floats | None, Floats]:
    """Which tokens may be drawn (i64 [n]; None for all) and what their probabilities are proportional to: f32 [n].

    Args:
        logits: f32 [vocabulary], adjusted.
        parameters: not greedy.
        best: the greatest of the logits.
    """
    p, ids = parameters, None
    if 0 < p.top_k < len(logits):
        ids = largest(logits, p.top_k)
    elif p.min_p > 0:
        ids = np.flatnonzero(logits >= best + p.temperature * math.log(p.min_p))
    w = np.exp(((logits if ids is None else logits[ids]) - best) * np.float32(1 / p.temperature))  # at most 1
    if p.top_k and p.min_p > 0:
        w[w < p.min_p] = 0
    if p.top_p == 1:
        return ids, w
    kept, w = _nucleus(w, p.top_p * float(w.sum()))
    return kept if ids is None else ids if kept is None else ids[kept], w


_FEW = 64


def _nucleus(w: Floats, goal: float) -> tuple[Floats | None, Floats]:
    """As many of the greatest of weights, f32 [n], as add up to `goal`; the others may be made 0 in place. In most cases few are enough; else values alone are sorted, which is much cheaper than places."""
    ids = largest(w, _FEW)
    if len(w) <= _FEW or float(w[ids].sum()) >= goal:
        return _top(ids, w[ids], goal)
    falling = np.sort(w)[::-1]
    count = min(int(np.cumsum(falling, dtype=np.float64).searchsorted(goal)) + 1, len(w))
    bound = falling[count - 1]
    equal = np.flatnonzero(w == bound)
    w *= w > bound
    w[equal[: count - np.count_nonzero(w)]] = bound
    return None, w


def _top(ids: Floats, w: Floats, goal: float) -> tuple[Floats, Floats]:
    """As many of falling weights as add up to `goal`, but at least one."""
    keep = int(np.cumsum(w, dtype=np.float64).searchsorted(goal)) + 1
    return ids[:keep], w[:keep]


def largest(x: Floats, count: int) -> Floats:
    """Where the `count` greatest values stand, the greatest first; of equal ones the first."""
    n = len(x)
    if count >= n:
        return np.argsort(-x, kind="stable")
    # As many columns as wanted have a maximum that is no less than the bound, so nothing below it is wanted.
    rows = n // 64
    few = x[: 64 * rows].reshape(64, rows).max(axis=0) if count < rows else x
    bound = np.partition(few, len(few) - count)[len(few) - count]
    ids = np.flatnonzero(x >= bound)
    return ids[np.argsort(-x[ids], kind="stable")[:count]]


_BLOCK = 256


def draw(ids: Floats | None, w: Floats, u: float) -> int:
    """The token at which the running sum of weights (f32 or f64 [n]) passes u times the whole, 0 <= u < 1."""
    start, stop, goal = 0, len(w), None
    if stop > 4 * _BLOCK:  # first find the block, of whose sums there are fewer
        starts = np.arange(0, len(w), _BLOCK)
        sums = np.cumsum(np.add.reduceat(w, starts), dtype=np.float64)
        goal = u * sums[-1]
        block = min(int(sums.searchsorted(goal, side="right")), len(sums) - 1)
        start, stop = block * _BLOCK, (block + 1) * _BLOCK
        goal -= sums[block - 1] if block else 0.0
    sums = np.cumsum(w[start:stop], dtype=np.float64)
    at = start + min(int(sums.searchsorted(u * sums[-1] if goal is None else goal, side="right")), len(sums) - 1)
    while w[at] == 0:  # only where rounding led past the last token that can be drawn
        at -= 1
    return at if ids is None else int(ids[at])


def probabilities(logits: Floats, parameters: SamplingParameters) -> Floats:
    """What `choose` draws from: f64 [vocabulary] that add up to 1.

    Args:
        logits: f32 [vocabulary], adjusted, the greatest finite.
        parameters: not greedy.
    """
    ids, w = weights(logits, parameters, float(logits.max()))
    found = np.zeros(len(logits))
    found[slice(None) if ids is None else ids] = w / w.sum(dtype=np.float64)
    return found


def logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """The log-probability of a token, and the `top` greatest ones, from the model's own logits, f32 [vocabulary]."""
    best = float(logits.max())
    whole = best + math.log(float(np.exp(logits - np.float32(best)).sum()))
    found: tuple[tuple[int, float], ...] = ()
    if top:
        found = tuple((i, float(logits[i]) - whole) for i in largest(logits, top).tolist())
    return TokenLogprob(token, float(logits[token]) - whole, found)

"""Chooses tokens from logits: penalties, truncation, seeded draws and log-probabilities.

The steps run in this order: repetition, frequency and presence penalties, logit bias, grammar, temperature,
min-p, top-k, top-p. Each of the last three sees the tokens that the previous one left.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import EngineError, RequestError
from .grammar import Constraint, LogitRules

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SamplingParameters:
    """Parameters that control how a request's tokens are chosen."""

    temperature: float = 1.0
    """0, or less than 1e-5, takes the most probable token (the first of equally probable ones)."""
    top_p: float = 1.0
    """Draw only from the most probable tokens that together have this probability (Holtzman et al. 2020)."""
    top_k: int = 0
    """Draw only from this many of the most probable tokens; 0: from all."""
    min_p: float = 0.0
    """Draw only from tokens at least this probable, relative to the most probable one (Nguyen et al.
    2024).
    """
    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of tokens that occur in prompt or output (Keskar
    et al. 2019).
    """
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each occurrence in the output."""
    presence_penalty: float = 0.0
    """Subtracted from a token's logit if the token occurs in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens; -inf forbids a token."""
    logprobs: int | None = None
    """Number of most probable tokens whose log-probabilities are reported beside each chosen token's; None:
    no report. They are the model's own, before all of the steps above.
    """
    adjusted_logprobs: bool = False
    """Whether `logprobs` reports those after penalties, biases and rules, before the temperature."""
    seed: int | None = None
    """Equal seeds give equal outputs, whatever else the engine serves. None: a seed is drawn."""

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, without a draw."""
        return self.temperature < 1e-5

    def check(self, vocabulary: int) -> None:
        """Check the parameters' ranges.

        Args:
            vocabulary: The model's number of tokens.

        Raises:
            RequestError: A parameter is out of its range.
        """
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, above=True)
        _within("top_k", self.top_k, 0, math.inf)
        _within("min_p", self.min_p, 0.0, 1.0)
        # logits overflow outside this range
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _within("presence_penalty", self.presence_penalty, -100.0, 100.0)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, vocabulary)
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"logit_bias names token {token}; the model has tokens 0 to {vocabulary - 1}"
                )
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"logit_bias of token {token} is {bias}; it must be a number or -inf")


def _within(name: str, value: float, least: float, most: float, above: bool = False) -> None:
    if not (least < value <= most if above else least <= value <= most):  # also rejects NaN
        bounds = f"{'more than' if above else 'at least'} {least:g}" + (
            f", at most {most:g}" if most < math.inf else ""
        )
        raise RequestError(f"{name} is {value}; it must be {bounds}")


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability (natural) of a chosen token, and those of the most probable tokens."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The state besides the logits on which a sequence's next token depends.

    It holds parameters, earlier tokens, the grammar's state and the seed.
    """

    __slots__ = (
        "_before",
        "_bias",
        "_count",
        "_ends",
        "_ids",
        "_least",
        "_output",
        "_places",
        "_prompt",
        "adjusts",
        "constraint",
        "parameters",
        "seed",
    )

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        seed: int,
        constraint: Constraint | LogitRules | None,
        least: int = 0,
        ends: Sequence[int] = (),
    ) -> None:
        """Start an output.

        Args:
            parameters: How tokens are chosen.
            prompt: The tokens before the output.
            seed: The seed of the random numbers that draw tokens.
            constraint: The grammar's state; None: no grammar.
            least: Tokens of the output before which none of `ends` is chosen.
            ends: Tokens that end the output.
        """
        self.parameters = parameters
        self.seed = seed
        self.constraint = self._before = constraint
        self._places: dict[int, int] | None = None
        """Index of each token in `_ids`, if there are penalties; prompt tokens come first."""
        self._prompt = 0
        self._ids = np.empty(0, np.int64)
        self._output = np.empty(0, np.float32)  # how often each occurs in the output
        self._bias: tuple[Floats, Floats] | None = None
        if p := parameters.logit_bias:
            self._bias = np.fromiter(p.keys(), np.int64), np.fromiter(p.values(), np.float32)
        if (parameters.repetition_penalty, parameters.frequency_penalty, parameters.presence_penalty) != (
            1,
            0,
            0,
        ):
            distinct = list(dict.fromkeys(prompt))
            self._places = {token: i for i, token in enumerate(distinct)}
            self._prompt = len(distinct)
            self._ids = np.array(distinct, np.int64)
            self._output = np.zeros(len(distinct), np.float32)
        self._count = 0
        self._least = least if ends else 0
        self._ends: Floats = np.array(sorted(set(ends)), np.int64)
        self.adjusts = (
            self._bias is not None or self._places is not None or constraint is not None or self._least > 0
        )
        """Whether `adjust` changes anything."""

    def accept(self, token: int) -> None:
        """Append this token to the output."""
        self._count += 1
        if self._places is not None:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.append(self._ids, np.zeros(place + 16, np.int64))
                self._output = np.append(self._output, np.zeros(place + 16, np.float32))
            self._ids[place] = token
            self._output[place] += 1
        if self.constraint is not None:
            self.constraint.accept(token)

    def no_choice(self, tokens: int) -> EngineError:
        """Make the error of a sequence of `tokens` tokens after which none can be chosen."""
        what = "the model's logits are NaN" if self.constraint is None else "the grammar allows no token"
        return EngineError(f"no next token can be chosen after {tokens} tokens: {what}")

    def copy(self) -> Sampler:
        """Return a sampler of the same state, for another continuation."""
        result = copy.copy(self)
        if self._places is not None:
            result._places = dict(self._places)
            result._ids, result._output = self._ids.copy(), self._output.copy()
        if self.constraint is not None:
            result.constraint = self.constraint.fork()
        return result

    def look_ahead(self) -> None:
        """Mark the current state: tokens accepted from here on are guesses, until `look_back`."""
        if self.constraint is not None:
            self._before, self.constraint = self.constraint, self.constraint.fork()

    def look_back(self, tokens: Sequence[int]) -> None:
        """Undo the acceptance of these tokens, which were accepted since `look_ahead`."""
        self._count -= len(tokens)
        if self._places is not None:
            for token in tokens:
                self._output[self._places[token]] -= 1
        if self.constraint is not None:
            self.constraint = self._before

    def only(self, vocabulary: int) -> int | None:
        """The only token below `vocabulary` that the grammar allows next; None if there are more, or none.

        A bias or a number of least tokens may forbid it, too: then the logits decide.
        """
        if self.constraint is None or isinstance(self.constraint, LogitRules):
            return None
        allowed = int.from_bytes(self.constraint.mask(), "little")
        if allowed.bit_count() != 1 or self._bias is not None or self._count < self._least:
            return None
        token = allowed.bit_length() - 1
        return token if token < vocabulary else None

    def adjust(self, logits: Floats) -> None:
        """Apply penalties, bias and grammar to logits, f32 [vocabulary], in place."""
        p = self.parameters
        if self._places is not None:
            ids, output = self._ids[: len(self._places)], self._output[: len(self._places)]
            values, written = logits[ids], output > 0
            occurring = written.copy()
            occurring[: self._prompt] = True
            if (r := p.repetition_penalty) != 1:
                values = np.where(occurring, np.where(values > 0, values / r, values * r), values)
            presence = np.where(written, np.float32(p.presence_penalty), 0)
            logits[ids] = values - p.frequency_penalty * output - presence
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._count < self._least:
            logits[self._ends] = -np.inf
        if isinstance(self.constraint, LogitRules):
            self.constraint.adjust(logits)
        elif self.constraint is not None:
            logits += _forbidding(self.constraint.mask(), len(logits))

    def occurrences(self) -> tuple[Floats, Floats]:
        """The tokens that penalties see, ascending, and how often each occurs in the output; both i32 [n].

        Without penalties there are none.
        """
        if self._places is None:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        count = len(self._places)
        present = self._output[:count] > 0
        present[: self._prompt] = True
        ids = self._ids[:count][present]
        order = np.argsort(ids)
        return ids[order].astype(np.int32), self._output[:count][present][order].astype(np.int32)

    def bias(self) -> tuple[Floats, Floats]:
        """The tokens with a bias, i32 [n], ascending, and their biases, f32 [n].

        The bias is -inf for tokens that would end the output too early.
        """
        biases = {} if self._bias is None else dict(zip(*map(np.ndarray.tolist, self._bias), strict=True))
        if self._count < self._least:
            biases.update(dict.fromkeys(self._ends.tolist(), -math.inf))
        ids = sorted(biases)
        return np.array(ids, np.int32), np.array([biases[i] for i in ids], np.float32)

    def uniform(self, step: int, purpose: int = 0) -> float:
        """Return the random number in [0, 1) that draws output token `step`.

        Another `purpose` gives an independent number, for another decision about the same token.
        """
        return (_mix(self.seed ^ _mix(4 * step + purpose)) >> 11) * 2.0**-53


_BITS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf
)
_FORBIDDEN: Floats = _BITS.astype(np.float32)


def _forbidding(mask: bytes, n: int) -> Floats:
    """Return a mask to add to logits, f32 [n]: 0 for tokens whose bit is set, -inf for all others."""
    penalties = _FORBIDDEN[np.frombuffer(mask, np.uint8)[: -(-n // 8)]].reshape(-1)[:n]
    return (
        penalties
        if len(penalties) == n
        else np.append(penalties, np.full(n - len(penalties), -np.inf, np.float32))
    )


def _mix(x: int) -> int:
    """Hash 64 bits (the finalizer of splitmix64, Steele et al. 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def seed_of_choice(seed: int, index: int) -> int:
    """Derive the seed of one of a request's choices."""
    return _mix(_mix(seed & 0xFFFFFFFFFFFFFFFF) + index)


def choose(logits: Floats, rows: Sequence[tuple[Sampler, int]]) -> Floats:
    """Choose a token for each row: i64 [rows]; -1 for a row that allows no token or contains NaN.

    Args:
        logits: F32 [rows, vocabulary], adjusted.
        rows: Each row's sampler, and the index of the token in its output.
    """
    chosen = logits.argmax(axis=1)  # the first NaN if there is one
    best = logits[np.arange(len(rows)), chosen]
    for i, (sampler, step) in enumerate(rows):
        if not math.isfinite(best[i]):
            chosen[i] = -1
        elif not sampler.parameters.greedy:
            chosen[i] = draw(*weights(logits[i], sampler.parameters, best[i]), sampler.uniform(step))
    return chosen


def weights(logits: Floats, parameters: SamplingParameters, best: float) -> tuple[Floats | None, Floats]:
    """Return the tokens that may be drawn (i64 [n]; None for all) and their weights, f32 [n].

    Weights are proportional to probabilities.

    Args:
        logits: F32 [vocabulary], adjusted.
        parameters: Not greedy.
        best: The greatest of the logits.
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
    """Keep the fewest of the greatest weights, f32 [n], that add up to `goal`.

    The others may be set to 0 in place. A small number of weights is tried first, because it usually
    suffices. If not, the values are sorted without their indices, which is much cheaper.
    """
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
    """Keep the shortest prefix of descending weights that adds up to `goal`, at least one weight."""
    keep = int(np.cumsum(w, dtype=np.float64).searchsorted(goal)) + 1
    return ids[:keep], w[:keep]


def largest(x: Floats, count: int) -> Floats:
    """Return the indices of the `count` greatest values, in descending order; ties go to the first."""
    n = len(x)
    if count >= n:
        return np.argsort(-x, kind="stable")
    # At least `count` columns have a maximum that reaches the bound, so no smaller value is among the
    # greatest.
    rows = n // 64
    few = x[: 64 * rows].reshape(64, rows).max(axis=0) if count < rows else x
    bound = np.partition(few, len(few) - count)[len(few) - count]
    ids = np.flatnonzero(x >= bound)
    return ids[np.argsort(-x[ids], kind="stable")[:count]]


_BLOCK = 256


def draw(ids: Floats | None, w: Floats, u: float) -> int:
    """Return the token at which the running sum of weights (f32 or f64 [n]) passes u times their sum, 0 <= u
    < 1.
    """
    start, stop, goal = 0, len(w), None
    if stop > 4 * _BLOCK:  # find the block first: there are fewer sums of blocks
        starts = np.arange(0, len(w), _BLOCK)
        sums = np.cumsum(np.add.reduceat(w, starts), dtype=np.float64)
        goal = u * sums[-1]
        block = min(int(sums.searchsorted(goal, side="right")), len(sums) - 1)
        start, stop = block * _BLOCK, (block + 1) * _BLOCK
        goal -= sums[block - 1] if block else 0.0
    sums = np.cumsum(w[start:stop], dtype=np.float64)
    at = start + min(
        int(sums.searchsorted(u * sums[-1] if goal is None else goal, side="right")), len(sums) - 1
    )
    while w[at] == 0:  # only where rounding passed the last token with a positive weight
        at -= 1
    return at if ids is None else int(ids[at])


def probabilities(logits: Floats, parameters: SamplingParameters) -> Floats:
    """Return the probabilities with which `choose` draws: f64 [vocabulary], with sum 1.

    Args:
        logits: F32 [vocabulary], adjusted, the greatest finite.
        parameters: Not greedy.
    """
    ids, w = weights(logits, parameters, float(logits.max()))
    result = np.zeros(len(logits))
    result[slice(None) if ids is None else ids] = w / w.sum(dtype=np.float64)
    return result


def logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Compute the log-probability of a token, and the `top` greatest ones.

    Args:
        logits: F32 [vocabulary], the model's own, not adjusted.
        token: The chosen token.
        top: How many of the most probable tokens to report.
    """
    best = float(logits.max())
    whole = best + math.log(float(np.exp(logits - np.float32(best)).sum()))
    most_probable: tuple[tuple[int, float], ...] = ()
    if top:
        most_probable = tuple((i, float(logits[i]) - whole) for i in largest(logits, top).tolist())
    return TokenLogprob(token, float(logits[token]) - whole, most_probable)

"""`Outputs`: delivers tokens to the readers of streams, and ends sequences."""

from __future__ import annotations

import time
from collections import abc

from ...errors import EngineError, TilewrightError
from ..tokenizer import Tokenizer
from .adapters import Adapters
from .replies import Replies
from .sampling import TokenLogprob
from .scheduler import Scheduler
from .sequence import Sequence
from .statistics import Statistics
from .stream import Delta, FinishReason


class Outputs:
    """Delivers tokens to streams as text, and removes finished, cancelled and failed sequences from the
    scheduler.
    """

    def __init__(
        self, tokenizer: Tokenizer, scheduler: Scheduler, statistics: Statistics, adapters: Adapters
    ) -> None:
        self._tokenizer, self._scheduler, self._statistics = tokenizer, scheduler, statistics
        self._adapters = adapters
        self.replies: Replies | None = None
        """Remembers finished replies, for the next turns of their conversations."""

    def deliver(self, sequence: Sequence, tokens: list[int], probable: list[TokenLogprob] | None) -> None:
        """Append tokens to a sequence and hand them to the reader, up to where the output ends."""
        request, sampler = sequence.request, sequence.sampler
        most = self._scheduler.limit
        if request.max_tokens is not None:
            most = min(most, len(request.prompt) + request.max_tokens)
        text, emitted, ended = "", 0, False
        reason: FinishReason | None = None
        stop: int | None = None
        for token in tokens:
            if token < 0:
                what = (
                    "the model's logits are NaN"
                    if sampler.constraint is None
                    else "the grammar allows no token"
                )
                self.fail(
                    [sequence],
                    EngineError(f"no next token can be chosen after {len(sequence.tokens)} tokens: {what}"),
                )
                return
            sequence.tokens.append(token)
            emitted += 1
            if token in request.stop_tokens or (token in self._tokenizer.eos and not request.ignore_eos):
                reason, stop = "stop", token if token in request.stop_tokens else None
                break
            piece, ended = sequence.stops.add(sequence.detokenizer.add((token,)))
            text += piece
            try:
                sampler.accept(token)
            except TilewrightError as error:
                self.fail([sequence], error)
                return
            if ended or (sampler.constraint is not None and sampler.constraint.complete):
                reason = "stop"
                break
            if len(sequence.tokens) >= most:
                reason = "length"
                break
        sequence.held = min(sequence.held, len(sequence.tokens))
        sequence.drafted = min(sequence.drafted, sequence.held)
        if reason is not None and not ended:
            rest, ended = sequence.stops.finish(sequence.detokenizer.finish())
            text += rest
            reason = "stop" if ended else reason
        # an output token counts as two prompt tokens, as in the fairness paper
        self._scheduler.charge(sequence, 2 * emitted)
        self._measure(sequence, emitted)
        if reason is not None:
            self._scheduler.remove(sequence)
            if self.replies is not None:
                self.replies.add(sequence)
            self._end(sequence, reason)
        sequence.stream.put(
            Delta(
                text,
                tokens[:emitted],
                probable and probable[:emitted],
                reason,
                sequence.index,
                sequence.stops.found if ended else stop,
            )
        )

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence whose reader cancelled it, and those that are to be forked from it."""
        self._scheduler.remove(sequence)
        for choice in (sequence, *sequence.forks):
            self._end(choice, "cancelled")
            choice.stream.put(Delta("", [], None, "cancelled", choice.index))

    def fail(self, sequences: abc.Sequence[Sequence], error: TilewrightError) -> None:
        """Fail these sequences and the other choices of their requests.

        The contents of the sequences' pages are discarded as unreliable.
        """
        streams = {id(s.stream): s.stream for s in sequences}
        for sequence in [*sequences, *self._scheduler.all_sequences()]:
            if id(sequence.stream) in streams and not sequence.finished:
                self._scheduler.remove(sequence, keep=sequence not in sequences)
                for choice in (sequence, *sequence.forks):
                    self._end(choice, "error")
        for stream in streams.values():
            stream.fail(error)

    def _measure(self, sequence: Sequence, tokens: int) -> None:
        now, statistics = time.perf_counter(), self._statistics
        statistics.generated_tokens += tokens
        if not sequence.emitted:
            statistics.time_to_first_token.observe(now - sequence.submitted)
            if not sequence.index:
                statistics.cached_tokens += sequence.stream.cached_tokens
        else:
            for _ in range(tokens):
                statistics.inter_token.observe((now - sequence.emitted) / tokens)
        sequence.emitted = now

    def _end(self, sequence: Sequence, reason: str) -> None:
        self._adapters.left(sequence.adapter)
        self._statistics.finished[reason] += 1
        self._statistics.request_time.observe(time.perf_counter() - sequence.submitted)


__all__ = ["Outputs"]

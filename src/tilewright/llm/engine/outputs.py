"""`Outputs`: delivers tokens to the readers of streams, and ends sequences."""

from __future__ import annotations

import time
from collections import abc, deque
from weakref import WeakKeyDictionary

from ...errors import TilewrightError
from .adapters import Adapters
from .beams import Beams, Found
from .replies import Replies
from .sampling import Floats, TokenLogprob
from .scheduler import Scheduler
from .sequence import Sequence
from .statistics import Statistics
from .stream import Delta, FinishReason, Stream

FORCED = 64
"""The most tokens that one step appends because a grammar allows no others. More make other sequences wait;
with fewer the model computes more of them one by one.
"""


class Outputs:
    """Delivers tokens to streams as text, and removes finished, cancelled and failed sequences from the
    scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        statistics: Statistics,
        adapters: Adapters,
        vocabulary: int,
    ) -> None:
        self._scheduler, self._statistics = scheduler, statistics
        self._vocabulary = vocabulary
        self._adapters = adapters
        self._searches = WeakKeyDictionary[Stream, Beams]()
        self.replies: Replies | None = None
        """Remembers finished replies, for the next turns of their conversations."""

    def deliver(self, sequence: Sequence, tokens: list[int], probable: list[TokenLogprob] | None) -> None:
        """Append tokens to a sequence and hand them to the reader, up to where the output ends."""
        request, sampler = sequence.request, sequence.sampler
        most = request.length(self._scheduler.limit)
        text, ended = "", False
        reason: FinishReason | None = None
        stop: int | None = None
        pending, given = deque(tokens), list[int]()
        chosen = len(sequence.tokens) + len(tokens)  # the length up to which the model has chosen
        if sequence.budget is not None and sequence.budget.spent():
            pending, chosen = deque(sequence.budget.end), len(sequence.tokens)
        forced = 0
        while pending:
            token = pending.popleft()
            if token < 0:
                self.fail([sequence], sampler.no_choice(len(sequence.tokens)))
                return
            sequence.tokens.append(token)
            given.append(token)
            if token in sequence.ends:
                reason, stop = "stop", token if token in request.stop_tokens else None
                break
            added = sequence.detokenizer.add((token,))
            piece, ended = sequence.stops.add(added)
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
            if sequence.budget is not None and sequence.budget.add(added):
                pending = deque(sequence.budget.end)
                chosen = min(chosen, len(sequence.tokens))
            elif not pending and forced < FORCED and request.sampling.logprobs is None:
                only = sampler.only(self._vocabulary)
                if only is not None:
                    pending.append(only)
                    chosen = min(chosen, len(sequence.tokens))
                    forced += 1
                    self._statistics.forced_tokens += 1
        sequence.held = min(sequence.held, len(sequence.tokens), chosen)
        if reason is not None and not ended:
            rest, ended = sequence.stops.finish(sequence.detokenizer.finish())
            text += rest
            reason = "stop" if ended else reason
        # an output token counts as two prompt tokens, as in the fairness paper
        self._scheduler.charge(sequence, 2 * len(given))
        self._measure(sequence, len(given))
        if reason is not None:
            self._scheduler.remove(sequence)
            if self.replies is not None:
                self.replies.add(sequence)
            self._end(sequence, reason)
        sequence.stream.put(
            Delta(
                text,
                given,
                None if probable is None else _reported(probable, given),
                reason,
                sequence.index,
                sequence.stops.found if ended else stop,
            )
        )

    def offer(self, sequence: Sequence, adjusted: Floats, raw: Floats) -> None:
        """Continue a beam search once all its sequences have been computed, and hand its outputs to the
        reader at its end.

        Args:
            sequence: One of them, whose tokens are all in the cache.
            adjusted: Logits, f32 [vocabulary], after penalties, biases and the grammar.
            raw: Logits, f32 [vocabulary], of the model or the same, whose log-probabilities are reported.
        """
        request, search = sequence.request, sequence.request.beams
        assert search is not None
        beams = self._searches.get(sequence.stream)
        if beams is None:
            beams = self._searches[sequence.stream] = Beams(search, [sequence, *sequence.forks])
        lead, reported = beams.members[0], adjusted if request.sampling.adjusted_logprobs else raw
        try:
            beams.offer(sequence, adjusted, reported)
            if not beams.ready:
                return
            over = beams.advance(self._scheduler)
        except TilewrightError as error:
            self.fail([sequence], error)
            return
        self._scheduler.charge(lead, 2 * beams.live)
        self._measure(lead, beams.live)
        if not over:
            return
        for member in beams.members:
            self._scheduler.remove(member)
        missing = len(beams.members) - len(beams.found)
        outputs = [*beams.found, *([Found(0.0, [], [], True)] * missing)]
        for member, found in zip(beams.members, outputs, strict=True):
            reason: FinishReason = "stop" if found.ended else "length"
            self._end(member, reason)
            if member.index < request.n:
                last = found.tokens[-1] if found.ended and found.tokens else None
                written = found.tokens[:-1] if last in sequence.ends else found.tokens
                text = member.detokenizer.add(written) + member.detokenizer.finish()
                logs = None if request.sampling.logprobs is None else found.logprobs
                stop = last if last in request.stop_tokens else None
                member.stream.put(Delta(text, found.tokens, logs, reason, member.index, stop))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence whose reader cancelled it, and those that are to be forked from it."""
        self._scheduler.remove(sequence)
        for choice in (sequence, *sequence.forks):
            self._end(choice, "cancelled")
            if choice.index < choice.request.n:
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


def _reported(probable: list[TokenLogprob], given: list[int]) -> list[TokenLogprob]:
    """The log-probabilities of tokens; that of a forced one is 0, since nothing else was possible."""
    chosen = 0
    while chosen < min(len(probable), len(given)) and probable[chosen].token == given[chosen]:
        chosen += 1
    return [*probable[:chosen], *(TokenLogprob(token, 0.0) for token in given[chosen:])]


__all__ = ["Outputs"]

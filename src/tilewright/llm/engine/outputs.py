"""`Outputs`: tokens on their way to who reads them, and how sequences end."""

from __future__ import annotations

import time
from collections.abc import Sequence as List

from ...errors import EngineError, TilewrightError
from ..tokenizer import Tokenizer
from .sampling import TokenLogprob
from .scheduler import Scheduler
from .sequence import Sequence
from .statistics import Statistics
from .stream import Delta, FinishReason


class Outputs:
    """Hands tokens to streams as text, and takes sequences from the scheduler whose output ends, for one reason or another."""

    def __init__(self, tokenizer: Tokenizer, scheduler: Scheduler, statistics: Statistics) -> None:
        self._tokenizer, self._scheduler, self._statistics = tokenizer, scheduler, statistics

    def give(self, sequence: Sequence, tokens: list[int], probable: list[TokenLogprob] | None) -> None:
        """Append tokens to a sequence and hand them to the reader, up to where the output ends."""
        request, chooser = sequence.request, sequence.chooser
        most = self._scheduler.limit
        if request.max_tokens is not None:
            most = min(most, len(request.prompt) + request.max_tokens)
        text, given, ended = "", 0, False
        reason: FinishReason | None = None
        for token in tokens:
            if token < 0:
                what = "the model's logits are no numbers" if chooser.constraint is None else "the grammar allows none"
                self.fail([sequence], EngineError(f"no token can follow the {len(sequence.tokens)} so far: {what}"))
                return
            sequence.tokens.append(token)
            given += 1
            if token in request.stop_tokens or (token in self._tokenizer.eos and not request.ignore_eos):
                reason = "stop"
                break
            piece, ended = sequence.stops.add(sequence.detokenizer.add((token,)))
            text += piece
            try:
                chooser.accept(token)
            except TilewrightError as error:
                self.fail([sequence], error)
                return
            if ended or (chooser.constraint is not None and chooser.constraint.complete):
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
        self._scheduler.serve(sequence, 2 * given)  # as costly as two of a prompt, says the paper on fairness
        self._measure(sequence, given)
        if reason is not None:
            self._scheduler.remove(sequence)
            self._end(sequence, reason)
        sequence.stream.put(Delta(text, tokens[:given], probable and probable[:given], reason, sequence.index))

    def cancel(self, sequence: Sequence) -> None:
        """Nobody wants a sequence any more, nor those that are to be forked from it."""
        self._scheduler.remove(sequence)
        for one in (sequence, *sequence.forks):
            self._end(one, "cancelled")
            one.stream.put(Delta("", [], None, "cancelled", one.index))

    def fail(self, sequences: List[Sequence], error: TilewrightError) -> None:
        """These sequences cannot go on, nor can the other choices of their requests. What their pages hold is not to be relied on."""
        streams = {id(s.stream): s.stream for s in sequences}
        for sequence in [*sequences, *self._scheduler.everyone()]:
            if id(sequence.stream) in streams and not sequence.finished:
                self._scheduler.remove(sequence, keep=sequence not in sequences)
                for one in (sequence, *sequence.forks):
                    self._end(one, "error")
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
        self._statistics.finished[reason] += 1
        self._statistics.request_time.observe(time.perf_counter() - sequence.submitted)


__all__ = ["Outputs"]

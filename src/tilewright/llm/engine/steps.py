"""`Steps`: the model calls that make up an engine step, and the tokens that result from them."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import EngineError, InternalError, TilewrightError
from ..runner import Floats, Ints, Runner
from ..vision.given import GivenRows
from .draft_model import DraftModel
from .drawing import Drawn
from .images import SeenRows
from .outputs import Outputs
from .pace import Pace
from .sampling import TokenLogprob, choose, logprobs
from .scheduler import Scheduler
from .sequence import Guess, Sequence
from .speculative import PromptLookup, Speculation, accepted
from .statistics import Statistics
from .stream import failure

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger(__name__)


class _Guessed(NamedTuple):
    """Guesses of the next tokens of sequences, and what they took."""

    guesses: dict[Sequence, Guess] = {}
    drafting: float = 0.0
    """Seconds in which a draft model guessed."""
    reading: float = 0.0
    """Seconds in which it read tokens before the guesses."""
    read: int = 0
    """The number of these tokens."""


class Steps:
    """Decodes and prefills the sequences of a scheduler.

    An error of the model fails only the sequences of that call.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        outputs: Outputs,
        statistics: Statistics,
        chunk: int,
        speculation: Speculation | None,
        draft: DraftModel | None,
    ) -> None:
        """Combine the parts of an engine.

        Args:
            runner: the model.
            scheduler: holds the sequences.
            outputs: receives tokens and failures.
            statistics: counts speculation.
            chunk: most tokens of a prompt in one call.
            speculation: whether and how tokens are guessed.
            draft: the draft model that guesses; None: prompt lookup.
        """
        self._runner, self._scheduler, self._outputs, self._statistics = (
            runner,
            scheduler,
            outputs,
            statistics,
        )
        self._chunk, self._speculation, self._draft = chunk, speculation, draft
        self._lookup = PromptLookup()
        self._pace = Pace(speculation.tokens, speculation.adaptive) if speculation else Pace(0)
        self._results: list[tuple[int, int]] = []  # guessed and accepted tokens of the sequences of a step
        self._drawn = None if runner.drawing is None else Drawn(runner.drawing, runner.vocabulary)
        self._seen = None if runner.sight is None else SeenRows(runner.sight)

    def prefill(self) -> bool:
        """Compute a chunk of one prompt. Return whether there was work."""
        work = self._scheduler.next_prefill(self._chunk)
        if work is None:
            return False
        sequence, start, end = work
        tokens = np.array(sequence.tokens[start:end], np.int32)
        pages = self._scheduler.pages_of([sequence])[0]
        logits = None
        try:
            if not start and (source := sequence.request.source) is not None:
                self._runner.encode(source, sequence.slot)
            given: tuple[GivenRows, ...] = ()
            if self._seen is not None and sequence.request.images is not None:
                given = (self._seen.given(sequence.request.images, start, end),)
            if self._drawn is not None:
                self._drawn.prefill(tokens, start, pages, sequence.slot, *given)
            else:
                logits = self._checked(self._runner.prefill(tokens, start, pages, sequence.slot, *given))[
                    None
                ]
            self._score(sequence, end - 1, 0, 1, logits)
        except Exception as error:
            self._outputs.fail([sequence], failure("the model failed", error))
            return True
        self._scheduler.record_prefill(sequence, end)
        self._scheduler.charge(sequence, end - start)
        if end == len(sequence.tokens):
            self._finish([sequence], [(sequence, Guess([]), 0)], logits)
        self._scheduler.release_unseen(sequence)
        return True

    def decode(self) -> bool:
        """Decode the next token of every sequence whose prompt is computed, and check guesses after it.

        Preempted sequences feed the tokens that were chosen before. Return whether there was work.
        """
        scheduler = self._scheduler
        # members of a beam search that wait for others miss nothing
        decoding = [s for s in scheduler.running if s.decoding and s.missing]
        if not decoding:
            return False
        begin = time.perf_counter()
        speculation = self._speculation
        guessing, count = self._guessing(decoding)
        most = 1 if self._runner.has_state else self._runner.rows // len(decoding)
        wanted = {s: 1 + count if s in guessing else s.missing for s in decoding}
        rows = scheduler.reserve({s: min(n, most) for s, n in wanted.items()})
        if not rows:
            return False
        guessed = self._guess([s for s in rows if s in guessing and rows[s] > 1] if count else [], rows)
        guesses = guessed.guesses
        # neighboring rows of one adapter are multiplied together
        rows = dict(sorted(rows.items(), key=lambda item: item[0].adapter_number))
        tokens: list[int] = []
        ready: list[tuple[Sequence, Guess, int]] = []
        for s in rows:
            guess = guesses.get(s, Guess([]))
            known = s.tokens[s.held : s.held + rows[s]]
            tokens += [*known, *guess.tokens]
            rows[s] = len(known) + len(guess.tokens)
            if len(known) == s.missing:
                ready.append((s, guess, len(tokens) - len(guess.tokens) - 1))
        sequences, counts = list(rows), list(rows.values())
        lengths = np.concatenate([np.arange(s.held, s.held + n, dtype=np.int32) for s, n in rows.items()])
        slots = np.repeat(np.array([s.slot for s in sequences], np.int32), counts)
        pages = np.repeat(scheduler.pages_of(sequences), counts, axis=0)
        call = np.array(tokens, np.int32), lengths, pages, slots
        logits = None
        try:
            if self._drawn is not None:
                self._drawn.decode(*call)
            else:
                logits = self._checked(self._runner.decode(*call), len(tokens))
            row = 0
            for s, n in rows.items():
                self._score(s, s.held, row, n, logits)
                row += n
        except Exception as error:
            self._outputs.fail(sequences, failure("the model failed", error))
            return True
        for s, n in rows.items():
            s.held = min(s.held + n, len(s.tokens))
        self._results = []
        self._finish(sequences, ready, logits)
        if self._draft is not None:
            self._draft.settle(guesses)
        for s in sequences:
            scheduler.release_unseen(s)
        # Other steps, such as those that decode the tokens of a preempted sequence again, are not comparable.
        if speculation is not None and len(self._results) == len(ready) == len(sequences):
            seconds = time.perf_counter() - begin
            if any(guess.tokens for guess in guesses.values()):
                self._pace.step(self._results, seconds, *guessed[1:])
            elif len(tokens) == len(sequences):
                self._pace.plain_step(len(sequences), seconds)
        return True

    def _finish(
        self, sequences: list[Sequence], ready: list[tuple[Sequence, Guess, int]], logits: Floats | None
    ) -> None:
        """Choose the next tokens after a call of the model; see `_advance`.

        Args:
            sequences: All that took part in the call.
            ready: As for `_advance`.
            logits: F32 [rows, vocabulary]; None: the model draws, and gives the logits of rows that it cannot
                draw.
        """
        drawn = self._drawn
        if logits is not None or drawn is None:
            assert logits is not None
            self._advance(ready, logits)
            return
        try:
            rest, failed = drawn.decide(ready)
            rows = [row + j for _, guess, row in rest for j in range(len(guess.tokens) + 1)]
            logits = self._checked(drawn.logits(rows), len(rows)) if rows else None
        except Exception as error:
            self._outputs.fail(sequences, failure("the model failed", error))
            return
        for s, cause in failed.items():
            self._outputs.fail([s], cause)
        left = {s for s, _, _ in rest}
        for s, guess, row in ready:
            if s not in left and not s.finished:
                chosen = drawn.tokens[row : row + len(guess.tokens) + 1].tolist()
                self._accept(s, guess, accepted(s, guess, None, chosen), None)
        if logits is not None:
            places = np.cumsum([0, *(len(guess.tokens) + 1 for _, guess, _ in rest)]).tolist()
            self._advance([(s, guess, at) for (s, guess, _), at in zip(rest, places, strict=False)], logits)

    def _score(self, sequence: Sequence, place: int, row: int, count: int, logits: Floats | None) -> None:
        """Report the log-probabilities of a prompt's tokens, if its request asks for them.

        Args:
            sequence: One that took part in the last call.
            place: The index of its first token in the call.
            row: The row of that token in the call.
            count: Its number of rows.
            logits: F32 [rows, vocabulary], of the call; None: the model keeps them.

        Raises:
            EngineError: The logits are not finite.
        """
        prompt, top, found = (
            sequence.request.prompt,
            sequence.request.prompt_logprobs,
            sequence.stream.prompt_logprobs,
        )
        if top is None or sequence.index:
            return
        # a sequence that was preempted meets again the places that are reported already
        places = range(max(place, len(found)), min(place + count, len(prompt) - 1))
        rows = [row + at - place for at in places]
        if not rows:
            return
        if logits is None:
            assert self._drawn is not None
            values = self._checked(self._drawn.logits(rows), len(rows))
        else:
            values = logits[rows]
        if not np.isfinite(values.max(axis=1)).all():
            raise EngineError("the model's logits are NaN")
        found += [logprobs(v, prompt[at + 1], top) for v, at in zip(values, places, strict=True)]

    def _guessing(self, decoding: list[Sequence]) -> tuple[set[Sequence], int]:
        """The sequences for which the next step guesses, and how many tokens for each."""
        speculation, draft = self._speculation, self._draft
        if speculation is None or len(decoding) > speculation.max_batch:
            return set(), 0
        able = [s for s in decoding if s.missing == 1 and s.request.beams is None]
        if not able:
            return set(), 0
        if draft is None:
            return set(able), self._pace.guesses(len(decoding))
        unread = {s: draft.unread(s) for s in able}
        able.sort(key=unread.__getitem__)
        if count := self._pace.guesses(len(decoding), unread[able[0]]):
            sums = list(accumulate(unread[s] for s in able))
            able = able[: max(1, bisect_right(sums, self._pace.readable()))]
        return set(able), count

    def _guess(self, sequences: list[Sequence], rows: dict[Sequence, int]) -> _Guessed:
        """Guess next tokens for calls that have `rows[sequence]` rows for each sequence."""
        if not sequences:
            return _Guessed()
        most = min(rows[s] for s in sequences) - 1
        if self._draft is None:
            return _Guessed(dict(zip(sequences, self._lookup.guess(sequences, most), strict=True)))
        draft, guesses, read = self._draft, [], 0
        begin = middle = time.perf_counter()
        try:
            read = draft.read(sequences)
            middle = time.perf_counter()
            guesses = draft.guess(sequences, most)
        except Exception:
            log.exception("the draft model failed; continuing without speculation")
            self._draft = self._speculation = None
        end = time.perf_counter()
        return _Guessed(dict(zip(sequences, guesses, strict=False)), end - middle, middle - begin, read)

    def _advance(self, ready: list[tuple[Sequence, Guess, int]], logits: Floats) -> None:
        """Choose the next tokens of sequences whose tokens are all in the cache.

        Args:
            ready: each sequence; guesses of its next tokens, which are in the cache as well; and the row of
                the logits after its last token. The rows after each guess follow that row.
            logits: f32 [rows, vocabulary].
        """
        entries: list[tuple[Sequence, Guess, int]] = []
        for sequence, guess, row in ready:
            entries.append((sequence, guess, row))
            if sequence.request.beams is not None:  # which starts its forks itself
                continue
            forks, sequence.forks = sequence.forks, []
            entries += [
                (fork, Guess([]), row) for fork in forks if self._scheduler.start_fork(sequence, fork)
            ]
        rows = [row + j for _, guess, row in entries for j in range(len(guess.tokens) + 1)]
        if not rows:
            return
        raw = logits if rows == list(range(len(logits))) else logits[rows]
        adjusted = raw
        if any(s.sampler.adjusts for s, _, _ in entries):
            adjusted = np.array(raw)
            row = 0
            for sequence, guess, _ in entries:
                self._adjust(sequence, guess, adjusted[row : row + len(guess.tokens) + 1])
                row += len(guess.tokens) + 1
        steps = [(s.sampler, s.output + j) for s, guess, _ in entries for j in range(len(guess.tokens) + 1)]
        chosen = choose(adjusted, steps).tolist()
        end = 0
        for sequence, guess, _ in entries:
            start, end = end, end + len(guess.tokens) + 1
            if sequence.finished:  # another choice of the request failed
                continue
            if sequence.request.beams is not None:
                self._outputs.offer(sequence, adjusted[start], raw[start])
                continue
            tokens = accepted(sequence, guess, adjusted[start:end], chosen[start:end])
            sampling = sequence.request.sampling
            top, of = sampling.logprobs, adjusted if sampling.adjusted_logprobs else raw
            probable = (
                None
                if top is None
                else [logprobs(of[start + j], t, top) for j, t in enumerate(tokens) if t >= 0]
            )
            self._accept(sequence, guess, tokens, probable)

    def _accept(
        self, sequence: Sequence, guess: Guess, tokens: list[int], probable: list[TokenLogprob] | None
    ) -> None:
        """Append the accepted ones of some guesses and one more token to a sequence's output."""
        sequence.held += len(tokens) - 1
        self._results.append((len(guess.tokens), len(tokens) - 1))
        self._statistics.proposed_tokens += len(guess.tokens)
        self._statistics.accepted_tokens += len(tokens) - 1
        self._outputs.deliver(sequence, tokens, probable)

    def _adjust(self, sequence: Sequence, guess: Guess, logits: Floats) -> None:
        """Apply penalties, bias and grammar, to each row as if the guesses before it were accepted."""
        sampler, count = sequence.sampler, 0
        if not sampler.adjusts:
            return
        sampler.look_ahead()
        try:
            for row, token in zip(logits, [*guess.tokens, None], strict=True):
                sampler.adjust(row)
                if token is not None:
                    sampler.accept(token)
                    count += 1
        except TilewrightError as error:
            self._outputs.fail([sequence], error)
        finally:
            sampler.look_back(guess.tokens[:count])

    def _checked(self, logits: npt.ArrayLike, *rows: int) -> Floats:
        values: Floats = np.asarray(logits)
        if values.shape != (*rows, self._runner.vocabulary):
            raise InternalError(
                f"the model gave logits of shape {values.shape}, not {(*rows, self._runner.vocabulary)}"
            )
        return values

    def prefill_idle(self, tokens: Ints, start: int, pages: Ints, adapter: int) -> None:
        """Compute tokens that belong to no running sequence, with the adapter of a number.

        There must be no running sequence.
        """
        if self._runner.adapters is not None:
            self._runner.adapters.use(0, adapter)
        (self._drawn or self._runner).prefill(tokens, start, pages, 0)


__all__ = ["Steps"]

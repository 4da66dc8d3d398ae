"""`DraftModel`: a small model that guesses the next tokens of a large one."""

from __future__ import annotations

from collections import abc
from typing import Any, NamedTuple

import numpy as np

from ...errors import RequestError
from ..runner import PAGE, UNDECIDED, Ints, Runner
from .drawing import Drawn
from .pages import PagePool
from .sampling import choose, probabilities
from .sequence import Guess, Sequence

READ = PAGE
"""The most tokens that the draft model reads before it guesses, unless it must read the whole text."""
READ_FIRST = 8
"""The most tokens that it reads before its first guess, when it is not yet known how long that takes."""


class _Call(NamedTuple):
    """The arguments of `Runner.decode`."""

    tokens: Ints
    lengths: Ints
    pages: Ints
    slots: Ints


class _Context:
    """The part of a sequence that the draft model's cache holds."""

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        """The numbers of its first token and of the token after its last one."""
        self.table: list[int] = []
        """Its pages."""


class DraftModel:
    """Guesses the tokens that a small model would choose.

    Its cache has pages of its own. A sequence gets some when the draft model first guesses for it, and the
    draft model reads only the last tokens before that: a draft that is seldom asked costs little, and the
    sharing of the model's pages does not depend on it.
    """

    def __init__(self, runner: Runner, whole: bool = False) -> None:
        """Use a model.

        Args:
            runner: The small model.
            whole: Whether it reads texts from their beginnings.
        """
        self.runner = runner
        self._most = runner.context if whole else READ_FIRST
        self._drawn = None if runner.drawing is None else Drawn(runner.drawing, runner.vocabulary)
        self._pool = PagePool(runner.pages)
        self._contexts: dict[Sequence, _Context] = {}

    def check(self, runner: Runner) -> None:
        """Check that this can be the draft model of `runner`.

        Raises:
            RequestError: It cannot.
        """
        draft = self.runner
        if draft.has_state:
            raise RequestError(
                "the draft model keeps state that cannot be rolled back: choose one without, or prompt lookup"
            )
        if draft.vocabulary != runner.vocabulary:
            raise RequestError(
                f"the draft model has {draft.vocabulary} tokens, the model {runner.vocabulary}"
            )
        for name in ("pages", "context", "max_batch"):
            if getattr(draft, name) < getattr(runner, name):
                raise RequestError(
                    f"the draft model is compiled for {name} = {getattr(draft, name)}, the model for "
                    f"{getattr(runner, name)}: compile the draft model for at least as many"
                )

    def unread(self, sequence: Sequence) -> int:
        """The tokens that have to be read before a guess."""
        context = self._contexts.get(sequence)
        missing = sequence.held - (0 if context is None else context.end)
        # Where all guesses were accepted, the last one is computed together with the next guess.
        return 0 if missing <= 1 and context is not None else min(missing, self._most)

    def read(self, sequences: abc.Sequence[Sequence]) -> int:
        """Read the tokens before the next guesses; return their number."""
        for old in [s for s in self._contexts if s.finished]:
            self._drop(old)
        total = 0
        for s in sequences:
            context = self._contexts.get(s)
            if context is None or s.held - context.end > self._most:
                context = self._anew(s)
            if not self._grow(s, context, s.held, sequences):
                context = self._anew(s)
                if not self._grow(s, context, s.held, sequences):
                    self._drop(s)
                    continue
            if (missing := s.held - context.end) > 1:
                self._prefill(s, context)
                total += missing
        self._most = max(self._most, READ)
        return total

    def _anew(self, sequence: Sequence) -> _Context:
        """Let the context of a sequence begin with the last tokens that may be read."""
        self._drop(sequence)
        context = self._contexts[sequence] = _Context(max(0, sequence.held - self._most))
        return context

    def _drop(self, sequence: Sequence) -> None:
        context = self._contexts.pop(sequence, None)
        for page in () if context is None else context.table:
            self._pool.give_back(page)

    def _grow(self, sequence: Sequence, context: _Context, end: int, others: abc.Sequence[Sequence]) -> bool:
        """Allocate pages for the tokens before number `end`, if need be those of sequences that wait."""
        while len(context.table) * PAGE < end - context.first:
            page = self._pool.take()
            if page is not None:
                context.table.append(page)
                continue
            waiting = next((s for s in self._contexts if s not in others), None)
            if waiting is None:
                return False
            self._drop(waiting)
        return True

    def _prefill(self, sequence: Sequence, context: _Context) -> None:
        while context.end < sequence.held:
            end = min(context.end + self.runner.chunk, sequence.held)
            part = np.array(sequence.tokens[context.end : end], np.int32)
            pages = np.array(context.table[: -(-(end - context.first) // PAGE)], np.int32)
            (self._drawn or self.runner).prefill(part, context.end - context.first, pages, sequence.slot)
            context.end = end

    def settle(self, sequences: abc.Iterable[Sequence]) -> None:
        """Forget the guesses of sequences that were not accepted."""
        for s in sequences:
            if (context := self._contexts.get(s)) is not None:
                context.end = min(context.end, s.held)

    def guess(self, sequences: abc.Sequence[Sequence], count: int) -> list[Guess]:
        """Guess `count` tokens for each sequence, after `read`; none for those without pages."""
        guesses = [Guess([]) for _ in sequences]
        able = [
            (s, guess)
            for s, guess in zip(sequences, guesses, strict=True)
            if (context := self._contexts.get(s)) is not None
            and self._grow(s, context, s.held + count, sequences)
        ]
        # Where all guesses were accepted, the draft model never processed the last one.
        late = [s for s, _ in able if self._contexts[s].end < s.held]
        if late and len(able) + len(late) > self.runner.rows:
            self._decode(self._call([(s, s.tokens[-2], s.held - 1) for s in late]))
            late = []
        for s, _ in able:
            s.sampler.look_ahead()
        try:
            if able:
                self._extend(able, count, late)
        finally:
            for s, guess in able:
                s.sampler.look_back(guess.tokens)
                self._contexts[s].end = s.held + len(guess.tokens)
        return guesses

    def _extend(
        self, able: abc.Sequence[tuple[Sequence, Guess]], count: int, late: abc.Sequence[Sequence]
    ) -> None:
        """Append up to `count` tokens to each guess.

        The first call also computes the token before, of sequences that are `late`.
        """
        fed: list[tuple[Sequence, int, int]] = []
        last: list[int] = []
        for s, _ in able:
            if s in late:
                fed.append((s, s.tokens[-2], s.held - 1))
            last.append(len(fed))
            fed.append((s, s.tokens[-1], s.held))
        call = self._call(fed)
        if self._together(able, count, call, last):
            return
        for i in range(count):
            chosen = self._chosen(able, i, self._decode(call), last)
            if min(chosen) < 0:  # the draft model cannot continue
                return
            for token, (s, guess) in zip(chosen, able, strict=True):
                s.sampler.accept(token)
                guess.tokens.append(token)
            if not i:
                slots, pages, lengths = call.slots[last], call.pages[last], call.lengths[last]
                last = list(range(len(able)))
            lengths = lengths + 1
            call = _Call(np.array(chosen, np.int32), lengths, pages, slots)

    def _together(
        self, able: abc.Sequence[tuple[Sequence, Guess]], count: int, call: _Call, last: list[int]
    ) -> bool:
        """Let the model append all of the tokens in one call, if it can; return whether it has."""
        guessing = self.runner.guessing
        if guessing is None or not 1 < count <= guessing.most:
            return False
        if any(not s.request.sampling.greedy or s.sampler.adjusts for s, _ in able):
            return False
        found = guessing.guess(call.tokens, call.lengths, call.pages, np.array(last, np.int32), count)
        if (wrong := np.flatnonzero(found.min(axis=0) < 0)).size:
            found = found[:, : wrong[0]]
        for (s, guess), tokens in zip(able, found.tolist(), strict=True):
            guess.tokens += tokens
            for token in tokens:
                s.sampler.accept(token)
        return True

    def _chosen(
        self, able: abc.Sequence[tuple[Sequence, Guess]], i: int, found: Any, rows: list[int]
    ) -> list[int]:
        """The tokens number `i` of the guesses, from the `rows` that a call has `found`."""
        steps = [(s.sampler, s.output + i) for s, _ in able]
        drawn, adjusts = self._drawn, any(s.sampler.adjusts for s, _ in able)
        rejects = any(s.rejects for s, _ in able)
        if drawn is not None and not rejects and not adjusts:
            drawn.draw([(row, *how) for row, how in zip(rows, steps, strict=True)])
            chosen: list[int] = drawn.tokens[rows].tolist()
            if UNDECIDED not in chosen:
                return chosen
        logits = np.asarray(found)[rows] if drawn is None else np.array(drawn.logits(rows))
        if adjusts:
            for row, (s, _) in zip(logits, able, strict=True):
                s.sampler.adjust(row)
        chosen = choose(logits, steps).tolist()
        if rejects and min(chosen) >= 0:
            for row, (s, guess) in zip(logits, able, strict=True):
                if s.rejects:
                    guess.probabilities.append(probabilities(row, s.sampler.parameters))
        return chosen

    def _call(self, fed: abc.Sequence[tuple[Sequence, int, int]]) -> _Call:
        """The call that decodes tokens of sequences, each with the number of tokens before it."""
        contexts = [self._contexts[s] for s, _, _ in fed]
        width = max(len(context.table) for context in contexts)
        tokens = np.array([token for _, token, _ in fed], np.int32)
        lengths = np.array([at - c.first for (_, _, at), c in zip(fed, contexts, strict=True)], np.int32)
        slots = np.array([s.slot for s, _, _ in fed], np.int32)
        pages = np.array([c.table + [-1] * (width - len(c.table)) for c in contexts], np.int32)
        return _Call(tokens, lengths, pages, slots)

    def _decode(self, call: _Call) -> Any:
        return (self._drawn or self.runner).decode(*call)


__all__ = ["DraftModel"]

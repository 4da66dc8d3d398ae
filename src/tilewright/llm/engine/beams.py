"""`Beams`: the state of a beam search.

The order of candidates, the length penalty and the end of a search are those of `generate` of transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .beam_search import BeamSearch
from .sampling import Floats, Sampler, TokenLogprob, logprobs
from .scheduler import Scheduler
from .sequence import Sequence


@dataclass
class Found:
    """A finished output."""

    rating: float
    tokens: list[int]
    """Its tokens, the one that ended it included."""
    logprobs: list[TokenLogprob]
    ended: bool
    """Whether it has come to its end; else it is as long as it may be."""


@dataclass
class _Candidate:
    parent: Sequence
    token: int
    score: float
    sampler: Sampler


class Beams:
    """The state of one beam search."""

    def __init__(self, search: BeamSearch, members: list[Sequence]) -> None:
        """Start a search.

        Args:
            search: Its parameters.
            members: As many sequences as its width, each with the same prompt; the others are to be forked
                from the first one.
        """
        self.search, self.members, lead = search, members, members[0]
        # so many that enough are left if all tokens that end the output are among the most probable
        self._candidates = max(2, 1 + len(lead.ends)) * search.width
        self.found: list[Found] = []
        """Finished outputs, the best first; at most as many as the width."""
        self._live = members[:1]
        self._scores = dict.fromkeys(members, 0.0)
        self._reports: dict[Sequence, list[TokenLogprob]] = {member: [] for member in members}
        self._offers: dict[Sequence, tuple[tuple[tuple[int, float], ...], Floats | None]] = {}

    def offer(self, member: Sequence, adjusted: Floats, raw: Floats) -> None:
        """Note which tokens may follow a member.

        Args:
            member: One whose tokens are all in the cache.
            adjusted: Logits, f32 [vocabulary], after penalties, biases and the grammar.
            raw: Logits, f32 [vocabulary], whose log-probabilities are reported.

        Raises:
            EngineError: The logits are NaN, or the grammar allows no token.
        """
        if member not in self._live or member in self._offers:
            return
        if not math.isfinite(float(adjusted.max())):
            raise member.sampler.no_choice(len(member.tokens))
        most = min(len(adjusted), self._candidates)
        options = logprobs(adjusted, int(adjusted.argmax()), most).top
        wanted = member.request.sampling.logprobs is not None
        self._offers[member] = options, raw.copy() if wanted else None

    @property
    def ready(self) -> bool:
        """Whether the next token of every live member can be chosen."""
        return len(self._offers) == len(self._live)

    @property
    def live(self) -> int:
        """The number of sequences that are being continued."""
        return len(self._live)

    def advance(self, scheduler: Scheduler) -> bool:
        """Continue the best sequences by one token, when the search is `ready`.

        Args:
            scheduler: Holds the members.

        Returns:
            Whether the search has ended; `found` then holds the outputs.
        """
        width, lead = self.search.width, self.members[0]
        if not lead.awaited:
            for member in self.members:
                member.awaited = True
            forks, lead.forks = lead.forks, []
            for fork in forks:
                scheduler.start_fork(lead, fork)
        rated = [
            (-self._scores[member] - logprob, order, token, member)
            for order, member in enumerate(self._live)
            for token, logprob in self._offers[member][0]
            if logprob > -math.inf
        ]
        rated.sort(key=lambda entry: entry[:3])
        most = lead.request.length(scheduler.limit)
        chosen: list[_Candidate] = []
        for place, (loss, _, token, parent) in enumerate(rated[: self._candidates]):
            if place >= width and len(chosen) == width:  # what ends a worse output is no matter any more
                break
            sampler = parent.sampler.copy()
            ended = token in lead.ends
            if not ended:
                sampler.accept(token)
                ended = sampler.constraint is not None and sampler.constraint.complete
            candidate = _Candidate(parent, token, -loss, sampler)
            if ended or len(parent.tokens) + 1 >= most:
                if place < width:
                    self._finish(candidate, ended)
            elif len(chosen) < width:
                chosen.append(candidate)
        if not chosen or self._decided(chosen[0]):
            return True
        self._continue(chosen, scheduler)
        return False

    def _rating(self, score: float, tokens: int) -> float:
        return score / tokens**self.search.length_penalty

    def _finish(self, candidate: _Candidate, ended: bool) -> None:
        parent = candidate.parent
        tokens = [*parent.tokens[len(parent.request.prompt) :], candidate.token]
        rating = self._rating(candidate.score, len(tokens))
        self.found.append(Found(rating, tokens, self._report(candidate), ended))
        self.found.sort(key=lambda found: -found.rating)
        del self.found[self.search.width :]

    def _report(self, candidate: _Candidate) -> list[TokenLogprob]:
        """The log-probabilities of a candidate's tokens, if they are wanted."""
        raw, top = self._offers[candidate.parent][1], candidate.parent.request.sampling.logprobs
        if raw is None or top is None:
            return []
        return [*self._reports[candidate.parent], logprobs(raw, candidate.token, top)]

    def _decided(self, best: _Candidate) -> bool:
        """Whether unfinished sequences, of which `best` is the most probable, cannot change the result."""
        if len(self.found) < self.search.width:
            return False
        possible = self._rating(best.score, best.parent.output + 1)
        return self.search.early_stopping or possible <= self.found[-1].rating

    def _continue(self, chosen: list[_Candidate], scheduler: Scheduler) -> None:
        """Give each candidate a member: the first one of a parent gets the parent, others get members that
        are not continued.
        """
        reports = [self._report(candidate) for candidate in chosen]
        parents = {candidate.parent for candidate in chosen}
        free = [member for member in self.members if member not in parents]
        places: list[Sequence] = []
        for candidate in chosen:
            if candidate.parent not in places:
                places.append(candidate.parent)
                continue
            member = free.pop(0)
            scheduler.replace(member, candidate.parent)
            places.append(member)
        self._live = places
        self._offers.clear()
        for member, candidate, report in zip(places, chosen, reports, strict=True):
            member.tokens.append(candidate.token)
            member.sampler = candidate.sampler
            self._scores[member], self._reports[member] = candidate.score, report


__all__ = ["Beams", "Found"]

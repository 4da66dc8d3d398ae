"""`Sequence`: the engine's state of one choice of a request; `Guess`: tokens that may follow it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..tokenizer import Detokenizer
from .adapters import LoadedAdapter
from .prefix_cache import PrefixNode
from .reasoning_budget import BudgetState
from .sampling import Floats, Sampler
from .stopping import StopStrings
from .stream import Request, Stream


class Sequence:
    """One choice of a request: its tokens, and how many of them the KV cache holds."""

    def __init__(
        self,
        request: Request,
        stream: Stream,
        index: int,
        order: int,
        sampler: Sampler,
        detokenizer: Detokenizer,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.request = request
        self.stream = stream
        self.index = index
        self.rank = (request.priority, order, index)
        """Sort key: sequences of lower rank run first, those of higher rank are preempted first."""
        self.ends = ends
        """The tokens that end the output."""
        self.sampler = sampler
        self.detokenizer = detokenizer
        self.stops = StopStrings(request.stop)
        self.budget = None if request.reasoning is None else BudgetState(request.reasoning)
        self.tokens = list(request.prompt)
        self.contents: list[int] = []
        """The numbers that tell the prompt's tokens apart in the prefix cache if it has images; empty: the
        tokens themselves. The scheduler sets it.
        """
        self.held = 0
        """The number of `tokens` in the cache; all but the last during decoding."""
        self.table: list[int] = []
        """The sequence's pages; -1 for those that no later token sees, so that it does not read them."""
        self.unseen = 0
        """The number of pages at the beginning that no later token sees."""
        self.nodes: list[PrefixNode] = []
        """Nodes of the prefix cache that own the first of these pages. Pages that this sequence does not read
        may have been evicted.
        """
        self.adapter: LoadedAdapter | None = None
        self.root: PrefixNode
        """The root of the tree of prefixes with its adapter; the scheduler sets it."""
        self.slot = -1
        self.forks: list[Sequence] = []
        """Choices that continue this one's prompt once the cache holds it."""
        self.awaited = False
        """Whether others wait for it, as those of a beam search do for each other once the prompt is
        computed.
        """
        self.service = 0
        """Prefilled tokens so far, plus the scheduler's virtual service when the sequence started. The
        sequence with the least is prefilled next.
        """
        self.submitted = 0.0
        self.admitted = 0.0
        self.emitted = 0.0
        """Time of the last output, in seconds of `time.perf_counter`; 0: none yet."""
        self.resumed = False
        """Whether the sequence was preempted."""
        self.uniform = True
        """Whether prefill and decoding give the same values: see `Runner.uniform`."""
        self.finished = False

    def known_by(self, start: int, end: int) -> list[int]:
        """The numbers that tell the tokens `start` to `end` apart in the prefix cache."""
        if not self.contents:
            return self.tokens[start:end]
        return [*self.contents[start:end], *self.tokens[max(start, len(self.contents)) : end]]

    @property
    def adapter_number(self) -> int:
        """The place of its adapter in the model; 0: none."""
        return 0 if self.adapter is None else self.adapter.number

    @property
    def queue(self) -> str | None:
        """The queue in which it waits: that of its user; None: other sequences wait for it."""
        return None if self.awaited else self.request.user

    @property
    def output(self) -> int:
        """The number of chosen tokens."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def rejects(self) -> bool:
        """Whether a draft model's guesses are accepted by rejection sampling.

        That is the case for drawn outputs that need not be repeatable (no seed).
        """
        return self.request.sampling.seed is None and not self.request.sampling.greedy

    @property
    def prefix(self) -> int:
        """The number of `tokens` that are prefilled, if needed a second time, and shared.

        If prefill and decoding give different values, it is the prompt's length, since the output was decoded
        when it was chosen. If the prompt's log-probabilities are wanted, it is 1, since only decoding gives
        the logits after every token.
        """
        if self.request.prompt_logprobs is not None:
            return 1
        return len(self.tokens) if self.uniform else len(self.request.prompt)

    @property
    def missing(self) -> int:
        """The number of `tokens` that the cache does not hold."""
        return len(self.tokens) - self.held

    @property
    def decoding(self) -> bool:
        return self.held >= max(1, self.prefix - self.uniform)


@dataclass
class Guess:
    """Tokens that may come next."""

    tokens: list[int]
    probabilities: list[Floats] = field(default_factory=list)
    """The distribution from which each token was drawn, f64 [vocabulary], if rejection sampling decides; else
    empty.
    """


__all__ = ["Guess", "Sequence"]

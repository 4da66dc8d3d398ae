"""`Sequence`: one choice of a request, as the engine computes it."""

from __future__ import annotations

from ..tokenizer import Detokenizer
from .prefix_cache import Node
from .sampling import Chooser
from .stopping import StopStrings
from .stream import Request, Stream


class Sequence:
    """One choice of a request: its tokens, and how many of them the KV cache holds."""

    def __init__(
        self, request: Request, stream: Stream, index: int, order: int, chooser: Chooser, detokenizer: Detokenizer
    ) -> None:
        self.request = request
        self.stream = stream
        self.index = index
        self.rank = (request.priority, order, index)
        """Who goes first, and who makes room for whom."""
        self.chooser = chooser
        self.detokenizer = detokenizer
        self.stops = StopStrings(request.stop)
        self.tokens = list(request.prompt)
        self.held = 0
        """How many of `tokens` the cache holds: all but the last, while the sequence is decoded."""
        self.drafted = 0
        """How many of them the draft model's cache holds."""
        self.table: list[int] = []
        """The pages."""
        self.nodes: list[Node] = []
        """The first of these pages, which are the prefix cache's."""
        self.slot = -1
        self.forks: list[Sequence] = []
        """Choices that go on from this one's prompt once the cache holds it."""
        self.service = 0
        """Tokens of prefill so far, plus what had been given to others when the sequence came: the least goes next."""
        self.submitted = 0.0
        self.admitted = 0.0
        self.emitted = 0.0
        """When, in seconds of `time.perf_counter`; 0 not yet."""
        self.resumed = False
        """Whether it was preempted."""
        self.uniform = True
        """Whether it does not matter if tokens are prefilled or decoded: see `Runner.uniform`."""
        self.finished = False

    @property
    def output(self) -> int:
        """How many tokens were chosen."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def rejects(self) -> bool:
        """Whether a draft model's guesses are accepted by rejection sampling: outputs that nobody asked to be repeatable."""
        return self.request.sampling.seed is None and not self.request.sampling.greedy

    @property
    def prefix(self) -> int:
        """How many of `tokens` are prefilled, if need be a second time, and shared with others: where that makes a difference, the prompt only, since what follows
        was decoded when it was chosen."""
        return len(self.tokens) if self.uniform else len(self.request.prompt)

    @property
    def missing(self) -> int:
        """How many of `tokens` the cache does not hold."""
        return len(self.tokens) - self.held

    @property
    def decoding(self) -> bool:
        return self.held >= max(1, self.prefix - self.uniform)


__all__ = ["Sequence"]

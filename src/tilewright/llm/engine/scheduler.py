"""`Scheduler`: which sequences run, and in which pages of the KV cache their tokens lie."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List

import numpy as np

from ..runner import PAGE, Ints
from .pages import PagePool
from .prefix_cache import Node, PrefixCache
from .sequence import Sequence

log = logging.getLogger(__name__)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


class Scheduler:
    """Slots, pages and their users.

    Who waits is taken by priority, then from the user who was served least (virtual token counters, Sheng et al. 2024), then by time of arrival.
    Prompts take turns chunk by chunk (start-time fair queueing, Goyal et al. 1996), so that a short one never waits for a long one. When pages run out, the last by
    priority and arrival gives up its own and waits again; what it computed stays in the prefix cache for as long as there is room.
    """

    def __init__(
        self,
        *,
        pages: int,
        slots: int,
        context: int,
        share: bool,
        keep: bool,
        copy_page: Callable[[int, int], None],
    ) -> None:
        """
        Args:
            pages: of the KV cache.
            slots: most sequences that run at once.
            context: most tokens of a sequence.
            share: whether sequences may read each other's pages.
            keep: whether pages stay when nobody reads them any more.
            copy_page: of the runner.
        """
        self.limit = min(context, pages * PAGE)
        """Most tokens of a sequence."""
        self.pool = PagePool(pages)
        self.cache = PrefixCache(self.pool, keep)
        self.running: list[Sequence] = []
        """By rank."""
        self.tables: Ints = np.full((slots, _pages(self.limit)), -1, np.int32)
        """The page table of each slot."""
        self.drafts = False
        """Whether a draft model's cache has the same pages: then what it has not is not shared."""
        self.preemptions = 0
        self.waiting = 0
        self.share = share
        self._copy_page = copy_page
        self._slots = list(range(slots - 1, -1, -1))
        self._queues: dict[str, list[tuple[tuple[int, int, int], Sequence]]] = {}  # of each user, by rank
        self._served: dict[str, float] = {}  # what users with sequences here have got
        self._sequences: dict[str, int] = {}  # how many these are
        self._virtual = 0  # the service of whose turn it was last
        self._blocked: tuple[Sequence, int] | None = None  # who did not fit, and how many pages there were

    # Who runs

    def add(self, sequence: Sequence) -> None:
        """A new sequence, to wait."""
        self._count(sequence.request.user)
        self._wait(sequence)

    def admit(self) -> list[Sequence]:
        """Let sequences run as long as there are slots and pages; who comes newly."""
        admitted = []
        while self.waiting:
            user = min(
                (user for user, queue in self._queues.items() if queue),
                key=lambda user: (self._queues[user][0][0][0], self._served[user], self._queues[user][0][0]),
            )
            sequence = self._queues[user][0][1]
            while not (room := self._has_room(sequence)) and self.running[-1].rank[0] > sequence.rank[0]:
                self.preempt(self.running[-1])
            if not room:
                break
            heapq.heappop(self._queues[user])
            self.waiting -= 1
            self._start(sequence)
            admitted.append(sequence)
        return admitted

    def start_fork(self, sequence: Sequence, fork: Sequence) -> bool:
        """Let a choice run that goes on from `sequence`, all of whose tokens are held. False where slot or page are wanting: it waits like any other."""
        self._publish(sequence)
        self._count(fork.request.user)
        rest = sequence.held - PAGE * len(sequence.nodes)
        if not self._slots or _pages(rest) > min(self.cache.available, 1):
            self._wait(fork)
            return False
        self._start(fork)
        self._join(fork, sequence.nodes)
        if rest:
            self._copy(fork, sequence.table[len(sequence.nodes)], rest)
        fork.drafted = min(fork.held, sequence.drafted)
        return fork.held == sequence.held

    def next_prefill(self, chunk: int) -> tuple[Sequence, int, int] | None:
        """Whose prompt goes on, and from which token to which; None if there is nothing to do. Pages are at hand."""
        while True:
            prompts = [s for s in self.running if not s.decoding]
            if not prompts:
                return None
            sequence = min(prompts, key=lambda s: (s.rank[0], s.service, s.rank))
            self._find_prefix(sequence)
            if sequence.decoding:  # all but the last token was found
                continue
            start, end = sequence.held, min(sequence.held + chunk, sequence.prefix)
            if end < sequence.prefix and end - end % PAGE > start:
                end -= end % PAGE  # only at a page's border can it go on with another's pages
            if not self._grow(sequence, end):
                continue
            self._virtual = sequence.service
            sequence.service += end - start
            return sequence, start, end

    def reserve(self, wanted: dict[Sequence, int]) -> dict[Sequence, int]:
        """Pages for so many tokens beyond those that each of these sequences, by rank, holds; for at most one where there are not enough. Who has got them, for how many."""
        wanted = {s: min(n, self.limit - s.held) for s, n in wanted.items()}
        if sum(_pages(s.held + n) - len(s.table) for s, n in wanted.items()) > self.cache.available:
            wanted = dict.fromkeys(wanted, 1)
        return {s: n for s, n in wanted.items() if s.slot >= 0 and self._grow(s, s.held + n)}

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and pages from a sequence; it waits to be computed again."""
        self.preemptions += 1
        sequence.resumed = True
        self._stop(sequence, keep=True)
        self._wait(sequence)

    def remove(self, sequence: Sequence, keep: bool = True) -> None:
        """A sequence is over, or is no longer wanted. `keep`: whether what its pages hold can be relied on."""
        sequence.finished = True
        if sequence.slot >= 0:
            self._stop(sequence, keep)
        else:
            queue = self._queues[sequence.request.user]
            queue.remove((sequence.rank, sequence))
            heapq.heapify(queue)
            self.waiting -= 1
        user = sequence.request.user
        self._sequences[user] -= 1
        if not self._sequences[user]:
            for table in (self._sequences, self._served, self._queues):
                table.pop(user, None)

    def serve(self, sequence: Sequence, tokens: float) -> None:
        """Count what a user got."""
        self._served[sequence.request.user] += tokens

    def everyone(self) -> Iterable[Sequence]:
        """All sequences, running and waiting."""
        return [*self.running, *(s for queue in self._queues.values() for _, s in queue)]

    # Pages

    def wrote(self, sequence: Sequence, tokens: int, drafted: int) -> None:
        """The cache, and the draft model's, now hold so many tokens of a prompt: whole pages are shared at once."""
        sequence.held, sequence.drafted = tokens, drafted
        self._publish(sequence)

    def pages_of(self, sequences: List[Sequence]) -> Ints:
        """Their page tables, -1 behind the end: i32 [sequences, most pages]."""
        width = max(len(s.table) for s in sequences)
        return self.tables[[s.slot for s in sequences], :width]

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether a slot is free, and pages for all its tokens besides those that others are going to need."""
        if not self.running:
            return True
        if not self._slots:
            return False
        available = self.cache.available
        if self._blocked is not None and self._blocked[0] is sequence and available <= self._blocked[1]:
            return False
        node, shared, tokens = self.cache.root, 0, sequence.tokens
        while self.share and (shared + 1) * PAGE <= min(sequence.prefix, len(tokens) - 1):
            child = self.cache.child(node, tokens[shared * PAGE : (shared + 1) * PAGE])
            if child is None or not child.users:
                break
            node, shared = child, shared + 1
        promised = sum(_pages(len(s.tokens) + 1) - len(s.table) + 1 for s in self.running)
        fits = available - promised >= _pages(len(tokens) + 1) - shared
        self._blocked = None if fits else (sequence, available)
        return fits

    def _count(self, user: str) -> None:
        if user not in self._sequences:  # who comes back has no claim for the time away
            self._served[user] = min(self._served.values(), default=0.0)
        self._sequences[user] = self._sequences.get(user, 0) + 1

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._queues.setdefault(sequence.request.user, []), (sequence.rank, sequence))
        self.waiting += 1

    def _start(self, sequence: Sequence) -> None:
        sequence.slot = self._slots.pop()
        sequence.service = self._virtual
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.rank)

    def _stop(self, sequence: Sequence, keep: bool) -> None:
        self.running.remove(sequence)
        self._blocked = None
        if keep:
            self._publish(sequence)
            done = len(sequence.nodes)
            if self.share and (rest := sequence.tokens[done * PAGE : self._shareable(sequence)]):
                parent = sequence.nodes[-1] if done else self.cache.root
                self.cache.settle(self.cache.insert(parent, rest, sequence.table.pop(done)))
        for page in sequence.table[len(sequence.nodes) :]:
            self.pool.give_back(page)
        self.cache.leave(sequence.nodes)
        self.tables[sequence.slot] = -1
        self._slots.append(sequence.slot)
        sequence.slot, sequence.held, sequence.drafted = -1, 0, 0
        sequence.table, sequence.nodes = [], []

    def _shareable(self, sequence: Sequence) -> int:
        """How many tokens its pages hold for others."""
        held = min(sequence.held, sequence.drafted) if self.drafts else sequence.held
        return min(held, sequence.prefix)

    def _publish(self, sequence: Sequence) -> None:
        """Hand a sequence's whole pages to the prefix cache."""
        if not self.share:
            return
        for i in range(len(sequence.nodes), self._shareable(sequence) // PAGE):
            parent = sequence.nodes[-1] if i else self.cache.root
            node = self.cache.insert(parent, sequence.tokens[i * PAGE : (i + 1) * PAGE], sequence.table[i])
            self.cache.use(node)
            sequence.nodes.append(node)
            self._set(sequence, i, node.page)  # another's, if it computed the same meanwhile

    def _find_prefix(self, sequence: Sequence) -> None:
        """Go on with pages that others have computed. At least the last token is left, for its logits."""
        if not self.share or sequence.held != len(sequence.nodes) * PAGE:
            return
        tokens, goal = sequence.tokens, min(sequence.prefix, len(sequence.tokens) - 1)
        before = sequence.held
        while (end := sequence.held + PAGE) <= goal:
            parent = sequence.nodes[-1] if sequence.nodes else self.cache.root
            node = self.cache.child(parent, tokens[sequence.held : end])
            if node is None:
                break
            self._join(sequence, [node])
        parent = sequence.nodes[-1] if sequence.nodes else self.cache.root
        found = self.cache.longest_part(parent, tokens[sequence.held : min(sequence.held + PAGE, goal)])
        if found is not None and found[1] >= PAGE // 4:  # less is computed along with the rest at no cost
            node, count = found
            self.cache.use(node)  # or the page taken might be just this one
            if self.cache.available:
                self._copy(sequence, node.page, count)
            self.cache.leave([node])
        sequence.drafted = sequence.held
        if sequence.index == 0 and not sequence.resumed:
            sequence.stream.cached_tokens += sequence.held - before

    def _join(self, sequence: Sequence, nodes: List[Node]) -> None:
        for node in nodes:
            self.cache.use(node)
            sequence.nodes.append(node)
            self._set(sequence, len(sequence.table), node.page)
            sequence.held += PAGE

    def _copy(self, sequence: Sequence, source: int, tokens: int) -> None:
        page = self.cache.take()
        assert page is not None, "who copies has looked"
        try:
            self._copy_page(source, page)
        except Exception:  # whatever a runner raises
            log.exception("a page of the KV cache could not be copied; its tokens are computed again")
            self.pool.give_back(page)
            return
        self._set(sequence, len(sequence.table), page)
        sequence.held += tokens

    def _set(self, sequence: Sequence, at: int, page: int) -> None:
        sequence.table[at : at + 1] = [page]
        self.tables[sequence.slot, at] = page

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for so many tokens, if need be of sequences that come last; False if the sequence itself is one of them, and waits again."""
        while len(sequence.table) * PAGE < tokens:
            page = self.cache.take()
            if page is not None:
                self._set(sequence, len(sequence.table), page)
                continue
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        return True

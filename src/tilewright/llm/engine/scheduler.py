"""`Scheduler`: decides which sequences run, and which pages of the KV cache hold their tokens."""

from __future__ import annotations

import heapq
import logging
from collections import abc
from collections.abc import Callable, Iterable

import numpy as np

from ..runner import PAGE, Ints, first_page, pages_seen
from .pages import PagePool
from .prefix_cache import PrefixCache, PrefixNode, seen_whole
from .sequence import Sequence
from .stored_prefixes import StoredPrefixes

log = logging.getLogger(__name__)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


class Scheduler:
    """Assigns slots and pages to sequences.

    Waiting sequences are admitted by priority, then by the least service to their user (virtual token
    counters, Sheng et al. 2024), then by arrival. Prompts alternate chunk by chunk (start-time fair queueing,
    Goyal et al. 1996), so a short prompt never waits for a whole long one. If no page is left, the last
    running sequence by priority and arrival is preempted: it releases its pages and waits again. Its computed
    pages stay in the prefix cache while there is room.
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
        begin: Callable[[Sequence], object] = lambda sequence: None,
        window: int | None = None,
        chunk: int | None = None,
    ) -> None:
        """Make a scheduler without sequences.

        Args:
            pages: of the KV cache.
            slots: most sequences that run at the same time.
            context: most tokens of a sequence.
            share: whether sequences may read each other's pages.
            keep: whether pages without readers stay in the prefix cache.
            copy_page: copies one page of the cache to another.
            begin: called with each sequence that gets a slot.
            window: the last tokens that a token can see in any layer; None: all.
            chunk: most tokens of a call that need not have pages for whole sequences, but for their windows;
                None: they must.
        """
        seen = None if window is None or chunk is None else pages_seen(window, chunk)
        self.limit = context if seen is not None and seen <= pages else min(context, pages * PAGE)
        """The most tokens of a sequence."""
        self._most = _pages(self.limit) + 1 if seen is None else seen
        """The most pages that a sequence needs at the same time."""
        self.pool = PagePool(pages)
        self.cache = PrefixCache(self.pool, keep)
        self.running: list[Sequence] = []
        """Running sequences, ordered by rank."""
        self.tables: Ints = np.full((slots, _pages(self.limit)), -1, np.int32)
        """The page table of each slot."""
        self.stored: StoredPrefixes | None = None
        """Pages in files."""
        self.preemptions = 0
        self.waiting = 0
        self.share = share
        self._copy_page, self._begin = copy_page, begin
        self._window = window
        self.released = 0
        """Pages that were freed because no later token sees their tokens."""
        self._slots = list(range(slots - 1, -1, -1))
        # each user's waiting sequences, ordered by rank; under None those for which others wait
        self._queues: dict[str | None, list[tuple[tuple[int, int, int], Sequence]]] = {}
        self._served: dict[str, float] = {}  # service received by users with sequences here
        self._sequences: dict[str, int] = {}  # number of sequences of each user
        self._virtual = 0  # service of the sequence that was prefilled last
        # a sequence that did not fit, and the number of available pages then
        self._blocked: tuple[Sequence, int] | None = None

    # Admission and removal.

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to the queue."""
        for each in (sequence, *sequence.forks):
            each.root = self.cache.root if each.adapter is None else each.adapter.root
            if each.request.images is not None:
                each.contents = self.cache.contents(each.request.prompt, each.request.images)
        self._count(sequence.request.user)
        self._wait(sequence)

    def admit(self) -> list[Sequence]:
        """Start waiting sequences while slots and pages last; return those started."""
        admitted = []
        while self.waiting:
            user = min((user for user, queue in self._queues.items() if queue), key=self._turn)
            sequence = self._queues[user][0][1]
            # Later sequences give way to one that others wait for, so that these do not wait for each other.
            most = 1 if user is not None else 2
            while (
                not (room := self._has_room(sequence)) and self.running[-1].rank[:most] > sequence.rank[:most]
            ):
                self.preempt(self.running[-1])
            if not room:
                break
            heapq.heappop(self._queues[user])
            self._left(user)
            self._start(sequence)
            admitted.append(sequence)
        return admitted

    def start_fork(self, sequence: Sequence, fork: Sequence) -> bool:
        """Start a choice that continues `sequence`, all of whose tokens are in the cache.

        Return whether the fork holds the same tokens. Without a free slot or page it is queued, and the
        result is False.
        """
        self._publish(sequence)
        self._count(fork.request.user)
        rest = sequence.held - PAGE * len(sequence.nodes)
        if not self.share or not self._slots or _pages(rest) > min(self.cache.available, 1):
            self._wait(fork)
            return False
        self._start(fork)
        self._follow(fork, sequence)
        self._leave_missing(fork)
        self.release_unseen(fork)
        return fork.held == sequence.held

    def replace(self, sequence: Sequence, other: Sequence) -> None:
        """Give a sequence the tokens of another one with the same prompt, and copies of its pages.

        Pages of tokens that both have in common stay. Where there are no free pages or the other one has
        none, the rest is computed again.
        """
        common = next(
            (i for i, (a, b) in enumerate(zip(sequence.tokens, other.tokens, strict=False)) if a != b),
            min(len(sequence.tokens), len(other.tokens)),
        )
        sequence.tokens = list(other.tokens)
        if sequence.slot < 0:
            return
        self._shorten(sequence, min(common, sequence.held) // PAGE)
        if other.slot >= 0:
            self._follow(sequence, other)
        self._leave_missing(sequence)

    def next_prefill(self, chunk: int) -> tuple[Sequence, int, int] | None:
        """Choose the sequence whose prompt continues, and the range (start, end) of its next tokens.

        The pages for the range are allocated. Return None if no prompt is unfinished.
        """
        while True:
            prompts = [s for s in self.running if not s.decoding]
            if not prompts:
                return None
            sequence = min(prompts, key=lambda s: (s.rank[0], s.service, s.rank))
            self._find_prefix(sequence)
            if sequence.decoding:  # all tokens but the last were in the prefix cache
                continue
            start, end = sequence.held, min(sequence.held + chunk, sequence.prefix)
            if end < sequence.prefix and end - end % PAGE > start:
                end -= end % PAGE  # the sequence can continue with shared pages only from a page's border
            if sequence.request.images is not None:
                end = sequence.request.images.cut(start, end)
            if not self._grow(sequence, end):
                continue
            self._virtual = sequence.service
            sequence.service += end - start
            return sequence, start, end

    def reserve(self, wanted: dict[Sequence, int]) -> dict[Sequence, int]:
        """Allocate pages for this many tokens beyond those in the cache, for each sequence in order of rank.

        If there are too few pages, each sequence gets room for at most one token. Return the sequences that
        got pages, with their numbers of tokens.
        """
        wanted = {s: min(n, self.limit - s.held) for s, n in wanted.items()}
        if sum(_pages(s.held + n) - len(s.table) for s, n in wanted.items()) > self.cache.available:
            wanted = dict.fromkeys(wanted, 1)
        return {s: n for s, n in wanted.items() if s.slot >= 0 and self._grow(s, s.held + n)}

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and pages from a sequence and queue it for another computation."""
        self.preemptions += 1
        sequence.resumed = True
        self._stop(sequence, keep=True)
        self._wait(sequence)

    def remove(self, sequence: Sequence, keep: bool = True) -> None:
        """Remove a sequence that has finished or is no longer wanted.

        `keep` tells whether the contents of its pages are valid.
        """
        sequence.finished = True
        if sequence.slot >= 0:
            self._stop(sequence, keep)
        else:
            queue = self._queues[sequence.queue]
            queue.remove((sequence.rank, sequence))
            heapq.heapify(queue)
            self._left(sequence.queue)
        user = sequence.request.user
        self._sequences[user] -= 1
        if not self._sequences[user]:
            for table in (self._sequences, self._served, self._queues):
                table.pop(user, None)

    def charge(self, sequence: Sequence, tokens: float) -> None:
        """Add to the service of the sequence's user."""
        self._served[sequence.request.user] += tokens

    def all_sequences(self) -> Iterable[Sequence]:
        """Return all sequences, running and waiting."""
        return [*self.running, *(s for queue in self._queues.values() for _, s in queue)]

    # Pages.

    def record_prefill(self, sequence: Sequence, tokens: int) -> None:
        """Record that the cache holds this many tokens of a prompt. Whole pages are shared at once."""
        sequence.held = tokens
        self._publish(sequence)

    def release_unseen(self, sequence: Sequence) -> None:
        """Free the pages whose tokens no later token of the sequence sees. Pages of the prefix cache stay
        there while there is room.
        """
        if self._window is None or sequence.slot < 0:
            return
        first = first_page(sequence.held, self._window)
        for at in range(sequence.unseen, first):
            page = sequence.table[at]
            if page < 0:
                continue
            if at < len(sequence.nodes):
                self.cache.unread(sequence.nodes[at])
            else:
                self.pool.give_back(page)
            self._set(sequence, at, -1)
            self.released += 1
        sequence.unseen = max(sequence.unseen, first)

    def pages_for(self, tokens: int) -> int:
        """The most pages that a sequence of so many tokens needs at the same time."""
        return min(_pages(tokens), self._most)

    def pages_of(self, sequences: abc.Sequence[Sequence]) -> Ints:
        """Return the sequences' page tables, padded with -1: i32 [sequences, most pages]."""
        width = max(len(s.table) for s in sequences)
        return self.tables[[s.slot for s in sequences], :width]

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether a slot is free, and enough pages for all tokens besides those reserved for running
        sequences.
        """
        if not self.running:
            return True
        if not self._slots:
            return False
        available = self.cache.available
        if self._blocked is not None and self._blocked[0] is sequence and available <= self._blocked[1]:
            return False
        node, shared, tokens = sequence.root, 0, sequence.known_by(0, len(sequence.tokens))
        while self.share and (shared + 1) * PAGE <= min(sequence.prefix, len(tokens) - 1):
            child = self.cache.child(node, tokens[shared * PAGE : (shared + 1) * PAGE])
            if child is None or not child.readers:
                break
            node, shared = child, shared + 1
        # a page more each, so that few are preempted; those that wait for others never fill it
        more = 0 if sequence.awaited else 1
        promised = sum(
            max(0, min(_pages(len(s.tokens) + 1) - len(s.table), self._most - len(s.table) + s.unseen)) + more
            for s in self.running
        )
        fits = available - promised >= min(_pages(len(tokens) + 1) - shared, self._most)
        self._blocked = None if fits else (sequence, available)
        return fits

    def _count(self, user: str) -> None:
        if user not in self._sequences:  # a returning user gets no credit for the time away
            self._served[user] = min(self._served.values(), default=0.0)
        self._sequences[user] = self._sequences.get(user, 0) + 1

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._queues.setdefault(sequence.queue, []), (sequence.rank, sequence))
        self.waiting += 1

    def _left(self, user: str | None) -> None:
        """Count a sequence that has left the queue of a user."""
        self.waiting -= 1
        if user is None and not self._queues[None]:
            del self._queues[None]

    def _turn(self, user: str | None) -> tuple[object, ...]:
        """The sort key of the queue of a user: the least comes next."""
        rank = self._queues[user][0][0]
        return user is not None, rank[0], 0.0 if user is None else self._served[user], rank

    def _start(self, sequence: Sequence) -> None:
        sequence.slot = self._slots.pop()
        sequence.service = self._virtual
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.rank)
        self._begin(sequence)

    def _stop(self, sequence: Sequence, keep: bool) -> None:
        self.running.remove(sequence)
        self._blocked = None
        if keep:
            self._publish(sequence)
        done = len(sequence.nodes)
        read = sequence.table[:done]
        if keep:
            if self.share and (rest := sequence.known_by(done * PAGE, self._shareable(sequence))):
                parent = sequence.nodes[-1] if done else sequence.root
                self.cache.settle(self.cache.insert(parent, rest, sequence.table.pop(done)))
        for page in sequence.table[len(sequence.nodes) :]:
            if page >= 0:
                self.pool.give_back(page)
        self.cache.leave(sequence.nodes, read)
        self.tables[sequence.slot] = -1
        self._slots.append(sequence.slot)
        sequence.slot, sequence.held, sequence.unseen = -1, 0, 0
        sequence.table, sequence.nodes = [], []

    def _shareable(self, sequence: Sequence) -> int:
        """Return how many of the tokens in its pages may be shared."""
        held = sequence.held
        if sequence.unseen > len(sequence.nodes):
            held = min(held, PAGE * len(sequence.nodes))
        return min(held, sequence.prefix)

    def _publish(self, sequence: Sequence) -> None:
        """Add a sequence's whole pages to the prefix cache."""
        if not self.share:
            return
        for i in range(len(sequence.nodes), self._shareable(sequence) // PAGE):
            parent = sequence.nodes[-1] if i else sequence.root
            known = sequence.known_by(i * PAGE, (i + 1) * PAGE)
            node = self.cache.insert(parent, known, sequence.table[i])
            self.cache.use(node)
            sequence.nodes.append(node)
            # another sequence's page, if that one computed the same tokens meanwhile
            self._set(sequence, i, node.page)

    def _find_prefix(self, sequence: Sequence) -> None:
        """Extend a sequence with pages that others have computed.

        At least the last token stays to be computed, for its logits.
        """
        if not self.share or sequence.held != len(sequence.nodes) * PAGE:
            return
        tokens = sequence.known_by(0, len(sequence.tokens))
        goal = min(sequence.prefix, len(tokens) - 1)
        before = sequence.held
        while (end := sequence.held + PAGE) <= goal:
            parent = sequence.nodes[-1] if sequence.nodes else sequence.root
            node = self.cache.child(parent, tokens[sequence.held : end])
            if node is None and self.stored is not None:
                node = self.stored.child(parent, tokens[sequence.held : end])
            if node is None:
                break
            self._join(sequence, [node])
        if sequence.held > before:
            self._read_missing(sequence, tokens)
            self._leave_missing(sequence)
        parent = sequence.nodes[-1] if sequence.nodes else sequence.root
        partial = self.cache.longest_part(parent, tokens[sequence.held : min(sequence.held + PAGE, goal)])
        # fewer tokens are computed along with the rest at no cost
        if partial is not None and partial[1] >= PAGE // 4:
            node, count = partial
            self.cache.use(node)  # else `take` might evict this very page
            if self.cache.available:
                self._copy(sequence, node.page, count)
            self.cache.leave([node])
        self.release_unseen(sequence)
        if sequence.index == 0 and not sequence.resumed:
            sequence.stream.cached_tokens += sequence.held - before

    def _join(self, sequence: Sequence, nodes: abc.Sequence[PrefixNode]) -> None:
        """Add the pages of nodes to a sequence, -1 for those that were evicted."""
        for node in nodes:
            self.cache.use(node)
            sequence.nodes.append(node)
            self._set(sequence, len(sequence.table), node.page)
            sequence.held += PAGE

    def _follow(self, sequence: Sequence, other: Sequence) -> None:
        """Share the pages that another sequence has in the prefix cache behind those of a sequence, and copy
        its other pages while there are free ones.
        """
        if len(sequence.table) == len(sequence.nodes):
            self._join(sequence, other.nodes[len(sequence.nodes) :])
        for page in other.table[len(sequence.table) :]:
            held = min(PAGE, other.held - sequence.held)
            if page < 0:
                self._set(sequence, len(sequence.table), page)
                sequence.held += PAGE
                sequence.unseen = len(sequence.table)
            elif held <= 0 or not self.cache.available or not self._copy(sequence, page, held):
                break

    def _read_missing(self, sequence: Sequence, tokens: list[int]) -> None:
        """Read evicted pages of the prefix cache that the next token sees from files, if they are there."""
        first = 0 if self._window is None else first_page(sequence.held, self._window)
        for at in range(first, len(sequence.nodes) if self.stored is not None else 0):
            if sequence.table[at] < 0 and self.stored is not None:
                node, parent = sequence.nodes[at], sequence.nodes[at - 1] if at else sequence.root
                if node.page < 0 and not self.stored.child(parent, tokens[at * PAGE : (at + 1) * PAGE]):
                    break
                self.cache.read(node)
                self._set(sequence, at, node.page)

    def _leave_missing(self, sequence: Sequence) -> None:
        """Take the last pages from a sequence until it has all that its next token sees."""
        self._shorten(sequence, seen_whole(sequence.table, sequence.held, self._window))

    def _shorten(self, sequence: Sequence, pages: int) -> None:
        """Leave a sequence its first pages, and the tokens in them."""
        for page in sequence.table[max(pages, len(sequence.nodes)) :]:
            if page >= 0:
                self.pool.give_back(page)
        self.cache.leave(sequence.nodes[pages:], sequence.table[pages : len(sequence.nodes)])
        del sequence.nodes[pages:], sequence.table[pages:]
        self.tables[sequence.slot, pages:] = -1
        sequence.held = min(sequence.held, pages * PAGE)
        sequence.unseen = min(sequence.unseen, pages)

    def _copy(self, sequence: Sequence, source: int, tokens: int) -> bool:
        """Add a copy of a page that holds so many tokens to a sequence. Return whether that succeeded."""
        page = self.cache.take()
        assert page is not None, "the caller checked that a page is available"
        try:
            self._copy_page(source, page)
        except Exception:  # a runner may raise anything
            log.exception("a page of the KV cache could not be copied; its tokens are computed again")
            self.pool.give_back(page)
            return False
        self._set(sequence, len(sequence.table), page)
        sequence.held += tokens
        return True

    def _set(self, sequence: Sequence, at: int, page: int) -> None:
        sequence.table[at : at + 1] = [page]
        self.tables[sequence.slot, at] = page

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate pages for this many tokens, preempting sequences of lowest rank if needed.

        Return False if the sequence itself was preempted.
        """
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

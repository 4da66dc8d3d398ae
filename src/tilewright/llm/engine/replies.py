"""`Replies`: finished replies are computed as prompts while the engine is idle, for the next turns of their
conversations.

A library's decoding and prefill differ in the last bits, and a chat's next prompt prefills the reply before
it. Decoded pages can therefore not be shared without making an answer depend on what was served before.
Prefilled ones can: a reply is prefilled ahead of the request that will contain it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ..runner import PAGE, Ints, first_page
from .adapters import LoadedAdapter
from .prefix_cache import PrefixCache, PrefixNode, seen_whole
from .sequence import Sequence as Choice

log = logging.getLogger(__name__)

MOST = 64
"""Most replies that wait; with more, the oldest are forgotten."""
_LEAST = PAGE // 4
"""Tokens of a reply below which it is not computed ahead."""

Prefill = Callable[[Ints, int, Ints, int], None]
"""Computes tokens that follow a number of tokens in pages, with the adapter of a number."""


class Replies:
    """Conversations whose last replies are not yet in the tree of prefixes.

    Args:
        cache: The tree of prefixes.
        chunk: Most tokens of one call of `prefill`.
        prefill: Computes tokens; it is called only while no sequence runs.
        window: The last tokens that a token can see in any layer; None: all.
    """

    def __init__(self, cache: PrefixCache, chunk: int, prefill: Prefill, window: int | None = None) -> None:
        self._cache, self._chunk, self._prefill, self._window = cache, chunk, prefill, window
        self._waiting: deque[tuple[list[int], PrefixNode, LoadedAdapter | None]] = deque(maxlen=MOST)
        self.computed = 0
        """Tokens that were computed ahead."""

    def add(self, choice: Choice) -> None:
        """Remember a choice that has ended, unless its pages can be shared as they are, or its prompt has
        images, whose vectors are not computed here.
        """
        shows = choice.request.images is not None
        if not shows and choice.prefix == len(choice.request.prompt) and choice.output >= _LEAST:
            self._waiting.append((choice.tokens, choice.root, choice.adapter))

    @property
    def waiting(self) -> bool:
        """Whether there is a reply to compute."""
        return bool(self._waiting)

    def step(self) -> bool:
        """Compute a chunk of the latest reply. Return whether there was one.

        Whole pages enter the tree at once, so nothing is lost if a request arrives between two steps.
        """
        if not self._waiting:
            return False
        tokens, root, adapter = self._waiting[-1]
        path = self._path(root, tokens)
        start = len(path) * PAGE
        rest = tokens[start : start + PAGE]
        part = self._cache.longest_part(path[-1] if path else root, rest) if rest else None
        done = not rest or (len(rest) < PAGE and part is not None and part[1] == len(rest))
        if done or (adapter is not None and adapter.unloaded):
            self._waiting.pop()
            return True
        end = start + max(PAGE, self._chunk // PAGE * PAGE)
        first = 0 if self._window is None else first_page(start, self._window)
        pages = [node.page if at >= first else -1 for at, node in enumerate(path)]
        for node in path:
            self._cache.use(node)
        for node in path[:first]:
            if node.page >= 0:
                self._cache.unread(node)
        try:
            number = 0 if adapter is None else adapter.number
            if not self._compute(tokens[:end], path, list(pages), root, number):
                self._waiting.pop()
        finally:
            self._cache.leave(path, pages + [node.page for node in path[len(pages) :]])
        return True

    def _path(self, root: PrefixNode, tokens: Sequence[int]) -> list[PrefixNode]:
        """The nodes of the whole pages of these tokens that are in the tree, as far as their next token has
        the pages that it sees.
        """
        path: list[PrefixNode] = []
        while (end := (len(path) + 1) * PAGE) <= len(tokens):
            node = self._cache.child(path[-1] if path else root, tokens[end - PAGE : end])
            if node is None:
                break
            path.append(node)
        del path[seen_whole([node.page for node in path], len(path) * PAGE, self._window) :]
        return path

    def _compute(
        self, tokens: list[int], path: list[PrefixNode], pages: list[int], root: PrefixNode, adapter: int
    ) -> bool:
        """Compute the tokens after those of `path`, which are in `pages`, and add their pages to the tree and
        whole ones to `path`.

        Return False if pages are missing or the model failed.
        """
        start = len(path) * PAGE
        for _ in range(start, len(tokens), PAGE):
            page = self._cache.take()
            if page is None:
                break
            pages.append(page)
        own = pages[len(path) :]
        try:
            if len(pages) * PAGE < len(tokens):
                return False
            table = np.array(pages, np.int32)
            for at in range(start, len(tokens), self._chunk):
                part = np.array(tokens[at : at + self._chunk], np.int32)
                self._prefill(part, at, table[: -(-(at + len(part)) // PAGE)], adapter)
            self.computed += len(tokens) - start
            for at in range(start, len(tokens), PAGE):
                held = tokens[at : at + PAGE]
                node = self._cache.insert(path[-1] if path else root, held, own.pop(0))
                if len(held) == PAGE:
                    self._cache.use(node)
                    path.append(node)
                else:
                    self._cache.settle(node)
            return True
        except Exception:  # a runner may raise anything, and no request depends on this call
            log.exception("a reply could not be computed ahead of its conversation's next turn")
            return False
        finally:
            for page in own:
                self._cache.pool.give_back(page)


__all__ = ["MOST", "Replies"]

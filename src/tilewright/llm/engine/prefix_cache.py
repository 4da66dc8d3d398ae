"""`PrefixCache`: pages of the KV cache by the tokens they hold, a radix tree whose letters are pages.

Prefix sharing by a radix tree is from SGLang (Zheng et al. 2024). A node here is one page, so sharing, counting and eviction have the unit in which
memory is handed out, and no edge is ever split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import InternalError
from .pages import PagePool


class Node:
    """A page and the tokens in it, behind the pages of the nodes above."""

    __slots__ = ("children", "key", "keys", "page", "parent", "users")

    def __init__(self, parent: Node | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        """The tokens, 4 bytes each, big-endian: keys sort like the tokens, so that the longest common beginning is with a neighbor. Shorter than a page: a leaf."""
        self.page = page
        self.users = 0
        """Running sequences that read the page; a user of a node uses all nodes above it."""
        self.keys: list[bytes] = []
        self.children: list[Node] = []


def _common(a: bytes, b: bytes) -> int:
    """With how many tokens both begin."""
    n = min(len(a), len(b)) // 4
    if a[: 4 * n] == b[: 4 * n]:
        return n
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differ.argmax())


class PrefixCache:
    """Pages that stay useful: sequences that begin alike share them, and what nobody uses is evicted, the least recently used first.

    Only whole pages are shared. A page in which a sequence goes on differently, or that is not full, is found by `longest_part`, to be copied.
    """

    def __init__(self, pool: PagePool, keep: bool = True) -> None:
        """
        Args:
            pool: where pages come from and go back to.
            keep: whether pages that nobody uses stay; else only running sequences share.
        """
        self.pool = pool
        self.keep = keep
        self.root = Node(None, b"", -1)
        self.evicted = 0
        self._idle: OrderedDict[Node, None] = (
            OrderedDict()
        )  # nobody uses them; the children of such a node stand before it

    @property
    def available(self) -> int:
        """Pages that `take` can still give."""
        return self.pool.free + len(self._idle)

    @property
    def idle(self) -> int:
        """Pages that are kept though no running sequence uses them."""
        return len(self._idle)

    def take(self) -> int | None:
        """A page to write to, of which the caller is the owner; the least recently used idle page is evicted if none is free. None where all are in use."""
        page = self.pool.take()
        if page is None and self._idle:
            node, _ = self._idle.popitem(last=False)
            self._remove(node)
            self.evicted += 1
            page = self.pool.take()
        return page

    def child(self, node: Node, tokens: Sequence[int]) -> Node | None:
        """The page behind `node` that holds just these tokens, as many as make a page."""
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        return node.children[at] if at < len(node.keys) and node.keys[at] == key else None

    def longest_part(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int] | None:
        """The page behind `node` that begins with the most of these tokens, at most a page, and how many it does (at least one)."""
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        near = [(n, _common(n.key, key)) for n in node.children[max(at - 1, 0) : at + 1]]
        best = max(near, key=lambda found: found[1], default=None)
        return best if best and best[1] else None

    def use(self, node: Node) -> None:
        """Count one more user of the node; its parent must be in use by the same user."""
        node.users += 1
        self._idle.pop(node, None)

    def leave(self, nodes: Sequence[Node]) -> None:
        """Take back `use` of a path of nodes, given from the root downward."""
        for node in reversed(nodes):
            node.users -= 1
            if node.users < 0:
                raise InternalError(f"page {node.page} of the KV cache was left more often than used")
            if node.users == 0:
                if self.keep:
                    self._idle[node] = None
                else:
                    self._remove(node)

    def insert(self, parent: Node, tokens: Sequence[int], page: int) -> Node:
        """Hand over a page that holds these tokens, at most a page, as a child of `parent`.

        If there is such a page already, the one handed over is freed. The result is the node of either; nobody uses it on account of this call, so
        that the caller must `use` or `settle` it at once.
        """
        key = _key(tokens)
        at = bisect_left(parent.keys, key)
        if at < len(parent.keys) and parent.keys[at].startswith(
            key
        ):  # the neighbor holds these tokens, and perhaps more
            self.pool.give_back(page)
            return parent.children[at]
        if at and key.startswith(
            parent.keys[at - 1]
        ):  # the neighbor holds only a beginning of them: the new page takes its place
            shorter = parent.children[at - 1]
            del self._idle[shorter]  # pages that are not full are never in use, only copied
            self._remove(shorter)
            at -= 1
        node = Node(parent, key, page)
        parent.keys.insert(at, key)
        parent.children.insert(at, node)
        return node

    def settle(self, node: Node) -> None:
        """Make a node that was just inserted or found the most recently used, without a user. Its parent must be in use."""
        if node.users == 0:
            node.users = 1
            self._idle.pop(node, None)
            self.leave([node])

    def clear(self) -> None:
        """Free all pages that nobody uses."""
        while self._idle:
            self._remove(self._idle.popitem(last=False)[0])

    def __iter__(self) -> Iterator[Node]:
        """All nodes, parents first."""
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            yield node
            stack += node.children

    def _remove(self, node: Node) -> None:
        if node.children or node.parent is None:
            raise InternalError(f"page {node.page} of the KV cache is evicted while others follow it")
        at = bisect_left(node.parent.keys, node.key)
        del node.parent.keys[at], node.parent.children[at]
        self.pool.give_back(node.page)


def _key(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, ">i4").tobytes()

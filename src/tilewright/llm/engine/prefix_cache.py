"""`PrefixCache`: finds pages of the KV cache by the tokens that they hold.

Prefixes are shared through a radix tree, as in SGLang (Zheng et al. 2024). A node here is exactly one page,
so sharing, counting and eviction use the same unit as allocation, and no edge is ever split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...errors import InternalError
from ..vision.given import Images
from .pages import PagePool

CONTENTS = 1 << 14
"""The most contents of images whose numbers are remembered."""


class PrefixNode:
    """A page and its tokens, which follow the tokens of the ancestors' pages."""

    __slots__ = ("children", "key", "keys", "page", "parent", "users")

    def __init__(self, parent: PrefixNode | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        """The tokens as 4 bytes each, big-endian. Keys therefore sort like the tokens, and the longest common
        prefix is with a neighbor. A key shorter than a page is a leaf.
        """
        self.page = page
        self.users = 0
        """The number of running sequences that read the page; each one also uses all ancestors."""
        self.keys: list[bytes] = []
        self.children: list[PrefixNode] = []


def _common(a: bytes, b: bytes) -> int:
    """Return the length, in tokens, of the common prefix."""
    n = min(len(a), len(b)) // 4
    if a[: 4 * n] == b[: 4 * n]:
        return n
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differ.argmax())


class PrefixCache:
    """Keeps pages for reuse: sequences with equal beginnings share them, and the least recently used idle
    page is evicted.

    Only whole pages are shared. A page that matches in part, or that is not full, is copied; `longest_part`
    finds it.
    """

    def __init__(self, pool: PagePool, keep: bool = True) -> None:
        """Make an empty cache.

        Args:
            pool: allocates pages and receives evicted ones.
            keep: whether idle pages are kept; if not, only running sequences share pages.
        """
        self.pool = pool
        self.keep = keep
        self.root = PrefixNode(None, b"", -1)
        """The root of the tree of prefixes without an adapter; an adapter has its own."""
        self.evicted = 0
        self.evicting: Callable[[PrefixNode], object] = lambda node: None
        """Called with each page that is evicted, before it is free."""
        self._contents: OrderedDict[bytes, int] = OrderedDict()  # digests of images, and their numbers
        self._next = -1
        self._nodes: dict[PrefixNode, None] = {}  # of all trees, each after its parent
        self._idle: OrderedDict[PrefixNode, None] = (
            OrderedDict()
        )  # idle nodes; the children of such a node stand before it

    @property
    def available(self) -> int:
        """The number of pages that `take` can still return."""
        return self.pool.free + len(self._idle)

    @property
    def idle(self) -> int:
        """The number of kept pages that no running sequence uses."""
        return len(self._idle)

    def take(self) -> int | None:
        """Allocate a page for writing, owned by the caller.

        If no page is free, the least recently used idle page is evicted. Return None if all pages are in use.
        """
        page = self.pool.take()
        if page is None and self._idle:
            node, _ = self._idle.popitem(last=False)
            self.evicting(node)
            self._remove(node)
            self.evicted += 1
            page = self.pool.take()
        return page

    def child(self, node: PrefixNode, tokens: Sequence[int]) -> PrefixNode | None:
        """Return the child of `node` that holds exactly these tokens, which fill a page."""
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        return node.children[at] if at < len(node.keys) and node.keys[at] == key else None

    def longest_part(self, node: PrefixNode, tokens: Sequence[int]) -> tuple[PrefixNode, int] | None:
        """Find the child of `node` that shares the longest prefix with these tokens (at most a page).

        Return it with the length of the prefix, at least 1; None if there is none.
        """
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        near = [(n, _common(n.key, key)) for n in node.children[max(at - 1, 0) : at + 1]]
        best = max(near, key=lambda match: match[1], default=None)
        return best if best and best[1] else None

    def contents(self, prompt: Sequence[int], images: Images) -> list[int]:
        """The numbers that tell the tokens of a prompt with images apart: a negative one for each content, in
        place of the tokens whose keys and values depend on it.

        Numbers are not used again. A content that was not seen for long gets a new one, and its pages are
        computed again.
        """
        found = list(prompt)
        for start, end, digest in images.contents:
            if digest not in self._contents:
                self._contents[digest] = self._next
                self._next -= 1
            self._contents.move_to_end(digest)
            found[start:end] = [self._contents[digest]] * (end - start)
        while len(self._contents) > CONTENTS:
            self._contents.popitem(last=False)
        return found

    def use(self, node: PrefixNode) -> None:
        """Count one more user of the node. The same user must already use the node's parent."""
        node.users += 1
        self._idle.pop(node, None)

    def leave(self, nodes: Sequence[PrefixNode]) -> None:
        """Undo `use` for a path of nodes, ordered from the root downward."""
        for node in reversed(nodes):
            node.users -= 1
            if node.users < 0:
                raise InternalError(f"page {node.page} of the KV cache was released more often than used")
            if node.users == 0:
                if self.keep:
                    self._idle[node] = None
                else:
                    self._remove(node)

    def insert(self, parent: PrefixNode, tokens: Sequence[int], page: int) -> PrefixNode:
        """Insert a page that holds these tokens (at most a page) as a child of `parent`, and take ownership
        of it.

        If such a page exists already, the new one is freed. Return the node of the remaining page. This call
        adds no user, so the caller must `use` or `settle` the node at once.
        """
        key = _key(tokens)
        at = bisect_left(parent.keys, key)
        # the neighbor holds these tokens, and perhaps more
        if at < len(parent.keys) and parent.keys[at].startswith(key):
            self.pool.give_back(page)
            return parent.children[at]
        # the neighbor holds only a prefix of them: the new page replaces it
        if at and key.startswith(parent.keys[at - 1]):
            shorter = parent.children[at - 1]
            del self._idle[shorter]  # partial pages are never in use, only copied
            self._remove(shorter)
            at -= 1
        node = PrefixNode(parent, key, page)
        parent.keys.insert(at, key)
        parent.children.insert(at, node)
        self._nodes[node] = None
        return node

    def settle(self, node: PrefixNode) -> None:
        """Mark a node that was just inserted or looked up as the most recently used, without a user.

        Its parent must be in use.
        """
        if node.users == 0:
            node.users = 1
            self._idle.pop(node, None)
            self.leave([node])

    def clear(self) -> None:
        """Free all idle pages."""
        while self._idle:
            self._remove(self._idle.popitem(last=False)[0])

    def __iter__(self) -> Iterator[PrefixNode]:
        """Iterate over the nodes with pages of all trees, adapters' too, parents first."""
        return iter(self._nodes)

    def _remove(self, node: PrefixNode) -> None:
        if node.children or node.parent is None:
            raise InternalError(f"page {node.page} of the KV cache is evicted while others follow it")
        at = bisect_left(node.parent.keys, node.key)
        del node.parent.keys[at], node.parent.children[at], self._nodes[node]
        self.pool.give_back(node.page)


def _key(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, ">i4").tobytes()

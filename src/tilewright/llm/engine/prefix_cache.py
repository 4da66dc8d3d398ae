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
from ..runner import PAGE, first_page
from ..vision.given import Images
from .pages import PagePool

CONTENTS = 1 << 14
"""The most contents of images whose numbers are remembered."""


def seen_whole(pages: Sequence[int], held: int, window: int | None) -> int:
    """The most of a sequence's first pages after which it can continue: the next token sees none that is
    missing.

    Args:
        pages: Their numbers; -1 for those that are missing.
        held: The number of tokens in them.
        window: The last tokens that a token sees; None: all.
    """
    count = at = len(pages)
    while at > (0 if window is None else first_page(min(held, count * PAGE), window)):
        at -= 1
        if pages[at] < 0:
            count = at
    return count


class PrefixNode:
    """A page and its tokens, which follow the tokens of the ancestors' pages."""

    __slots__ = ("children", "key", "keys", "page", "parent", "readers", "users")

    def __init__(self, parent: PrefixNode | None, key: bytes, page: int) -> None:
        self.parent = parent
        self.key = key
        """The tokens as 4 bytes each, big-endian. Keys therefore sort like the tokens, and the longest common
        prefix is with a neighbor. A key shorter than a page is a leaf.
        """
        self.page = page
        """-1 for a page that was evicted while nodes after it are kept: a model with windows continues behind
        it without reading it.
        """
        self.users = 0
        """The number of running sequences that have these tokens; each one also uses all ancestors."""
        self.readers = 0
        """The number of users that read the page."""
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
    """Keeps pages for reuse: sequences with equal beginnings share them, and the least recently used page
    without readers is evicted.

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
        )  # nodes whose pages nobody reads; if readers read all ancestors' pages, children stand before them

    @property
    def available(self) -> int:
        """The number of pages that `take` can still return."""
        return self.pool.free + len(self._idle)

    @property
    def idle(self) -> int:
        """The number of kept pages that no running sequence reads."""
        return len(self._idle)

    def take(self) -> int | None:
        """Allocate a page for writing, owned by the caller.

        If no page is free, the least recently used idle page is evicted. Return None if all pages are in use.
        """
        page = self.pool.take()
        if page is None and self._idle:
            node, _ = self._idle.popitem(last=False)
            self.evicting(node)
            self._drop(node)
            self.evicted += 1
            page = self.pool.take()
        return page

    def child(self, node: PrefixNode, tokens: Sequence[int]) -> PrefixNode | None:
        """Return the child of `node` that has exactly these tokens, which fill a page. Its page may have been
        evicted.
        """
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        return node.children[at] if at < len(node.keys) and node.keys[at] == key else None

    def longest_part(self, node: PrefixNode, tokens: Sequence[int]) -> tuple[PrefixNode, int] | None:
        """Find the child of `node` that shares the longest prefix with these tokens (at most a page).

        Return it with the length of the prefix, at least 1; None if there is none.
        """
        key = _key(tokens)
        at = bisect_left(node.keys, key)
        near = [(n, _common(n.key, key)) for n in node.children[max(at - 1, 0) : at + 1] if n.page >= 0]
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
        """Count one more user of the node, who reads its page if it has one. The same user must already use
        the node's parent.
        """
        node.users += 1
        if node.page >= 0:
            self.read(node)

    def read(self, node: PrefixNode) -> None:
        """Let a user of the node read its page, which was evicted and has come back."""
        node.readers += 1
        self._idle.pop(node, None)

    def unread(self, node: PrefixNode) -> None:
        """Let a user of the node read its page no more."""
        node.readers -= 1
        if node.readers < 0:
            raise InternalError(f"page {node.page} of the KV cache was released more often than used")
        self._rest(node)

    def leave(self, nodes: Sequence[PrefixNode], pages: Sequence[int] | None = None) -> None:
        """Undo `use`.

        Args:
            nodes: A path, ordered from the root downward.
            pages: For each node -1 if this user does not read its page; None: it reads all.
        """
        for at in range(len(nodes) - 1, -1, -1):
            node = nodes[at]
            node.users -= 1
            if pages is None or pages[at] >= 0:
                self.unread(node)
            elif node.page < 0:
                self._remove_unused(node)

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
            found = parent.children[at]
            if found.page < 0 and found.key == key:
                found.page = page
            else:
                self.pool.give_back(page)
            return found
        # the neighbor holds only a prefix of them: the new page replaces it
        if at and key.startswith(parent.keys[at - 1]):
            shorter = parent.children[at - 1]
            del self._idle[shorter]  # partial pages are never in use, only copied
            self._drop(shorter)
            at -= 1
        node = PrefixNode(parent, key, page)
        parent.keys.insert(at, key)
        parent.children.insert(at, node)
        self._nodes[node] = None
        return node

    def settle(self, node: PrefixNode) -> None:
        """Mark the page of a node that was just inserted or looked up as the most recently used, without a
        reader.

        Its parent must be in use.
        """
        self._idle.pop(node, None)
        self._rest(node)

    def clear(self) -> None:
        """Free all idle pages."""
        while self._idle:
            self._drop(self._idle.popitem(last=False)[0])

    def __iter__(self) -> Iterator[PrefixNode]:
        """Iterate over the nodes with pages of all trees, adapters' too, parents first."""
        return (node for node in self._nodes if node.page >= 0)

    def _rest(self, node: PrefixNode) -> None:
        """Let a page without readers be evicted, or free it if idle pages are not kept."""
        if node.readers or node.page < 0:
            return
        if self.keep:
            self._idle[node] = None
        else:
            self._drop(node)

    def _drop(self, node: PrefixNode) -> None:
        """Free the page of a node. The node stays while it is used or others follow it."""
        page, node.page = node.page, -1
        self._remove_unused(node)
        self.pool.give_back(page)

    def _remove_unused(self, node: PrefixNode) -> None:
        """Remove a node without a page, and then its parents, unless something needs them."""
        while node.parent is not None and node.page < 0 and not (node.users or node.children):
            parent = node.parent
            at = bisect_left(parent.keys, node.key)
            del parent.keys[at], parent.children[at], self._nodes[node]
            node = parent


def _key(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, ">i4").tobytes()

"""Pages and the tree of prefixes: a state machine that is compared with a plain list of what should be held,
and some cases of their own.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tilewright.errors import InternalError
from tilewright.llm.engine.pages import PagePool
from tilewright.llm.engine.prefix_cache import PrefixCache, PrefixNode, seen_whole

PAGE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


def test_a_page_is_given_back_once() -> None:
    pool = PagePool(2)
    first, second = pool.take(), pool.take()
    assert {first, second} == {0, 1} and pool.take() is None and pool.free == 0
    assert first is not None
    pool.give_back(first)
    with pytest.raises(InternalError, match="given back twice"):
        pool.give_back(first)
    assert pool.take() == first


def filled(cache: PrefixCache, tokens: list[int], root: PrefixNode | None = None) -> list[PrefixNode]:
    """Insert all pages of the tokens, leave them unused, and return their nodes."""
    nodes: list[PrefixNode] = []
    for at in range(0, len(tokens), PAGE):
        page = cache.take()
        assert page is not None
        node = cache.insert(nodes[-1] if nodes else root or cache.root, tokens[at : at + PAGE], page)
        cache.use(node)
        nodes.append(node)
    cache.leave(nodes)
    return nodes


def test_the_least_recently_used_page_is_evicted_and_never_one_that_others_follow() -> None:
    cache = PrefixCache(PagePool(4))
    old, new = filled(cache, [0] * 8), filled(cache, [1] * 8)
    cache.use(old[0])
    cache.leave(old[:1])  # The first page of the old tokens is now the one used last.
    expected = [old[1].page, new[1].page, new[0].page, old[0].page]
    assert [cache.take() for _ in range(4)] == expected
    assert cache.take() is None and cache.evicted == 4 and not list(cache)


def test_iteration_visits_the_trees_of_adapters() -> None:
    cache = PrefixCache(PagePool(4))
    adapter = PrefixNode(None, b"", -1)
    nodes = [*filled(cache, [0] * 8), *filled(cache, [0] * 8, adapter)]
    assert list(cache) == nodes and len({node.page for node in nodes}) == 4
    cache.take()
    assert list(cache) == [nodes[0], *nodes[2:]]


def test_what_is_used_is_not_evicted() -> None:
    cache = PrefixCache(PagePool(3))
    nodes = filled(cache, [0] * 8)
    cache.use(nodes[0])
    assert cache.available == 2
    expected = {2, nodes[1].page}
    assert {cache.take(), cache.take()} == expected and cache.take() is None
    with pytest.raises(InternalError, match="released more often"):
        cache.leave([nodes[0], nodes[0]])


def test_a_page_that_goes_on_replaces_its_beginning() -> None:
    cache = PrefixCache(PagePool(4))
    filled(cache, [5, 6])
    filled(cache, [5, 6, 7])
    assert [len(node.key) // 4 for node in cache] == [3] and cache.pool.free == 3
    filled(cache, [5])  # The tree holds this beginning already.
    assert [len(node.key) // 4 for node in cache] == [3] and cache.pool.free == 3


def test_longest_part_is_a_neighbors() -> None:
    cache = PrefixCache(PagePool(8))
    for tokens in ([1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 3, 300], [2, 2, 2, 2]):
        filled(cache, tokens)
    for tokens, best, count in (
        ([1, 2, 3, 4], [1, 2, 3, 300], 3),
        ([1, 2, 0], [1, 2, 1, 1], 2),
        ([1, 1, 1, 1], [1, 1, 1, 1], 4),
        ([2], [2, 2, 2, 2], 1),
    ):
        found = cache.longest_part(cache.root, tokens)
        assert found is not None and found[1] == count
        assert found[0].key[: 4 * count] == b"".join(t.to_bytes(4, "big") for t in best[:count])
    assert cache.longest_part(cache.root, [0, 1]) is None and cache.longest_part(cache.root, [3]) is None


def test_without_keeping_pages_are_free_when_the_last_user_leaves() -> None:
    cache = PrefixCache(PagePool(4), keep=False)
    page = cache.take()
    assert page is not None
    node = cache.insert(cache.root, [1] * PAGE, page)
    cache.use(node)
    cache.use(node)
    cache.leave([node])
    assert cache.child(cache.root, [1] * PAGE) is node
    cache.leave([node])
    assert cache.child(cache.root, [1] * PAGE) is None and cache.pool.free == 4


def test_a_page_that_its_user_does_not_read_is_evicted_and_comes_back() -> None:
    cache = PrefixCache(PagePool(3))
    nodes = filled(cache, [0] * 12)
    for node in nodes:
        cache.use(node)
    pages = [node.page for node in nodes]
    assert cache.take() is None
    cache.unread(nodes[0])
    assert cache.take() == pages[0] and nodes[0].page == -1 and list(cache) == nodes[1:]
    assert cache.child(cache.root, [0] * PAGE) is nodes[0]
    assert cache.longest_part(cache.root, [0] * PAGE) is None
    assert cache.insert(cache.root, [0] * PAGE, pages[0]) is nodes[0] and nodes[0].page == pages[0]
    cache.settle(nodes[0])
    assert cache.take() == pages[0]
    cache.pool.give_back(pages[0])
    cache.leave(nodes, [-1, *pages[1:]])
    assert cache.idle == 2
    cache.clear()  # the first node goes with the last one that follows it
    assert not cache._nodes and not cache.root.children and cache.pool.free == 3


def test_what_can_be_continued() -> None:
    assert seen_whole([3, 4, 5], 192, None) == 3 and seen_whole([3, -1, 5], 192, None) == 1
    assert [seen_whole([-1, -1, 5, 6], 256, window) for window in (1, 64, 65, 129, 130)] == [4, 4, 4, 4, 0]
    assert seen_whole([-1, 4, -1, 6], 256, 65) == 4 and seen_whole([-1, 4, -1, -1], 256, 65) == 2
    assert seen_whole([-1, 4, 5], 130, 64) == 3 and seen_whole([], 0, 64) == 0


class Machine(RuleBasedStateMachine):
    """Sequences that begin, share pages, write, stop reading first pages and end. `content` is what the
    runner would have written in each page.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9)
        self.cache = PrefixCache(self.pool)
        self.content: dict[int, list[int]] = {}
        self.running: list[
            tuple[list[int], list[PrefixNode], list[int], list[int]]
        ] = []  # (tokens, shared nodes, those of their pages that are read, own pages)

    @rule(tokens=TOKENS)
    def come(self, tokens: list[int]) -> None:
        nodes: list[PrefixNode] = []
        while (
            node := self.cache.child(
                nodes[-1] if nodes else self.cache.root, tokens[len(nodes) * PAGE :][:PAGE]
            )
        ) and (len(node.key) == 4 * PAGE and node.page >= 0):
            self.cache.use(node)
            nodes.append(node)
            assert self.content[node.page] == tokens[(len(nodes) - 1) * PAGE :][:PAGE]
        rest = tokens[len(nodes) * PAGE :][:PAGE]
        if rest and (found := self.cache.longest_part(nodes[-1] if nodes else self.cache.root, rest)):
            assert self.content[found[0].page][: found[1]] == rest[: found[1]]
        own: list[int] = []
        for at in range(len(nodes) * PAGE, len(tokens), PAGE):
            page = self.cache.take()
            if page is None:
                for given in own:
                    self.pool.give_back(given)
                self.cache.leave(nodes)
                return
            self.content[page] = tokens[at : at + PAGE]
            own.append(page)
        self.running.append((tokens, nodes, [node.page for node in nodes], own))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def see_less(self, data: st.DataObject) -> None:
        _, nodes, read, _ = self.running[data.draw(st.integers(0, len(self.running) - 1))]
        for at in range(data.draw(st.integers(0, len(nodes)))):
            if read[at] >= 0:
                self.cache.unread(nodes[at])
                read[at] = -1

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.booleans())
    def go(self, data: st.DataObject, keep: bool) -> None:
        tokens, nodes, read, own = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        while keep and own:
            at = len(nodes) * PAGE
            node = self.cache.insert(
                nodes[-1] if nodes else self.cache.root, tokens[at : at + PAGE], own.pop(0)
            )
            if len(tokens) - at < PAGE:
                self.cache.settle(node)
            else:
                self.cache.use(node)
                nodes.append(node)
                read.append(node.page)
        for page in own:
            self.pool.give_back(page)
        self.cache.leave(nodes, read)

    @rule()
    def forget(self) -> None:
        self.cache.clear()
        assert self.cache.idle == 0

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = [node.page for node in self.cache] + [page for *_, own in self.running for page in own]
        assert len(owned) == len(set(owned)) == self.pool.size - self.pool.free

    @invariant()
    def nodes_hold_what_they_say_and_count_their_users(self) -> None:
        users = [pair for _, *pairs, _ in self.running for pair in zip(*pairs, strict=True)]
        for node in self.cache._nodes:
            held = self.content[node.page] if node.page >= 0 else []
            assert not held or b"".join(t.to_bytes(4, "big") for t in held) == node.key
            assert node.users == sum(1 for user, _ in users if user is node)
            assert node.readers == sum(1 for user, page in users if user is node and page >= 0)
            assert node.page >= 0 or ((node.users or node.children) and not node.readers)
            assert not node.children or len(node.key) == 4 * PAGE
        assert all(page in (-1, node.page) for node, page in users)
        assert self.cache.idle == sum(1 for node in self.cache if not node.readers)

    @invariant()
    def siblings_are_sorted_and_none_begins_another(self) -> None:
        for node in [self.cache.root, *self.cache._nodes]:
            assert node.keys == [child.key for child in node.children] == sorted(node.keys)
            assert not any(b.startswith(a) for a, b in zip(node.keys, node.keys[1:], strict=False))


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase

"""`StoredPrefixes`: pages of the tree of prefixes that are kept in files when they leave the memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..runner import PAGE, PageAccess
from .page_store import PageStore
from .prefix_cache import PrefixCache, PrefixNode


class StoredPrefixes:
    """Writes whole pages to files when they are evicted, and reads them when a prompt begins with their
    tokens.

    A page's key is a hash of the model's identity and of all tokens up to its end. Pages of adapters, and of
    prompts with images, are not stored.

    Args:
        cache: The tree of prefixes.
        access: Reads and writes the pages in the model's memory.
        folder: The folder of the files.
        most: The most bytes of the files together.

    Raises:
        RequestError: The folder cannot be used.
        ArtifactError: The model cannot be identified.
    """

    def __init__(self, cache: PrefixCache, access: PageAccess, folder: Path, most: int) -> None:
        self._cache, self._access = cache, access
        self._identity = access.identity()
        self._store = PageStore.shared(folder, most)
        self.written, self.read = 0, 0
        cache.evicting = self.write

    @property
    def refused(self) -> int:
        """Files that were damaged or foreign."""
        return self._store.refused

    def write(self, node: PrefixNode) -> None:
        """Store the page of a node."""
        key = self._key(node)
        if key is not None and key not in self._store:
            self.written += self._store.put(key, self._access.read(node.page))

    def write_all(self) -> None:
        """Store all pages of the tree."""
        for node in self._cache:
            self.write(node)

    def child(self, parent: PrefixNode, tokens: Sequence[int]) -> PrefixNode | None:
        """A child of `parent` that holds exactly these tokens, which fill a page, from a file; None if there
        is none. The caller must `use` it at once.
        """
        key = self._key(PrefixNode(parent, np.array(tokens, ">i4").tobytes(), -1))
        content = None if key is None else self._store.get(key, self._access.size)
        page = None if content is None else self._cache.take()
        if content is None or page is None:
            return None
        self._access.write(page, content)
        self.read += 1
        return self._cache.insert(parent, tokens, page)

    def _key(self, node: PrefixNode) -> bytes | None:
        """None for a page that is not stored."""
        parts: list[bytes] = []
        at: PrefixNode | None = node
        while at is not None and at.parent is not None:
            parts.append(at.key)
            at = at.parent
        tokens = b"".join(reversed(parts))
        if at is not self._cache.root or len(node.key) != 4 * PAGE or np.frombuffer(tokens, ">i4").min() < 0:
            return None
        return hashlib.blake2b(self._identity + tokens, digest_size=32).digest()


__all__ = ["StoredPrefixes"]

"""`PagePool`: records which pages of the KV cache are free."""

from __future__ import annotations

from ...errors import InternalError


class PagePool:
    """Pages 0 to `size` - 1.

    An allocated page has exactly one owner, which returns it: a sequence or the prefix cache.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._taken = bytearray(size)

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def take(self) -> int | None:
        """Allocate a page with undefined contents; None if all are allocated."""
        if not self._free:
            return None
        page = self._free.pop()
        self._taken[page] = 1
        return page

    def give_back(self, page: int) -> None:
        """Return a page to the pool.

        Raises:
            InternalError: the page is not allocated.
        """
        if not self._taken[page]:
            raise InternalError(f"page {page} of the KV cache was given back twice")
        self._taken[page] = 0
        self._free.append(page)

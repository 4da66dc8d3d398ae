"""`PagePool`: which pages of the KV cache are free."""

from __future__ import annotations

from ...errors import InternalError


class PagePool:
    """Pages 0 to `size` - 1. A page that is taken has one owner, who gives it back: a sequence, or the prefix cache."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._taken = bytearray(size)

    @property
    def free(self) -> int:
        """How many pages nobody owns."""
        return len(self._free)

    def take(self) -> int | None:
        """A page, None where all are taken. What it holds is of no use."""
        if not self._free:
            return None
        page = self._free.pop()
        self._taken[page] = 1
        return page

    def give_back(self, page: int) -> None:
        """
        Raises:
            InternalError: the page is not taken.
        """
        if not self._taken[page]:
            raise InternalError(f"page {page} of the KV cache was given back twice")
        self._taken[page] = 0
        self._free.append(page)

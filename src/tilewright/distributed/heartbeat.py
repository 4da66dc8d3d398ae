"""A sign of life of each process in the store of ``torch.distributed``, by which others see who is missing.

gloo's own errors name an address at most, and only the neighbours of a process that ends get one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

INTERVAL = 0.5
"""Seconds between two signs of life. A larger value loads the store less."""
PATIENCE = 2.0
"""Seconds without a sign after which a process counts as missing: some intervals. A larger value mistakes a
busy process less often and tells later.
"""


class Heartbeat:
    """Counts up a number in the store, in a thread of its own.

    Args:
        store: The store that the processes share.
        rank: The number of this process among all.
    """

    present: ClassVar[Heartbeat | None] = None
    """The one of this process, if it has begun."""

    def __init__(self, store: Any, rank: int) -> None:
        self.store, self.rank, self._ended = store, rank, threading.Event()
        self.first_lost = 0
        """One more than the rank that some process has found missing first; 0: none."""
        self._thread = threading.Thread(target=self._run, name="tilewright-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._count(f"alive/{self.rank}", 1)
                self.first_lost = self._count("lost", 0)
            except Exception:
                return  # The store has ended, and with it the process that keeps it.
            self._ended.wait(INTERVAL)

    def _count(self, name: str, more: int = 0) -> int:
        return int(self.store.add(f"tilewright/{name}", more))

    @classmethod
    def begin(cls, store: Any, rank: int) -> None:
        """Begin to give signs, unless this process does so already."""
        if cls.present is None or cls.present.store is not store:
            cls.end()
            cls.present = cls(store, rank)

    @classmethod
    def end(cls) -> None:
        """Give no more signs, before the store is closed."""
        if cls.present is not None:
            cls.present._ended.set()
            cls.present._thread.join()
            cls.present = None

    @classmethod
    def silent(cls, ranks: Sequence[int]) -> set[int]:
        """Return those of the ranks, numbers among all processes, that give no signs.

        Takes `PATIENCE`, and as long again as the others need to read which rank was found missing first:
        the process that tells it may keep the store and end now. If the store does not answer and nobody has
        told a rank, rank 0 is missing, whose process keeps it.
        """
        here = cls.present
        if here is None:
            return set()
        try:
            before = {k: here._count(f"alive/{k}") for k in ranks}
            time.sleep(PATIENCE)
            found = {k for k in ranks if here._count(f"alive/{k}") == before[k]}
            if found:
                here.store.compare_set("tilewright/lost", "0", str(min(found) + 1))  # the first one stays
                time.sleep(2 * INTERVAL)
            return found
        except Exception:
            return {max(here.first_lost - 1, 0)} & set(ranks)


__all__ = ["Heartbeat"]

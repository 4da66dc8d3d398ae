"""`StopStrings`: text up to a stop string, which may begin in one token and end in another."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back what may become a stop string, so that none of it is ever given out."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """What may be given out now that this text has come, and whether a stop string (the one that begins first) has ended the output."""
        if not self._stops or not text:
            return text, False
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        end = self._beginning(text)
        if found and min(found) <= end:  # else a longer one that begins before may still come
            self._held = ""
            return text[: min(found)], True
        self._held = text[end:]
        return text[:end], False

    def finish(self, text: str) -> tuple[str, bool]:
        """What may be given out of the last text and what was held back, cut at a stop string: one may have waited for a longer one that did not come."""
        text, self._held = self._held + text, ""
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        return (text[: min(found)], True) if found else (text, False)

    def _beginning(self, text: str) -> int:
        """Where the longest end of `text` begins that is a beginning of a stop string, but not all of it; the length of `text` if none is."""
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return len(text) - longest

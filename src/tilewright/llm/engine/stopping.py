"""`StopStrings`: ends text at a stop string, which may begin in one token and end in another."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back text that may become a stop string, so that no part of one is ever given out."""

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None
        """The stop string that has ended the output."""

    def add(self, text: str) -> tuple[str, bool]:
        """Add text; return the text to give out now, and whether a stop string has ended the output.

        If there are several, the one that begins first counts.
        """
        if not self._stops or not text:
            return text, False
        text = self._held + text
        start, stop = self._first(text)
        end = self._beginning(text)
        if stop is not None and start <= end:  # else a longer one that begins earlier may still be completed
            self._held, self.found = "", stop
            return text[:start], True
        self._held = text[end:]
        return text[:end], False

    def finish(self, text: str) -> tuple[str, bool]:
        """Return the remaining text, cut at a stop string, and whether there was one.

        A stop string may remain because `add` waited for a longer one, which was not completed.
        """
        text, self._held = self._held + text, ""
        start, self.found = self._first(text)
        return text[:start], self.found is not None

    def _first(self, text: str) -> tuple[int, str | None]:
        """Return where the first stop string in `text` begins, and which it is.

        Without one, return the length of `text`, and None.
        """
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found, default=(len(text), None), key=lambda entry: entry[0])

    def _beginning(self, text: str) -> int:
        """Return where the longest suffix of `text` begins that is a proper prefix of a stop string.

        It is the length of `text` if there is none.
        """
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return len(text) - longest

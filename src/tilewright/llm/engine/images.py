"""`SeenRows`: the vectors of images, kept for prompts that show an image again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from ...errors import InternalError
from ..runner import Floats, Sight
from ..vision.given import GivenRows, Images, View

KEPT = 256 << 20
"""Most bytes of vectors that are kept."""


class SeenRows:
    """Runs a model's image encoder on the views of prompts, and keeps its results while there is room.

    Args:
        sight: The encoder.
        kept: The most bytes of vectors that are kept, beside those of the last view.
    """

    def __init__(self, sight: Sight, kept: int = KEPT) -> None:
        self._sight, self._most = sight, kept
        self._rows: OrderedDict[bytes, Floats] = OrderedDict()
        self._bytes = 0
        self.encoded = 0
        """The number of views that the encoder has read."""

    def given(self, images: Images, start: int, end: int) -> GivenRows:
        """The vectors, places and limits of the tokens `start` to `end` of a sequence, whose prompt has these
        images.

        Raises:
            InternalError: The encoder gave another number of vectors than the prompt has places.
        """
        none = GivenRows.none(end - start, start, self._sight.hidden)
        within = slice(start, min(end, len(images.row_of)))
        n = max(within.stop - start, 0)
        index, last, places = none.row_of, none.last, none.places
        index[:n], last[:n], places[:n] = images.row_of[within], images.last[within], images.places[within]
        places[n:] += images.offset
        wanted = index >= 0
        if not wanted.any():
            return none
        low, high = int(index[wanted].min()), int(index[wanted].max()) + 1
        parts = []
        for k, (a, b) in enumerate(zip(images.first[:-1].tolist(), images.first[1:].tolist(), strict=True)):
            if a < high and b > low:
                rows = self._of(images.digests[k], images.views[k])
                parts.append(rows[max(low - a, 0) : min(high, b) - a])
        index[wanted] -= low
        return GivenRows(np.concatenate(parts), index, last, places)

    def _of(self, digest: bytes, view: View) -> Floats:
        rows = self._rows.get(digest)
        if rows is not None:
            self._rows.move_to_end(digest)
            return rows
        rows = np.asarray(self._sight.see(view), np.float32)
        if rows.shape != (view.vectors, self._sight.hidden):
            raise InternalError(
                f"the image encoder gave vectors of shape {rows.shape}, not "
                f"{(view.vectors, self._sight.hidden)}"
            )
        self.encoded += 1
        self._rows[digest] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._most and len(self._rows) > 1:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes
        return rows


__all__ = ["KEPT", "SeenRows"]

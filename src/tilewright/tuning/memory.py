"""Buffers of measured kernels, between pages that no access may touch and bytes with a pattern."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

ALIGNMENT = 64
CANARY = 0xA5
_NONE, _READ, _WRITE = 0, 1, 2
_PAGE = mmap.PAGESIZE


class GuardedMemory:
    """`parts` parts of `size` bytes each, aligned to 64. An access beyond the end of a part, or before the
    start of the first page of one, ends the process; a write to the bytes in between changes a pattern.
    """

    def __init__(self, size: int, parts: int = 1) -> None:
        self.size = size
        self._held = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        pages = -(-self._held // _PAGE)
        self.stride = (pages + 1) * _PAGE
        """Bytes from one part to the next."""
        whole = _PAGE + parts * self.stride
        self._map = mmap.mmap(-1, whole)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._start = self._bytes.ctypes.data
        self._bytes[:] = CANARY
        self._first = _PAGE + pages * _PAGE - self._held
        self._spans = [
            (_PAGE + i * self.stride, self._first + i * self.stride, _PAGE + i * self.stride + pages * _PAGE)
            for i in range(parts)
        ]
        for guard in (0, *(end for _, _, end in self._spans)):
            _protect(self._start + guard, _PAGE, _NONE)

    @property
    def address(self) -> int:
        """The address of the first part."""
        return self._start + self._first

    def array(self, part: int = 0) -> np.ndarray:
        """The bytes of a part: uint8 of shape (size)."""
        start = self._spans[part][1]
        return self._bytes[start : start + self.size]

    def is_intact(self) -> bool:
        """Whether the pattern around all parts is unchanged."""
        return all(
            bool((self._bytes[first:start] == CANARY).all())
            and bool((self._bytes[start + self.size : end] == CANARY).all())
            for first, start, end in self._spans
        )

    def allow_writes(self, allowed: bool) -> None:
        """Let writes to any part end the process, or not."""
        for first, _, end in self._spans:
            _protect(self._start + first, end - first, _READ | _WRITE if allowed else _READ)


def _protect(address: int, size: int, access: int) -> None:
    """Set the access to whole pages. Systems without `mprotect` leave the pattern as the only guard."""
    if os.name != "posix":
        return
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")

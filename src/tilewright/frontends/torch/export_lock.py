"""A lock for exports: while torch exports a program it patches its own modules and registers operators for
the whole process.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

_making = threading.Lock()


def one_at_a_time() -> AbstractContextManager[Any]:
    """Return a context that one thread of the process is in at any time; a thread may enter it several times.

    The lock is Dynamo's if it has one, so that ``torch.compile`` in another thread waits, too.
    """
    with _making:  # Two threads must not create two locks.
        return _lock()


@cache
def _lock() -> AbstractContextManager[Any]:
    from torch._dynamo import convert_frame

    lock: AbstractContextManager[Any] = getattr(convert_frame, "compile_lock", None) or threading.RLock()
    return lock


__all__ = ["one_at_a_time"]

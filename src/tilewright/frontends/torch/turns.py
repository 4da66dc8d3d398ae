"""One export at a time: while torch exports a program it patches its own modules and registers operators for the whole process."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

_making = threading.Lock()


def one_at_a_time() -> AbstractContextManager[Any]:
    """A context that one thread of the process is in at any time; one thread may enter it several times.

    The lock is Dynamo's own where it has one, so that ``torch.compile`` in another thread waits, too.
    """
    with _making:  # two threads must not make two locks
        return _lock()


@cache
def _lock() -> AbstractContextManager[Any]:
    from torch._dynamo import convert_frame

    found: AbstractContextManager[Any] = getattr(convert_frame, "compile_lock", None) or threading.RLock()
    return found


__all__ = ["one_at_a_time"]

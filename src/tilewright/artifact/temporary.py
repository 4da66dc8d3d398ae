"""Temporary files of this process, kept in one folder per process.

A process that starts removes the folders of processes that were killed. A folder is in use while its lock
file is locked; the operating system releases the lock when the process ends for any reason.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

_PREFIX = "tilewright-"
_LOCK = ".lock"
_UNLOCKED = (
    # Seconds after which a folder without a lock is considered abandoned: its process was killed before it
    # took the lock.
    3600
)
_guard = threading.Lock()
_mine: tuple[int, Path, int] | None = None  # process id, folder, open lock file


def folder() -> Path:
    """The folder, made when first asked for and removed when the process ends.

    Raises:
        OSError: the system's folder of temporary files cannot be written.
    """
    global _mine
    with _guard:
        if (
            _mine is None or _mine[0] != os.getpid() or not _mine[1].is_dir()
        ):  # A forked child process gets its own folder.
            _sweep()
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            aside = path / ".making"
            lock = os.open(aside, os.O_CREAT | os.O_RDWR, 0o600)
            _try_lock(lock)
            try:
                aside.rename(path / _LOCK)
            except OSError:  # Windows does not rename open files; there an open file cannot be removed either
                os.close(lock)
                lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            _mine = os.getpid(), path, lock
            atexit.register(_leave, *_mine)
        return _mine[1]


def _leave(process: int, path: Path, lock: int) -> None:
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)  # on Windows only now


def _try_lock(handle: int) -> bool:
    """Take the lock; return whether that succeeded, or another process holds it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep() -> None:
    """Remove the folders of this user's processes that have ended."""
    user = os.getuid() if hasattr(os, "getuid") else None
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return
    for entry in entries:
        try:
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            info = entry.stat(follow_symlinks=False)
            if user is not None and info.st_uid != user:
                continue
            if _is_abandoned(Path(entry.path), info.st_mtime):
                shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:
            continue


def _is_abandoned(path: Path, changed: float) -> bool:
    lock = path / _LOCK
    if not lock.exists():
        return (path / ".making").exists() and changed < time.time() - _UNLOCKED
    if os.name == "nt":
        lock.unlink()  # refused while it is open
        return True
    handle = os.open(lock, os.O_RDWR)
    try:
        return _try_lock(handle)
    finally:
        os.close(handle)


__all__ = ["folder"]

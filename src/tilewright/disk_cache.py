"""A folder of results that are expensive to make again, found by what they were made from; shared by all processes.

Entries are whole or absent: they are written aside and renamed. A cache that cannot be written (a full disk, a read-only
home) is a cache that is always empty, never an error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

LEAST, MOST = 2 << 30, 32 << 30  # bytes of the cache, unless $TILEWRIGHT_CACHE_BYTES says otherwise
_PRUNE_EVERY = 256  # writes of a process between two looks at the folder's size
_writes = 0


def cache_folder() -> Path:
    """$TILEWRIGHT_CACHE_DIR, or this user's folder for caches."""
    named = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright"))


def digest(*parts: str | bytes) -> str:
    """A name for what `parts` (in order) determine."""
    import xxhash

    h = xxhash.xxh3_128()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def path_of(kind: str, key: str) -> Path:
    """Where an entry lies, whether or not it is there."""
    return cache_folder() / kind / key[:2] / key[2:]


def read(kind: str, key: str) -> bytes | None:
    """The entry, or None. Reading keeps it from being pruned."""
    path = path_of(kind, key)
    try:
        data = path.read_bytes()
        if path.stat().st_mtime < time.time() - 3600:
            os.utime(path)
        return data
    except OSError:
        return None


def write(kind: str, key: str, data: bytes) -> None:
    """Keep an entry, and now and then remove those unused longest, down to `limit`."""
    global _writes
    path = path_of(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        return
    _writes += 1
    if _writes % _PRUNE_EVERY == 1:
        prune()


def limit() -> int:
    """Bytes that the cache may hold: $TILEWRIGHT_CACHE_BYTES, else a tenth of its disk, within 2 and 32 GiB."""
    named = os.environ.get("TILEWRIGHT_CACHE_BYTES")
    return int(named) if named else max(LEAST, min(MOST, _disk().total // 10))


def takes(size: int) -> bool:
    """Whether an entry of so many bytes is worth keeping: it leaves room for others, and most of the disk's free space."""
    return size <= limit() // 2 and size <= _disk().free // 4


def _disk() -> Any:
    folder = cache_folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder)


def prune(most: int | None = None) -> int:
    """Remove the entries unused longest until the cache holds at most 4/5 of `most` bytes (`limit`); returns bytes removed.

    Nothing is removed below that.
    """
    if most is None:
        most = limit()
    entries = []
    for folder, _, names in os.walk(cache_folder()):
        for name in names:
            path = os.path.join(folder, name)
            try:
                info = os.stat(path)
            except OSError:
                continue
            entries.append((info.st_mtime, info.st_size, path))
    total = sum(size for _, size, _ in entries)
    removed = 0
    if total <= most:
        return 0
    for _, size, path in sorted(entries):
        if total - removed <= most * 4 // 5:
            break
        try:
            os.unlink(path)
            removed += size
        except OSError:
            continue
    return removed

"""A folder of results that are expensive to make again, found by what they were made from; shared by all processes.

Entries are whole or absent: they are written aside and renamed, and each begins with a checksum of its kind, key and data. What does not fit
(a flipped bit, a file cut off) counts as absent and is removed, so that it is made anew. A cache that cannot be written (a full
disk, a read-only home) is a cache that is always empty, never an error; a warning says so where a setting must be wrong.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

LEAST, MOST = 2 << 30, 32 << 30  # bytes of the cache, unless $TILEWRIGHT_CACHE_BYTES says otherwise
FORMAT = 2
"""Of the files below: each format has a folder of its own, so that versions of this package that share the cache never read one another's."""
_MAGIC = b"TWCACHE" + bytes([FORMAT])
_HEAD = len(_MAGIC) + 16
_ASIDE = ".tmp-"
_PRUNE_EVERY = 256  # writes of a process between two looks at the folder's size
_ABANDONED = 3600  # seconds after which a file written aside belongs to a process that was killed
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


def folder_of(kind: str) -> Path:
    """Where the entries of a kind lie."""
    return cache_folder() / f"format-{FORMAT}" / kind


def path_of(kind: str, key: str) -> Path:
    """Where an entry lies, whether or not it is there."""
    return folder_of(kind) / key[:2] / key[2:]


def _checksum(kind: str, key: str, data: bytes | memoryview) -> bytes:
    import xxhash

    h = xxhash.xxh3_128(f"{kind}/{key}/".encode())
    h.update(data)
    return h.digest()


def read(kind: str, key: str) -> bytes | None:
    """The entry, or None where there is none or it is damaged. Reading keeps it from being pruned."""
    path = path_of(kind, key)
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    data = whole[_HEAD:]
    if whole[: len(_MAGIC)] != _MAGIC or whole[len(_MAGIC) : _HEAD] != _checksum(kind, key, data):
        _remove(path)
        return None
    with suppress(OSError):  # another user's cache, or pruned meanwhile
        if path.stat().st_mtime < time.time() - 3600:
            os.utime(path)
    return data


def write(kind: str, key: str, data: bytes) -> None:
    """Keep an entry, and now and then remove those unused longest, down to `limit`."""
    global _writes
    path = path_of(kind, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_ASIDE, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _checksum(kind, key, data))
                file.write(data)
            os.replace(name, path)
        except BaseException:
            _remove(Path(name))
            raise
    except OSError:
        _warn_if_misplaced()
        return
    _writes += 1
    if _writes % _PRUNE_EVERY == 1:
        prune()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _warn_if_misplaced() -> None:
    """Say that something else lies where the folder should be: no later run would keep anything either."""
    found = cache_folder()
    while not os.path.lexists(found) and found != found.parent:
        found = found.parent
    if not found.is_dir():
        warnings.warn(
            f"nothing is kept in the cache of compiled code: {found} is not a folder; remove it, or set TILEWRIGHT_CACHE_DIR to a folder",
            stacklevel=3,
        )


def limit() -> int:
    """Bytes that the cache may hold: $TILEWRIGHT_CACHE_BYTES, else a tenth of its disk, within 2 and 32 GiB."""
    named = os.environ.get("TILEWRIGHT_CACHE_BYTES", "")
    if named.isdecimal():
        return int(named)
    if named:
        warnings.warn(f"TILEWRIGHT_CACHE_BYTES is a number of bytes, not {named!r}; it is ignored", stacklevel=2)
    try:
        return max(LEAST, min(MOST, _disk().total // 10))
    except OSError:
        return LEAST


def takes(size: int) -> bool:
    """Whether an entry of so many bytes is worth keeping: it leaves room for others, and most of the disk's free space."""
    try:
        return size <= limit() // 2 and size <= _disk().free // 4
    except OSError:  # the folder cannot be looked at, so nothing can be kept either
        return False


def _disk() -> Any:
    folder = cache_folder()
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder)


def prune(most: int | None = None) -> int:
    """Remove the entries unused longest until the cache holds at most 4/5 of `most` bytes (`limit`); returns bytes removed.

    Nothing is removed below that, but what processes that were killed left aside.
    """
    if most is None:
        most = limit()
    entries = []
    removed = 0
    for folder, _, names in os.walk(cache_folder()):
        for name in names:
            path = os.path.join(folder, name)
            try:
                info = os.stat(path)
                if name.startswith(_ASIDE) and info.st_mtime < time.time() - _ABANDONED:
                    os.unlink(path)
                    removed += info.st_size
                    continue
            except OSError:
                continue
            entries.append((info.st_mtime, info.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= most:
        return removed
    kept = total
    for _, size, path in sorted(entries):
        if kept <= most * 4 // 5:
            break
        try:
            os.unlink(path)
            kept -= size
        except OSError:
            continue
    return removed + total - kept

"""A folder of results that are expensive to compute, by a digest of their inputs; shared by all processes.

An entry is whole or absent: it is written to a temporary file that is then renamed, and begins with a
checksum of its kind, key and data. A damaged entry counts as absent and is removed. A cache that cannot be
written (a full disk, a read-only home) behaves as an empty one and is never an error; a warning is given
where a setting must be wrong.
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

# bytes: the bounds of the cache's size, which $TILEWRIGHT_CACHE_BYTES overrides
LEAST, MOST = 2 << 30, 32 << 30
FORMAT = 2
"""The version of the files below. Each version has its own folder, so that versions of this package that
share the cache do not read each other's entries.
"""
_MAGIC = b"TWCACHE" + bytes([FORMAT])
_HEAD = len(_MAGIC) + 16
_ASIDE = ".tmp-"
_PRUNE_EVERY = 256  # writes of a process between two checks of the folder's size
_ABANDONED = 3600  # seconds after which a temporary file belongs to a process that was killed
_writes = 0


def cache_folder() -> Path:
    """$TILEWRIGHT_CACHE_DIR, or the user's folder for caches."""
    named = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright"))


def digest(*parts: str | bytes) -> str:
    """A key for a result that `parts`, in this order, determine."""
    import xxhash

    h = xxhash.xxh3_128()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def folder_of(kind: str) -> Path:
    """The folder of the entries of a kind."""
    return cache_folder() / f"format-{FORMAT}" / kind


def path_of(kind: str, key: str) -> Path:
    """The path of an entry, whether or not it exists."""
    return folder_of(kind) / key[:2] / key[2:]


def _checksum(kind: str, key: str, data: bytes | memoryview) -> bytes:
    import xxhash

    h = xxhash.xxh3_128(f"{kind}/{key}/".encode())
    h.update(data)
    return h.digest()


def read(kind: str, key: str) -> bytes | None:
    """The entry's data; None where it is absent or damaged. Reading an entry protects it from being pruned
    soon.
    """
    path = path_of(kind, key)
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    data = whole[_HEAD:]
    if whole[: len(_MAGIC)] != _MAGIC or whole[len(_MAGIC) : _HEAD] != _checksum(kind, key, data):
        _remove(path)
        return None
    with suppress(OSError):  # another user's cache, or a file pruned meanwhile
        if path.stat().st_mtime < time.time() - 3600:
            os.utime(path)
    return data


def write(kind: str, key: str, data: bytes) -> None:
    """Store an entry. Now and then, remove the entries unused longest, down to `limit` bytes."""
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
    """Warn if a file takes the folder's place, since no later run could store anything either."""
    folder = cache_folder()
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        warnings.warn(
            f"the cache of compiled code is off: {folder} is not a folder; remove it, or set "
            "TILEWRIGHT_CACHE_DIR to a folder",
            stacklevel=3,
        )


def limit() -> int:
    """The most bytes that the cache holds: $TILEWRIGHT_CACHE_BYTES, else a tenth of its disk, between 2 and
    32 GiB.
    """
    named = os.environ.get("TILEWRIGHT_CACHE_BYTES", "")
    if named.isdecimal():
        return int(named)
    if named:
        warnings.warn(
            f"TILEWRIGHT_CACHE_BYTES={named!r} is ignored: give a whole number of bytes", stacklevel=2
        )
    try:
        return max(LEAST, min(MOST, _disk().total // 10))
    except OSError:
        return LEAST


def takes(size: int) -> bool:
    """Whether an entry of so many bytes is worth storing: it leaves room for others, and most of the disk's
    free space.
    """
    try:
        return size <= limit() // 2 and size <= _disk().free // 4
    except OSError:  # the folder cannot be read, so nothing can be stored either
        return False


def _disk() -> Any:
    folder = cache_folder()
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder)


def prune(most: int | None = None) -> int:
    """Remove the entries unused longest until the cache holds at most 4/5 of `most` bytes (default: `limit`).

    Below that only temporary files of killed processes are removed. Returns the number of bytes removed.
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

"""`PageStore`: pages of the KV cache in the files of a folder, kept over restarts."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from ...errors import RequestError

log = logging.getLogger(__name__)

_MAGIC = b"TWPAGE01"
_DIGEST = 32
_NAME = re.compile(r"[0-9a-f]{64}\.page")
_PART = re.compile(r"[0-9a-f]{64}\.page\.[0-9a-f]{16}\.part")
_ABANDONED = 600.0
"""Seconds after which the file of an unfinished page belongs to a process that has ended. A larger value
keeps such files longer; a page is written in less than a second.
"""
_shared: WeakValueDictionary[tuple[Path, int], PageStore] = WeakValueDictionary()
_sharing = threading.Lock()


class PageStore:
    """Files of pages, each named by its key: a hash of everything on which the page's content depends.

    A file holds its key, and a hash of key and content. One that is cut, damaged or another page's is removed
    and never used. When the folder is full, the files that were not used for the longest time are removed.
    Files of pages that were not finished are removed after some minutes, other files in the folder are left
    alone. Threads may use a store together. Several processes may use one folder; each of them counts the
    files that it found or wrote.

    Args:
        folder: The folder, which is created if it does not exist.
        most: The most bytes of the files together.

    Raises:
        RequestError: The folder cannot be created or read, or `most` is below 1.
    """

    def __init__(self, folder: Path, most: int) -> None:
        if most < 1:
            raise RequestError(f"the size limit of stored pages is {most} bytes; it must be at least 1")
        self._folder, self._most = folder, most
        self.refused = 0
        """Files that were damaged, or were not what their names say."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            entries = list(os.scandir(folder))
        except OSError as error:
            raise RequestError(
                f"{folder}: pages cannot be stored there: {error.strerror or error}"
            ) from error
        found = []
        for entry in entries:
            with suppress(OSError):  # another process may have removed it
                if _NAME.fullmatch(entry.name) and entry.is_file():
                    found.append((entry.stat(), entry.name))
                elif _PART.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _ABANDONED:
                    os.unlink(entry)
        found.sort(key=lambda entry: entry[0].st_mtime_ns)
        self._sizes = OrderedDict((name, stat.st_size) for stat, name in found)
        self._bytes = sum(self._sizes.values())
        self._turn = threading.Lock()
        self._shrink(0)

    @classmethod
    def shared(cls, folder: Path, most: int) -> PageStore:
        """The store of a folder that all models of this process use together, so that the limit is one of all
        their files.

        Args:
            folder: As for the class.
            most: As for the class; with other limits there are other stores.

        Raises:
            RequestError: As for the class.
        """
        with _sharing:
            key = folder.resolve(), most
            store = _shared.get(key)
            if store is None:
                store = _shared[key] = cls(folder, most)
            return store

    @property
    def size(self) -> int:
        """The size of the files."""
        return self._bytes

    def __contains__(self, key: bytes) -> bool:
        return _name(key) in self._sizes

    def put(self, key: bytes, content: bytes) -> bool:
        """Write a page, unless it is stored already. Return whether it was written.

        An error of the file system is logged: a page that is not stored is computed again.
        """
        data = _MAGIC + key + _sealed(key, content) + content
        with self._turn:
            return self._put(_name(key), data)

    def _put(self, name: str, data: bytes) -> bool:
        if name in self._sizes or len(data) > self._most:
            return False
        self._shrink(len(data))
        temporary = self._folder / f"{name}.{secrets.token_hex(8)}.part"  # others may write the same page
        try:
            temporary.write_bytes(data)
            temporary.replace(self._folder / name)
        except OSError as error:
            log.warning("%s: a page of the KV cache cannot be stored: %s", self._folder, error)
            with suppress(OSError):
                temporary.unlink()
            return False
        self._sizes[name] = len(data)
        self._bytes += len(data)
        return True

    def get(self, key: bytes, size: int) -> bytes | None:
        """The content of a page of `size` bytes; None if it is not stored, or its file is damaged."""
        with self._turn:
            return self._get(key, size)

    def _get(self, key: bytes, size: int) -> bytes | None:
        name = _name(key)
        if name not in self._sizes:
            return None
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError:  # another process may have removed it
            self._forget(name)
            return None
        with suppress(OSError):  # the file of another user can be read, but is used less recently for others
            os.utime(path)
        head = len(_MAGIC) + len(key)
        content = data[head + _DIGEST :]
        if (
            data[:head] != _MAGIC + key
            or len(content) != size
            or data[head : head + _DIGEST] != _sealed(key, content)
        ):
            self.refused += 1
            log.warning("%s is damaged or not the page that it is named after: it is removed", path)
            self._remove(name)
            return None
        self._sizes.move_to_end(name)
        return content

    def _shrink(self, more: int) -> None:
        while self._sizes and self._bytes + more > self._most:
            self._remove(next(iter(self._sizes)))

    def _remove(self, name: str) -> None:
        self._forget(name)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: a stored page cannot be removed: %s", self._folder / name, error)

    def _forget(self, name: str) -> None:
        self._bytes -= self._sizes.pop(name)


def _name(key: bytes) -> str:
    return f"{key.hex()}.page"


def _sealed(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST, key=key).digest()


__all__ = ["PageStore"]

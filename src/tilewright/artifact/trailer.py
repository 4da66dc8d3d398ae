r"""The last 64 bytes of an artifact, by which a reader knows that the file is whole before it runs any of it.

Layout, little-endian: 8 bytes magic `TILEWRT\x01`, u32 format version, u32 zero, u64 length of everything
before the trailer, 16 bytes XXH3-128 of it, u64 position and u64 length of the metadata (JSON; 0: not
recorded), 8 bytes zero. Loaders of ELF, Mach-O and PE ignore bytes after the last section. In a WebAssembly
module the trailer is the end of a custom section: see `tilewright.artifact.package`.

The checksum covers every byte. It detects damage, not forgery: artifacts are code, so load only those that
you trust. A file found whole once is trusted by this user as long as it does not change (inode, size, and
both times), and so is a large file that this user has just written. Only the first load of weights from
elsewhere reads them all.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from tilewright.artifact import disk_cache
from tilewright.artifact.kinds import kind_of
from tilewright.errors import ArtifactError, TilewrightError

MAGIC = b"TILEWRT\x01"
FORMAT_VERSION = 1
_LAYOUT = struct.Struct("<8sIIQ16sQQ8x")
SIZE = _LAYOUT.size

_CHUNK = 1 << 20
_KIND = "verified"
_LARGE = 16 << 20
_SETTLED = 2_000_000_000
"""Nanoseconds after which a file's times show every later change, on file systems with coarse clocks, too."""


def make_trailer(path: Path, metadata: bytes = b"") -> bytes:
    """The trailer for the file's present contents, which contain `metadata`."""
    length = path.stat().st_size
    with path.open("rb") as file:
        at = _find(file, metadata) if metadata else -1
        file.seek(0)
        digest = _digest(file, length)
    return _LAYOUT.pack(
        MAGIC, FORMAT_VERSION, 0, length, digest, *((at, len(metadata)) if at >= 0 else (0, 0))
    )


def _find(file: BinaryIO, text: bytes) -> int:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        return whole.find(text)


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The metadata of an artifact that `verify_file` has accepted. The artifact is not loaded, so it may be
    for another machine. None where the trailer does not record their position. A ``.tar`` has them in
    metadata.json.

    Raises:
        ArtifactError: They are damaged.
    """
    with damaged(path, "its metadata"):
        if kind_of(path).format == "tar":
            with tarfile.open(path) as archive:
                stream = archive.extractfile("metadata.json")
                text = stream.read() if stream is not None else b""
        else:
            with path.open("rb") as file:
                file.seek(-SIZE, os.SEEK_END)
                *_, at, length = _LAYOUT.unpack(file.read(SIZE))
                file.seek(at)
                text = file.read(length)
            if not length:
                return None
        return parse_metadata(path, text)


def parse_metadata(path: str | Path, text: bytes) -> dict[str, Any]:
    """Metadata from JSON.

    Raises:
        ArtifactError: They are not a JSON object.
    """
    with damaged(path, "its metadata"):
        metadata = json.loads(text)
        if not isinstance(metadata, dict):
            raise TypeError(f"expected a JSON object, got {type(metadata).__name__}")
    return metadata


@contextmanager
def damaged(path: str | Path, what: str) -> Iterator[None]:
    """Turn the exceptions of readers of all kinds for wrong contents into ArtifactError.

    It is needed because a checksum that fits does not show that Tilewright wrote the file.
    """
    try:
        yield
    except TilewrightError:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OSError,
        EOFError,
        tarfile.TarError,
        zipfile.BadZipFile,
        RecursionError,
    ) as error:
        raise ArtifactError(
            f"{path}: damaged file: {what} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _digest(file: BufferedReader, length: int) -> bytes:
    """XXH3-128 of the next `length` bytes, read through a small buffer, since mapping a large file takes
    longer and needs memory.
    """
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_CHUNK, length)))
    while length > 0 and (count := file.readinto(buffer[: min(_CHUNK, length)])):
        digest.update(buffer[:count])
        length -= count
    return digest.digest()


@dataclass(frozen=True)
class Fingerprint:
    """Identity of a file and its contents: device, inode, size and last bytes, which hold its checksum."""

    place: tuple[int, int]
    size: int
    ending: bytes


def fingerprint(path: Path) -> Fingerprint:
    """The identity of the artifact at `path` now. Raises OSError: it cannot be read."""
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        file.seek(max(info.st_size - SIZE, 0))
        return Fingerprint((info.st_dev, info.st_ino), info.st_size, file.read(SIZE))


def unchanged(path: Path, known: Fingerprint) -> bool:
    """Whether the file at `path` still has this fingerprint."""
    try:
        return fingerprint(path) == known
    except OSError:
        return False


def verify_file(path: Path) -> None:
    """Check that `path` is a whole, undamaged artifact.

    Raises:
        ArtifactError: The file is missing, not an artifact, cut off, written by a newer version, or damaged.
    """
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            key = _identity(path, info)
            if disk_cache.read(_KIND, key) is None:
                _verify(path, file, info.st_size)
                if time.time_ns() - info.st_mtime_ns > _SETTLED:
                    disk_cache.write(_KIND, key, b"")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error


def trust(path: Path) -> None:
    """Record that the artifact at `path` is as this process wrote it. Small ones are not recorded, since
    checking them is fast.
    """
    info = path.stat()
    if info.st_size >= _LARGE:
        disk_cache.write(_KIND, _identity(path, info), b"")


def _identity(path: Path, info: os.stat_result) -> str:
    times = (info.st_mtime_ns, info.st_ctime_ns)
    return disk_cache.digest(str(path.resolve()), repr((info.st_dev, info.st_ino, info.st_size, *times)))


def _verify(path: Path, file: BufferedReader, size: int) -> None:
    if size < SIZE:
        raise ArtifactError(f"{path}: not a Tilewright artifact: only {size} bytes long")
    file.seek(size - SIZE)
    magic, version, _, length, checksum, *_ = _LAYOUT.unpack(file.read(SIZE))
    file.seek(0)
    if magic != MAGIC:
        kind = kind_of(path)
        what, cut = "the signature at its end is missing", ""
        if kind.format:
            what = f"{kind} without its signature"
            cut = (
                "; an artifact of Tilewright without it is truncated or changed: copy it or compile the "
                "model again"
            )
        raise ArtifactError(f"{path}: not a Tilewright artifact: {what}{cut}")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{path}: its format is version {version}, this Tilewright reads version {FORMAT_VERSION}: "
            "compile the model again or use a matching release"
        )
    if length != size - SIZE:
        raise ArtifactError(
            f"{path}: damaged file: {length} bytes expected before its end, {size - SIZE} found"
        )
    if _digest(file, length) != checksum:
        raise ArtifactError(f"{path}: damaged file: its checksum does not match its contents")

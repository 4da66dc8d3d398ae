"""A model's weights: in one block of memory, or in a file beside its library that the runtime maps
(`runtime/c/weights.c`).

The file consists of `tw_weights_header` of runtime.h, zeros up to byte 4096, and the block. Its identity is
the block's XXH3-128, which the library records, too. So weights of another model, or of another compilation,
are refused before the block is read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from tilewright.artifact.files import written_whole
from tilewright.errors import ArtifactError

SUFFIX = ".weights"
MAGIC = b"TILEWGT\x01"
VERSION = 1
START = 4096
_HEADER = struct.Struct("<8sII16sQQ")  # magic, version, 0, identity, size, XXH64
_ALIGNMENT = 64
_CHUNK = 1 << 20
_AT_ONCE = 2
"""Constants that are written to a file at the same time. Each may have to be computed in memory: more take
more memory and use more cores.
"""


class Data(Protocol):
    """An array that can be written to a given place."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numpy_dtype(self) -> np.dtype: ...
    @property
    def nbytes(self) -> int: ...
    def write_to(self, out: np.ndarray) -> None: ...


Parts = Iterable[tuple[int, Data]]
"""Offsets into the block, and the data there; gaps are zero."""


@dataclass(frozen=True)
class WeightsIdentity:
    """Identifies the weights of one compilation."""

    digest: bytes
    size: int
    checksum: int

    def to_metadata(self, file: str) -> dict[str, Any]:
        return {"file": file, "identity": self.digest.hex(), "bytes": self.size}


def gather_weights(parts: Parts, size: int) -> np.ndarray:
    """All weights in one uint8[size] array aligned to 64 bytes."""
    block = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    whole = block[start : start + size]

    def place(part: tuple[int, Data]) -> None:
        offset, data = part
        data.write_to(whole[offset : offset + data.nbytes].view(data.numpy_dtype).reshape(data.shape))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # NumPy copies without the interpreter's lock
        for _ in pool.map(place, parts):
            pass
    return whole


def write_weights(path: Path, parts: Parts, size: int) -> WeightsIdentity:
    """Write the file, whole or not at all. Only the constants being written are in memory.

    Raises:
        ArtifactError: The file cannot be written.
    """
    with written_whole(path, START + size) as partial:
        with partial.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, START + size)  # reports a full disk now
            else:
                file.truncate(START + size)

        def place(part: tuple[int, Data]) -> None:
            offset, data = part
            if data.nbytes:
                window = np.memmap(partial, np.uint8, "r+", START + offset, (data.nbytes,))
                data.write_to(np.asarray(window).view(data.numpy_dtype).reshape(data.shape))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(place, parts):
                pass
        identity = _identify(partial, size)
        with partial.open("r+b") as file:
            file.write(_HEADER.pack(MAGIC, VERSION, 0, identity.digest, size, identity.checksum))
    return identity


def _identify(path: Path, size: int) -> WeightsIdentity:
    digest, checksum = xxhash.xxh3_128(), xxhash.xxh64()
    with path.open("rb") as file:
        file.seek(START)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            checksum.update(chunk)
    return WeightsIdentity(digest.digest(), size, checksum.intdigest())


def find_beside(library: Path, metadata: dict[str, Any]) -> Path | None:
    """The file of a library's weights; None for a library that holds them itself.

    Raises:
        ArtifactError: The file is missing.
    """
    saved = metadata.get("weights")
    if saved is None:
        return None
    # A library that was renamed may have been renamed together with its weights.
    places = (library.with_suffix(SUFFIX), library.with_name(saved["file"]))
    for place in places:
        if place.is_file():
            return place
    names = " or ".join(dict.fromkeys(place.name for place in places))
    raise ArtifactError(
        f"{library}: the file of its weights, {names}, is not in the same folder: put it there, or give its "
        "path: tilewright.load(path, weights=...)"
    )


def split_weights(path: Path, most: int) -> list[dict[str, Any]]:
    """Split a file of weights into ``NAME.000``, ``NAME.001``, ... of at most `most` bytes, unless it is
    small enough.

    Servers limit the size of files, and a download that is interrupted continues with the part that it had
    begun.

    Returns:
        The parts in order: names of files, sizes in bytes, and XXH3-128 of their bytes.

    Raises:
        ArtifactError: A file cannot be written.
    """
    try:
        for old in path.parent.glob(f"{path.name}.[0-9][0-9][0-9]"):
            old.unlink()
        size = path.stat().st_size
        if size <= most:
            return [_part(path)]
        with path.open("rb") as file:
            for number in range(-(-size // most)):
                with path.with_name(f"{path.name}.{number:03}").open("wb") as part:
                    for start in range(0, min(most, size - number * most), _CHUNK):
                        part.write(file.read(min(_CHUNK, most - start)))
        path.unlink()
        return [_part(part) for part in sorted(path.parent.glob(f"{path.name}.[0-9][0-9][0-9]"))]
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be split: {error.strerror or error}") from error


def _part(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return {"file": path.name, "bytes": path.stat().st_size, "identity": digest.hexdigest()}


def identity_of(path: Path) -> str:
    """The identity of a file of weights, in hexadecimal digits."""
    with path.open("rb") as file:
        digest: bytes = _HEADER.unpack(file.read(_HEADER.size))[3]
    return digest.hex()


def read_weights(path: Path, metadata: dict[str, Any]) -> np.ndarray:
    """A library's weights, uint8, read from their file, for runtimes that cannot map files.

    Raises:
        ArtifactError: The file cannot be read, or holds other weights.
    """
    saved = metadata["weights"]
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            file.seek(START)
            block = np.fromfile(file, np.uint8)
    except OSError as error:
        raise ArtifactError(f"{path}: the weights cannot be read: {error.strerror or error}") from error
    fields = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"",) * 6
    if fields[0] != MAGIC or fields[1] != VERSION:
        raise ArtifactError(f"{path}: not a weights file of Tilewright with format version {VERSION}")
    if fields[3].hex() != saved["identity"]:
        raise ArtifactError(
            f"{path}: these weights belong to another model or another compilation: this library needs "
            f"those of {saved['identity']} ({saved['bytes']} bytes), the file holds {fields[3].hex()} "
            f"({fields[4]} bytes)"
        )
    if block.nbytes != saved["bytes"]:
        raise ArtifactError(
            f"{path}: damaged file: {START + saved['bytes']} bytes expected, {START + block.nbytes} found"
        )
    return block


__all__ = [
    "SUFFIX",
    "Data",
    "WeightsIdentity",
    "Parts",
    "find_beside",
    "gather_weights",
    "identity_of",
    "read_weights",
    "split_weights",
    "write_weights",
]

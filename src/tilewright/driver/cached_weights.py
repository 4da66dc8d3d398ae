"""The weights of a compiled model in the cache, as references to the source model's arrays.

`dump` writes the constants of a library's block of weights. An array that lies within an array of the source
model (a *leaf*) is written as a reference; packed weights as the object that packs them again; folded
constants by value. `load` takes the leaves and reads none of them before it has to. `places_in_file` finds
the leaves in the model's file, so that a model can be taken from the cache without reading its graph.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
import zipfile
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.constant import Constant
from ..ir.interpreter import Array

SMALL = 1024
"""Arrays of fewer bytes are written by value. A larger value makes entries larger and saves references."""
MOST = 64 << 20
"""The most bytes of folded constants that an entry holds by value; a model with more is not cached."""
MOST_COMPUTED = 4 << 20
"""The most bytes of arrays that an importer computed, and that no file holds, in the entry of a file."""
Weights = Iterable[tuple[int, Constant]]


class NotKept(Exception):
    """The weights cannot be written as references, or too many bytes of them were computed."""


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, leaves: Sequence[Array | None]) -> None:
        super().__init__(file, protocol=5)
        self.exact: dict[Any, int] = {}
        spans: list[tuple[int, int, int]] = []
        for number, leaf in enumerate(leaves):
            if leaf is None or leaf.nbytes < SMALL:
                continue
            self.exact.setdefault(_identity(leaf), number)
            if leaf.flags.c_contiguous:
                start = leaf.__array_interface__["data"][0]
                spans.append((start, start + leaf.nbytes, number))
        self.spans = sorted(spans)
        self.written = 0

    def persistent_id(self, value: object) -> Any:
        if not isinstance(value, np.ndarray) or value.nbytes < SMALL or value.dtype.kind == "O":
            return None
        whole = self.exact.get(_identity(value))
        if whole is not None:
            return whole, None
        low, high = np.lib.array_utils.byte_bounds(value)
        at = bisect_right(self.spans, low, key=lambda span: span[0]) - 1
        if at >= 0 and high <= self.spans[at][1]:
            start = value.__array_interface__["data"][0] - self.spans[at][0]
            return self.spans[at][2], (start, value.shape, value.strides, value.dtype)
        self.written += value.nbytes
        if self.written > MOST:
            raise NotKept(f"more than {MOST} bytes were computed")
        return None


def _identity(array: Array) -> Any:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, leaf: Callable[[int], Array]) -> None:
        super().__init__(file)
        self.leaf = leaf

    def persistent_load(self, reference: tuple[int, Any]) -> Array:
        number, part = reference
        leaf = self.leaf(number)
        if part is None:
            return leaf
        start, shape, strides, dtype = part
        data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        return np.ndarray(shape, dtype, buffer=data.data, offset=start, strides=strides)


def dump(weights: Weights, leaves: Sequence[Array | None]) -> bytes:
    """The weights as references to `leaves`, which must have been alive since before the weights were made.

    Raises:
        NotKept: A weight is made by an object that cannot be pickled, or too much would be written by value.
    """
    file = io.BytesIO()
    try:
        _Writer(file, leaves).dump(tuple(weights))
    except NotKept:
        raise
    except Exception as error:  # pickling fails in many ways
        raise NotKept(f"they are computed by code that cannot be pickled: {error}") from error
    return file.getvalue()


def load(data: bytes, leaf: Callable[[int], Array]) -> Iterator[tuple[int, Constant]]:
    """The weights that `dump` wrote, one at a time and none kept here; `leaf` returns a leaf by its
    number.
    """
    weights = deque(_Reader(io.BytesIO(data), leaf).load())
    while weights:
        yield weights.popleft()


# -- Leaves in files --


@dataclass(frozen=True)
class Place:
    """The place of an array in a file, by name relative to the model's folder ("": the model's file), in the
    order of its elements.
    """

    file: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def within(self, file: MappedFile) -> Array:
        """The array as a view of the file's bytes."""
        size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return file.part(self.start, size).view(self.dtype).reshape(self.shape)


class MappedFile:
    """A mapped file. It keeps the contents that the file had when it was opened, also when another file takes
    its place.

    A part that was read stays in memory as long as an array of it lives, so the file's weights and the packed
    ones are never in memory together.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def part(self, start: int, size: int) -> Array:
        """A part of `size` bytes, as uint8."""
        array = np.frombuffer(self.map, np.uint8, size, start)
        weakref.finalize(array, _forget, self.map, start, size).atexit = False
        return array


def _forget(data: mmap.mmap, start: int, size: int) -> None:
    """Release pages of a mapping; when they are read again, they come from the file."""
    if hasattr(mmap, "MADV_DONTNEED"):
        first = start - start % mmap.PAGESIZE
        with suppress(ValueError, OSError):
            data.madvise(mmap.MADV_DONTNEED, first, start + size - first)


def places_in_file(leaves: Sequence[Array | None], path: Path) -> list[Place | Array | None]:
    """Each leaf's place in the model's file or in another one; small leaves, and a few that no file holds, by
    value.

    Raises:
        NotKept: Too many bytes are in no file.
    """
    regions: dict[int, list[tuple[str, int]]] = {}
    for file, start, size in _regions(path):
        if size >= SMALL:
            regions.setdefault(size, []).append((file, start))
    maps: dict[str, Array] = {}
    places: list[Place | Array | None] = []
    computed = 0
    for leaf in leaves:
        if leaf is None or leaf.nbytes < SMALL:
            places.append(leaf)
            continue
        place = _mapped(leaf, path)
        data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        for file, start in regions.get(leaf.nbytes, ()) if place is None else ():
            if file not in maps:
                maps[file] = bytes_of(path.with_name(file) if file else path)
            if _equal(maps[file][start : start + data.size], data):
                place = Place(file, start, leaf.shape, leaf.dtype)
                break
        if place is None:
            computed += leaf.nbytes
            if computed > MOST_COMPUTED:
                raise NotKept(
                    f"more than {MOST_COMPUTED} bytes of the weights are computed and not in {path.name}"
                )
        places.append(np.array(leaf) if place is None else place)
    return places


def _equal(a: Array, b: Array) -> bool:
    """Whether bytes are equal, compared in parts that fit the processor's cache."""
    part = 1 << 18
    return a.size == b.size and all(
        np.array_equal(a[k : k + part], b[k : k + part]) for k in range(0, a.size, part)
    )


def bytes_of(path: Path) -> Array:
    """A file's bytes, mapped. They are those of the file at this time, also when another file takes its
    place.
    """
    return np.asarray(np.memmap(path, np.uint8, "r"))


def _mapped(leaf: Array, path: Path) -> Place | None:
    """The place of an array that is a view of a mapped file: the model's, or one in its folder or below."""
    base: Any = leaf
    while isinstance(base, np.ndarray) and not (
        isinstance(base, np.memmap) and isinstance(base.base, np.ndarray) is False
    ):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or not leaf.flags.c_contiguous:
        return None
    file, folder = Path(base.filename).resolve(), path.parent.resolve()
    if not file.is_relative_to(folder):
        return None
    start = leaf.__array_interface__["data"][0] - base.__array_interface__["data"][0] + base.offset
    name = "" if file == path.resolve() else str(file.relative_to(folder))
    return Place(name, start, leaf.shape, leaf.dtype)


def _regions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Files, offsets and sizes of the parts of a model's file that may be an array's data."""
    if path.suffix == ".onnx":
        for start, size in _initializers(path):
            yield "", start, size
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for entry in archive.infolist():
                if entry.compress_type == zipfile.ZIP_STORED:
                    file.seek(entry.header_offset + 26)
                    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                    yield "", entry.header_offset + 30 + name + extra, entry.file_size


_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL = (
    7,
    5,
    9,
    13,
)  # fields of ModelProto, GraphProto, TensorProto (onnx.proto)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers


def _initializers(path: Path) -> Iterator[tuple[int, int]]:
    """Offsets and sizes of `raw_data` of an ONNX model's initializers, read without parsing the rest."""
    data = bytes_of(path).data
    for graph in _fields(data, 0, len(data), _GRAPH):
        for tensor in _fields(data, *graph, _INITIALIZER):
            for start, end in _fields(data, *tensor, _RAW_DATA):
                yield start, end - start


def may_have_data_elsewhere(path: Path) -> bool:
    """Whether tensors of an ONNX model may lie in other files. A part that cannot be read counts as such a
    tensor.
    """
    try:
        data = bytes_of(path).data
        for graph in _fields(data, 0, len(data), _GRAPH):
            at = graph[0]
            for start, end in _fields(data, *graph, _INITIALIZER):
                if any(True for _ in _fields(data, start, end, _EXTERNAL)) or _LOCATION in bytes(
                    data[at:start]
                ):
                    return True
                at = end
            if _LOCATION in bytes(data[at : graph[1]]):
                return True
    except (ValueError, IndexError):  # an empty file, or not a model
        return True
    return False


_LOCATION = b"location"
"""The key of the entry that names an external tensor's file. Where it occurs outside of initializers, a node
may hold such a tensor.
"""


def _fields(data: memoryview, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """The start and end of the contents of each field of number `wanted` in a message."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < end:
        number, kind = divmod(varint(), 8)
        if kind == _BYTES:
            size = varint()
            if number == wanted:
                yield at, at + size
            at += size
        elif kind == _VARINT:
            varint()
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            return  # not a message after all


def unchanged(path: Path, seen: os.stat_result) -> bool:
    """Whether a mapped file still has its contents. It has, where another file took its place, since the
    mapping is of the old one.
    """
    try:
        now = path.stat()
    except OSError:
        return True
    return now.st_ino != seen.st_ino or (now.st_size, now.st_mtime_ns) == (seen.st_size, seen.st_mtime_ns)


__all__ = [
    "MappedFile",
    "NotKept",
    "Place",
    "bytes_of",
    "dump",
    "load",
    "may_have_data_elsewhere",
    "places_in_file",
    "unchanged",
]

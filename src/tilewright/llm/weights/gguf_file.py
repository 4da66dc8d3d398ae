"""GGUF files (versions 2 and 3, little-endian): metadata and tensors by GGUF's own names.

Header: ``GGUF``, version u32, numbers of tensors and of metadata u64. Then follow metadata (key, type, value)
and tensors (name, dimensions with the innermost first, format, offset), then the data from the next multiple
of the alignment. Sizes are checked against the file's size before anything is allocated.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import scheme_of
from .checkpoint import LazyTensor, reading
from .gguf_blocks import FORMATS, UNREAD, BlockFormat, decode

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DEPTH = 4
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass
class GGUFFile:
    """The content of a GGUF file.

    `metadata` by key: numbers, booleans, strings, lists, arrays of numbers. `tensors` by GGUF's names, with
    shapes in NumPy's order.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, LazyTensor]
    sources: tuple[Path, ...] = ()
    raw: dict[str, tuple[BlockFormat, Array]] = field(default_factory=dict)
    """The tensors' formats and bytes."""
    read: set[str] = field(default_factory=set)
    """The keys that `get` and `need` were asked for."""

    def get(self, key: str, default: object = None, kind: type | tuple[type, ...] = object) -> Any:
        """Return a value of the metadata, or the default.

        Raises:
            WeightsError: it is not of type `kind`.
        """
        self.read.add(key)
        value = self.metadata.get(key, default)
        if value is not default and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise WeightsError(f"{self.path}: {key} is {type(value).__name__} {str(value)[:40]!r}")
        return value

    def slices(self, name: str) -> list[LazyTensor]:
        """Split a tensor along its first axis into tensors that are read separately.

        Memory then need not hold a whole stack of experts.
        """
        whole, (form, data) = self.tensors[name], self.raw[name]
        count = whole.shape[0]
        if len(whole.shape) < 2 or not count:
            raise WeightsError(f"{whole.where}: has shape {list(whole.shape)}, which is no stack")
        pieces = data.reshape(count, -1)
        return [_tensor(name, whole.shape[1:], form, f"{whole.where}[{i}]", pieces[i]) for i in range(count)]

    def need(self, key: str, kind: type | tuple[type, ...] = object) -> Any:
        """Return a value of the metadata.

        Raises:
            WeightsError: it is missing, or not of type `kind`.
        """
        if key not in self.metadata:
            raise WeightsError(f"{self.path}: its metadata lack {key}")
        return self.get(key, None, kind)


def read_gguf_file(path: Path) -> GGUFFile:
    """Read a file, or all parts of a split file, given the first.

    Raises:
        WeightsError: it is damaged, or of an unsupported kind.
    """
    first = _read_part(path)
    parts = first.get("split.count", 1, int)
    if parts < 2:
        return first
    match = _PART.search(path.name)
    if not match or int(match[1]) != 1 or int(match[2]) != parts:
        raise WeightsError(
            f"{path}: is one of {parts} parts; give the first, named ...-00001-of-{parts:05}.gguf"
        )
    sources = [path]
    for i in range(2, parts + 1):
        other = path.with_name(f"{path.name[: match.start()]}-{i:05}-of-{parts:05}.gguf")
        part = _read_part(other)
        for name, tensor in part.tensors.items():
            if name in first.tensors:
                raise WeightsError(f"{tensor.where}: is in another part too")
        first.tensors |= part.tensors
        first.raw |= part.raw
        sources.append(other)
    first.sources = tuple(sources)
    return first


class _Reader:
    """Reads consecutive values from the mapped file, never beyond its end."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data, self.at = path, data, 0

    def fail(self, what: str) -> WeightsError:
        return WeightsError(f"{self.path}: {what} (at byte {self.at})")

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise self.fail(
                f"ends within its header: {size} more bytes should follow; it is truncated or damaged"
            )
        self.at += size
        return self.data[self.at - size : self.at].data

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        octets = bytes(self.take(self.number("Q")))
        try:
            return octets.decode()
        except UnicodeDecodeError:
            # Single tokens of some vocabularies are not valid UTF-8; they are never written as text.
            return octets.decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > _MOST_DEPTH:
            raise self.fail(f"a value has the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            dtype = np.dtype("?" if inner == 7 else "<" + _SCALARS[inner])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).copy()
        if count * 8 > len(self.data) - self.at:  # a string takes at least 8 bytes
            raise self.fail(f"a list of {count} elements does not fit into the file")
        return [self.value(inner, depth + 1) for _ in range(count)]


def _read_part(path: Path) -> GGUFFile:
    with reading(path):
        size = path.stat().st_size
        data: Array = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    data = np.asarray(data)
    r = _Reader(path, data)
    if size < 4 or bytes(r.take(4)) != b"GGUF":
        raise WeightsError(f"{path}: is neither a GGUF file nor a folder of weights")
    version = r.number("I")
    if version not in (2, 3):
        hint = "; it is big-endian" if version in (2 << 24, 3 << 24) else ""
        raise WeightsError(
            f"{path}: is GGUF version {version}; versions 2 and 3, little-endian, are supported{hint}"
        )
    tensor_count, key_count = r.number("Q"), r.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = r.string()
        if key in metadata:
            raise r.fail(f"the metadata have {key} twice")
        metadata[key] = r.value(r.number("I"))
    described = []
    for _ in range(tensor_count):
        name, dims = r.string(), r.number("I")
        if not 0 < dims <= 8:
            raise r.fail(f"{name} has {dims} dimensions")
        shape = tuple(r.number("Q") for _ in range(dims))[::-1]
        described.append((name, shape, r.number("I"), r.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise WeightsError(f"{path}: general.alignment is {alignment}; it must be a power of two")
    begin = -(-r.at // alignment) * alignment
    file = GGUFFile(path, metadata, {}, (path,))
    for name, shape, number, offset in described:
        where = f"{path}: {name}"
        if name in file.tensors:
            raise WeightsError(f"{where}: occurs twice")
        if number not in FORMATS:
            known = ", ".join(form.name for form in FORMATS.values())
            raise WeightsError(
                f"{where}: has format {UNREAD.get(number, number)}, which is not supported; {known} are"
            )
        form = FORMATS[number]
        count = math.prod(shape)
        if shape[-1] % form.elements:
            raise WeightsError(
                f"{where}: {form.name} packs {form.elements} elements of a row; rows have {shape[-1]}"
            )
        nbytes = count // form.elements * form.size
        if offset % alignment or begin + offset + nbytes > size:
            raise WeightsError(
                f"{where}: {form.name} {list(shape)} should take {nbytes} bytes from {begin + offset} on, "
                f"of {size}; the file is truncated or damaged"
            )
        octets = data[begin + offset : begin + offset + nbytes]
        file.raw[name] = form, octets
        file.tensors[name] = _tensor(name, shape, form, where, octets)
    return file


def _tensor(name: str, shape: tuple[int, ...], form: BlockFormat, where: str, data: Array) -> LazyTensor:
    def load() -> Array:
        return decode(data, form).reshape(shape)

    if form.scheme is None or len(shape) < 2:
        return LazyTensor(name, shape, form.dtype, where, load)
    scheme = scheme_of(form.scheme)
    return LazyTensor(
        name, shape, form.dtype, where, load, scheme, lambda: form.quantized(data, shape), stored=len(data)
    )

"""Memory-mapped safetensors files, including 8-bit floats and bfloat16, which NumPy does not have.

A file is 8 bytes of header length (little-endian), a JSON header ``{name: {"dtype", "shape", "data_offsets":
[begin, end]}}`` and the data.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from .checkpoint import LazyTensor, reading

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MOST_HEADER = 100_000_000


def read_safetensors(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the tensors of a file, and its metadata.

    Raises:
        WeightsError: it is not a complete safetensors file; the message names the fault.
    """
    header, data = _map(path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise WeightsError(f"{path}: metadata are not strings")
    tensors, spans = {}, []
    for name, entry in header.items():
        where = f"{path}: {name}"
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise WeightsError(f"{where}: its header lacks dtype, shape or data_offsets") from None
        if dtype not in DTYPES:
            raise WeightsError(f"{where}: has dtype {dtype!r}; known are {', '.join(DTYPES)}")
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise WeightsError(
                f"{where}: shape {list(shape)} and offsets {begin}, {end} must be natural numbers"
            )
        size = math.prod(shape) * DTYPES[dtype].itemsize
        if end - begin != size or end > len(data):
            raise WeightsError(
                f"{where}: {dtype} {list(shape)} takes {size} bytes, but lies at {begin} to {end} of "
                f"{len(data)}; the file is truncated or damaged"
            )
        spans.append((begin, end, name))
        tensors[name] = _tensor(name, shape, DTYPES[dtype], where, data, begin, end)
    last, before = 0, ""
    for begin, end, name in sorted(spans):
        if begin != last:
            raise WeightsError(f"{path}: {name}: does not begin where {before or 'the header'} ends")
        last, before = end, name
    if last != len(data):
        raise WeightsError(f"{path}: {len(data) - last} bytes after the last tensor")
    return tensors, metadata


def write_safetensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file; it appears at `path` only when it is complete."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(octets(array))

    write_whole(path, write)


def write_whole(path: Path, write: Callable[[Any], Any]) -> None:
    """Let `write` fill a file that gets its name only when it is complete and on disk."""
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def octets(array: Array) -> memoryview:
    """Return the bytes of an array in the order of its elements; they are copied only if they are not
    contiguous.
    """
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _map(path: Path) -> tuple[dict[str, Any], Array]:
    try:
        with reading(path), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER):
                raise WeightsError(
                    f"{path}: not a whole safetensors file: {size} bytes, a header of {length}"
                )
            header = json.loads(file.read(length), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: its header is not a JSON object")
    begin = 8 + length
    if begin == size:
        return header, np.zeros(0, np.uint8)
    with reading(path):
        return header, np.memmap(path, np.uint8, "r", begin)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _tensor(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, data: Array, begin: int, end: int
) -> LazyTensor:
    return LazyTensor(
        name, shape, dtype, where, lambda: np.asarray(data[begin:end]).view(dtype).reshape(shape)
    )

"""Writing artifacts: kernels, runtime, weights and metadata become one file, whole or not at all.

A shared library (or WebAssembly module) is linked from the compiler's objects, the runtime, and two blobs that
`runtime.h` declares: the weights and the metadata. It ends in a trailer (`tilewright.artifact.trailer`). A `.tar` holds
the same parts unlinked, for systems with a linker of their own.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from tilewright.artifact import elf, trailer
from tilewright.artifact.sources import (
    COMPILE_FLAGS,
    EXPORTS,
    HEADER,
    INCLUDE_DIR,
    WASM_EXPORTS,
    runtime_sources,
)
from tilewright.errors import ArtifactError

_ALIGNMENT = 64
_DISTANCE = 16  # of tw_blob.distance in a blob
_MARKER = b"tilewright: the weights' place\0\0"
_OVERHEAD = 1 << 20  # bytes of an artifact beside weights, objects and metadata: runtime, tables, padding


class Data(Protocol):
    """An array that can be written somewhere."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numpy_dtype(self) -> np.dtype: ...
    @property
    def nbytes(self) -> int: ...
    def write_to(self, out: np.ndarray) -> None: ...


def gather_weights(parts: Iterable[tuple[int, Data]], size: int) -> np.ndarray:
    """All weights in one uint8[size] array aligned to 64 bytes; `parts` are (offset, data), gaps are zero."""
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


def blob(data: bytes | np.ndarray, checksum: int = 0, *, size: int | None = None) -> bytearray:
    """A `tw_blob` of runtime.h: i64 size, i64 hash, 48 zero bytes, then the data; `size` where they come elsewhere."""
    length = len(data)
    whole = bytearray(_ALIGNMENT + length)
    whole[0:8] = (length if size is None else size).to_bytes(8, "little")
    whole[8:16] = checksum.to_bytes(8, "little")
    whole[_ALIGNMENT:] = data if isinstance(data, bytes) else data.tobytes()
    return whole


def link_library(
    path: str | Path,
    objects: Sequence[bytes],
    metadata: dict[str, Any],
    target: Any,
    *,
    weights: np.ndarray | None = None,
    embed: bool = True,
) -> Path:
    """Link objects, runtime and blobs into the shared library or WebAssembly module `path`, with its trailer.

    `weights` as `gather_weights` returns them. With `embed` false only their checksum goes in, and a context must be
    given them: this is what a library used right after compilation does.
    Raises ArtifactError when the file cannot be written; nothing is left at `path` then, or what was there before.
    """
    from tilewright.artifact import link

    path = Path(path)
    payload: Any = np.empty(0, np.uint8) if weights is None else weights
    checksum = xxhash.xxh64_intdigest(payload) if payload.nbytes and embed else 0
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode() + b"\0"
    embedded = payload if embed else payload[:0]
    needed = embedded.nbytes + sum(map(len, objects)) + len(text) + _OVERHEAD
    with _written_whole(path, needed) as partial:
        triple = link.triple(target)
        parts = [
            *objects,
            *link.compile_c(runtime_sources(), [INCLUDE_DIR], target, list(COMPILE_FLAGS)),
            link.blob_object(bytes(blob(text)), "tw_blob_metadata", triple),
        ]
        is_wasm = triple.startswith("wasm")
        appended = elf.serves(triple) and embedded.nbytes > 0
        header = blob(b"", checksum, size=embedded.nbytes) if appended else blob(embedded, checksum)
        if appended:
            header[_DISTANCE : _DISTANCE + len(_MARKER)] = _MARKER
        parts.append(link.blob_object(bytes(header), "tw_blob_weights", triple))
        link.link_shared(parts, partial, target, WASM_EXPORTS if is_wasm else EXPORTS)
        if appended:
            elf.append_segment(partial, embedded, _MARKER, _DISTANCE)
        sign(partial, wasm=is_wasm)
    trailer.trust(path)
    return path


def save_shared(
    path: str | Path,
    module_objects: Sequence[bytes],
    weights: np.ndarray,
    metadata: dict[str, Any],
    target: Any,
) -> Path:
    """Write a self-contained artifact: `link_library` with the weights inside, and tilewright.h beside it."""
    path = Path(path)
    link_library(path, module_objects, metadata, target, weights=weights)
    copy_whole(HEADER, path.with_name(HEADER.name))
    return path


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file, whole or not at all."""
    with _written_whole(path, source.stat().st_size) as partial:
        shutil.copyfile(source, partial)


def save_tar(path: str | Path, objects: Sequence[bytes], weights: np.ndarray, metadata: dict[str, Any]) -> Path:
    """Write the unlinked parts: objects, the runtime's sources and headers, both blobs as raw files, metadata.json."""
    path = Path(path)
    checksum = xxhash.xxh64_intdigest(weights.data) if weights.nbytes else 0
    text = json.dumps(metadata, ensure_ascii=False, indent=1).encode()
    files: list[tuple[str, bytes | bytearray]] = [
        *((f"objects/{index}.o", data) for index, data in enumerate(objects)),
        *((f"runtime/{file.name}", file.read_bytes()) for file in sorted(INCLUDE_DIR.glob("*.[ch]"))),
        (HEADER.name, HEADER.read_bytes()),
        ("metadata.json", text),
        ("tw_blob_weights.bin", blob(weights, checksum)),
        ("tw_blob_metadata.bin", blob(text + b"\0")),
    ]
    return save_files(path, dict(files))


def save_files(path: Path, files: Mapping[str, bytes | bytearray]) -> Path:
    """Write a signed ``.tar`` of named files, whole or not at all."""
    with _written_whole(path, sum(map(len, files.values())) + _OVERHEAD) as partial:
        with tarfile.open(partial, "w") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        sign(partial)
    return path


def sign(path: Path, *, wasm: bool = False) -> None:
    """Append the trailer; in a WebAssembly module, as the tail of a custom section named "tilewright"."""
    if wasm:
        name = b"\x0atilewright"
        with path.open("ab") as file:
            file.write(bytes([0, len(name) + trailer.SIZE]) + name)
    ending = trailer.make_trailer(path)
    with path.open("ab") as file:
        file.write(ending)


@contextmanager
def _written_whole(path: Path, needed: int) -> Iterator[Path]:
    """A temporary path in the folder of `path` that becomes `path` when the body succeeds and vanishes when not."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise ArtifactError(f"{path}: its folder cannot be used: {error.strerror or error}") from error
    if free < needed:
        raise _no_space(path, needed, free)
    partial: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        partial = Path(name)
        yield partial
        os.chmod(partial, 0o755 if path.suffix not in (".h", ".tar") else 0o644)
        os.replace(partial, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(path, needed, shutil.disk_usage(path.parent).free) from error
        raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _no_space(path: Path, needed: int, free: int) -> ArtifactError:
    return ArtifactError(f"{path}: no space: {needed:,} bytes needed, {free:,} free in {path.parent.resolve()}")

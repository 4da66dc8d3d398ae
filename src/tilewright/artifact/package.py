"""Writing artifacts: kernels, runtime, weights and metadata in one file, which is written whole or not at
all.

A shared library (or WebAssembly module) is linked from the compiler's objects, the runtime, and two blobs
that `runtime.h` declares: the weights and the metadata. It ends in a trailer (`tilewright.artifact.trailer`).
A `.tar` holds the same parts unlinked, for systems with their own linker.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tilewright.artifact import elf, macho, trailer
from tilewright.artifact.files import copy_whole, written_whole
from tilewright.artifact.kinds import check_suffix, library_name, suffix_of, suffixes_of
from tilewright.artifact.sources import (
    COMPILE_FLAGS,
    DEVICE_EXPORTS,
    EXPORTS,
    HEADER,
    INCLUDE_DIR,
    PREFIX,
    WASM_EXPORTS,
    WASM_THREAD_EXPORTS,
    check_prefix,
    exported,
    prefixed_header,
    runtime_sources,
)
from tilewright.artifact.weights import SUFFIX, Parts, WeightsIdentity, gather_weights, write_weights
from tilewright.errors import ArtifactError

if TYPE_CHECKING:
    from tilewright.artifact.link import Machine

_ALIGNMENT = 64
_DISTANCE = 16  # offset of tw_blob.distance in a blob
_IDENTITY = 24  # offset of tw_blob.identity
_MARKER = b"tilewright: the weights' place\0\0"
# upper bound of an artifact's bytes beside weights, objects and metadata: runtime, tables, padding
_OVERHEAD = 1 << 20


def blob(
    data: bytes | np.ndarray,
    checksum: int = 0,
    *,
    size: int | None = None,
    identity: WeightsIdentity | None = None,
) -> bytearray:
    """A `tw_blob` of runtime.h: i64 size, i64 hash, 48 bytes of zeros, then the data. `size` is given where
    the data are elsewhere, and `identity` for weights in another file.
    """
    length = len(data)
    whole = bytearray(_ALIGNMENT + length)
    whole[0:8] = (length if size is None else size).to_bytes(8, "little")
    whole[8:16] = (checksum if identity is None else identity.checksum).to_bytes(8, "little")
    if identity is not None:
        whole[_IDENTITY : _IDENTITY + 16] = identity.digest
    whole[_ALIGNMENT:] = data if isinstance(data, bytes) else data.tobytes()
    return whole


def exports_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The functions that a shared library with these metadata exports."""
    return DEVICE_EXPORTS if "device" in metadata.get("target", {}) else EXPORTS


def link_library(
    path: str | Path,
    objects: Sequence[bytes],
    metadata: dict[str, Any],
    target: str | Machine,
    *,
    weights: np.ndarray | WeightsIdentity | None = None,
) -> Path:
    """Link objects, runtime and blobs into the shared library or WebAssembly module `path`, with its trailer.

    `weights` from `gather_weights` are written into the file. For weights in another file, their identity is.
    Without either, every context has to be created with the weights, as for a library just compiled. If
    writing fails, a file that was at `path` is unchanged.

    Raises:
        ArtifactError: The file cannot be written.
    """
    from tilewright.artifact import link

    path = Path(path)
    triple = link.triple(target)
    embedded: Any = weights if isinstance(weights, np.ndarray) else np.empty(0, np.uint8)
    text = _metadata_text(metadata)
    needed = embedded.nbytes + sum(map(len, objects)) + len(text) + _OVERHEAD
    with written_whole(path, needed) as partial:
        appended = elf.serves(triple) and embedded.nbytes > 0
        parts = _linked_parts(objects, metadata, target, weights, apart=appended, join=True)
        functions = [exported(name, metadata.get("prefix", PREFIX)) for name in exports_of(metadata)]
        if is_wasm := triple.startswith("wasm"):
            functions = [*WASM_EXPORTS, *(WASM_THREAD_EXPORTS if link.has_threads(target) else ())]
        beside, name = _import_library(path, triple), library_name(path)
        link.link_shared(parts, partial, target, functions, name=name, beside=beside)
        if appended:
            elf.append_segment(partial, embedded, _MARKER, _DISTANCE)
        sign(partial, wasm=is_wasm, metadata=text)
    trailer.trust(path)
    return path


def _metadata_text(metadata: Mapping[str, Any]) -> bytes:
    return json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode() + b"\0"


def _linked_parts(
    objects: Sequence[bytes],
    metadata: Mapping[str, Any],
    target: str | Machine,
    weights: np.ndarray | WeightsIdentity | None,
    *,
    apart: bool = False,
    join: bool = False,
    flags: Sequence[str] = (),
) -> list[bytes]:
    """The object files of an artifact: the compiler's, the runtime's and those of both blobs.

    With `apart`, the blob of the weights has the place of weights that are appended to the linked file. With
    `join`, the runtime is one object where the target's linker can write it.
    """
    from tilewright.artifact import link

    triple, prefix = link.triple(target), metadata.get("prefix", PREFIX)
    embedded: Any = weights if isinstance(weights, np.ndarray) else np.empty(0, np.uint8)
    identity = weights if isinstance(weights, WeightsIdentity) else None
    renamed = [] if prefix == PREFIX else [f"-D{n}={exported(n, prefix)}" for n in exports_of(metadata)]
    device = metadata.get("target", {}).get("device")
    defined = [] if device is None else [f"-DTW_DEVICE={device}"]
    libraries = metadata.get("vendor_libraries", ())
    defined += ["-DTW_LIBRARIES=1"] if libraries else []
    defined += [f"-DTW_CALLS_{name.upper()}=1" for name in libraries]
    options = [*COMPILE_FLAGS, *renamed, *defined, *flags]
    checksum = xxhash.xxh64_intdigest(embedded) if embedded.nbytes else 0
    header = blob(b"" if apart else embedded, checksum, size=embedded.nbytes, identity=identity)
    if apart:
        header[_DISTANCE : _DISTANCE + len(_MARKER)] = _MARKER
    return [
        *objects,
        *link.compile_c(runtime_sources(), [INCLUDE_DIR], target, options, join=join),
        link.blob_object(bytes(blob(_metadata_text(metadata))), "tw_blob_metadata", triple),
        link.blob_object(bytes(header), "tw_blob_weights", triple),
    ]


def _write_static(
    path: Path,
    objects: Sequence[bytes],
    metadata: dict[str, Any],
    target: str | Machine,
    weights: np.ndarray | WeightsIdentity,
) -> Path:
    """Write a static library. With a prefix, which all its symbols get, programs may be linked with
    several.
    """
    from tilewright.artifact import link, symbols

    prefix = metadata.get("prefix", PREFIX)
    parts = _linked_parts(objects, metadata, target, weights, flags=["-DTW_STATIC"])
    if prefix != PREFIX:
        parts = symbols.prefixed(parts, prefix, [exported(name, prefix) for name in exports_of(metadata)])
    with written_whole(path, sum(map(len, parts)) + _OVERHEAD) as partial:
        link.archive(parts, partial, target)
    write_headers(path, metadata)
    return path


def _import_library(path: Path, triple: str) -> Path | None:
    """Where the import library of a DLL is written, which programs are linked with; None for others."""
    return path.with_suffix(".lib") if suffix_of(path) == ".dll" and "windows" in triple else None


def save_artifact(
    path: str | Path,
    objects: Sequence[bytes],
    parts: Parts,
    size: int,
    metadata: dict[str, Any],
    target: str | Machine,
    *,
    beside: bool,
    prefix: str | None = None,
) -> Path:
    """Write a library with tilewright.h beside it, or a `.tar`.

    A `prefix` of functions adds a header of its own. A `.tar` holds the unlinked parts: objects, the
    runtime's sources and headers, both blobs as raw files, metadata.json; the kernels of a device are among
    the objects. The weights, `size` bytes of
    `parts`, are written inside, or `beside` the artifact into another file.

    Raises:
        ArtifactError: A file cannot be written, or the suffix is that of another kind of artifact.
    """
    path = Path(path)
    triple = target if isinstance(target, str) else str(target.triple)
    check_suffix(path, suffixes_of(triple), triple)
    if prefix is not None:
        if suffix_of(path) not in (".so", ".dylib", ".dll", ".a", ".lib"):
            raise ArtifactError(
                f"{path}: a prefix is for shared and static libraries only; leave it out for this kind of "
                "artifact"
            )
        metadata = {**metadata, "prefix": check_prefix(prefix)}
    if beside:
        file = path.with_suffix(SUFFIX)
        weights: Any = write_weights(file, parts, size)
        metadata = {**metadata, "weights": weights.to_metadata(file.name)}
    else:
        weights = gather_weights(parts, size)
    if suffix_of(path) == ".tar":
        return _save_tar(path, objects, weights, metadata)
    if suffix_of(path) in (".a", ".lib"):
        return _write_static(path, objects, metadata, target, weights)
    link_library(path, objects, metadata, target, weights=weights)
    write_headers(path, metadata)
    return path


def write_headers(path: Path, metadata: Mapping[str, Any]) -> None:
    """Write tilewright.h beside an artifact, and the header of its prefix if it has one."""
    copy_whole(HEADER, path.with_name(HEADER.name))
    if (prefix := metadata.get("prefix")) is not None:
        text = prefixed_header(prefix, exports_of(metadata))
        with written_whole(path.with_name(f"{prefix}.h"), len(text)) as partial:
            partial.write_text(text)


def _save_tar(
    path: Path, objects: Sequence[bytes], weights: np.ndarray | WeightsIdentity, metadata: dict[str, Any]
) -> Path:
    if isinstance(weights, WeightsIdentity):
        data = blob(b"", identity=weights)
    else:
        data = blob(weights, xxhash.xxh64_intdigest(weights.data) if weights.nbytes else 0)
    text = json.dumps(metadata, ensure_ascii=False, indent=1).encode()
    runtime = {file.name: file.read_bytes() for file in sorted(INCLUDE_DIR.glob("*.[ch]"))}
    if (device := metadata.get("target", {}).get("device")) is not None:
        # All files include this one, so that they need no option of the compiler.
        line = f"#define TW_DEVICE {device} /* the kind of device, as DLPack numbers it */\n"
        runtime["platform.h"] = line.encode() + runtime["platform.h"]
    files: list[tuple[str, bytes | bytearray]] = [
        *((f"objects/{index}.o", code) for index, code in enumerate(objects)),
        *((f"runtime/{name}", data) for name, data in runtime.items()),
        (HEADER.name, HEADER.read_bytes()),
        ("metadata.json", text),
        ("tw_blob_weights.bin", data),
        ("tw_blob_metadata.bin", blob(text + b"\0")),
    ]
    return save_files(path, dict(files))


def save_files(path: Path, files: Mapping[str, bytes | bytearray]) -> Path:
    """Write a signed ``.tar`` of named files, whole or not at all."""
    with written_whole(path, sum(map(len, files.values())) + _OVERHEAD) as partial:
        with tarfile.open(partial, "w") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        sign(partial)
    return path


def sign(path: Path, *, wasm: bool = False, metadata: bytes = b"") -> None:
    """Append the trailer, which has the position of `metadata`. In a WebAssembly module it is the end of a
    custom section named "tilewright".
    """
    if wasm:
        section = b"\x0atilewright"
        with path.open("ab") as file:
            file.write(bytes([0, len(section) + trailer.SIZE]) + section)
    with path.open("rb") as file:
        is_macho = file.read(len(macho.MAGIC)) == macho.MAGIC
    if is_macho:
        data = bytearray(path.read_bytes())
        macho.extend(data, trailer.SIZE)
        path.write_bytes(data)
    ending = trailer.make_trailer(path, metadata.rstrip(b"\0"))
    with path.open("ab") as file:
        file.write(ending)

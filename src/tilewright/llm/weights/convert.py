"""`convert`: writes weights from any reader to a folder of quantized shards; `folder.py` describes the
folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...artifact.disk_cache import digest
from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import NONE, Quantized, Scheme, quantize, scheme_of
from ..quantization.schemes import FLOATS
from .checkpoint import Checkpoint, LazyTensor
from .folder import FORMAT, RECORD, ConvertedFolder, checksum_of
from .open import open_checkpoint
from .roles import is_transposed, role_of
from .safetensors import read_safetensors, write_safetensors, write_whole

_METADATA_KEY = "tilewright"  # the key of a shard's metadata with its sources and its entries
_SHARDS = "model-*-of-*.safetensors"

Progress = Callable[..., None]
"""``progress(stage, done, total)``, in bytes of the source."""


@dataclass(frozen=True)
class Conversion:
    """Options of a conversion: scheme names and the size of shards.

    `embedding_quantization` None means int8 if `quantization` has fewer bits, else the same scheme.
    `head_quantization` None means the embedding's scheme. `shard_size` bounds the bytes of a shard, unless a
    single tensor is larger; larger shards need more memory during conversion.
    """

    quantization: str
    embedding_quantization: str | None = None
    head_quantization: str | None = None
    shard_size: int = 2 << 30

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise WeightsError(f"shard_size is {self.shard_size} bytes; it must be at least 1")
        for name in filter(None, (self.quantization, self.embedding_quantization, self.head_quantization)):
            scheme_of(name)

    def scheme_for(self, tensor: LazyTensor) -> Scheme:
        """Return the scheme for a tensor, by its role."""
        general, role = scheme_of(self.quantization), role_of(tensor)
        embedding = self.embedding_quantization or (
            "int8" if general.kind == "integer" and general.bits < 8 else self.quantization
        )
        if role == "matrix":
            return general
        if role == "embedding":
            return scheme_of(embedding)
        if role == "head":
            return scheme_of(self.head_quantization or embedding)
        floats = tensor.dtype.kind in "fV"
        return general if general.kind == "float" and floats else NONE


@dataclass
class Change:
    """The tensors of one form, and the form that a conversion gives them."""

    before: str
    """The scheme or the type in the source."""
    after: str
    tensors: int = 0
    source_bytes: int = 0
    """Bytes in the source; estimated where the reader does not know."""
    bytes: int = 0
    """Estimated bytes in the folder."""

    @property
    def kept(self) -> bool:
        """Whether values stay as they are."""
        return self.before == self.after


def changes(checkpoint: Checkpoint, conversion: Conversion) -> list[Change]:
    """The tensors that `convert` keeps and converts, by form, the largest first. Reads headers only."""
    found: dict[tuple[str, str], Change] = {}
    for tensor in checkpoint.values():
        before = tensor.scheme.name if tensor.scheme else tensor.dtype.name
        target = _target(tensor, conversion)
        after = tensor.dtype.name if target == NONE else target.name
        after = FLOATS[after].name if after in FLOATS else after
        change = found.setdefault((before, after), Change(before, after))
        change.tensors += 1
        size = (tensor.scheme or NONE).estimated_bytes(tensor.shape, tensor.dtype.itemsize)
        change.source_bytes += tensor.stored or size
        change.bytes += target.estimated_bytes(tensor.shape, tensor.dtype.itemsize)
    return sorted(found.values(), key=lambda change: -change.source_bytes)


def _target(tensor: LazyTensor, conversion: Conversion) -> Scheme:
    """The scheme that a tensor is stored in."""
    scheme = conversion.scheme_for(tensor)
    return tensor.scheme if tensor.scheme and scheme == NONE else scheme


@dataclass(frozen=True)
class _Shard:
    name: str
    tensors: tuple[LazyTensor, ...]


def convert(
    source: str | Path | Checkpoint,
    output: str | Path,
    conversion: Conversion,
    *,
    progress: Progress | None = None,
) -> ConvertedFolder:
    """Write the weights of `source` to the folder `output`.

    An interrupted conversion continues: complete shards that were made from the same files with the same
    options are kept. A file gets its name only when it is complete, and tilewright.json is written last.
    Memory holds one shard and the current tensor. A matrix that is already in the requested scheme, or whose
    scheme is ``none``, is copied bit by bit.

    Args:
        source: A path (see `open_checkpoint`) or an opened checkpoint.
        output: The folder; it is created if it is missing.
        conversion: The options.
        progress: Called after each tensor.

    Raises:
        WeightsError: The source is damaged, the folder contains other weights, or another process is writing
            to it.
    """
    from filelock import FileLock, Timeout

    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    output = Path(output)
    if output.resolve() == checkpoint.path.resolve():
        raise WeightsError(f"{output}: is the source; give another folder")
    output.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(output / ".convert.lock", timeout=0):
            _convert_all(checkpoint, output, conversion, progress)
    except Timeout:
        raise WeightsError(f"{output}: another process is converting to this folder") from None
    return ConvertedFolder(output)


def _convert_all(
    checkpoint: Checkpoint, output: Path, conversion: Conversion, progress: Progress | None
) -> None:
    key = _key(checkpoint, conversion)
    shards = _plan(checkpoint, conversion)
    _clear(output, {shard.name for shard in shards})
    total = sum(_source_bytes(tensor) for tensor in checkpoint.values())
    entries: dict[str, Any] = {}
    done = 0
    for shard in shards:
        kept = _finished_entries(output / shard.name, key)
        if kept is not None:
            entries |= kept
            done += sum(_source_bytes(tensor) for tensor in shard.tensors)
            continue
        arrays: dict[str, Array] = {}
        written: dict[str, Any] = {}
        for tensor in shard.tensors:
            if progress:
                progress(f"{shard.name}: {tensor.name}", done, total)
            written[tensor.name] = _convert(tensor, conversion, checkpoint.config, shard.name, arrays)
            done += _source_bytes(tensor)
        note = json.dumps({"key": key, "tensors": written})
        write_safetensors(output / shard.name, arrays, {_METADATA_KEY: note})
        entries |= written
    if progress:
        progress("files", total, total)
    for name, read in checkpoint.files.items():
        (output / name).parent.mkdir(exist_ok=True)
        _write(output / name, read())
    _write(output / "config.json", json.dumps(checkpoint.config, indent=2).encode())
    embedding, head = (_scheme_of_role(checkpoint, conversion, role) for role in ("embedding", "head"))
    record = {
        "format": FORMAT,
        "quantization": conversion.quantization,
        "embedding_quantization": embedding,
        "head_quantization": head,
        "tensors": {name: entries[name] for name in checkpoint},
    }
    _write(output / RECORD, json.dumps(record, indent=1).encode())


def _convert(
    tensor: LazyTensor, conversion: Conversion, config: dict[str, Any], shard: str, arrays: dict[str, Array]
) -> dict[str, Any]:
    """Add a converted tensor to `arrays`, and return its entry in tilewright.json."""
    scheme = conversion.scheme_for(tensor)
    entry: dict[str, Any] = {"shape": list(tensor.shape), "dtype": tensor.dtype.name}
    parts: dict[str, Array]
    if tensor.scheme is not None and scheme in (NONE, tensor.scheme):
        quantized: Quantized | None = tensor.read_quantized()
        transposed = tensor.transposed
    elif scheme.quantized:
        matrix = tensor.read()
        transposed = is_transposed(tensor.name, config)
        try:
            quantized = quantize(matrix.swapaxes(-1, -2) if transposed else matrix, scheme, tensor.importance)
        except WeightsError as error:
            raise WeightsError(f"{tensor.where}: {error}") from None
    else:
        quantized, transposed = None, False
    if quantized is not None:
        entry["scheme"] = quantized.scheme.name
        if transposed:
            entry["transposed"] = True
        parts = quantized.arrays
        base = tensor.name.removesuffix(".weight")
        names = {part: f"{base}.{part}" for part in parts}
    else:
        values = tensor.read()
        parts = {"values": _cast(values, scheme, tensor) if scheme.kind == "float" else values}
        names = {"values": tensor.name}
    stored = {}
    for part, array in parts.items():
        if names[part] in arrays:
            raise WeightsError(f"{tensor.where}: two tensors would be stored as {names[part]}")
        arrays[names[part]] = np.ascontiguousarray(array)
        stored[part] = {
            "name": names[part],
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "shard": shard,
            "xxh3": checksum_of(array),
        }
    return entry | {"stored": stored}


def _cast(values: Array, scheme: Scheme, tensor: LazyTensor) -> Array:
    with np.errstate(over="ignore"):
        result = values.astype(scheme.dtype, copy=False)
    if result.dtype == np.float16 and values.dtype != np.float16:
        lost = ~np.isfinite(result) & np.isfinite(values)
        if lost.any():
            raise WeightsError(
                f"{tensor.where}: has values beyond the range of float16; convert to bf16 or f32"
            )
    return result


def _plan(checkpoint: Checkpoint, conversion: Conversion) -> list[_Shard]:
    """Distribute the tensors to shards, in the order of the source."""
    groups: list[list[LazyTensor]] = [[]]
    size = 0
    for tensor in checkpoint.values():
        estimate = _target(tensor, conversion).estimated_bytes(tensor.shape, tensor.dtype.itemsize)
        if groups[-1] and size + estimate > conversion.shard_size:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += estimate
    width = len(groups)
    return [
        _Shard(f"model-{i:05}-of-{width:05}.safetensors", tuple(tensors))
        for i, tensors in enumerate(groups, 1)
    ]


def _key(checkpoint: Checkpoint, conversion: Conversion) -> str:
    """Return a key of the sources and the options: equal keys give equal shards."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.sources]
    return digest(
        json.dumps([FORMAT, files, asdict(conversion), checkpoint.config, list(checkpoint), checkpoint.edits])
    )


def _finished_entries(path: Path, key: str) -> dict[str, Any] | None:
    """Return the entries of a complete, undamaged shard of an earlier conversion with this key; else None."""
    if not path.is_file():
        return None
    try:
        tensors, metadata = read_safetensors(path)
        note = json.loads(metadata.get(_METADATA_KEY, "{}"))
        if note.get("key") != key:
            return None
        for entry in note["tensors"].values():
            for part in entry["stored"].values():
                if checksum_of(tensors[part["name"]].read()) != part["xxh3"]:
                    return None
        result: dict[str, Any] | None = note["tensors"]
        return result
    except (WeightsError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _clear(output: Path, names: set[str]) -> None:
    """Remove files of an earlier conversion that are not part of this one."""
    foreign = [path.name for path in _model_files(output) if not _is_converted(path)]
    if foreign:
        raise WeightsError(f"{output}: has {foreign[0]}, which convert did not write; give another folder")
    (output / RECORD).unlink(missing_ok=True)
    for path in _model_files(output):
        if path.name not in names:
            path.unlink()
    for path in output.glob(f".{_SHARDS}-*"):  # incomplete files of a killed process
        path.unlink(missing_ok=True)


def _model_files(output: Path) -> Iterator[Path]:
    return iter(sorted({*output.glob(_SHARDS), *output.glob("model.safetensors")}))


def _is_converted(path: Path) -> bool:
    try:
        return _METADATA_KEY in read_safetensors(path)[1]
    except WeightsError:
        return path.parent.joinpath(RECORD).exists()


def _scheme_of_role(checkpoint: Checkpoint, conversion: Conversion, role: str) -> str | None:
    """Return the scheme of the tensor with a role; None if there is none."""
    tensors = [tensor for tensor in checkpoint.values() if role_of(tensor) == role]
    return conversion.scheme_for(tensors[0]).name if tensors else None


def _source_bytes(tensor: LazyTensor) -> int:
    return int(np.prod(tensor.shape)) * tensor.dtype.itemsize


def _write(path: Path, data: bytes) -> None:
    write_whole(path, lambda file: file.write(data))

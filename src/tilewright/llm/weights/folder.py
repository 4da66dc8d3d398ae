"""`ConvertedFolder`: reads a folder that `convert` wrote.

A folder holds ``tilewright.json``, shards ``model-00001-of-0000N.safetensors``, config.json, and the files of
the tokenizer and of the generation defaults. tilewright.json:

=====================  =====================================================================================
``format``             1
``quantization``       the scheme's name; ``embedding_quantization`` and ``head_quantization`` likewise
``tensors``            by the model's name: ``shape``; ``dtype`` of the source's values; ``scheme``, if
                       quantized; ``transposed``, if the stored matrix is the transpose; and ``stored``: for
                       each part (``values`` or qweight, scales, zeros, permutation) its ``name``, ``shape``
                       and ``dtype`` in its ``shard``, and ``xxh3``, the XXH3-64 of its bytes in hexadecimal
=====================  =====================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import Quantized, dequantize, scheme_of
from .checkpoint import Checkpoint, LazyTensor, read_json, swapped
from .hugging_face import accompanying
from .safetensors import octets, read_safetensors

RECORD = "tilewright.json"
FORMAT = 1


class ConvertedFolder(Checkpoint):
    """A checkpoint that `convert` wrote.

    `quantization` is the scheme of its matrices, `record` the content of tilewright.json. Every read verifies
    the checksum of the data, unless `verify` is False.

    Raises:
        WeightsError: a file is missing, damaged, or of another conversion.
    """

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        path = Path(path)
        self.record: dict[str, Any] = read_json(path / RECORD)
        if self.record.get("format") != FORMAT:
            raise WeightsError(
                f"{path / RECORD}: format {self.record.get('format')}; this version reads {FORMAT}: convert "
                "the model again"
            )
        self._verify = verify
        try:
            scheme = scheme_of(self.record["quantization"])
            if scheme.kind != "none":  # `none` keeps the source's scheme
                self.quantization = scheme
            entries = self.record["tensors"].items()
            shards = sorted({part["shard"] for _, entry in entries for part in entry["stored"].values()})
            if any(shard != Path(shard).name for shard in shards):
                raise WeightsError(f"{path / RECORD}: names a shard outside of the folder")
            stored = {shard: read_safetensors(path / shard)[0] for shard in shards}
            tensors = {name: self._tensor(name, entry, stored) for name, entry in entries}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise WeightsError(
                f"{path / RECORD}: not what convert writes: {type(error).__name__}: {error}"
            ) from None
        super().__init__(
            path,
            tensors,
            read_json(path / "config.json"),
            accompanying(path),
            tuple(path / shard for shard in shards),
        )

    def verify(self) -> None:
        """Read and verify everything.

        Raises:
            WeightsError: a file is damaged; the message names it.
        """
        for tensor in self.values():
            if tensor.load_quantized:
                tensor.read_quantized()
            else:
                tensor.read()

    def _tensor(
        self, name: str, entry: dict[str, Any], by_shard: dict[str, dict[str, LazyTensor]]
    ) -> LazyTensor:
        shape, stored = tuple(entry["shape"]), entry["stored"]
        parts: dict[str, tuple[LazyTensor, str]] = {}
        for part, described in stored.items():
            tensor = by_shard[described["shard"]].get(described["name"])
            if tensor is None:
                raise WeightsError(
                    f"{described['shard']}: lacks {described['name']}; the folder mixes two conversions"
                )
            if (list(tensor.shape), tensor.dtype.name) != (described["shape"], described["dtype"]):
                raise WeightsError(
                    f"{tensor.where}: is {tensor.dtype.name} {list(tensor.shape)}, but {RECORD} says "
                    f"{described['dtype']} {described['shape']}"
                )
            parts[part] = tensor, described["xxh3"]
        if "scheme" not in entry:
            values, checksum = parts["values"]
            return LazyTensor(name, shape, values.dtype, values.where, lambda: self._read(values, checksum))
        scheme, transposed = scheme_of(entry["scheme"]), entry.get("transposed", False)
        inner = swapped(shape) if transposed else shape

        def load_quantized() -> Quantized:
            arrays = {part: self._read(*where) for part, where in parts.items()}
            try:
                return Quantized.of(scheme, inner, arrays)
            except WeightsError as error:  # an earlier version may have stored the scheme in another form
                raise WeightsError(f"{where}: {error}; convert again") from None

        def load() -> Array:
            values = dequantize(load_quantized())
            return values.swapaxes(-1, -2) if transposed else values

        where, dtype = parts["qweight"][0].where, np.dtype(np.float32)
        return LazyTensor(name, shape, dtype, where, load, scheme, load_quantized, transposed)

    def _read(self, tensor: LazyTensor, checksum: str) -> Array:
        array = tensor.read()
        if self._verify and checksum_of(array) != checksum:
            raise WeightsError(
                f"{tensor.where}: its checksum is not the one in {RECORD}: the file is damaged; convert again"
            )
        return array


def checksum_of(array: Array) -> str:
    """Return the XXH3-64 of an array's bytes, in hexadecimal."""
    import xxhash

    return xxhash.xxh3_64_hexdigest(octets(array))

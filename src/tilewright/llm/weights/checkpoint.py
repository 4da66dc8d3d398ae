"""The interface of all weight readers: named tensors that are read on demand, with the model's configuration
and tokenizer.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...artifact.disk_cache import digest
from ...errors import WeightsError
from ...ir.interpreter import Array
from ..quantization import NONE, Quantized, Scheme

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class LazyTensor:
    """A tensor in a file, read on demand.

    `dtype` is the type of `read`'s result. `where` names the file, and the tensor as the file names it.

    A quantized tensor has a `scheme`, and `read` dequantizes it. Its quantized form is that of the matrix
    [out, in]; if the tensor is stored `transposed` ([in, out], as in GPT-2), it is the form of the transpose.
    `importance` (f32 [in]) is the argument of `quantize`, if calibration determined it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: str
    load: Callable[[], Array]
    scheme: Scheme | None = None
    load_quantized: Callable[[], Quantized] | None = None
    transposed: bool = False
    importance: Array | None = None
    stored: int | None = None
    """Bytes that a quantized tensor takes in its file; None: unknown."""

    def read(self) -> Array:
        """Read the values; they are read-only if they are the mapped file itself.

        Raises:
            WeightsError: the file is damaged, or values are not finite.
        """
        values: Array = self._checked(self.load, self.shape)
        self._require_finite(values)
        return values

    def read_quantized(self) -> Quantized:
        """Read the quantized form.

        Raises:
            WeightsError: the tensor is not quantized, or the file is damaged.
        """
        if self.load_quantized is None:
            raise WeightsError(f"{self.where}: is not quantized")
        quantized: Quantized = self._checked(
            self.load_quantized, swapped(self.shape) if self.transposed else self.shape
        )
        for part in quantized.parts.values():
            self._require_finite(part)
        return quantized

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return `read`'s result, for functions that take arrays, such as `load_weights`."""
        return np.array(self.read(), dtype, copy=copy)

    def map(
        self,
        function: Callable[[Array], Array],
        *,
        dtype: np.dtype[Any] | None = None,
        parts: Callable[[Array], Array] | None = None,
    ) -> LazyTensor:
        """Return the tensor with `function` applied, which must keep the shape.

        `parts` applies the same change to each array of the quantized form; it is only possible for a
        permutation of rows. Without it the result is not quantized.
        """
        load, load_quantized = self.load, self.load_quantized
        mapped = replace(
            self, dtype=dtype or self.dtype, load=lambda: function(load()), scheme=None, load_quantized=None
        )
        if load_quantized is None or parts is None or self.transposed:
            return mapped

        def move() -> Quantized:
            quantized = load_quantized()
            arrays = {part: a if part == "permutation" else parts(a) for part, a in quantized.arrays.items()}
            return Quantized.of(quantized.scheme, self.shape, arrays)

        return replace(mapped, scheme=self.scheme, load_quantized=move)

    def renamed(self, name: str) -> LazyTensor:
        return replace(self, name=name)

    def transpose(self) -> LazyTensor:
        """Return the transpose of a matrix, or of each of a stack; the quantized form is unchanged."""
        load = self.load
        return replace(
            self,
            shape=swapped(self.shape),
            load=lambda: load().swapaxes(-1, -2),
            transposed=not self.transposed,
        )

    def _require_finite(self, values: Array) -> None:
        if not _finite(values):
            raise WeightsError(f"{self.where}: holds values that are not finite (NaN or infinity)")

    def _checked(self, load: Callable[[], Any], shape: tuple[int, ...]) -> Any:
        try:
            result = load()
        except WeightsError as error:
            text = str(error)
            raise WeightsError(text if text.startswith(self.where) else f"{self.where}: {text}") from None
        if result.shape != shape:
            raise WeightsError(f"{self.where}: has shape {list(result.shape)}, not {list(shape)}")
        return result


def swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the transposes of matrices [..., out, in]."""
    return (*shape[:-2], shape[-1], shape[-2])


_EXPONENTS = {
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
}
_PIECE = 1 << 18  # elements of a piece; larger ones leave the cache


def _finite(values: Array) -> bool:
    """Whether a float array has neither NaN nor infinity.

    Their exponents are all ones. Comparing them as integers is six times as fast for 16 bits.
    """
    if values.dtype.name not in _EXPONENTS:
        return values.dtype.kind != "f" or bool(np.isfinite(values).all())
    kind, ones = _EXPONENTS[values.dtype.name]
    # A transpose has the same elements in another order.
    bits = (values if values.flags.c_contiguous else np.ascontiguousarray(values.T)).reshape(-1).view(kind)
    pieces = (bits[start : start + _PIECE] for start in range(0, bits.size, _PIECE))
    return not any(((piece & kind(ones)) == ones).any() for piece in pieces)


_SAMPLES, _SAMPLE = 256, 64
"""The pieces of a file that `Checkpoint.sample` reads, and their bytes."""


class Checkpoint(Mapping[str, LazyTensor]):
    """A model's weights by their Hugging Face names, in the order of the files.

    `config` is the content of config.json. `files` are the model's other files by name (tokenizer.json,
    generation_config.json, ...); calling one reads it. `sources` are the files with the tensors. `edits`
    distinguishes checkpoints that were derived from the same files in different ways.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, LazyTensor],
        config: dict[str, Any],
        files: Mapping[str, Callable[[], bytes]],
        sources: tuple[Path, ...],
        edits: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.config = config
        self.files = dict(files)
        self.sources = sources
        self.edits = edits
        self._tensors = dict(tensors)

    @cached_property
    def quantization(self) -> Scheme:
        """The scheme of most elements; `NONE` if those are plain values."""
        sizes: Counter[Scheme] = Counter()
        for tensor in self.values():
            sizes[tensor.scheme or NONE] += math.prod(tensor.shape)
        return max(sizes, key=lambda scheme: sizes[scheme], default=NONE)

    def sample(self) -> str:
        """A key of the files, of which it reads a small part only: pieces at equal distances, by which models
        of the same sizes differ.

        Raises:
            WeightsError: A file cannot be read.
        """
        parts: list[bytes | str] = [*self.edits]
        for path in self.sources:
            with reading(path), path.open("rb") as file:
                size = path.stat().st_size
                parts.append(str(size))
                for k in range(_SAMPLES):
                    file.seek(size * k // _SAMPLES)
                    parts.append(file.read(_SAMPLE))
        return digest(*parts)

    def __getitem__(self, name: str) -> LazyTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file, or `path`, and the reason where the system refuses a read in the ``with`` block.

    Raises:
        WeightsError: a file is missing or cannot be read, or its path is too long.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise WeightsError(f"{error.filename or path}: no such file") from None
    except OSError as error:
        where, reason = error.filename or path, error.strerror or error
        raise WeightsError(f"{where}: cannot be read: {reason}") from None


def read_json(path: Path, *, most: int = 1 << 28) -> Any:
    """Read an object from a JSON file.

    Raises:
        WeightsError: the file is missing, not readable, larger than `most` bytes, or not a JSON object.
    """
    try:
        with reading(path):
            if path.stat().st_size > most:
                raise WeightsError(f"{path}: larger than {most} bytes")
            value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: not a JSON object")
    return value

"""Quantization and dequantization of matrices in NumPy, piece by piece on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ...dialects.weight_form import split_nibbles, weights_of
from ...driver.cores import usable_cores
from ...errors import WeightsError
from ...ir.interpreter import Array
from .schemes import BLOCK, Scheme
from .tables import TABLES

_PIECE = 1 << 16  # elements of a piece; larger pieces have temporaries that leave the cache
# Ranges tried for each group, by bits; more take longer. With 8 bits, clipping never reduces the error.
_CLIPS = {2: 16, 3: 14, 4: 12}
_LEAST = 0.6  # smallest range tried, as a fraction of the whole; a smaller one clips more values
_TINY = np.finfo(np.float32).tiny
_F8 = np.dtype(ml_dtypes.float8_e4m3fn)
_F8_MOST = 448.0
_FORM_PART = {"zeros": "minimums"}


@dataclass(frozen=True)
class Quantized:
    """A matrix [..., out, in] in a quantized `scheme`, with the arrays that `Scheme` describes.

    `permutation` (int32 [in]) is set if a checkpoint sorted the columns by importance before grouping them:
    stored column i is the matrix' column ``permutation[i]``.
    """

    scheme: Scheme
    shape: tuple[int, ...]
    qweight: Array
    scales: Array
    zeros: Array | None = None
    permutation: Array | None = None
    units: Array | None = None
    minimums: Array | None = None
    minimum_units: Array | None = None

    @property
    def arrays(self) -> dict[str, Array]:
        """The stored arrays by part."""
        names = ("qweight", "scales", "zeros", "permutation", "units", "minimums", "minimum_units")
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    @property
    def parts(self) -> dict[str, Array]:
        """The parts besides the values as `dialects.weight_form` names them: zero points are minimums.
        Integers of 4 bits take a byte each.
        """
        return {
            name: self.integers_of(array) if name in self.scheme.nibbles else array
            for name, array in self.stored_parts.items()
        }

    @property
    def stored_parts(self) -> dict[str, Array]:
        """`parts` as they are stored."""
        arrays = self.arrays
        return {_FORM_PART.get(p.name, p.name): arrays[p.name] for p in self.scheme.stored_parts}

    def integers_of(self, octets: Array) -> Array:
        """The integers of 4 bits of a part, u8 [..., out, groups]."""
        return split_nibbles(octets)[..., : self.scheme.groups(self.shape[-1])]

    def values(self, a: int = 0, b: int | None = None) -> Array:
        """The quantized values of rows `a` to `b` of [..., out] flattened: i8, u8 or 8-bit floats."""
        scheme, columns = self.scheme, self.shape[-1]
        packed = self.qweight.reshape(-1, self.qweight.shape[-1])[a:b]
        if scheme.bits == 8:
            return packed
        stored = scheme.unpacked(packed, columns)
        return stored.view(np.int8) - np.int8(scheme.added) if scheme.symmetric else stored

    @staticmethod
    def of(scheme: Scheme, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> Quantized:
        """Make a quantized matrix from `arrays`.

        Raises:
            WeightsError: they do not fit a matrix of this shape and scheme.
        """
        lead, (out, columns) = shape[:-2], shape[-2:]
        if scheme.kind == "fp8":
            want: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
                "qweight": ((*lead, out, columns), (_F8.name,)),
                "scales": ((*lead, -(-out // BLOCK), -(-columns // BLOCK)), ("float32",)),
            }
        else:
            want = {"qweight": ((*lead, out, scheme.row_bytes(columns)), (scheme.stored_type,))}
            groups = scheme.groups(columns)
            for p in scheme.stored_parts:
                want[p.name] = ((*lead, out, -(-groups // p.covered)), p.dtypes)
            if "permutation" in arrays:
                want["permutation"] = ((columns,), ("int32",))
        if set(want) != set(arrays):
            raise WeightsError(f"{scheme.name} has the parts {', '.join(want)}, not {', '.join(arrays)}")
        for part, (dims, dtypes) in want.items():
            array = arrays[part]
            if array.shape != dims or array.dtype.name not in dtypes:
                raise WeightsError(
                    f"{part} of {scheme.name} must be {dtypes[0]} {list(dims)}, not {array.dtype.name} "
                    f"{list(array.shape)}"
                )
        order = arrays.get("permutation")
        if order is not None and not np.array_equal(np.sort(order), np.arange(columns)):
            raise WeightsError("permutation does not name each column once")
        return Quantized(scheme, shape, **arrays)


def quantize(matrix: Array, scheme: Scheme, importance: Array | None = None) -> Quantized:
    """Quantize `matrix` [..., out, in] with the least error that the search finds.

    Each group tries its whole range and several clipped ranges, and takes the one with the least squared
    error. Then the scale is fitted to the integers by least squares if that lowers the error. Blocks of 8-bit
    floats use the whole range only. `importance` (f32 [in], such as the inputs' mean squares) weighs the
    squared errors.

    Raises:
        WeightsError: values are not finite, or the array is not a matrix.
    """
    if not scheme.can_quantize:
        raise WeightsError(f"{scheme.name} is only kept from files that have it: give another scheme")
    if matrix.ndim < 2 or not matrix.size:
        raise WeightsError(f"{list(matrix.shape)} is not a matrix; {scheme.name} is for matrices")
    if scheme.kind == "fp8":
        return _quantize_fp8(matrix, scheme)
    *lead, out, columns = matrix.shape
    flat = matrix.reshape(-1, columns)
    rows = len(flat)
    for dtype in (np.float16, np.float32):
        q = np.empty(
            (rows, scheme.row_bytes(columns)), np.int8 if scheme.bits == 8 and scheme.symmetric else np.uint8
        )
        scales = np.empty((rows, scheme.groups(columns)), dtype)
        zeros = None if scheme.symmetric else np.empty(scales.shape, np.uint8)

        def work(a: int, b: int, q: Array = q, scales: Array = scales, zeros: Array | None = zeros) -> bool:
            groups = _across(_grouped(flat[a:b], scheme))
            if not np.isfinite(groups).all():
                raise WeightsError("holds values that are not finite")
            weight = None
            if importance is not None:
                weight = _across(_grouped(np.broadcast_to(importance, (b - a, columns)), scheme))
            values, s, z = _search(groups, scheme, scales.dtype, weight)
            q[a:b] = _store(values.T.reshape(b - a, -1)[:, :columns], scheme)
            scales[a:b] = s.reshape(b - a, -1)
            if zeros is not None:
                zeros[a:b] = z.reshape(b - a, -1)
            return _fits(s, groups)

        if all(_parallel(work, rows, columns)) or dtype is np.float32:
            break
    shaped = lambda a: a.reshape(*lead, out, a.shape[-1])  # noqa: E731
    return Quantized(
        scheme, matrix.shape, shaped(q), shaped(scales), None if zeros is None else shaped(zeros)
    )


def dequantize(quantized: Quantized) -> Array:
    """Return the dequantized matrix, f32 [..., out, in]."""
    scheme, shape = quantized.scheme, quantized.shape
    if scheme.kind == "fp8":
        return _dequantize_fp8(quantized)
    columns, groups = shape[-1], scheme.groups(shape[-1])
    parts = {part: a.reshape(-1, a.shape[-1]) for part, a in quantized.parts.items()}
    result = np.empty((int(np.prod(shape[:-1])), columns), np.float32)
    missing = groups * (scheme.group or columns) - columns

    def work(a: int, b: int) -> None:
        stored = quantized.values(a, b)
        if missing:  # the last group is shorter
            stored = np.pad(stored, ((0, 0), (0, missing)))
        some = {part: array[a:b] for part, array in parts.items()}
        values = weights_of(stored, some, TABLES.get(scheme.values))[:, :columns]
        if quantized.permutation is None:
            result[a:b] = values
        else:
            result[a:b, quantized.permutation] = values

    _parallel(work, len(result), columns)
    return result.reshape(shape)


def _search(
    w: Array, scheme: Scheme, dtype: np.dtype[Any], importance: Array | None
) -> tuple[Array, Array, Array]:
    """Return integers (f32 [group, n]), scales and zeros (f32 [n]) for n groups w [group, n]."""
    levels = (1 << scheme.bits) - 1
    least, most = w.min(0), w.max(0)
    if scheme.symmetric:
        low, high = -(1 << (scheme.bits - 1)), (1 << (scheme.bits - 1)) - 1
        # The integer without an opposite (the least) goes to the side with the larger absolute value, through
        # a negative scale if needed. With clipping, the widest range tried is that of plain rounding.
        span = np.maximum(-least, most) / np.float32(high)
        if scheme.bits in _CLIPS:
            span = np.where(most > -least, -span, span)
    else:
        low, high = 0, levels
        least = np.minimum(least, 0)
        span = (np.maximum(most, 0) - least) / np.float32(levels)
    work = np.empty_like(w)

    def rounded(ratio: Array) -> tuple[Array, Array, Array]:
        """Round to integers, stored in `work`, with scales rounded as they are stored."""
        scale = (span * ratio).astype(dtype).astype(np.float32)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=np.abs(scale) >= _TINY)
        np.multiply(w, inverse, out=work)
        np.rint(work, out=work)
        zero = np.zeros_like(scale)
        if not scheme.symmetric:
            zero = np.clip(np.rint(-ratio * least * inverse), 0, levels)
            np.add(work, zero, out=work)
        np.maximum(work, low, out=work)
        np.minimum(work, high, out=work)
        return work, scale, zero

    def error_of(e: Array) -> Array:
        np.subtract(e, w, out=e)
        np.multiply(e, e, out=e)
        if importance is not None:
            np.multiply(e, importance, out=e)
        return e.sum(0)

    def values(q: Array, scale: Array, zero: Array) -> Array:
        """Dequantize integers into `work`."""
        if not scheme.symmetric:
            q = np.subtract(q, zero, out=work)
        return np.multiply(q, scale, out=work)

    best = np.ones_like(span)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale beyond float16 is detected by `_fits`
        clips = _CLIPS.get(scheme.bits, 1)
        if clips > 1:
            least_error = np.full_like(span, np.inf)
            for ratio in np.linspace(1, _LEAST, clips, dtype=np.float32):
                error = error_of(values(*rounded(ratio)))
                better = error < least_error
                least_error[better] = error[better]
                best[better] = ratio
        q, scale, zero = rounded(best)
        q = q.copy(order="K")
        error = error_of(values(q, scale, zero))
        centred = q if scheme.symmetric else q - zero
        weighted = centred if importance is None else centred * importance
        square = (centred * weighted).sum(0)
        fitted = np.divide((w * weighted).sum(0), square, out=np.zeros_like(square), where=square > 0)
        fitted = fitted.astype(dtype).astype(np.float32)
        scale = np.where(error_of(values(q, fitted, zero)) < error, fitted, scale)
    return q, scale, zero


def _store(q: Array, scheme: Scheme) -> Array:
    """Convert integers (f32 [rows, in]) to the form of `Quantized.qweight`."""
    if scheme.bits == 8:
        return q.astype(np.int8 if scheme.symmetric else np.uint8)
    return scheme.packed((q + np.float32(scheme.added)).astype(np.uint8))


def _fits(scales: Array, groups: Array) -> bool:
    """Whether float16 represents the scales of groups [group, n] at its full precision."""
    used = np.abs(scales[groups.any(0)])
    return not used.size or bool(used.max() < np.inf and used.min() >= np.finfo(np.float16).tiny)


def _grouped(rows: Array, scheme: Scheme) -> Array:
    """Reshape [rows, in] to f32 [rows, groups, group]; the last group is padded with zeros."""
    count, columns = rows.shape
    group = scheme.group or columns
    whole = scheme.groups(columns) * group
    if whole == columns:
        return rows.reshape(count, -1, group).astype(np.float32)
    result = np.zeros((count, whole), np.float32)
    result[:, :columns] = rows
    return result.reshape(count, -1, group)


def _across(grouped: Array) -> Array:
    """Reshape [rows, groups, group] to [group, rows * groups].

    Small groups are copied, which makes NumPy's inner loops long; for larger ones a view suffices.
    """
    across = grouped.reshape(-1, grouped.shape[-1]).T
    return np.ascontiguousarray(across) if len(across) <= 256 else across


def _quantize_fp8(matrix: Array, scheme: Scheme) -> Quantized:
    *lead, out, columns = matrix.shape
    q = np.empty((*lead, out, columns), _F8)
    scales = np.empty((*lead, -(-out // BLOCK), -(-columns // BLOCK)), np.float32)
    for index, row in _bands(lead, out):
        band = matrix[index][row * BLOCK : (row + 1) * BLOCK].astype(np.float32)
        if not np.isfinite(band).all():
            raise WeightsError("holds values that are not finite")
        most = np.maximum.reduceat(np.abs(band).max(0), np.arange(0, columns, BLOCK))
        scale = np.maximum(most / np.float32(_F8_MOST), _TINY)
        scales[index][row] = np.where(most > 0, scale, 0)
        spread = np.repeat(scale, BLOCK)[:columns]
        q[index][row * BLOCK : (row + 1) * BLOCK] = np.clip(band / spread, -_F8_MOST, _F8_MOST).astype(_F8)
    return Quantized(scheme, matrix.shape, q, scales)


def _dequantize_fp8(quantized: Quantized) -> Array:
    *lead, out, columns = quantized.shape
    result = np.empty(quantized.shape, np.float32)
    for index, row in _bands(lead, out):
        rows = slice(row * BLOCK, (row + 1) * BLOCK)
        spread = np.repeat(quantized.scales[index][row], BLOCK)[:columns]
        result[index][rows] = quantized.qweight[index][rows].astype(np.float32) * spread
    return result


def _bands(lead: list[int], out: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Iterate over (index of a matrix in the batch, row of blocks)."""
    return ((index, row) for index in np.ndindex(*lead) for row in range(-(-out // BLOCK)))


def _parallel(work: Callable[[int, int], Any], rows: int, columns: int) -> list[Any]:
    """Call ``work(a, b)`` for pieces of the rows on all cores. NumPy's loops release the interpreter's
    lock.
    """
    step = max(1, _PIECE // max(columns, 1))
    pieces = [(a, min(a + step, rows)) for a in range(0, rows, step)]
    if len(pieces) < 2:
        return [work(a, b) for a, b in pieces]
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(lambda piece: work(*piece), pieces))

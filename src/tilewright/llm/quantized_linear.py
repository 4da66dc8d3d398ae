"""Layers with quantized weights and one scale per group of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..dialects import graph as g
from ..dialects.weight_form import TERNARY
from ..frontends.nn import Linear, Module
from ..frontends.nn.functional import embedding
from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp
from ..frontends.trace.operands import apply
from ..ir.types import DType, i8
from .quantization.packing import digit_places

_factors: ContextVar[DType] = ContextVar("factors", default=i8)


@contextmanager
def factors(dtype: DType) -> Iterator[None]:
    """Make layers called in the ``with`` block multiply operands of `dtype`; see `graph.quantized_matmul`.

    i8 reads the least memory, bf16 is more precise.
    """
    token = _factors.set(dtype)
    try:
        yield
    finally:
        _factors.reset(token)


class QuantizedMatrix(Module):
    """A matrix of quantized values; `dialects.weight_form` has its meaning.

    Args:
        qvalues: The values, [out, in], of a type that `graph.quantized_matmul` takes.
        scales: One for each group of columns, [out, groups].
        bits: The bits that a value takes, see `graph.quantized_matmul`; None: all of its type.
        table: The 16 numbers that values stand for; None: themselves.
        parts: `units`, `minimums` and `minimum_units`, [out, groups or a divisor].
    """

    def __init__(
        self, qvalues: Tensor, scales: Tensor, *, bits: float | None = None,
        table: tuple[float, ...] | None = None, **parts: Tensor,
    ) -> None:  # fmt: skip
        super().__init__()
        self.qvalues, self.scales, self.bits, self.table = qvalues, scales, bits, table
        self.units, self.minimums = parts.get("units"), parts.get("minimums")
        self.minimum_units = parts.get("minimum_units")
        self.largest: Callable[[Tensor], Tensor] | None = None
        """Gives for rows [..., k] of x the largest magnitudes [..., 1] of the rows of which they are a part,
        so that x is rounded as the whole rows are. None: they are whole.
        """

    def product(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """``x @ matrix.T``; with `index`, each row is multiplied by the matrix that it selects."""
        largest = None if self.largest is None or _factors.get() is not i8 else self.largest(x)
        parts = (self.scales, index, self.units, self.minimums, self.minimum_units, largest)
        options = {"factors": _factors.get(), "bits": self.bits, "table": self.table}
        y: Tensor = apply(g.QuantizedMatMul, x, self.qvalues, *parts, **options)
        return y

    def rounds_by_rows(self, one_scale: bool) -> bool:
        """Whether x is rounded to 8 bits by whole rows, of which these may be some columns.

        Args:
            one_scale: Whether each whole row of the matrix has one scale.
        """
        if self.qvalues.type.dtype.is_float:  # factors are rounded to bf16, each by itself
            return False
        bits = self.qvalues.dtype.itemsize * 8 if self.bits is None else self.bits
        return one_scale or (bits <= 4 and self.units is None)


class QuantizedLinear(QuantizedMatrix):
    """``x @ matrix.T + bias``, with `bias` [out] or None.

    `permutation` (int [in]): column i of the quantized values belongs to ``x[..., permutation[i]]``. Further
    arguments are those of `QuantizedMatrix`.
    """

    def __init__(
        self, qvalues: Tensor, scales: Tensor, bias: Tensor | None = None, *,
        permutation: Tensor | None = None, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(qvalues, scales, **more)
        self.bias, self.permutation = bias, permutation

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x if self.permutation is None else x[..., self.permutation])
        return y if self.bias is None else y + self.bias


class QuantizedGroupedLinear(QuantizedMatrix):
    """`experts.GroupedLinear` with quantized matrices: all parts have a leading dimension of matrices."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.product(x, index)


class QuantizedEmbedding(QuantizedMatrix):
    """An embedding table with quantized rows; results are float32."""

    def forward(self, ids: Tensor) -> Tensor:
        def rows(part: Tensor) -> Tensor:
            return tnp.astype(embedding(ids, part), "float32")

        def times(part: Tensor, units: Tensor | None) -> Tensor:
            numbers = rows(part)
            if units is None:
                return numbers
            each = rows(units)
            return (numbers.reshape(*each.shape, -1) * each[..., None]).reshape(*numbers.shape)

        scales = times(self.scales, self.units)
        values = self.values(ids)
        if self.table is not None:
            values = tnp.asarray(np.asarray(self.table, np.float32))[tnp.astype(values, "int32")]
        values = tnp.astype(values, "float32")
        grouped = values.reshape(*scales.shape, values.shape[-1] // scales.shape[-1]) * scales[..., None]
        if self.minimums is not None:
            minimums = times(self.minimums, self.minimum_units)
            if self.minimum_units is None and self.minimums.dtype.kind in "iu":
                minimums = minimums * scales
            grouped = grouped - minimums[..., None]
        result: Tensor = grouped.reshape(*values.shape)
        return result

    def values(self, ids: Tensor) -> Tensor:
        """The quantized values of rows."""
        return embedding(ids, self.qvalues)

    def attend(self, x: Tensor) -> Tensor:
        """See `Embedding.attend`."""
        return self.product(x)


class PackedEmbedding(QuantizedEmbedding):
    """A quantized embedding table that is not the head, too: its values stay a stream of bits along each row.

    Args:
        octets: The rows, as `Scheme.packed` makes them, uint8 [rows, bytes].
        scales: As for `QuantizedMatrix`.
        bits: The bits of a value, fewer than 8, or `TERNARY`.
        columns: The values of a row.
        added: The number that is added to values where they are stored.
        more: Further arguments of `QuantizedMatrix`.
    """

    def __init__(
        self, octets: Tensor, scales: Tensor, *, bits: float, columns: int, added: int, **more: Any
    ) -> None:
        super().__init__(octets, scales, bits=bits, **more)
        self.columns, self.added = columns, added

    def values(self, ids: Tensor) -> Tensor:
        assert self.bits is not None
        octets = tnp.astype(embedding(ids, self.qvalues), "int32")
        if self.bits == TERNARY:
            places, powers = digit_places(self.columns)
            digits: Tensor = (((octets[..., places] * tnp.asarray(powers)) & 255) * 3) >> 8
            return digits - self.added
        first = np.arange(self.columns, dtype=np.int32) * int(self.bits)
        low, high = octets[..., first // 8], octets[..., (first + self.bits - 1) // 8]
        stored = ((low | (high << 8)) >> tnp.asarray(first % 8)) & ((1 << int(self.bits)) - 1)
        result: Tensor = stored - self.added
        return result


def replace_linears(
    model: Module, quantized: Callable[[str, Any], Module | None], kind: type[Module] = Linear
) -> None:
    """Replace each layer of type `kind` in a model by the result of ``quantized(path, layer)``, unless that
    is None.
    """
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                new = quantized(f"{path}.{name}" if path else name, child)
                if new is not None:
                    setattr(module, name, new)


__all__ = [
    "PackedEmbedding",
    "QuantizedEmbedding",
    "QuantizedGroupedLinear",
    "QuantizedLinear",
    "QuantizedMatrix",
    "factors",
    "replace_linears",
]

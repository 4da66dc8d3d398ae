"""`Cut`: the rows or columns of a tensor of a checkpoint that one process needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import CompileError
from ...ir.interpreter import Array
from ..quantization import Quantized, Scheme
from ..quantization.schemes import BLOCK
from ..weights.checkpoint import LazyTensor

ROWS, COLUMNS = -2, -1
"""The axes of a matrix [..., out, in]."""


@dataclass(frozen=True)
class Cut:
    """Some ranges of one axis, joined."""

    axis: int
    """The axis of the parameter, counted from its last one, -1."""
    ranges: tuple[tuple[int, int], ...]
    """The first index of each range, and the one after its last."""

    @property
    def count(self) -> int:
        """The number of indices."""
        return sum(stop - start for start, stop in self.ranges)

    def taken(self, array: Array, axis: int, ranges: Sequence[tuple[int, int]] | None = None) -> Array:
        """The ranges of an array; one range is not copied."""
        last = array.swapaxes(axis, -1)
        parts = [last[..., a:b].swapaxes(axis, -1) for a, b in (self.ranges if ranges is None else ranges)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)

    def of(self, tensor: LazyTensor, transposed: bool) -> LazyTensor:
        """The tensor of the ranges alone, which reads no others from the file. Quantized values stay so.

        Args:
            tensor: The whole tensor.
            transposed: Whether the parameter is its transpose.

        Raises:
            CompileError: A range does not begin and end between the groups of quantized values.
        """
        axis = -3 - self.axis if transposed and len(tensor.shape) > 1 else self.axis
        shape = list(tensor.shape)
        shape[axis] = self.count
        whole, quantized = tensor.load, tensor.load_quantized
        part = replace(tensor, shape=tuple(shape), load=lambda: self.taken(whole(), axis), stored=None)
        if quantized is None or tensor.scheme is None:
            return part
        of_form = -3 - axis if tensor.transposed else axis
        columns = tensor.shape[-2 if tensor.transposed else -1]
        self._check(tensor, tensor.scheme, columns, of_form)
        return replace(part, load_quantized=lambda: self._quantized(quantized(), of_form, tensor.where))

    def _check(self, tensor: LazyTensor, scheme: Scheme, columns: int, axis: int) -> None:
        """Check that the ranges can be taken from the quantized form.

        Raises:
            CompileError: They cannot.
        """
        if axis == ROWS:
            step, what = (BLOCK, "blocks of rows") if scheme.kind == "fp8" else (1, "rows")
        elif scheme.group is None:
            step, what = 8, "whole bytes"
        else:
            covered = max((part.covered for part in scheme.stored_parts), default=1)
            step, what = scheme.group * covered, "groups"
        size = columns if axis == COLUMNS else None
        if any(a % step or (b % step and b != size) for a, b in self.ranges):
            raise CompileError(
                f"{tensor.where}: cannot be divided into these parts, since they do not begin and end "
                f"between {what} of {step} ({scheme.name}): use fewer processes, or weights with smaller "
                "groups"
            )

    def _quantized(self, whole: Quantized, axis: int, where: str) -> Quantized:
        scheme, arrays = whole.scheme, {}
        if axis == COLUMNS and whole.permutation is not None:
            raise CompileError(
                f"{where}: its columns were sorted by importance before they were quantized (GPTQ with "
                "desc_act), so no process can have a range of them: use a checkpoint without desc_act"
            )
        shape = list(whole.shape)
        shape[axis] = self.count
        covered = {"qweight": 1, **{p.name: p.covered for p in scheme.stored_parts}}
        for name, array in whole.arrays.items():
            if name == "permutation" or (name != "qweight" and axis == COLUMNS and scheme.group is None):
                arrays[name] = array
                continue
            if axis == ROWS:
                step = BLOCK if scheme.kind == "fp8" and name == "scales" else 1
                ranges = [(a // step, -(-b // step)) for a, b in self.ranges]
            elif name == "qweight":
                ranges = [(scheme.row_bytes(a), scheme.row_bytes(b)) for a, b in self.ranges]
            else:
                step = (scheme.group or 1) * covered.get(name, 1)
                ranges = [(a // step, -(-b // step)) for a, b in self.ranges]
            arrays[name] = np.ascontiguousarray(self.taken(array, axis, ranges))
        return Quantized.of(scheme, tuple(shape), arrays)


__all__ = ["COLUMNS", "ROWS", "Cut"]

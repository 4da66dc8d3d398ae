"""The forms of operators that vendors' libraries may compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...dialects.graph.conv import convolve
from ...ir.types import DType


@dataclass(frozen=True)
class Product:
    """A form of products of matrices, row-major and dense: ``z = x @ y``.

    Its sizes are the matrices, and the rows, columns and terms of each.
    """

    kind: ClassVar[str] = "product"
    """The name of such operators."""
    dtype: DType
    """The element type of both factors and of the result."""
    batched: bool = False
    """Whether both factors have the same leading dimensions, and each pair of matrices is multiplied. Else
    `x` has any number of leading dimensions, and `y` none.
    """
    transposed: bool = False
    """Whether `y` has a row for each column of the result."""
    epilogue: str = ""
    """``bias``: the sum with a vector of the columns. Activations of libraries are not used: what they make
    of a NaN is not stated.
    """

    @property
    def label(self) -> str:
        """A name: ``f32_nt_bias``."""
        parts = (self.dtype.name, "nt" if self.transposed else "nn", "batched" * self.batched, self.epilogue)
        return "_".join(part for part in parts if part)

    def reference(self, x: Any, y: Any, bias: Any = None) -> Any:
        """The result in NumPy, summed in double precision."""
        y = np.swapaxes(y, -1, -2) if self.transposed else y
        z = np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(self.dtype.numpy)
        return z if bias is None else z + bias


@dataclass(frozen=True)
class Convolution:
    """A form of convolutions (cross-correlations) without a bias, of dense tensors.

    `x` is (N, C, *spatial) and `w` (O, C / groups, *kernel); with `channels_last` they are (N, *spatial, C)
    and (O, *kernel, C / groups). Its sizes are N, the spatial sizes of `x`, C and O.
    """

    kind: ClassVar[str] = "convolution"
    """The name of such operators."""
    dtype: DType
    """The element type of both operands and of the result."""
    kernel: tuple[int, ...]
    """The sizes of the kernel."""
    strides: tuple[int, ...]
    """Elements from one window to the next, in each spatial dimension."""
    padding: tuple[int, ...]
    """Zeros on either side of each spatial dimension."""
    dilations: tuple[int, ...]
    """Elements from one element of a window to the next, in each spatial dimension."""
    groups: int = 1
    """Groups of channels that are convolved apart."""
    channels_last: bool = False
    """Whether channels are the last dimension."""

    @property
    def label(self) -> str:
        """A name: ``f32_3x3_s2_p1_last``."""
        parts = [self.dtype.name, "x".join(map(str, self.kernel))]
        numbers = {"s": (self.strides, 1), "p": (self.padding, 0), "d": (self.dilations, 1)}
        for letter, (values, usual) in numbers.items():
            if set(values) != {usual}:
                same = len(set(values)) == 1
                parts.append(letter + "x".join(map(str, values[:1] if same else values)))
        parts += [f"g{self.groups}"] if self.groups != 1 else []
        return "_".join([*parts, "last" if self.channels_last else "first"])

    def reference(self, x: Any, w: Any) -> Any:
        """The result in NumPy, summed in double precision."""
        if self.channels_last:
            x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
        padding = [(p, p) for p in self.padding]
        y = convolve(x, w, self.strides, padding, self.dilations, self.groups).astype(self.dtype.numpy)
        return np.moveaxis(y, 1, -1) if self.channels_last else y


Form = Product | Convolution


@dataclass(frozen=True)
class Shape:
    """The shape of a use of a form."""

    sizes: tuple[int | None, ...]
    """The form's sizes; None where one is known at run time only."""
    constant: bool
    """Whether the second operand is a constant, which the compiler may arrange."""


def structure_of(form: Form, shape: Shape) -> str:
    """The text by which a database of measured choices knows a use of a form."""
    sizes = " x ".join(map(str, shape.sizes))
    return f"{form.kind} {form.label} of {sizes}{' by a constant' if shape.constant else ''}"


def known(dims: Sequence[object]) -> tuple[int | None, ...]:
    """Dimensions as sizes of a `Shape`."""
    return tuple(d if isinstance(d, int) else None for d in dims)


__all__ = ["Convolution", "Form", "Product", "Shape", "known", "structure_of"]

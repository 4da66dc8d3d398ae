"""Random programs of tensors of all element types with no dimension, few elements or none. Their kernels have
no loops, and their values reach the limits of the types.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.ir.constant import Constant
from tilewright.ir.core import Value
from tilewright.ir.symbolic import Dim
from tilewright.ir.types import (
    DType,
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

from .generator import MAKERS, Generator, Maker, Program

G: Any = graph
DTYPES = (boolean, i8, u8, i16, u16, i32, u32, i64, u64, f16, f16, bf16, f32, f32, f64)
_ELEMENTWISE = frozenset(
    "unary activation integer_unary logical_not binary comparison logical select cast broadcast "
    "reduction".split()
)


class Corners(Generator):
    """Generates a program of small tensors that begins with one of the operators below."""

    def __init__(self, seed: int, max_steps: int) -> None:
        makers = [(name, maker) for name, maker in MAKERS for _ in range(3 if name in _ELEMENTWISE else 1)]
        super().__init__(
            seed, max_steps, makers=[*makers, *_OWN * (len(makers) // 8)], first=_OWN[seed % len(_OWN)][1]
        )

        self.main = DTYPES[seed % len(DTYPES)]

    def dtype(self) -> DType:
        """A random type, mostly the program's main type, so that operators find operands of equal types."""
        return self.main if self.chance(0.7) else self.pick(DTYPES)  # type: ignore[no-any-return]

    def _dim(self) -> Dim:
        return self.pick([0, 1, 1, 1, 2, 3])  # type: ignore[no-any-return]

    def _input_type(self) -> TensorType:
        return TensorType(self.dtype(), tuple(self._dim() for _ in range(self.pick([0, 0, 0, 1, 1, 2]))))


def _clamp(g: Generator) -> Any:
    x = g.value("float", "int", "uint")
    if x is None:
        return None
    low, high = (g.pick([None, -300, -1, 0, 1, 5, 127, 300]) for _ in range(2))
    return g.builder(G.Clamp(x, minimum=low, maximum=high))


def _expand(g: Generator) -> Any:
    x: Value | None = g.value()
    return (
        None
        if x is None
        else g.builder(G.BroadcastTo(x, shape=(*(1 for _ in range(g.integer(1, 2))), *x.type.shape)))
    )


def _flip(g: Generator) -> Any:
    x = g.value(rank=1)
    return None if x is None else g.builder(G.Flip(x, axes=(g.integer(0, x.type.rank - 1),)))


def _outer(g: Generator) -> Any:
    """An outer product, inner product or elementwise product of two vectors of any type."""
    x = g.value(rank=1)
    if x is None or x.type.rank != 1:
        return None
    y = g.pick([v for v in g.values if v.type.dtype is x.type.dtype and v.type.shape == x.type.shape])
    return g.builder(G.Einsum([x, y], equation=g.pick(["i,j->ij", "i,i->", "i,i->i"])))


def _limit(g: Generator) -> Any:
    """A comparison of a value with the least or the greatest number of its type."""
    x = g.value("int", "uint")
    if x is None:
        return None
    end = g.builder(G.Constant(value=Constant(np.asarray(g.pick(x.type.dtype.limits), x.type.dtype.numpy))))
    return g.builder(G.OPERATORS[g.pick(["Min", "Max", "Eq", "Lt", "Ge"])](x, end))


def _power(g: Generator) -> Any:
    """An integer power with exponents that may be larger than any shift of the type."""
    x = g.value("int", "uint")
    if x is None:
        return None
    most = int(np.iinfo(x.type.dtype.numpy).max)
    shape = x.type.shape if all(isinstance(d, int) for d in x.type.shape) and g.chance(0.3) else ()
    exponents = g.rng.choice([0, 1, 2, 3, 31, 63, 64, 65, 100, 127, 255, 1000], shape)
    powers = np.minimum(exponents, most).astype(x.type.dtype.numpy)
    return g.builder(G.Pow(x, g.builder(G.Constant(value=Constant(powers)))))


_OWN: list[tuple[str, Maker]] = [
    ("clamp", _clamp),
    ("expand", _expand),
    ("flip", _flip),
    ("outer", _outer),
    ("limit", _limit),
    ("power", _power),
]


def generate(seed: int, max_steps: int = 10) -> Program:
    """The program of a seed."""
    with np.errstate(all="ignore"):
        return Corners(seed, max_steps).program()

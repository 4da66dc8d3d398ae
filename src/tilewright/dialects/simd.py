"""The simd dialect: hardware-shaped statements that `tensorize` puts in place of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.core import Attr, Effect, Operand, Operation, operation
from ..ir.types import Type


@operation
class BatchReduceGemm(Operation):
    """``C[m, n] (+)= sum over r.., k of A[a(m, r, k)] * B[b(n, r, k)]``: one tile of a contraction (batch-reduce GEMM).

    All addresses are in elements from the start of the flat, row-major buffers. `m`, `n`, `k` are extents; `reductions` lists
    the extents of further outer reduce loops (a convolution's kernel rows and columns). Strides: A moves by ``a_m``, ``a_k`` and
    ``a_r[i]``; B is a sequence of panels of `nr` columns: column n of row k is at ``b_panel * (n // nr) + b_k * k + n % nr``;
    C moves by ``c_m`` per row, 1 per column. `accumulate` adds to C instead of overwriting it. `padded` promises that the last
    panel of B may be read in full. All numbers are `Dim`s over the surrounding loop variables.

    Source of the formulation: Georganas et al., "High-Performance Deep Learning via a Single Building Block", 2019.
    """

    name = "simd.brgemm"
    effects = Effect.READ | Effect.WRITE
    a: Operand
    b: Operand
    c: Operand
    m: Attr
    n: Attr
    k: Attr
    nr: Attr
    reductions: Attr = ()
    a_offset: Attr = 0
    b_offset: Attr = 0
    c_offset: Attr = 0
    a_m: Attr
    a_k: Attr = 1
    a_r: Attr = ()
    b_panel: Attr
    b_k: Attr
    b_r: Attr = ()
    c_m: Attr
    accumulate: Attr = False
    padded: Attr = False

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Any, a: Any, b: Any, c: Any) -> None:
        def value(e: Any) -> int:
            return int(env.evaluate(e))

        m, n, k, nr = value(self.m), value(self.n), value(self.k), value(self.nr)
        outer = [value(e) for e in self.reductions]
        if m <= 0 or n <= 0:
            return
        rows, columns, depth = np.arange(m), np.arange(n), np.arange(k)
        total = np.zeros((m, n), np.float64)
        column = value(self.b_panel) * (columns // nr) + columns % nr
        for point in np.ndindex(*outer):
            a_start = value(self.a_offset) + sum(i * value(s) for i, s in zip(point, self.a_r, strict=True))
            b_start = value(self.b_offset) + sum(i * value(s) for i, s in zip(point, self.b_r, strict=True))
            left = a.reshape(-1)[a_start + rows[:, None] * value(self.a_m) + depth[None, :] * value(self.a_k)]
            right = b.reshape(-1)[b_start + depth[:, None] * value(self.b_k) + column[None, :]]
            total += left.astype(np.float64) @ right.astype(np.float64)
        where = value(self.c_offset) + rows[:, None] * value(self.c_m) + columns[None, :]
        flat = c.reshape(-1)
        flat[where] = (total + flat[where] if self.accumulate else total).astype(c.dtype)

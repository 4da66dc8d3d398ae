"""Gathers at joined columns of indices become gathers at one flat index."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph as g
from tilewright.ir.types import i64
from tilewright.passes.graph.flatten_indices import flatten_indices
from tilewright.passes.graph.simplify import simplify

from .graphs import BATCH, build, run


def _columns(b: Any, *indices: Any) -> Any:
    return b(g.Concat([b(g.Reshape(i, shape=(*i.type.shape, 1))) for i in indices], axis=1))


def test_columns_are_one_index() -> None:
    def body(b: Any, x: Any, i: Any, j: Any) -> Any:
        # indices from -3 to -1
        i, j = (b(g.Sub(b(g.Abs(b(g.Mod(v, _number(b, 3))))), _number(b, 3))) for v in (i, j))
        return b(g.GatherNd(x, _columns(b, i, j)))

    for rows in (4, BATCH + 2):
        module = build({"x": (rows, 5, 2), "i": ((7,), i64), "j": ((7,), i64)}, body)
        found = run(module, flatten_indices)
        assert found["Gather"] == 1 and "GatherNd" not in found and "Concat" not in found


def test_what_is_transposed_stays() -> None:
    def body(b: Any, x: Any, i: Any, j: Any) -> Any:
        i, j = (b(g.Mod(b(g.Abs(v)), _number(b, 2))) for v in (i, j))
        return b(g.GatherNd(b(g.Transpose(x, permutation=(2, 0, 1))), _columns(b, i, j)))

    module = build({"x": (4, 5, 2), "i": ((7,), i64), "j": ((7,), i64)}, body)
    assert run(module, flatten_indices)["GatherNd"] == 1


def test_dimensions_in_the_middle_are_gathered_where_they_lie() -> None:
    """``x[:, i, j]`` as importers write it, with transposes to the front and back, becomes one gather without
    transposes.
    """

    def body(b: Any, x: Any, i: Any, j: Any) -> Any:
        i, j = (b(g.Mod(b(g.Abs(v)), _number(b, 2))) for v in (i, j))
        y = b(g.GatherNd(b(g.Transpose(x, permutation=(1, 2, 0, 3))), _columns(b, i, j)))
        return b(g.Transpose(y, permutation=(1, 0, 2)))

    module = build({"x": (BATCH, 4, 5, 2), "i": ((7,), i64), "j": ((7,), i64)}, body)
    found = run(module, flatten_indices, simplify)
    assert found["Gather"] == 1 and "GatherNd" not in found and "Transpose" not in found


def _number(b: Any, x: int) -> Any:
    from tilewright.ir.constant import Constant

    return b(g.Constant(value=Constant(np.asarray(x, np.int64))))

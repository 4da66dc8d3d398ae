"""Grouped matrix products, the core of mixtures of experts."""

from __future__ import annotations

from ....ir.core import Value
from ....ir.types import DType
from ...experts import grouped_matmul
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer


@importer("transformers.grouped_mm_fallback.default")
def _grouped_matmul(n: Node, x: Value, w: Value, ends: Value) -> Value:
    return grouped_matmul(n.importer.builder, x, w, ends)


@importer("aten._grouped_mm.default")
def _grouped_mm(
    n: Node,
    x: Value,
    w: Value,
    ends: Value | None = None,
    bias: Value | None = None,
    out_dtype: DType | None = None,
) -> Value:
    if x.type.rank != 2 or w.type.rank != 3 or ends is None or bias is not None or out_dtype is not None:
        raise Unsupported(
            "a grouped product that is not of rows in groups with matrices, or has a bias or another type"
        )
    return grouped_matmul(n.importer.builder, x, w, ends)

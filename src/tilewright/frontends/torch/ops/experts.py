"""What mixtures of experts are made of: a product for each group of rows."""

from __future__ import annotations

from ....ir.core import Value
from ....ir.types import i64
from ...experts import grouped_matmul
from ..importer import Node, Unsupported
from ..registry import importer


@importer("transformers.grouped_mm_fallback.default")
def _grouped_matmul(n: Node, x: Value, w: Value, ends: Value) -> Value:
    if not isinstance(w.type.shape[0], int):
        raise Unsupported("a dynamic number of experts")
    return grouped_matmul(n.importer.builder, lambda name: n.run_time_size(0), x, w, n.cast(ends, i64))

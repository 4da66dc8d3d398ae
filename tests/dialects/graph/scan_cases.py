"""Cases of scans. The references are loops in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Region, Value
from tilewright.ir.types import TensorType, i32

from .harness import Case, F, integers

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 3, "s": 7})


def scan(b: Builder, initial: Any, scanned: Any, body: Any, **attributes: Any) -> Any:
    """A `graph.scan` whose body is ``body(builder, *carried, *slices) -> (next carried, slices)``."""
    slices = [TensorType(x.type.dtype, x.type.shape[1:]) for x in scanned]
    block = Block([*(v.type for v in initial), *slices])
    inner = Builder(block)
    carried, out = body(inner, *block.args)
    inner.insert(Yield([*carried, *out]))
    length = attributes.pop("length", None)
    length = scanned[0].type.shape[0] if length is None else length
    op = b.insert(
        graph.Scan(list(initial), list(scanned), length=length, regions=[Region([block])], **attributes)
    )
    return list(op.results)


def _running_sum(b: Builder, h: Value, x: Value) -> Any:
    total = b(graph.Add(h, x))
    return [total], [total]


def _reference(backward: bool) -> Any:
    def run(d: Any, h: Any, x: Any) -> Any:
        order = x[::-1] if backward else x
        y = h + np.cumsum(order.astype(np.float64 if x.dtype.kind == "f" else x.dtype), 0)
        return y[-1], y[::-1] if backward else y

    return run


def _nested(b: Builder, d: Any, h: Value, x: Value) -> Any:
    """A scan over the rows of `x` that contains a scan over the columns of each row. The inner body reads the
    outer loop's carried value.
    """

    def outer(c: Builder, total: Value, row: Value) -> Any:
        def inner(e: Builder, part: Value, one: Value) -> Any:
            product = e(graph.Mul(one, total))
            return [e(graph.Add(part, product))], [product]

        last, products = scan(c, [total], [row], inner)
        return [last], [products]

    return scan(b, [h], [x], outer)


def _nested_reference(d: Any, h: Any, x: Any) -> Any:
    h, y = h.astype(np.float64), np.empty(x.shape)
    for r, row in enumerate(x):
        start = h.copy()
        for c, one in enumerate(row):
            y[r, c] = one * start
            h = h + y[r, c]
    return h, y


def _fibonacci(b: Builder, d: Any, x: Value) -> Any:
    """The Fibonacci sequence: one of two carried values becomes the other."""
    return scan(b, [x, x], [], lambda c, p, q: ([q, c(graph.Add(p, q))], [p]), length=d["s"])


def _fibonacci_reference(d: Any, x: Any) -> Any:
    p, q, y = x, x, []
    for _ in range(d["s"]):
        y.append(p)
        p, q = q, p + q
    return p, q, np.stack(y)


CASES = [
    *(
        Case(
            "Scan",
            (F("b", 3), F("s", "b", 3)),
            lambda b, d, *v, backward=backward: scan(b, v[:1], v[1:], _running_sum, backward=backward),
            _reference(bool(backward)),
            SIZES,
            note=f"running sum {backward}",
        )
        for backward in ((), (True, True))
    ),
    Case("Scan", (F(2), F("b", "s", 2)), _nested, _nested_reference, SIZES, 1e-4, note="nested"),
    Case(
        "Scan",
        (F("b", dtype=i32, fill=integers(-5, 5)), F("s")),
        lambda b, d, x, _: _fibonacci(b, d, x),
        lambda d, x, _: _fibonacci_reference(d, x),
        SIZES,
        note="without inputs",
    ),
]

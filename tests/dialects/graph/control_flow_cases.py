"""Cases of loops, branches and other operators whose sizes or paths are known at run time only. Each case
sums over dimensions with run-time sizes, so that its results have shapes known at compile time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Block, Region, Value
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, i64

from .harness import Case, F, integers

SIZES = ({"n": 5}, {"n": 1}, {"n": 8})
FOUND, STEPS = symbol("found", 0, None), symbol("steps", 0, None)


def literal(b: Builder, value: Any, dtype: Any) -> Value:
    found: Value = b(graph.Constant(value=Constant(np.asarray(value, dtype))))
    return found


def _total(b: Builder, x: Value, axis: int = 0) -> Value:
    found: Value = b(graph.ReduceSum(x, axes=(axis,), keepdims=False))
    return found


def _non_zero(b: Builder, d: Any, x: Value) -> Any:
    return _total(b, b(graph.NonZero(x, count=FOUND)))


def _bind_size(b: Builder, d: Any, x: Value) -> Any:
    b.insert(graph.BindSize(_total(b, x), symbol=FOUND))
    return _total(b, b(graph.Iota(shape=(FOUND,))))


def _assume_shape(b: Builder, d: Any, x: Value) -> Any:
    b.insert(graph.BindSize(literal(b, 2, np.int64), symbol=FOUND))
    return _total(b, b(graph.AssumeShape(x, shape=(FOUND, d["n"]))))


def _check(b: Builder, d: Any, x: Value) -> Any:
    b.insert(graph.Check(b(graph.Lt(_total(b, x), literal(b, 1000, np.int64))), message="too large"))
    return b(graph.Neg(x))


def _check_index(b: Builder, d: Any, x: Value) -> Any:
    b.insert(graph.CheckIndex(x, message="no such place", size=1_000_000 * d["n"]))
    return b(graph.Neg(x))


def _check_divisor(b: Builder, d: Any, x: Value) -> Any:
    b.insert(graph.CheckDivisor(b(graph.Add(x, literal(b, 1, np.int64))), message="by zero"))
    return b(graph.Neg(x))


def _if(b: Builder, d: Any, x: Value) -> Any:
    large = b(graph.Gt(_total(b, x), literal(b, 20, np.int64)))
    blocks = [Block([]), Block([])]
    for block, operator in zip(blocks, (graph.Neg, graph.Abs), strict=True):
        inside = Builder(block)
        inside.insert(Yield([inside(operator(x))]))
    op = b.insert(graph.If(large, regions=[Region([block]) for block in blocks]))
    return list(op.results)


def _while(b: Builder, d: Any, x: Value) -> Any:
    """Double the input until its sum is at least 100, at most five times. The results are the last value and
    the total of the sums of all steps.
    """
    block = Block([TensorType(i64, ()), x.type])
    inside = Builder(block)
    doubled = inside(graph.Add(block.args[1], block.args[1]))
    total = _total(inside, doubled)
    inside.insert(Yield([inside(graph.Lt(total, literal(inside, 100, np.int64))), doubled, total]))
    start, limit = literal(b, True, bool), literal(b, 5, np.int64)
    op = b.insert(graph.While(start, limit, [x], count=STEPS, regions=[Region([block])]))
    return [op.results[0], _total(b, op.results[1])]


def _doubled(d: Any, x: Any) -> Any:
    sums = 0
    for _ in range(5):
        x = x + x
        sums += x.sum()
        if x.sum() >= 100:
            break
    return x, sums


NUMBERS = F("n", dtype=i64, fill=integers(0, 9))
MATRIX = F("n", 3, dtype=i64, fill=integers(0, 2))

CASES = [
    Case("NonZero", (MATRIX,), _non_zero, lambda d, x: np.argwhere(x).sum(0), SIZES),
    Case("BindSize", (NUMBERS,), _bind_size, lambda d, x: x.sum() * (x.sum() - 1) // 2, SIZES),
    Case(
        "AssumeShape",
        (F("2*n", dtype=i64, fill=integers(0, 9)),),
        _assume_shape,
        lambda d, x: x.reshape(2, -1).sum(0),
        SIZES,
    ),
    Case("Check", (NUMBERS,), _check, lambda d, x: -x, SIZES),
    Case("CheckIndex", (NUMBERS,), _check_index, lambda d, x: -x, SIZES),
    Case("CheckDivisor", (NUMBERS,), _check_divisor, lambda d, x: -x, SIZES),
    Case("If", (NUMBERS,), _if, lambda d, x: -x if x.sum() > 20 else x, SIZES),
    Case("While", (NUMBERS,), _while, _doubled, SIZES),
]

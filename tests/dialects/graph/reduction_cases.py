"""Cases of reductions, cumulative sums and products, and sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilewright.dialects import graph
from tilewright.ir.types import bf16, boolean, f16, f32, f64, i32, i64

from .harness import Case, F, bools, integers, normal, special

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 3, "s": 7})
WITH_ZERO = (*SIZES, {"b": 3, "s": 0})
CASES: list[Case] = []


def t(x: Any) -> Any:
    return torch.from_numpy(np.array(x, np.float32 if x.dtype.name == "bfloat16" else x.dtype))


AXES = [((-1,), True), ((1,), False), ((0, 2), True), ((-1, -3), False), ((0, 1, 2), False), ((), False)]
for _name, _function, _dtypes, _fill in [
    ("ReduceSum", np.sum, (f32, f64, f16, bf16, i64, i32), integers(-3, 4)),
    ("ReduceProd", np.prod, (f32, f64, i64, i32), integers(-2, 3)),
    ("ReduceMax", np.max, (f32, f16, i64, i32), normal),
    ("ReduceMin", np.min, (f32, f16, i64, i32), normal),
    ("ReduceXor", np.bitwise_xor.reduce, (i64, i32), integers(-9, 9)),
    ("ReduceAll", np.all, (boolean,), bools),
    ("ReduceAny", np.any, (boolean,), bools),
]:
    _cls = graph.OPERATORS[_name]
    for _dtype in _dtypes:
        for _axes, _keep in AXES if _dtype is _dtypes[0] else AXES[:3]:
            CASES.append(
                Case(
                    _name,
                    (F("b", 3, "s", dtype=_dtype, fill=_fill),),
                    lambda b, d, x, cls=_cls, a=_axes, k=_keep: b(cls(x, axes=a, keepdims=k)),
                    lambda d, x, f=_function, a=_axes, k=_keep: (
                        x if not a else f(x, axis=a, keepdims=k).astype(x.dtype)
                    ),
                    SIZES if _name in ("ReduceMax", "ReduceMin") else WITH_ZERO,
                    1e-3 if _dtype in (f16, bf16) else 1e-5,
                    f"{_dtype.name} {_axes}",
                )
            )
CASES.append(
    Case(
        "ReduceMax",
        (F("b", "s", fill=special),),
        lambda b, d, x: b(graph.ReduceMax(x, axes=(1,))),
        lambda d, x: t(x).amax(1).numpy(),
        ({"b": 4, "s": 6},),
        note="special",
    )
)

for _dtype in (f32, f64, f16, bf16):
    _tolerance = {f16: 2e-3, bf16: 1e-2}.get(_dtype, 1e-5)
    for _axes, _keep in AXES[:5]:
        for _name, _expected in [
            ("ReduceMean", lambda x, a, k: x.mean(a, keepdim=k)),
            ("Variance", lambda x, a, k: x.var(a, correction=0, keepdim=k)),
            ("LogSumExp", lambda x, a, k: torch.logsumexp(x, a, keepdim=k)),
        ]:
            _cls = graph.OPERATORS[_name]
            CASES.append(
                Case(
                    _name,
                    (F("b", 3, "s", dtype=_dtype),),
                    lambda b, d, x, cls=_cls, a=_axes, k=_keep: b(cls(x, axes=a, keepdims=k)),
                    lambda d, x, f=_expected, a=_axes, k=_keep: f(t(x).double(), a, k).numpy(),
                    SIZES,
                    _tolerance,
                    f"{_dtype.name} {_axes}",
                )
            )
CASES.append(
    Case(
        "Variance",
        (F("b", 3, "s"),),
        lambda b, d, x: b(graph.Variance(x, axes=(1, 2), correction=1.0)),
        lambda d, x: t(x).var((1, 2)).numpy(),
        ({"b": 2, "s": 5},),
        note="unbiased",
    )
)
CASES.append(
    Case(
        "LogSumExp",
        (F("b", 4, fill=lambda rng, shape: np.where(rng.random(shape) < 0.7, -np.inf, 1000.0)),),
        lambda b, d, x: b(graph.LogSumExp(x, axes=(1,))),
        lambda d, x: torch.logsumexp(t(x), 1).numpy(),
        ({"b": 12},),
        note="infinite",
    )
)
CASES.append(
    Case(
        "ReduceMean",
        (F("b", 4, dtype=i64, fill=integers(-9, 9)),),
        lambda b, d, x: b(graph.ReduceMean(x, axes=(1,))),
        lambda d, x: np.trunc(x.sum(1) / 4).astype(np.int64),
        ({"b": 12},),
        note="integers",
    )
)

for _name in ("Argmax", "Argmin"):
    _cls = graph.OPERATORS[_name]
    for _axis in (0, 1, -1):
        for _keep in (False, True):
            for _last in (False, True):
                for _dtype in (f32, i64):

                    def _arg(
                        d: Any, x: Any, name: Any = _name, a: Any = _axis, k: Any = _keep, last: Any = _last
                    ) -> Any:
                        best = x.max(a, keepdims=True) if name == "Argmax" else x.min(a, keepdims=True)
                        hit = np.moveaxis(x == best, a, -1)
                        rows = hit.reshape(-1, hit.shape[-1])
                        found = np.array([np.flatnonzero(r)[-1 if last else 0] for r in rows]).reshape(
                            hit.shape[:-1]
                        )
                        return np.expand_dims(found, a) if k else found

                    CASES.append(
                        Case(
                            _name,
                            (F("b", 3, "s", dtype=_dtype, fill=integers(0, 3)),),
                            lambda b, d, x, cls=_cls, a=_axis, k=_keep, last=_last: b(
                                cls(x, axis=a, keepdims=k, last=last)
                            ),
                            _arg,
                            SIZES,
                            note=f"{_axis} {_keep} {_last} {_dtype.name}",
                        )
                    )
    CASES.append(
        Case(
            _name,
            (F("b", 9, fill=special),),
            lambda b, d, x, cls=_cls: b(cls(x, axis=1)),
            lambda d, x, name=_name: (torch.argmax if name == "Argmax" else torch.argmin)(t(x), 1).numpy(),
            ({"b": 40},),
            note="special",
        )
    )

for _name, _function in (("Cumsum", np.cumsum), ("Cumprod", np.cumprod)):
    _cls = graph.OPERATORS[_name]
    for _axis in (1, -1):
        for _exclusive in (False, True):
            for _reverse in (False, True):

                def _prefix(
                    d: Any, x: Any, f: Any = _function, a: Any = _axis, e: Any = _exclusive, r: Any = _reverse
                ) -> Any:
                    n, y = x.shape[a], np.ones_like(x)
                    for j in range(n):
                        span = range(j + (1 if e else 0), n) if r else range(j + (0 if e else 1))
                        part = np.take(x, list(span), a)
                        whole = part.sum(a) if f is np.cumsum else part.prod(a)
                        np.moveaxis(y, a, 0)[j] = whole
                    return y

                for _dtype in (f32, i64):
                    CASES.append(
                        Case(
                            _name,
                            (F("b", 4, "s", dtype=_dtype, fill=integers(-2, 3)),),
                            lambda b, d, x, cls=_cls, a=_axis, e=_exclusive, r=_reverse: b(
                                cls(x, axis=a, exclusive=e, reverse=r)
                            ),
                            _prefix,
                            WITH_ZERO,
                            note=f"{_axis} {_exclusive} {_reverse} {_dtype.name}",
                        )
                    )

for _name, _ufunc in (("Cummax", np.maximum), ("Cummin", np.minimum)):
    for _axis in (1, -1):
        for _reverse in (False, True):

            def _running(d: Any, x: Any, f: Any = _ufunc, a: Any = _axis, r: Any = _reverse) -> Any:
                return np.flip(f.accumulate(np.flip(x, a), a), a) if r else f.accumulate(x, a)

            CASES.append(
                Case(
                    _name,
                    (F("b", 4, "s"),),
                    lambda b, d, x, cls=graph.OPERATORS[_name], a=_axis, r=_reverse: b(
                        cls(x, axis=a, reverse=r)
                    ),
                    _running,
                    WITH_ZERO,
                    note=f"{_axis} {_reverse}",
                )
            )

for _largest in (True, False):
    for _axis in (0, -1):
        for _dtype, _fill in ((f32, normal), (i64, integers(0, 3)), (f32, special)):

            def _topk(d: Any, x: Any, largest: Any = _largest, a: Any = _axis) -> Any:
                y = np.moveaxis(x, a, -1)
                values, indices = (
                    np.empty((*y.shape[:-1], 3), x.dtype),
                    np.empty((*y.shape[:-1], 3), np.int64),
                )
                for p in np.ndindex(y.shape[:-1]):

                    def key(j: int, row: Any = y[p]) -> Any:
                        v = float(row[j])
                        nan = np.isnan(v)
                        return ((not nan, 0 if nan else -v) if largest else (nan, 0 if nan else v), j)

                    order = sorted(range(y.shape[-1]), key=key)[:3]
                    values[p], indices[p] = y[p][order], order
                return np.moveaxis(values, -1, a), np.moveaxis(indices, -1, a)

            CASES.append(
                Case(
                    "Topk",
                    (F("s", 4, "s", dtype=_dtype, fill=_fill),),
                    lambda b, d, x, largest=_largest, a=_axis: (
                        b.insert(graph.Topk(x, k=3, axis=a, largest=largest)).results
                    ),
                    _topk,
                    ({"s": 5}, {"s": 3}),
                    note=f"{_largest} {_axis} {_dtype.name} {getattr(_fill, '__name__', _fill)}",
                    bounds={"s": (3, 64)},
                )
            )
CASES.append(
    Case(
        "Topk",
        (F("b", "s"),),
        lambda b, d, x: b.insert(graph.Topk(x, k=d["s"])).results,
        lambda d, x: tuple(v.numpy() for v in torch.sort(t(x), descending=True)),
        SIZES,
        note="symbolic k",
    )
)

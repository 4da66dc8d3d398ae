"""Cases of operators that move elements: reshapes, slices, pads, gathers, scatters and generated patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.dialects import graph
from tilewright.ir.types import boolean, f32, i32, i64

from .harness import Case, F, Input, bools, integers

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 3, "s": 0})
NONEMPTY = ({"b": 2, "s": 5}, {"b": 1, "s": 3}, {"b": 3, "s": 8})
CASES: list[Case] = []


def case(
    name: str,
    inputs: Sequence[Input],
    build: Callable[..., Any],
    expected: Callable[..., Any],
    note: str = "",
    sizes: Any = SIZES,
    **options: Any,
) -> None:
    CASES.append(Case(name, tuple(inputs), build, expected, sizes, note=note, **options))


def t(x: Any) -> Any:
    return torch.from_numpy(np.array(x))


for _shape, _target in [
    (("b", 1, "s"), lambda d: (d["b"], 3, d["s"])),
    (("s",), lambda d: (d["b"], 2, d["s"])),
    ((1, 1), lambda d: (d["b"], d["s"])),
    ((), lambda d: (d["b"], 4)),
    (("b", "s"), lambda d: (d["b"], d["s"])),
]:
    case(
        "BroadcastTo",
        [F(*_shape)],
        lambda b, d, x, target=_target: b(graph.BroadcastTo(x, shape=target(d))),
        lambda d, x, target=_target: t(x).expand(target(d)).numpy(),
        str(_shape),
    )

for _note, _shape, _target in [
    ("merge", ("b", "s", 4), lambda d: (d["b"] * d["s"], 4)),
    ("split", ("b", "s*6"), lambda d: (d["b"], d["s"], 2, 3)),
    ("heads", ("b", "s", 12), lambda d: (d["b"], d["s"], 3, 4)),
    ("flat", ("b", "s", 4), lambda d: (d["b"] * d["s"] * 4,)),
    ("unit", ("b", 1, "s"), lambda d: (d["b"], d["s"], 1, 1)),
    ("same", ("b", "s"), lambda d: (d["b"], d["s"])),
]:
    case(
        "Reshape",
        [F(*_shape)],
        lambda b, d, x, target=_target: b(graph.Reshape(x, shape=target(d))),
        lambda d, x, target=_target: t(x).reshape(target(d)).numpy(),
        _note,
    )
case(
    "Reshape",
    [F(1)],
    lambda b, d, x: b(graph.Reshape(x, shape=())),
    lambda d, x: x.reshape(()),
    "scalar",
    ({},),
)

for _p in [(0, 2, 1, 3), (3, 2, 1, 0), (0, 1, 2, 3), (2, 3, 0, 1), (1, 2, 3, 0)]:
    case(
        "Transpose",
        [F("b", 2, "s", 3)],
        lambda b, d, x, p=_p: b(graph.Transpose(x, permutation=p)),
        lambda d, x, p=_p: t(x).permute(p).numpy(),
        str(_p),
    )

for _note, _starts, _stops, _steps in [
    ("tail", lambda d: (0, 1), lambda d: (d["b"], d["s"]), (1, 1)),
    ("head", lambda d: (0, 0), lambda d: (1, d["s"] - 1), (1, 1)),
    ("step", lambda d: (0, 0), lambda d: (d["b"], d["s"]), (1, 2)),
    ("step from one", lambda d: (0, 1), lambda d: (d["b"], d["s"]), (1, 3)),
    ("backwards", lambda d: (0, d["s"] - 1), lambda d: (d["b"], -1), (1, -1)),
    ("backwards by two", lambda d: (0, d["s"] - 1), lambda d: (d["b"], -1), (1, -2)),
    ("backwards to one", lambda d: (0, d["s"] - 1), lambda d: (d["b"], 0), (1, -1)),
    ("last", lambda d: (0, d["s"] - 1), lambda d: (d["b"], d["s"]), (1, 1)),
    ("empty", lambda d: (0, 1), lambda d: (d["b"], 1), (1, 1)),
    ("whole", lambda d: (0, 0), lambda d: (d["b"], d["s"]), (1, 1)),
]:
    case(
        "Slice",
        [F("b", "s")],
        lambda b, d, x, v=(_starts, _stops, _steps): b(
            graph.Slice(x, starts=v[0](d), stops=v[1](d), steps=v[2])
        ),
        lambda d, x, v=(_starts, _stops, _steps): x[
            np.ix_(*([*range(*r)] for r in zip(v[0](d), v[1](d), v[2], strict=True)))
        ],
        _note,
        NONEMPTY,
        bounds={"s": (1, 64)},
    )


def _updated(d: Any, x: Any, part: Any, starts: Any) -> Any:
    result = t(x).clone()
    result[tuple(slice(s, s + n) for s, n in zip(starts(d), part.shape, strict=True))] = t(part)
    return result.numpy()


for _note, _size, _start in [
    ("corner", (1, 2), lambda d: (0, 0)),
    ("end", ("b", 2), lambda d: (0, d["s"] - 2)),
    ("whole", ("b", "s"), lambda d: (0, 0)),
    ("nothing", (0, 1), lambda d: (0, 1)),
]:
    case(
        "UpdateSlice",
        [F("b", "s"), F(*_size)],
        lambda b, d, x, part, starts=_start: b(graph.UpdateSlice(x, part, starts=starts(d))),
        lambda d, x, part, starts=_start: _updated(d, x, part, starts),
        _note,
        ({"b": 2, "s": 5}, {"b": 3, "s": 2}),
        bounds={"b": (1, 64), "s": (2, 64)},
    )

case(
    "Concat",
    [F("b", "s"), F("b", 3), F("b", 1)],
    lambda b, d, *x: b(graph.Concat(x, axis=1)),
    lambda d, *x: torch.cat([t(v) for v in x], 1).numpy(),
    "last",
)
case(
    "Concat",
    [F("b", "s"), F(3, "s")],
    lambda b, d, *x: b(graph.Concat(x, axis=-2)),
    lambda d, *x: torch.cat([t(v) for v in x], 0).numpy(),
    "negative axis",
)
case("Concat", [F("b", "s")], lambda b, d, *x: b(graph.Concat(x, axis=0)), lambda d, x: x, "one")
case(
    "Concat",
    [F("b", "s"), F("b", "s"), F("b", "s+2")],
    lambda b, d, *x: b(graph.Concat(x, axis=1)),
    lambda d, *x: np.concatenate(x, 1),
    "symbolic parts",
)
case(
    "Concat",
    [F(2, "b", dtype=i64, fill=integers(-9, 9)), F(2, 0, dtype=i64)],
    lambda b, d, *x: b(graph.Concat(x, axis=1)),
    lambda d, *x: np.concatenate(x, 1),
    "integers and nothing",
    ({"b": 2},),
)

for _mode, _low, _high in [
    ("constant", (1, 2), (0, 3)),
    ("constant", (0, -1), (2, -1)),
    ("reflect", (0, 2), (0, 1)),
    ("edge", (2, 3), (1, 4)),
    ("wrap", (0, 2), (0, 3)),
    ("constant", (0, 0), (0, 0)),
]:
    case(
        "Pad",
        [F("b", "s")],
        lambda b, d, x, v=(_mode, _low, _high): b(graph.Pad(x, low=v[1], high=v[2], mode=v[0], value=-1.5)),
        lambda d, x, v=(_mode, _low, _high): np.pad(
            x[
                tuple(
                    slice(max(-lo, 0), n - max(-hi, 0)) for lo, hi, n in zip(v[1], v[2], x.shape, strict=True)
                )
            ],
            [(max(lo, 0), max(hi, 0)) for lo, hi in zip(v[1], v[2], strict=True)],
            mode=v[0],
            **({"constant_values": -1.5} if v[0] == "constant" else {}),
        ),
        f"{_mode} {_low} {_high}",
        NONEMPTY,
        bounds={"s": (3, 64)},
    )
case(
    "Pad",
    [F("b", "s")],
    lambda b, d, x: b(graph.Pad(x, low=(0, d["s"]), high=(d["b"], 0), value=2)),
    lambda d, x: np.pad(x, [(0, d["b"]), (d["s"], 0)], constant_values=2),
    "symbolic amounts",
    SIZES,
)
case(
    "Pad",
    [F("b", "s", dtype=i64, fill=integers(0, 9))],
    lambda b, d, x: b(graph.Pad(x, low=(0, 1), high=(0, 0), value=7)),
    lambda d, x: np.pad(x, [(0, 0), (1, 0)], constant_values=7),
    "integers",
    SIZES,
)
case(
    "Pad",
    [F("b", 1)],
    lambda b, d, x: b(graph.Pad(x, low=(0, 0), high=(0, 2), mode="reflect")),
    lambda d, x: np.pad(x, [(0, 0), (0, 2)], mode="reflect"),
    "reflect of one",
    ({"b": 2},),
)

case(
    "Tile",
    [F("b", 1, "s")],
    lambda b, d, x: b(graph.Tile(x, repeats=(2, 3, 1))),
    lambda d, x: t(x).repeat(2, 3, 1).numpy(),
    "numbers",
)
case(
    "Tile",
    [F(3, "s")],
    lambda b, d, x: b(graph.Tile(x, repeats=(d["b"], 2))),
    lambda d, x: np.tile(x, (d["b"], 2)),
    "symbolic",
    ({"b": 2, "s": 3}, {"b": 1, "s": 1}),
)
case(
    "Tile",
    [F("b", "s")],
    lambda b, d, x: b(graph.Tile(x, repeats=(1, 0))),
    lambda d, x: np.tile(x, (1, 0)),
    "zero",
)
case(
    "Flip",
    [F("b", "s", 3)],
    lambda b, d, x: b(graph.Flip(x, axes=(1, -1))),
    lambda d, x: t(x).flip(1, 2).numpy(),
)
case("Flip", [F("b", "s")], lambda b, d, x: b(graph.Flip(x, axes=(0,))), lambda d, x: x[::-1], "first")

case(
    "Iota",
    [F("b", "s")],
    lambda b, d, x: b(graph.Iota(shape=(d["b"], d["s"]), axis=1)),
    lambda d, x: np.broadcast_to(np.arange(d["s"]), x.shape),
)
case(
    "Iota",
    [F("b", "s")],
    lambda b, d, x: b(graph.Iota(shape=(d["s"],), axis=0, start=d["b"], step=3)),
    lambda d, x: d["b"] + 3 * np.arange(d["s"]),
    "start",
)
case(
    "Iota",
    [F("b", "s")],
    lambda b, d, x: b(graph.Iota(shape=(d["s"], 2), axis=-2, start=0.5, step=-0.25, dtype=f32)),
    lambda d, x: np.repeat((0.5 - 0.25 * np.arange(d["s"]))[:, None], 2, 1),
    "float",
)
case(
    "Iota",
    [F("b", "s")],
    lambda b, d, x: b(graph.Iota(shape=(d["s"],), dtype=i32, step=-1)),
    lambda d, x: -np.arange(d["s"], dtype=np.int32),
    "i32",
)

for _upper in (False, True):
    for _k in (0, 1, -2):
        case(
            "Triangular",
            [F(2, "b", "s")],
            lambda b, d, x, u=_upper, k=_k: b(graph.Triangular(x, upper=u, diagonal=k)),
            lambda d, x, u=_upper, k=_k: (torch.triu if u else torch.tril)(t(x), k).numpy(),
            f"{_upper} {_k}",
        )
case(
    "Triangular",
    [F("b", "s", dtype=boolean, fill=bools)],
    lambda b, d, x: b(graph.Triangular(x, upper=False, diagonal=d["s"] - d["b"])),
    lambda d, x: np.tril(x, d["s"] - d["b"]),
    "symbolic diagonal",
)

case(
    "OneHot",
    [F("b", "s", dtype=i64, fill=integers(-4, 4))],
    lambda b, d, x: b(graph.OneHot(x, depth=4)),
    lambda d, x: np.eye(4, dtype=np.float32)[x],
)
case(
    "OneHot",
    [F("b", "s", dtype=i32, fill=integers(0, 6))],
    lambda b, d, x: b(graph.OneHot(x, depth=4, axis=0, dtype=i64)),
    lambda d, x: np.moveaxis(np.eye(6, 4, dtype=np.int64)[x], -1, 0),
    "axis 0, beyond",
)
case(
    "OneHot",
    [F("b", dtype=i64, fill=integers(0, 2))],
    lambda b, d, x: b(graph.OneHot(x, depth=d["s"], axis=1)),
    lambda d, x: np.eye(max(2, d["s"]), d["s"])[x].astype(np.float32),
    "symbolic depth",
)

# -- Gathers and scatters ------------------------------------------------------------------------------------

case(
    "Gather",
    [F(7, 3), F("b", "s", dtype=i64, fill=integers(0, 7))],
    lambda b, d, x, i: b(graph.Gather(x, i)),
    lambda d, x, i: torch.nn.functional.embedding(t(i), t(x)).numpy(),
    "embedding",
)
case(
    "Gather",
    [F("b", 7, "s"), F(2, dtype=i32, fill=integers(-7, 7))],
    lambda b, d, x, i: b(graph.Gather(x, i, axis=1)),
    lambda d, x, i: x[:, i],
    "middle, negative",
)
case(
    "Gather",
    [F("b", 5), F(dtype=i64, fill=integers(0, 5))],
    lambda b, d, x, i: b(graph.Gather(x, i, axis=-1)),
    lambda d, x, i: x[:, int(i)],
    "scalar",
    ({"b": 3},),
)
case(
    "Gather",
    [F(5), F("b", dtype=i64, fill=integers(-20, 20))],
    lambda b, d, x, i: b(graph.Gather(x, i)),
    lambda d, x, i: x[np.clip(np.where(i < 0, i + 5, i), 0, 4)],
    "clamped",
    ({"b": 30},),
)
case(
    "Gather",
    [F("b", "s"), F(2, dtype=i64, fill=integers(0, 1))],
    lambda b, d, x, i: b(graph.Gather(x, i, axis=0)),
    lambda d, x, i: x[i],
    "symbolic data",
)

case(
    "GatherElements",
    [F("b", 4, "s"), F("b", 3, "s", dtype=i64, fill=integers(0, 4))],
    lambda b, d, x, i: b(graph.GatherElements(x, i, axis=1)),
    lambda d, x, i: torch.gather(t(x), 1, t(i)).numpy(),
)
case(
    "GatherElements",
    [F("b", 6), F(1, 4, dtype=i64, fill=integers(-6, 6))],
    lambda b, d, x, i: b(graph.GatherElements(x, i, axis=-1)),
    lambda d, x, i: torch.gather(t(x), 1, t(np.where(i < 0, i + 6, i))).numpy(),
    "smaller, negative",
    ({"b": 3}, {"b": 1}),
)

case(
    "GatherNd",
    [F(4, 5, "s"), F("b", 2, dtype=i64, fill=integers(-4, 4))],
    lambda b, d, x, i: b(graph.GatherNd(x, i)),
    lambda d, x, i: x[i[:, 0], i[:, 1]],
    "slices",
)
case(
    "GatherNd",
    [F("b", 5, 3), F("b", 2, 1, dtype=i64, fill=integers(0, 5))],
    lambda b, d, x, i: b(graph.GatherNd(x, i, batch_dims=1)),
    lambda d, x, i: np.stack([x[k][i[k, :, 0]] for k in range(len(x))]),
    "batch",
    ({"b": 2}, {"b": 1}),
)
case(
    "GatherNd",
    [F("b", 5), F("b", "s", 2, dtype=i64, fill=integers(0, 1))],
    lambda b, d, x, i: b(graph.GatherNd(x, i)),
    lambda d, x, i: x[i[..., 0], i[..., 1]],
    "points",
)


def _scatter_elements(x: Any, i: Any, u: Any, axis: int, reduce: str | None) -> Any:
    i = np.where(i < 0, i + x.shape[axis], i)
    if reduce is None:
        return t(x).scatter(axis, t(i), t(u)).numpy()
    name = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}[reduce]
    return t(x).scatter_reduce(axis, t(i), t(u), name).numpy()


def _distinct(rng: Any, shape: tuple[int, ...]) -> Any:
    """Indices into a dimension of size 6 that do not repeat along axis 1."""
    return (
        np.stack(
            [np.stack([rng.permutation(6)[: shape[1]] for _ in range(shape[2])], 1) for _ in range(shape[0])]
        ).reshape(shape)
        if 0 not in shape
        else np.zeros(shape)
    )


case(
    "ScatterElements",
    [F("b", 6, "s"), F("b", 3, "s", dtype=i64, fill=_distinct), F("b", 3, "s")],
    lambda b, d, x, i, u: b(graph.ScatterElements(x, i, u, axis=1)),
    lambda d, x, i, u: _scatter_elements(x, i, u, 1, None),
)
for _combiner in ("sum", "prod", "max", "min"):
    case(
        "ScatterElements",
        [F("b", 6), F("b", 4, dtype=i64, fill=integers(-6, 6)), F("b", 4)],
        lambda b, d, x, i, u, c=_combiner: b(graph.ScatterElements(x, i, u, axis=-1, combiner=c)),
        lambda d, x, i, u, c=_combiner: _scatter_elements(x, i, u, 1, c),
        _combiner,
        ({"b": 2}, {"b": 1}),
    )


def _scatter_nd(x: Any, i: Any, u: Any, function: Any = None) -> Any:
    y = np.array(x)
    for point in np.ndindex(i.shape[:-1]):
        where = tuple(i[point])
        y[where] = u[point] if function is None else function(y[where], u[point])
    return y


case(
    "ScatterNd",
    [F(4, "s"), F(2, 1, dtype=i64, fill=lambda rng, shape: np.array([[3], [-3]])), F(2, "s")],
    lambda b, d, x, i, u: b(graph.ScatterNd(x, i, u)),
    lambda d, x, i, u: _scatter_nd(x, i, u),
    "rows",
    ({"s": 5}, {"s": 1}),
)
case(
    "ScatterNd",
    [
        F("b", 5),
        F(7, 2, dtype=i64, fill=lambda rng, shape: np.stack([np.zeros(7), rng.integers(0, 5, 7)], 1)),
        F(7),
    ],
    lambda b, d, x, i, u: b(graph.ScatterNd(x, i, u, combiner="sum")),
    lambda d, x, i, u: _scatter_nd(x, i, u, np.add),
    "add",
    ({"b": 2}, {"b": 1}),
)
case(
    "ScatterNd",
    [
        F("b", 5),
        F(
            2,
            3,
            2,
            dtype=i64,
            fill=lambda rng, shape: np.stack([np.zeros((2, 3)), rng.integers(0, 5, (2, 3))], -1),
        ),
        F(2, 3),
    ],
    lambda b, d, x, i, u: b(graph.ScatterNd(x, i, u, combiner="max")),
    lambda d, x, i, u: _scatter_nd(x, i, u, np.maximum),
    "max",
    ({"b": 2},),
)
case(
    "ScatterNd",
    [
        F("b", 5, 3),
        F(2, 1, dtype=i64, fill=lambda rng, shape: rng.permutation(5)[:2].reshape(2, 1)),
        F(2, "b", 3),
    ],
    lambda b, d, x, i, u: b(graph.ScatterNd(x, i, u, axes=(1,))),
    lambda d, x, i, u: _scatter_nd(x.swapaxes(0, 1), i, u).swapaxes(0, 1),
    "middle axis",
    ({"b": 2}, {"b": 1}),
)

"""Cases of contractions, convolutions, pools, normalizations and attention. The references are torch's
functions in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as nn

from tilewright.dialects import graph
from tilewright.dialects.graph.winograd import KERNEL, transformed_kernels
from tilewright.ir.constant import Constant
from tilewright.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i32, i64

from .harness import Case, F, Input, bools, integers, positive

SIZES = ({"b": 2, "s": 5}, {"b": 1, "s": 1}, {"b": 3, "s": 7})
CASES: list[Case] = []


def t(x: Any) -> Any:
    if x.dtype.kind in "iub" and x.dtype.name != "bfloat16":
        return torch.from_numpy(np.array(x))
    return torch.from_numpy(np.array(x, np.float64))


def tolerance(dtype: DType) -> float:
    return {f16: 5e-3, bf16: 2e-2}.get(dtype, 1e-5)


# -- Contractions --------------------------------------------------------------------------------------------

for _shapes in [
    (("b", "s", 4), (4, 3)),
    (("b", "s", 4), ("b", 4, 3)),
    (("b", 1, "s", 4), (2, 4, "s")),
    ((4,), (4, "s")),
    (("b", "s", 4), (4,)),
    (("s",), ("s",)),
    (("b", "s"), ("s", "b")),
    (("b", 0), (0, "s")),
]:
    for _dtype in (f32, f64, f16, bf16, i32):
        CASES.append(
            Case(
                "Matmul",
                tuple(
                    F(*s, dtype=_dtype, **({"fill": integers(-4, 5)} if _dtype is i32 else {}))
                    for s in _shapes
                ),
                lambda b, d, x, y: b(graph.Matmul(x, y)),
                lambda d, x, y: torch.matmul(t(x), t(y)).numpy(),
                SIZES,
                tolerance(_dtype),
                f"{_shapes} {_dtype.name}",
            )
        )

CASES += [
    Case(
        "CtcLoss",
        (
            F(9, "b", 5, dtype=_dtype),
            F("b", 3, dtype=i64, fill=integers(0, 4)),
            F("b", dtype=_index, fill=integers(6, 10)),
            F("b", dtype=_index, fill=integers(0, 4)),
        ),
        lambda b, d, *v: b(graph.CtcLoss(*v, blank=4)),
        lambda d, x, y, times, counts: nn.ctc_loss(
            t(x), t(y), t(times), t(counts), blank=4, reduction="none"
        ).numpy(),
        SIZES,
        tolerance(_dtype),
        f"{_dtype.name} {_index.name}",
    )
    for _dtype, _index in ((f32, i64), (bf16, i32))
]

CASES += [
    Case(
        "GroupedMatMul",
        (
            F("s", 4, dtype=_dtype),
            F(3, 4, 5, dtype=_dtype),
            F("s", dtype=_index, fill=integers(0, 3)),
        ),
        lambda b, d, x, w, index: b(graph.GroupedMatMul(x, w, index)),
        lambda d, x, w, index: np.einsum("sk,skn->sn", x.astype(np.float64), w[index].astype(np.float64)),
        SIZES,
        tolerance(_dtype),
        f"{_dtype.name} {_index.name}",
    )
    for _dtype, _index in ((f32, i64), (bf16, i32))
]
CASES.append(
    Case(
        "GroupedMatMul",
        (F("s", 4), F(3, 4, 5), F("s", dtype=i64, fill=integers(-5, 6))),
        lambda b, d, x, w, index: b(graph.GroupedMatMul(x, w, index)),
        lambda d, x, w, index: np.einsum(
            "sk,skn->sn", x, w[np.clip(np.where(index < 0, index + 3, index), 0, 2)]
        ),
        SIZES,
        note="out of range",
    )
)

for _equation, _shapes in [
    ("bij,bjk->bik", (("b", "s", 4), ("b", 4, 3))),
    ("bhsd,bhtd->bhst", (("b", 2, "s", 4), ("b", 2, 3, 4))),
    ("bgrsd,bgtd->bgrst", (("b", 2, 3, "s", 4), ("b", 2, "s", 4))),
    ("...ij,jk->...ik", (("b", 2, "s", 4), (4, 3))),
    ("ij,jk", (("s", 4), (4, "b"))),
    ("ij->ji", (("b", "s"),)),
    ("ij->i", (("b", "s"),)),
    ("i,j->ij", (("b",), ("s",))),
    ("...i,...i->...", (("b", "s", 4), ("b", 1, 4))),
]:
    CASES.append(
        Case(
            "Einsum",
            tuple(F(*s) for s in _shapes),
            lambda b, d, *x, e=_equation: b(graph.Einsum(x, equation=e)),
            lambda d, *x, e=_equation: torch.einsum(e, *(t(v) for v in x)).numpy(),
            SIZES,
            note=_equation,
        )
    )

for _equation in ("ij,jk->ik", "i,j->ij", "ij,ij->"):
    _terms = _equation.split("->")[0].split(",")
    CASES.append(
        Case(
            "Einsum",
            tuple(F(*(4 for _ in s), dtype=boolean, fill=bools) for s in _terms),
            lambda b, d, *x, e=_equation: b(graph.Einsum(x, equation=e)),
            lambda d, x, y, e=_equation: np.einsum(e, x.astype(np.int64), y.astype(np.int64)) > 0,
            note=f"bool {_equation}",
        )
    )
CASES.append(
    Case(
        "Matmul",
        (F("b", "s", 4, dtype=boolean, fill=bools), F(4, 3, dtype=boolean, fill=bools)),
        lambda b, d, x, y: b(graph.Matmul(x, y)),
        lambda d, x, y: (x.astype(np.int64) @ y.astype(np.int64)) > 0,
        SIZES,
        note="bool",
    )
)

# -- Convolutions and pools ----------------------------------------------------------------------------------


def last(x: Any) -> Any:
    """An array in the layout (N, C, ...), transposed to (N, ..., C)."""
    return np.moveaxis(x, 1, -1)


def first(x: Any) -> Any:
    return np.moveaxis(x, -1, 1)


def spatial_case(
    operator: str,
    shape: tuple[Any, ...],
    others: tuple[Input, ...],
    build: Any,
    expected: Any,
    note: str,
    sizes: Any,
    dtype: DType = f32,
    **options: Any,
) -> None:
    """Add a case in both layouts; `expected` takes and returns channels-first arrays."""
    for layout in ("channels_first", "channels_last"):
        here = shape if layout == "channels_first" else (shape[0], *shape[2:], shape[1])
        flip = layout == "channels_last"
        CASES.append(
            Case(
                operator,
                (F(*here, dtype=dtype), *others),
                lambda b, d, *v, layout=layout: b(build(layout, *v)),
                lambda d, x, *rest, flip=flip: (
                    last(expected(first(x), *rest)) if flip else expected(x, *rest)
                ),
                sizes,
                tolerance(dtype),
                f"{note} {layout} {dtype.name}",
                **options,
            )
        )


IMAGES = ({"b": 2, "h": 9, "w": 8}, {"b": 1, "h": 7, "w": 13})
for _note, _w, _strides, _padding, _dilations, _groups, _bias in [
    ("plain", (6, 4, 3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, True),
    ("same", (6, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, False),
    ("strided", (6, 4, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1, True),
    ("uneven", (6, 4, 2, 3), (2, 1), ((0, 1), (2, 0)), (1, 1), 1, True),
    ("dilated", (6, 4, 3, 3), (1, 2), ((2, 2), (1, 1)), (2, 1), 1, True),
    ("pointwise", (6, 4, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, True),
    ("grouped", (6, 2, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 2, True),
    ("depthwise", (4, 1, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 4, True),
    ("multiplier", (8, 1, 3, 3), (1, 1), ((0, 0), (1, 1)), (1, 1), 4, False),
]:

    def _conv(x: Any, w: Any, *bias: Any, v: Any = (_strides, _padding, _dilations, _groups)) -> Any:
        (p0, q0), (p1, q1) = v[1]
        padded = nn.pad(t(x), (p1, q1, p0, q0))
        return nn.conv2d(padded, t(w), t(bias[0]) if bias else None, v[0], 0, v[2], v[3]).numpy()

    for _dtype in (f32, f16) if _note in ("same", "depthwise", "grouped") else (f32,):
        spatial_case(
            "Conv",
            ("b", 4, "h", "w"),
            (F(*_w, dtype=_dtype), *([F(_w[0], dtype=_dtype)] if _bias else [])),
            lambda layout, *v, a=(_strides, _padding, _dilations, _groups): graph.Conv(
                *v,
                *([None] if len(v) == 2 else []),
                strides=a[0],
                padding=a[1],
                dilations=a[2],
                groups=a[3],
                layout=layout,
            ),
            _conv,
            _note,
            IMAGES,
            _dtype,
            bounds={"h": (5, 64), "w": (5, 64)},
        )
spatial_case(
    "Conv",
    ("b", 4, "h"),
    (F(6, 4, 3),),
    lambda layout, x, w: graph.Conv(
        x, w, None, strides=(2,), padding=((1, 1),), dilations=(1,), layout=layout
    ),
    lambda x, w: nn.conv1d(t(x), t(w), None, 2, 1).numpy(),
    "1d",
    ({"b": 2, "h": 9}, {"b": 1, "h": 1}),
)
spatial_case(
    "Conv",
    ("b", 4, 5, "h", 4),
    (F(6, 4, 3, 2, 2), F(6)),
    lambda layout, *v: graph.Conv(
        *v, strides=(1, 1, 2), padding=((1, 1), (0, 0), (0, 0)), dilations=(1, 1, 1), layout=layout
    ),
    lambda x, w, c: nn.conv3d(t(x), t(w), t(c), (1, 1, 2), (1, 0, 0)).numpy(),
    "3d",
    ({"b": 2, "h": 3}, {"b": 1, "h": 6}),
    bounds={"h": (2, 64)},
)


def _winograd(b: Any, padding: Any, x: Any, w: Any) -> Any:
    """A `graph.winograd_conv` of kernels (O, C, 3, 3), which other operators transform."""
    g = b(graph.Constant(value=Constant(np.asarray(KERNEL, np.float32))))
    rows = b(graph.Einsum([g, w], equation="ai,ocij->aocj"))
    kernels = b(graph.Einsum([rows, g], equation="aocj,bj->abco"))
    kernels = b(graph.Reshape(kernels, shape=(16, *w.type.shape[1::-1])))
    return b(graph.WinogradConv(x, kernels, padding=padding))


for _note, _edges in (("same", ((1, 1), (1, 1))), ("uneven", ((0, 2), (3, 0))), ("none", ((0, 0), (0, 0)))):
    CASES.append(
        Case(
            "WinogradConv",
            (F("b", "h", "w", 4), F(6, 4, 3, 3)),
            lambda b, d, x, w, edges=_edges: _winograd(b, edges, x, w),
            lambda d, x, w, edges=_edges: last(
                nn.conv2d(nn.pad(t(first(x)), (*edges[1], *edges[0])), t(w)).numpy()
            ),
            IMAGES,
            note=_note,
            bounds={"h": (5, 64), "w": (5, 64)},
        )
    )

for _note, _backward in (("kernels of a convolution", False), ("rotated kernels", True)):
    CASES.append(
        Case(
            "WinogradKernels",
            (F("o", 5, 3, 3),),
            lambda b, d, w, backward=_backward: b(graph.WinogradKernels(w, backward=backward)),
            lambda d, w, backward=_backward: transformed_kernels(w, backward).astype(np.float32),
            ({"o": 19}, {"o": 1}),
            note=_note,
        )
    )

for _note, _w, _strides, _padding, _extra, _dilations, _groups, _bias in [
    ("plain", (4, 6, 3, 3), (1, 1), 0, 0, 1, 1, True),
    ("strided", (4, 6, 3, 3), (2, 2), 1, 1, 1, 1, False),
    ("kernel two", (4, 6, 2, 2), (2, 2), 0, 0, 1, 1, True),
    ("dilated", (4, 6, 3, 3), (2, 1), 2, 0, 2, 1, True),
    ("grouped", (4, 3, 3, 3), (2, 2), 1, 0, 1, 2, True),
    ("wide stride", (4, 6, 2, 2), (3, 3), 0, 1, 1, 1, True),
]:
    spatial_case(
        "ConvTranspose",
        ("b", 4, "h", "w"),
        (F(*_w), *([F(_w[1] * _groups)] if _bias else [])),
        lambda layout, *v, a=(_strides, _padding, _extra, _dilations, _groups): graph.ConvTranspose(
            *v,
            *([None] if len(v) == 2 else []),
            strides=a[0],
            padding=((a[1], a[1]),) * 2,
            output_padding=(a[2],) * 2,
            dilations=(a[3],) * 2,
            groups=a[4],
            layout=layout,
        ),
        lambda x, w, *c, a=(_strides, _padding, _extra, _dilations, _groups): nn.conv_transpose2d(
            t(x), t(w), t(c[0]) if c else None, a[0], a[1], a[2], a[4], a[3]
        ).numpy(),
        _note,
        ({"b": 2, "h": 4, "w": 3}, {"b": 1, "h": 2, "w": 5}),
        bounds={"h": (2, 64), "w": (2, 64)},
    )

for _note, _size, _w, _out, _strides, _padding, _dilations, _groups in [
    ("same", ("h", "w"), (6, 4, 3, 3), ("h", "w"), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    ("strided", (9, 8), (6, 4, 3, 3), (5, 4), (2, 2), ((1, 1), (1, 1)), (1, 1), 1),
    ("uneven", (9, 8), (6, 4, 2, 3), (5, 8), (2, 1), ((0, 1), (2, 0)), (1, 1), 1),
    ("dilated", ("h", "w"), (6, 4, 3, 3), ("h", "w"), (1, 1), ((2, 2), (1, 1)), (2, 1), 1),
    ("grouped", ("h", "w"), (6, 2, 3, 3), ("h", "w"), (1, 1), ((1, 1), (1, 1)), (1, 1), 2),
    ("depthwise", ("h", "w"), (4, 1, 3, 3), ("h", "w"), (1, 1), ((1, 1), (1, 1)), (1, 1), 4),
    ("multiplier", (9, 8), (8, 1, 3, 3), (7, 8), (1, 1), ((0, 0), (1, 1)), (1, 1), 4),
    ("point", ("h", "w"), (6, 4, 1, 1), ("h", "w"), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    ("strided point", (9, 8), (6, 4, 1, 1), (5, 6), (2, 2), ((0, 0), (1, 2)), (1, 1), 1),
]:

    def _weight_gradient(
        layout: str, x: Any, dy: Any, a: Any = (_w, _strides, _padding, _dilations, _groups)
    ) -> Any:
        return graph.ConvWeightGradient(
            x, dy, kernel=a[0][2:], strides=a[1], padding=a[2], dilations=a[3], groups=a[4], layout=layout
        )

    def _expected(x: Any, dy: Any, a: Any = (_w, _strides, _padding, _dilations, _groups)) -> Any:
        (p0, q0), (p1, q1) = a[2]
        padded = nn.pad(t(x), (p1, q1, p0, q0))
        return torch.nn.grad.conv2d_weight(padded, a[0], t(dy), a[1], 0, a[3], a[4]).numpy()

    for _layout in ("channels_first", "channels_last"):
        _flip = _layout == "channels_last"
        _shapes = [("b", c, *n) for c, n in ((4, _size), (_w[0], _out))]
        CASES.append(
            Case(
                "ConvWeightGradient",
                tuple(F(*((n[0], *n[2:], n[1]) if _flip else n)) for n in _shapes),
                lambda b, d, *v, layout=_layout, build=_weight_gradient: b(build(layout, *v)),
                lambda d, *v, flip=_flip, expected=_expected: expected(*(map(first, v) if flip else v)),
                IMAGES,
                1e-5,
                f"{_note} {_layout}",
                bounds={"h": (5, 64), "w": (5, 64)},
            )
        )

for _note, _kernel, _strides, _pad, _dilation, _ceil in [
    ("plain", (2, 2), (2, 2), 0, 1, False),
    ("resnet", (3, 3), (2, 2), 1, 1, False),
    ("ceil", (3, 2), (2, 2), 0, 1, True),
    ("ceil padded", (3, 3), (2, 2), 1, 1, True),
    ("dilated", (2, 3), (1, 2), 1, 2, False),
]:
    for _class in (graph.MaxPool, graph.MaxPoolIndices):
        spatial_case(
            _class.__name__,
            ("b", 3, "h", "w"),
            (),
            lambda layout, x, a=(_kernel, _strides, _pad, _dilation, _ceil), pool=_class: pool(
                x,
                kernel=a[0],
                strides=a[1],
                padding=((a[2], a[2]),) * 2,
                dilations=(a[3],) * 2,
                ceil_mode=a[4],
                layout=layout,
            ),
            lambda x, a=(_kernel, _strides, _pad, _dilation, _ceil), which=_class is graph.MaxPoolIndices: (
                nn.max_pool2d(t(x), a[0], a[1], a[2], a[3], a[4], return_indices=True)[which].numpy()
            ),
            _note,
            IMAGES,
            bounds={"h": (5, 64), "w": (5, 64)},
        )
    if _dilation == 1:
        for _count in (False, True):
            for _dtype in (f32, f16, i64):
                spatial_case(
                    "AvgPool",
                    ("b", 3, "h", "w"),
                    (),
                    lambda layout, x, a=(_kernel, _strides, _pad, _ceil, _count): graph.AvgPool(
                        x,
                        kernel=a[0],
                        strides=a[1],
                        padding=((a[2], a[2]),) * 2,
                        ceil_mode=a[3],
                        count_include_pad=a[4],
                        layout=layout,
                    ),
                    lambda x, a=(_kernel, _strides, _pad, _ceil, _count): nn.avg_pool2d(t(x), *a).numpy(),
                    f"{_note} {_count}",
                    IMAGES,
                    _dtype,
                    bounds={"h": (5, 64), "w": (5, 64)},
                )
spatial_case(
    "AvgPool",
    ("b", 3, "h"),
    (),
    lambda layout, x: graph.AvgPool(
        x, kernel=(3,), strides=(1,), padding=((1, 1),), divisor=2, layout=layout
    ),
    lambda x: (nn.avg_pool1d(t(x), 3, 1, 1) * 1.5).numpy(),
    "divisor",
    ({"b": 2, "h": 6},),
)
spatial_case(
    "MaxPool",
    ("b", 3, "h"),
    (),
    lambda layout, x: graph.MaxPool(x, kernel=(2,), strides=(2,), padding=((0, 1),), layout=layout),
    lambda x: nn.max_pool1d(nn.pad(t(x), (0, 1), value=-np.inf), 2, 2).numpy(),
    "one sided",
    ({"b": 2, "h": 6}, {"b": 1, "h": 1}),
)
for _count in (False, True):
    spatial_case(
        "AvgPool",
        (2, 3, 7),
        (),
        lambda layout, x, c=_count: graph.AvgPool(
            x,
            kernel=(20,),
            strides=(20,),
            padding=((4, 4),),
            ceil_mode=True,
            count_include_pad=c,
            layout=layout,
        ),
        lambda x, c=_count: nn.avg_pool1d(t(x), 20, 20, 4, True, c).numpy(),
        f"larger than the image {_count}",
        ({},),
    )
spatial_case(
    "MaxPool",
    (2, 3, 7),
    (),
    lambda layout, x: graph.MaxPool(
        x, kernel=(20,), strides=(3,), padding=((9, 9),), dilations=(1,), layout=layout
    ),
    lambda x: nn.max_pool1d(t(x), 20, 3, 9).numpy(),
    "larger than the image",
    ({},),
)
for _size in ((1, 1), (3, 2), (4, 5)):
    for _dtype in (f32, f16):
        spatial_case(
            "AdaptiveAvgPool",
            ("b", 3, "h", "w"),
            (),
            lambda layout, x, s=_size: graph.AdaptiveAvgPool(x, size=s, layout=layout),
            lambda x, s=_size: nn.adaptive_avg_pool2d(t(x), s).numpy(),
            str(_size),
            ({"b": 2, "h": 9, "w": 10}, {"b": 1, "h": 4, "w": 5}, {"b": 1, "h": 3, "w": 2}),
            _dtype,
        )

# -- Normalizations ------------------------------------------------------------------------------------------

for _dtype in (f32, f64, f16, bf16):
    _tol = tolerance(_dtype)
    for _axis in (-1, 1):
        CASES.append(
            Case(
                "Softmax",
                (F("b", 4, "s", dtype=_dtype),),
                lambda b, d, x, a=_axis: b(graph.Softmax(x, axis=a)),
                lambda d, x, a=_axis: torch.softmax(t(x), a).numpy(),
                SIZES,
                _tol,
                f"{_dtype.name} {_axis}",
            )
        )
        CASES.append(
            Case(
                "LogSoftmax",
                (F("b", 4, "s", dtype=_dtype),),
                lambda b, d, x, a=_axis: b(graph.LogSoftmax(x, axis=a)),
                lambda d, x, a=_axis: torch.log_softmax(t(x), a).numpy(),
                SIZES,
                _tol,
                f"{_dtype.name} {_axis}",
            )
        )
    for _count in (0, 1, 2):
        CASES.append(
            Case(
                "LayerNorm",
                (F("b", "s", 6, dtype=_dtype), F(6, dtype=_dtype), F(6, dtype=_dtype))[: _count + 1],
                lambda b, d, x, *r: b(graph.LayerNorm(x, *r, *[None] * (2 - len(r)), epsilon=1e-3)),
                lambda d, x, *r: nn.layer_norm(t(x), (6,), *(t(v) for v in r), eps=1e-3).numpy(),
                SIZES,
                _tol,
                f"{_dtype.name} {_count}",
            )
        )
    CASES.append(
        Case(
            "LayerNorm",
            (F("b", 3, 4, dtype=_dtype), F(3, 4, dtype=_dtype)),
            lambda b, d, x, w: b(graph.LayerNorm(x, w, None, axes=(1, 2))),
            lambda d, x, w: nn.layer_norm(t(x), (3, 4), t(w)).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name} two axes",
        )
    )
    CASES.append(
        Case(
            "LayerNorm",
            (F("b", 3, dtype=_dtype), F(3, dtype=_dtype)),
            lambda b, d, x, c: b(graph.LayerNorm(x, None, c)),
            lambda d, x, c: nn.layer_norm(t(x), (3,), None, t(c)).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name} bias only",
        )
    )
    CASES.append(
        Case(
            "RmsNorm",
            (F("b", "s", 6, dtype=_dtype), F(6, dtype=_dtype)),
            lambda b, d, x, w: b(graph.RmsNorm(x, w, epsilon=1e-3)),
            lambda d, x, w: nn.rms_norm(t(x), (6,), t(w), eps=1e-3).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name}",
        )
    )
    CASES.append(
        Case(
            "RmsNorm",
            (F("b", 2, 3, dtype=_dtype),),
            lambda b, d, x: b(graph.RmsNorm(x, None, axes=(-2, -1), epsilon=1e-3)),
            lambda d, x: nn.rms_norm(t(x), (2, 3), eps=1e-3).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name} bare",
        )
    )
    CASES.append(
        Case(
            "GroupNorm",
            (F("b", 6, "s", 3, dtype=_dtype), F(6, dtype=_dtype), F(6, dtype=_dtype)),
            lambda b, d, *v: b(graph.GroupNorm(*v, groups=2)),
            lambda d, x, w, c: nn.group_norm(t(x), 2, t(w), t(c)).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name}",
        )
    )
    CASES.append(
        Case(
            "GroupNorm",
            (F("b", 4, "s", 5, dtype=_dtype),),
            lambda b, d, x: b(graph.GroupNorm(x, None, None, groups=4, epsilon=1e-3)),
            lambda d, x: nn.group_norm(t(x), 4, eps=1e-3).numpy(),
            SIZES,
            _tol,
            f"{_dtype.name} instance",
        )
    )
    for _axis in (1, -1):
        CASES.append(
            Case(
                "BatchNorm",
                (
                    F("b", 4, "s", 4, dtype=_dtype),
                    *[F(4, dtype=_dtype)] * 3,
                    F(4, dtype=_dtype, fill=positive),
                ),
                lambda b, d, *v, a=_axis: b(graph.BatchNorm(*v, axis=a, epsilon=1e-3)),
                lambda d, x, w, c, m, s, a=_axis: np.moveaxis(
                    nn.batch_norm(t(np.moveaxis(x, a, 1)), t(m), t(s), t(w), t(c), eps=1e-3).numpy(), 1, a
                ),
                SIZES,
                _tol,
                f"{_dtype.name} {_axis}",
            )
        )
CASES.append(
    Case(
        "Softmax",
        (
            F(
                "b",
                6,
                fill=lambda rng, shape: np.where(
                    rng.random(shape) < 0.5, -np.inf, 1e4 * rng.standard_normal(shape)
                ),
            ),
        ),
        lambda b, d, x: b(graph.Softmax(x)),
        lambda d, x: torch.softmax(t(x), -1).numpy(),
        ({"b": 12},),
        note="extreme",
    )
)

# -- Attention -----------------------------------------------------------------------------------------------


def _attention(d: Any, q: Any, k: Any, v: Any, *mask: Any, **options: Any) -> Any:
    return nn.scaled_dot_product_attention(
        t(q), t(k), t(v), t(mask[0]) if mask else None, enable_gqa=True, **options
    ).numpy()


for _dtype in (f32, f16, bf16):
    for _groups in (4, 2, 1):
        CASES.append(
            Case(
                "Attention",
                (
                    F("b", 4, "s", 8, dtype=_dtype),
                    F("b", _groups, 6, 8, dtype=_dtype),
                    F("b", _groups, 6, 5, dtype=_dtype),
                ),
                lambda b, d, *v: b(graph.Attention(*v)),
                _attention,
                SIZES,
                tolerance(_dtype),
                f"{_dtype.name} {_groups}",
            )
        )
    CASES.append(
        Case(
            "Attention",
            tuple([F("b", 2, "s", 8, dtype=_dtype)] * 3),
            lambda b, d, *v: b(graph.Attention(*v, causal=True, scale=0.3)),
            lambda d, *v: _attention(d, *v, is_causal=True, scale=0.3),
            SIZES,
            tolerance(_dtype),
            f"{_dtype.name} causal",
        )
    )
    for _mask in (("b", 1, "s", 6), (1, 1, 1, 6), ("s", 6)):
        CASES.append(
            Case(
                "Attention",
                (
                    F("b", 4, "s", 8, dtype=_dtype),
                    *[F("b", 2, 6, 8, dtype=_dtype)] * 2,
                    F(*_mask, dtype=_dtype),
                ),
                lambda b, d, *v: b(graph.Attention(*v)),
                _attention,
                SIZES,
                tolerance(_dtype),
                f"{_dtype.name} added {_mask}",
            )
        )


def _keep_one(rng: Any, shape: tuple[int, ...]) -> Any:
    mask = bools(rng, shape)
    mask[..., 0] = True
    return mask


CASES.append(
    Case(
        "Attention",
        (F("b", 4, "s", 8), *[F("b", 4, "s", 8)] * 2, F("b", 1, 1, "s", dtype=boolean, fill=_keep_one)),
        lambda b, d, *v: b(graph.Attention(*v)),
        _attention,
        SIZES,
        note="boolean",
    )
)


CASES.append(
    Case(
        "Attention",
        (F("b", 2, "s", 8), *[F("b", 2, 3, 8)] * 2, F("b", 1, "s", 3, dtype=boolean, fill=bools)),
        lambda b, d, *v: b(graph.Attention(*v)),
        _attention,
        SIZES,
        note="hidden rows",
    )
)


def _of_qvalues(d: Any, q: Any, k: Any, v: Any, k_scale: Any, v_scale: Any, sinks: Any) -> Any:
    """Attention with scaled integer keys and values. A sink is an additional key and value of zeros, whose
    score is added by the mask.
    """
    k, v = (np.asarray(x, np.float64) * s[..., None] for x, s in ((k, k_scale), (v, v_scale)))
    repeat, none = q.shape[1] // k.shape[1], np.zeros((len(q), q.shape[1], 1, q.shape[3]))
    k, v = (np.concatenate((np.repeat(x, repeat, 1), none), 2) for x in (k, v))
    mask = np.zeros((len(q), q.shape[1], q.shape[2], k.shape[2]))
    mask[..., -1] = sinks[:, None]
    return nn.scaled_dot_product_attention(t(q), t(k), t(v), t(mask)).numpy()


for _factors, _dtype in ((i8, f32), (f32, bf16)):
    CASES.append(
        Case(
            "Attention",
            (
                F("b", 4, "s", 8),
                *[F("b", 2, 6, 8, dtype=_factors, fill=integers(-9, 9))] * 2,
                *[F("b", 2, 6, dtype=_dtype)] * 2,
                F(4),
            ),
            lambda b, d, q, k, v, *more: b(graph.Attention(q, k, v, None, *more)),
            _of_qvalues,
            SIZES,
            note=f"qvalues {_factors.name}, sinks",
        )
    )


def _rotate(x: Any, interleaved: bool) -> Any:
    if interleaved:
        y = np.empty_like(x)
        y[..., 0::2], y[..., 1::2] = -x[..., 1::2], x[..., 0::2]
        return y
    half = x.shape[-1] // 2
    return np.concatenate((-x[..., half:], x[..., :half]), -1)


for _interleaved in (False, True):
    for _dtype in (f32, f16):
        CASES.append(
            Case(
                "Rotary",
                (F("b", 2, "s", 8, dtype=_dtype), F("b", 1, "s", 8, dtype=_dtype), F("s", 8, dtype=_dtype)),
                lambda b, d, *v, i=_interleaved: b(graph.Rotary(*v, interleaved=i)),
                lambda d, x, c, s, i=_interleaved: (
                    x.astype(np.float64) * c + _rotate(x.astype(np.float64), i) * s
                ),
                SIZES,
                tolerance(_dtype),
                f"{_interleaved} {_dtype.name}",
            )
        )

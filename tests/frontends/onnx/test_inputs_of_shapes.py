"""Axes, shapes, counts and factors that are inputs: one compiled model takes all of their values, as ONNX
Runtime does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.core import IRError
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def model(signature: str, body: str, opset: int = 20) -> Any:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> main ({signature} {{ {body} }}'
    )


def check(signature: str, body: str, *runs: Any, native: bool = False, dims: Any = None) -> None:
    """Import the model once, and compare each of `runs` with ONNX Runtime."""
    proto = model(signature, body)
    peer = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [i.name for i in proto.graph.input]
    module = import_onnx(proto, dims)
    verify(module)
    library = tw.compile(proto, dims=dims, cache=False) if native else None
    for arrays in runs:
        arrays = [np.asarray(x) for x in arrays]
        expected = peer.run(None, dict(zip(names, arrays, strict=True)))
        found = Interpreter(module).run("main", arrays) if library is None else library(*arrays)
        for want, got in zip(expected, found if isinstance(found, (list, tuple)) else [found], strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    if library is not None:
        library.close()


PAIRS = [(X, ints(0, -1)), (X, ints(1, 2)), (X[:2], ints(-3, 1))]


@pytest.mark.parametrize(
    "what", ["Sum", "Mean", "Max", "Min", "Prod", "LogSumExp", "L1", "L2", "SumSquare", "LogSum"]
)
def test_axes_of_reductions(what: str) -> None:
    x = "Abs(x)" if what == "LogSum" else "Identity(x)"
    for keep, shape in ((1, "P, Q, R"), (0, "P")):
        body = f"z = {x} y = Reduce{what}<keepdims={keep}>(z, axes)"
        check(
            f"float[A, 4, 5] x, int64[2] axes) => (float[{shape}] y)",
            body,
            *PAIRS,
            native=what == "Mean" and not keep,
        )


@pytest.mark.parametrize("noop", [0, 1])
def test_any_number_of_axes(noop: int) -> None:
    runs = [*PAIRS, (X, ints()), (X, ints(2)), (X, ints(0, 1, -1))]
    body = f"y = ReduceSum<noop_with_empty_axes={noop}>(x, axes)"
    check("float[A, 4, 5] x, int64[n] axes) => (float[P, Q, R] y)", body, *runs, dims={"axes": {0: "0<=n"}})
    with pytest.raises(TilewrightError, match="unknown number of dimensions"):
        import_onnx(
            model("float[A, 4, 5] x, int64[n] axes) => (float[P] y)", "y = ReduceSum<keepdims=0>(x, axes)")
        )


def test_an_axis_that_is_none() -> None:
    for axis in (3, -4):
        with pytest.raises(IRError, match="an axis is outside of the 3 dimensions"):
            module = import_onnx(
                model("float[A, 4, 5] x, int64[1] axes) => (float[P, Q, R] y)", "y = ReduceSum(x, axes)")
            )
            Interpreter(module).run("main", [X, ints(axis)])


@pytest.mark.parametrize("operator", ["CumSum", "CumSum<exclusive=1, reverse=1>"])
def test_axis_of_a_running_sum(operator: str) -> None:
    runs = [(X, np.array(k, dtype=np.int32)) for k in (0, 1, 2, -1, -3)]
    check("float[A, 4, 5] x, int32 axis) => (float[P, Q, R] y)", f"y = {operator}(x, axis)", *runs)


def test_axes_that_come_and_go() -> None:
    check(
        "float[A, 4, 5] x, int64[2] axes) => (float[P, Q, R, S, T] y)", "y = Unsqueeze(x, axes)",
        (X, ints(0, 2)), (X, ints(-1, -2)), (X, ints(3, 1)), native=True,
    )  # fmt: skip
    check(
        "float[A, B, C] x, int64[1] axes) => (float[P, Q] y)",
        "y = Squeeze(x, axes)",
        (X[:1], ints(0)),
        (X[:, :1], ints(-2)),
    )


def test_axes_and_steps_of_slices() -> None:
    signature = "float[A, 4, 5] x, int64[2] starts, int64[2] ends{}) => (float[P, Q, R] y)"
    runs = [
        (X, ints(0, 1), ints(2, 4), ints(0, 2), ints(1, 2)),
        (X, ints(-1, 3), ints(-10, 0), ints(2, 1), ints(-1, -2)),
        (X, ints(10, 1), ints(20, 0), ints(-1, -3), ints(3, 1)),
    ]
    check(
        signature.format(", int64[2] axes, int64[2] steps"),
        "y = Slice(x, starts, ends, axes, steps)",
        *runs,
        native=True,
    )
    check(
        signature.format(", int64[2] axes"),
        "y = Slice(x, starts, ends, axes)",
        *[run[:4] for run in (runs[0], runs[2])],
    )
    check(
        signature.format(", int64[2] steps"),
        "y = Slice(x, starts, ends, , steps)",
        (X, ints(2, 0), ints(-9, 4), ints(-2, 3)),
    )


def test_axes_of_padding() -> None:
    check(
        "float[A, 4, 5] x, int64[4] pads, float v, int64[2] axes) => (float[P, Q, R] y)",
        "y = Pad(x, pads, v, axes)",
        (X, ints(0, 1, 2, 3), np.float32(1), ints(0, 2)),
        (X, ints(0, 1, -1, 3), np.float32(2), ints(-2, 0)), native=True,
    )  # fmt: skip


def test_examples_freeze_nothing() -> None:
    proto = model("float[A, 4, 5] x, int64[2] axes) => (float[P] y)", "y = ReduceSum<keepdims=0>(x, axes)")
    with tw.compile(proto, PAIRS[0], cache=False) as library:
        for x, axes in PAIRS:
            np.testing.assert_allclose(library(x, axes), x.sum(tuple(axes)), rtol=1e-5, atol=1e-5)


IMAGE = np.random.default_rng(0).standard_normal((1, 2, 6, 5)).astype(np.float32)
FACTORS = [np.array(f, np.float32) for f in ([1, 1, 2, 1.5], [1, 1, 0.5, 0.6], [1, 1, 1, 3])]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_factors_of_resize(mode: str) -> None:
    signature = "float[1, 2, H, W] x, float[4] scales) => (float[P, Q, R, S] y)"
    runs = [(IMAGE[:, :, :rows], f) for rows, f in zip((6, 4, 3), FACTORS, strict=True)]
    check(signature, f'y = Resize<mode="{mode}">(x, , scales)', *runs, native=mode == "linear")


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_of_resize(policy: str) -> None:
    signature = "float[1, 2, H, W] x, int64[2] sizes) => (float[P, Q, R, S] y)"
    body = f'y = Resize<mode="linear", axes=[2, 3], keep_aspect_ratio_policy="{policy}">(x, , , sizes)'
    check(signature, body, (IMAGE, ints(9, 3)), (IMAGE[:, :, :4], ints(2, 10)))


def test_crops_of_resize() -> None:
    signature = "float[1, 2, H, W] x, float[8] roi, int64[4] sizes) => (float[P, Q, R, S] y)"
    body = (
        'y = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize", '
        "extrapolation_value=7.0>(x, roi, , sizes)"
    )
    crops = [
        np.array(c, np.float32)
        for c in ([0, 0, 0.25, 0.1, 1, 1, 0.75, 0.9], [0, 0, 0.5, -0.25, 1, 1, 1.4, 1])
    ]
    check(signature, body, *((IMAGE, crop, ints(1, 2, 4, 7)) for crop in crops))


def test_factors_of_upsampling() -> None:
    """Upsample, the name of Resize before opset 10, takes its factors as an input from opset 9 on."""
    signature, body = (
        "float[1, 2, H, W] x, float[4] scales) => (float[P, Q, R, S] y)",
        "y = Upsample(x, scales)",
    )
    proto = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["": 9]> main ({signature} {{ {body} }}')
    module = import_onnx(proto)
    for rows, columns in ((2, 3), (1, 2)):
        (found,) = Interpreter(module).run("main", [IMAGE, np.array([1, 1, rows, columns], np.float32)])
        np.testing.assert_array_equal(found, IMAGE.repeat(rows, 2).repeat(columns, 3))


def test_errors_say_that_an_example_is_needed() -> None:
    signature = "float[1, 2, H, W] x, float[4] scales) => (float[P, Q, R, S] y)"
    proto = model(signature, 'y = Resize<mode="linear", antialias=1>(x, , scales)')
    with pytest.raises(TilewrightError, match=r"an example of 'scales' \(args\) is compiled in"):
        import_onnx(proto)


@pytest.mark.parametrize("onesided", [0, 1])
def test_axis_of_a_fourier_transform(onesided: int) -> None:
    signature, body = (
        "float[A, 4, 1] x, int64 axis) => (float[P, Q, R] y)",
        f"y = DFT<onesided={onesided}>(x, , axis)",
    )
    check(signature, body, *((X[:, :, :1], np.array(axis)) for axis in (0, 1, -2, -3)))

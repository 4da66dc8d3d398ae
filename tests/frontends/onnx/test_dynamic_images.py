"""Resizing and pooling images of dynamic sizes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def compare(body, *arrays, native=False, runtime=False, shape="N, 2, H, W", rest=""):
    text = (
        f'<ir_version: 10, opset_import: ["": 20]> main (float[{shape}] x{rest}) => (float[A, B, '
        f"C, D] y) {{ {body} }}"
    )
    proto = onnx.parser.parse_model(text)
    peer = onnxruntime.InferenceSession(proto.SerializeToString()) if runtime else ReferenceEvaluator(proto)
    (expected,) = peer.run(None, {i.name: x for i, x in zip(proto.graph.input, arrays, strict=True)})
    if native:
        with tw.compile(proto, cache=False) as library:
            found = library(*arrays)
    else:
        module = import_onnx(proto)
        verify(module)
        (found,) = Interpreter(module).run("main", arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def image(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("factors", ["1.5, 2.25", "0.5, 0.75"])
def test_by_a_factor(factors, mode, coordinates):
    attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"'
    body = f"s = Constant<value=float[4]{{1.0, 1.0, {factors}}}>() y = Resize<{attributes}>(x, , s)"
    compare(body, image(1, 2, 6, 8))


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_to_the_nearest(rounding):
    attributes = f'nearest_mode="{rounding}", coordinate_transformation_mode="half_pixel"'
    compare(
        f"s = Constant<value=float[4]{{1.0, 1.0, 1.5, 2.5}}>() y = Resize<{attributes}>(x, , s)",
        image(1, 2, 4, 6),
    )


def test_nothing_from_outside():
    attributes = 'mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5'
    compare(
        f"s = Constant<value=float[4]{{1.0, 1.0, 1.5, 0.5}}>() y = Resize<{attributes}>(x, , s)",
        image(1, 2, 4, 6),
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_to_the_size_of_another_image(mode):
    body = f's = Shape(z) y = Resize<mode="{mode}">(x, , , s)'
    compare(body, image(1, 2, 6, 5), image(1, 2, 9, 3), rest=", float[N, 2, P, Q] z")


def test_to_a_size_that_is_data():
    body = 'y = Resize<mode="linear", axes=[2, 3]>(x, , , s)'
    compare(body, image(1, 2, 6, 5), np.array([9, 3]), rest=", int64[2] s", native=True)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    "operator", ["MaxPool", "AveragePool", "AveragePool<count_include_pad=1, ", "LpPool"]
)
def test_pools_as_large_as_the_image(operator, auto):
    """A pool may be as large as the image. ONNX's reference computes another output size for SAME_LOWER, so
    ONNX Runtime is the reference.
    """
    attributes = f'kernel_shape=[3, 2], strides=[2, 1], auto_pad="{auto}">'
    operator = operator if operator.endswith(", ") else f"{operator}<"
    compare(f"y = {operator}{attributes}(x)", image(2, 2, 7, 5) - 3, runtime=True)

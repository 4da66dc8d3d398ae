"""Operators of vision and signal processing with dynamic sizes, and in forms that ONNX's suite lacks."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify


def run(signature, body, *arrays, opset=20):
    text = f'<ir_version: 10, opset_import: ["": {opset}]> main {signature} {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    module = import_onnx(proto)
    verify(module)
    (found,) = Interpreter(module).run("main", arrays)
    return found, proto


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample_far_outside(mode, padding, corners):
    x, grid = normal(2, 3, 5, 4), 3 * normal(2, 6, 7, 2)
    attributes = f'mode="{mode}", padding_mode="{padding}", align_corners={corners}'
    found, _ = run(
        "(float[N, 3, H, W] x, float[N, 6, 7, 2] grid) => (float[N, 3, 6, 7] y)",
        f"y = GridSample<{attributes}>(x, grid)",
        x,
        grid,
    )
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x),
        torch.from_numpy(grid),
        {"linear": "bilinear"}.get(mode, mode),
        padding,
        align_corners=bool(corners),
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_regions_of_their_own_number_of_samples():
    """With sampling_ratio 0, the number of samples of each region is the number of elements that it
    covers.
    """
    x = normal(2, 3, 9, 8)
    rois = np.array([[0.3, 0.2, 7.1, 8.4], [2, 2, 3, 2.5], [-3, 1, 12, 5]], np.float32)
    found, proto = run(
        "(float[N, 3, H, W] x, float[R, 4] rois, int64[R] b) => (float[R, 3, 2, 3] y)",
        "y = RoiAlign<output_height=2, output_width=3, sampling_ratio=0>(x, rois, b)",
        x,
        rois,
        np.array([1, 0, 1]),
    )
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x, "rois": rois, "b": np.array([1, 0, 1])})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_largest_elements_of_regions():
    """MaxRoiPool gives the largest element of each part of a region. ONNX's reference lacks the operator, so
    ONNX Runtime is the reference.
    """
    x = normal(2, 3, 9, 8)
    rois = np.array(
        [[1, 0.3, 0.2, 7.1, 8.4], [0, 2, 2, 3, 2.5], [1, -3, 1, 12, 5], [0, 20, 20, 21, 21]], np.float32
    )
    found, proto = run(
        "(float[N, 3, H, W] x, float[R, 5] rois) => (float[R, 3, 2, 3] y)",
        "y = MaxRoiPool<pooled_shape=[2, 3], spatial_scale=0.9>(x, rois)",
        x,
        rois,
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, {"x": x, "rois": rois})
    np.testing.assert_array_equal(found, expected)


def test_norms_of_planes():
    x = normal(2, 3, 5, 4)
    found, _ = run("(float[N, 3, H, W] x) => (float[N, 3, 1, 1] y)", "y = GlobalLpPool<p=3>(x)", x)
    expected = np.cbrt((np.abs(x) ** 3).sum((2, 3), keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("length", [7, 1024, 1500])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_of_any_length(length, inverse):
    x = normal(3, length, 2)
    found, _ = run(
        f"(float[N, {length}, 2] x) => (float[N, {length}, 2] y)", f"y = DFT<inverse={inverse}>(x)", x
    )
    expected = (np.fft.ifft if inverse else np.fft.fft)(x[..., 0] + 1j * x[..., 1].astype(np.float64))
    np.testing.assert_allclose(
        found[..., 0] + 1j * found[..., 1], expected, atol=2e-6 * np.abs(expected).max()
    )


def test_a_transform_of_dynamic_length():
    x = normal(2, 12, 1)
    found, _ = run("(float[N, T, 1] x) => (float[N, F, 2] y)", "y = DFT<onesided=1>(x)", x)
    expected = np.fft.rfft(x[..., 0])
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, atol=1e-5)


STFT = "(float[1, T, 1] x, int64 step, int64 length) => (float[1, F, K, 2] y)", "y = STFT(x, step, , length)"


def test_frames_whose_length_and_distance_are_data():
    """A frame's length and step may be inputs: sizes are then divided by numbers that are known only at run
    time.
    """
    x = normal(1, 128, 1)
    _, proto = run(*STFT, x, np.array(8), np.array(16))
    with tw.compile(proto, cache=False) as library:
        for step, length in ((8, 16), (5, 40), (128, 128)):
            found = library(x, np.array(step), np.array(length))
            frames = np.stack([x[0, k : k + length, 0] for k in range(0, 129 - length, step)])
            expected = np.fft.rfft(frames.astype(np.float64))
            np.testing.assert_allclose(found[0, ..., 0] + 1j * found[0, ..., 1], expected, atol=1e-5)
        with pytest.raises(TilewrightError, match="a frame is longer than the signal"):
            library(x, np.array(8), np.array(129))
        with pytest.raises(TilewrightError, match="STFT"):
            library(x, np.array(0), np.array(16))


def test_transforms_of_a_dynamic_length_cancel_exactly():
    x = np.ones((1, 64, 1), np.float32)
    found, _ = run("(float[N, T, 1] x) => (float[N, T, 2] y)", "y = DFT(x)", x)
    # Multiples of a quarter turn have exact sines and cosines.
    np.testing.assert_array_equal(found[0, 16], 0)


def test_suppression_among_many_boxes():
    rng = np.random.default_rng(0)
    corner = rng.random((2, 40, 2)) * 8
    boxes = np.concatenate([corner, corner + 1 + rng.random((2, 40, 2)) * 3], -1).astype(np.float32)
    scores = rng.random((2, 3, 40)).astype(np.float32)
    arrays = [boxes, scores, np.array([5]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    signature = (
        "(float[B, N, 4] boxes, float[B, 3, N] scores, int64[1] most, float[1] iou, "
        "float[1] least) => (int64[K, 3] y)"
    )
    found, proto = run(signature, "y = NonMaxSuppression(boxes, scores, most, iou, least)", *arrays)
    names = ["boxes", "scores", "most", "iou", "least"]
    (expected,) = ReferenceEvaluator(proto).run(None, dict(zip(names, arrays, strict=True)))
    np.testing.assert_array_equal(found, expected)


def test_determinants_of_matrices_whose_pivots_move():
    x = normal(4, 6, 6)
    x[0, :, 0] = [0, 0, 0, 0, 2, 0]
    x[1, :, 0] = 0
    found, _ = run("(float[N, 6, 6] x) => (float[N] y)", "y = Det(x)", x)
    np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_the_place_of_a_maximum_with_dynamic_sizes():
    x = normal(2, 3, 8, 9)
    found, _ = run(
        "(float[N, 3, H, W] x) => (int64[N, 3, P, Q] places)",
        "y, places = MaxPool<kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]>(x)",
        x,
    )
    flat = torch.nn.functional.max_pool2d(torch.from_numpy(x), (3, 2), 2, (1, 0), return_indices=True)[
        1
    ].numpy()
    np.testing.assert_array_equal(found, flat + np.arange(6).reshape(2, 3, 1, 1) * 72)

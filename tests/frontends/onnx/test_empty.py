"""Tensors without elements, known at compile time or only at run time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw

BODY = """
    axes = Constant<value_ints=[1, 2]>()
    none = Constant<value_ints=[0]>()
    axis = Constant<value_int=1>()
    pads = Constant<value_ints=[0, 1, 1, 0, 1, 1]>()
    total = ReduceSum<keepdims=0>(x, axes)
    product = ReduceProd<keepdims=0>(x, axes)
    largest = ReduceMax<keepdims=0>(x, axes)
    rows = Softmax<axis=2>(x)
    columns = Softmax<axis=1>(x)
    turned = Transpose<perm=[0, 2, 1]>(x)
    square = MatMul(x, turned)
    joined = Concat<axis=1>(x, rows, x)
    sums = CumSum(x, axis)
    padded = Pad(x, pads)
    best, where = TopK<axis=2>(x, none)
    places = NonZero(x)
"""
RANKS = {"total": 1, "product": 1, "largest": 1, "places": 2}
RESULTS = [
    "total",
    "product",
    "largest",
    "rows",
    "columns",
    "square",
    "joined",
    "sums",
    "padded",
    "best",
    "where",
    "places",
]
SHAPES = [(2, 4, 0), (2, 0, 4), (0, 2, 4), (2, 0, 0), (2, 3, 4)]


def model(shape):
    graph = onnx.parser.parse_graph(f"main (float[A, B, C] x) => (float[A] total) {{ {BODY} }}")
    graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    del graph.output[:]
    for name in RESULTS:
        kind = TensorProto.INT64 if name in ("where", "places") else TensorProto.FLOAT
        graph.output.append(helper.make_tensor_value_info(name, kind, [None] * RANKS.get(name, 3)))
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


def check(library, proto, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for name, found, expected in zip(
        RESULTS, library(x), ReferenceEvaluator(proto).run(None, {"x": x}), strict=True
    ):
        assert found.shape == expected.shape, name
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{name} of {shape}")


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_sizes_known_at_compile_time(shape):
    proto = model(shape)
    with tw.compile(proto, cache=False) as library:
        check(library, proto, shape)


def test_sizes_of_the_run():
    """A model compiled with an example of size 0 is dynamic in that dimension: one artifact computes the
    results for all shapes, with and without elements.
    """
    proto = model(["A", "B", "C"])
    with tw.compile(proto, (np.zeros((0, 0, 0), np.float32),), cache=False) as library:
        for shape in SHAPES:
            check(library, proto, shape)

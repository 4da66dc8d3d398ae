"""Computations on shapes are evaluated symbolically: none of them reaches the graph, and the resulting shapes
are correct.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify


def model(signature, body, opset=18):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> main {signature} {{ {body} }}'
    )


def check(proto, *inputs, dims=None):
    """Import, verify, interpret and compare with ONNX's reference. Returns the names of the graph
    operators.
    """
    module = import_onnx(proto, dims)
    verify(module)
    for arrays in inputs:
        expected = ReferenceEvaluator(proto).run(
            None, dict(zip([i.name for i in proto.graph.input], arrays, strict=True))
        )
        results = Interpreter(module).run("main", arrays)
        for want, got in zip(expected, results, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return [op.name for op in module.walk() if op.name.startswith("graph.")]


def sizes(*shapes):
    return [[np.random.default_rng(0).standard_normal(s).astype(np.float32)] for s in shapes]


def test_shape_gather_concat_reshape():
    body = """
        s = Shape(x) zero = Constant<value_int=0>() one = Constant<value_int=1>()
        b = Gather(s, zero) t = Gather(s, one)
        axes = Constant<value_ints=[0]>()
        b1 = Unsqueeze(b, axes) t1 = Unsqueeze(t, axes)
        rest = Constant<value_ints=[4, -1]>()
        target = Concat<axis=0>(b1, t1, rest)
        y = Reshape(x, target)
    """
    operators = check(
        model("(float[N, T, 8] x) => (float[N, T, 4, 2] y)", body), *sizes((2, 3, 8), (1, 5, 8))
    )
    assert operators == ["graph.reshape"]


def test_minus_one_divides_symbolically():
    body = "target = Constant<value_ints=[-1, 6]>() y = Reshape(x, target)"
    module = import_onnx(model("(float[N, T, 12] x) => (float[M, 6] y)", body))
    (result,) = module.symbol("main").outputs
    assert str(result.type.shape[0]) == "2*N*T"


def test_minus_one_that_does_not_divide_is_refused():
    body = "target = Constant<value_ints=[-1, 5]>() y = Reshape(x, target)"
    with pytest.raises(CompileError, match="cannot be proven to be a multiple of 5"):
        import_onnx(model("(float[N, 12] x) => (float[M, 5] y)", body))


def test_zero_in_reshape_keeps_a_dimension():
    body = "target = Constant<value_ints=[0, 0, 2, -1]>() y = Reshape(x, target)"
    check(model("(float[N, T, 8] x) => (float[N, T, 2, 4] y)", body), *sizes((2, 3, 8)))


def test_arithmetic_on_sizes():
    body = """
        s = Shape<start=1, end=2>(x) two = Constant<value_ints=[2]>()
        half = Div(s, two) rest = Sub(s, half) zero = Constant<value_ints=[0]>() axis =
            Constant<value_ints=[1]>()
        a = Slice(x, zero, half, axis) b = Slice(x, half, s, axis)
        y = Concat<axis=1>(b, a)
        z = ConstantOfShape<value=float[1] {2.5}>(rest)
    """
    operators = check(model("(float[N, T] x) => (float[N, T] y, float[R] z)", body), *sizes((2, 6), (1, 7)))
    assert sorted(operators) == [
        "graph.broadcast_to",
        "graph.concat",
        "graph.constant",
        "graph.slice",
        "graph.slice",
    ]


def test_slices_clamp_to_the_bounds_of_symbols():
    body = (
        "a = Constant<value_ints=[0]>() b = Constant<value_ints=[512]>() axis = "
        "Constant<value_ints=[0]>() y = Slice(x, a, b, axis)"
    )
    proto = model("(float[T] x) => (float[U] y)", body)
    assert check(proto, *sizes((5,), (300,)), dims={"x": {0: "T<=512"}}) == []
    assert check(proto, *sizes((5,), (600,)), dims={"x": {0: "T<=1024"}}) == ["graph.slice"]


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(-3, 2**63 - 1, 1), (0, -1, 1), (-1, -(2**63), -1), (1, 100, 2), (4, 0, -2), (3, 1, 1)],
)
def test_slice_bounds(start, stop, step):
    body = f"""
        a = Constant<value_ints=[{start}]>() b = Constant<value_ints=[{stop}]>() axis =
            Constant<value_ints=[1]>()
        step = Constant<value_ints=[{step}]>() y = Slice(x, a, b, axis, step)
    """
    check(
        model("(float[N, T] x) => (float[N, U] y)", body), *sizes((2, 6), (1, 9)), dims={"x": {1: "5<=T<=64"}}
    )


def test_range_and_mask_from_sizes():
    body = """
        t = Shape<start=1, end=2>(x) axes = Constant<value_ints=[0]>() n = Squeeze(t, axes)
        zero = Constant<value_int=0>() one = Constant<value_int=1>()
        i = Range(zero, n, one) f = Cast<to=1>(i)
        y = Add(x, f)
    """
    operators = check(model("(float[N, T] x) => (float[N, T] y)", body), *sizes((2, 6), (1, 3)))
    assert operators == ["graph.iota", "graph.cast", "graph.add"]


def test_expand_with_where_equal_pattern():
    """The pattern that PyTorch writes for expand(-1, n), Where(shape == -1, 1, shape), is recognized."""
    body = """
        s = Shape(x) minus = Constant<value_ints=[-1, 4]>() ones = Constant<value_ints=[1, 1]>()
        m1 = Constant<value_int=-1>() is = Equal(minus, m1) target = Where(is, ones, minus)
        y = Expand(x, target)
    """
    assert check(model("(float[N, 1] x) => (float[N, 4] y)", body), *sizes((3, 1))) == ["graph.broadcast_to"]


def test_a_size_as_data_is_materialised():
    body = "n = Size(x) f = Cast<to=1>(n) s = ReduceSum<keepdims=0>(x) y = Div(s, f) z = Shape(x)"
    operators = check(model("(float[N, T] x) => (float y, int64[2] z)", body), *sizes((2, 6), (1, 3)))
    assert operators.count("graph.symbolic") == 2


def test_a_fixed_gather_is_a_slice():
    body = "i = Constant<value_int=-1>() y = Gather<axis=1>(x, i)"
    assert check(model("(float[N, T, 3] x) => (float[N, 3] y)", body), *sizes((2, 6, 3))) == [
        "graph.slice",
        "graph.reshape",
    ]


def test_if_on_a_shape_takes_one_branch():
    body = """
        s = Shape<start=1, end=2>(x) one = Constant<value_ints=[1]>() c = Equal(s, one) c0 = Squeeze(c)
        y = If(c0) <then_branch = a () => (float[N] p) { p = Squeeze(x, one) }, else_branch = b () =>
            (float[N, 4] q) { q = Neg(x) }>
    """
    assert check(model("(float[N, 4] x) => (float[N, 4] y)", body), *sizes((2, 4))) == ["graph.neg"]


def test_broadcast_of_unequal_symbols_names_the_node_and_the_bound():
    body = "y = Add(x, z)"
    with pytest.raises(CompileError, match=r"node Add\(y\).*do not broadcast.*no upper bound"):
        import_onnx(model("(float[N] x, float[M] z) => (float[N] y)", body))


def test_a_shape_from_data():
    body = "s = Cast<to=7>(n) y = Reshape(x, s)"
    library = tw.compile(model("(float[N, 4] x, int32[2] n) => (float[A, B] y)", body), cache=False)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    for shape in ((3, 8), (24, 1), (-1, 2), (0, 4)):
        np.testing.assert_array_equal(
            library(x, np.array(shape, np.int32)), x.reshape([6 if d == 0 else d for d in shape])
        )
    with pytest.raises(tw.TilewrightError, match="has not as many elements"):
        library(x, np.array([5, 5], np.int32))


def test_values_that_must_be_known_are_compiled_in_and_compared():
    """The number of axes determines the rank of the result, so the axes must be known. The value in the
    example is compiled in, and a call with another value is refused.
    """
    proto = model("(float[N, 4] x, int64[count] axes) => (float[A] y)", "y = ReduceSum<keepdims=0>(x, axes)")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(
        UnsupportedOperatorError, match=r"unknown number of dimensions; .*an example of 'axes' \(args\)"
    ):
        tw.compile(proto, cache=False)
    library = tw.compile(proto, (x, np.array([1])), cache=False)
    np.testing.assert_array_equal(library(x, np.array([1])), x.sum(1))
    with pytest.raises(
        tw.TilewrightError, match=r"input 'axes' must be \[1\], for which the model was compiled"
    ):
        library(x, np.array([0]))

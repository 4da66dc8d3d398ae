"""Reading files: error messages, external data by reference, names, locations, dynamic dimensions,
functions.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import CompileError, UnsupportedOperatorError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import bounds
from tilewright.ir.verifier import verify

HEADER = '<ir_version: 10, opset_import: ["": 18]>'
SIMPLE = (
    HEADER + " main (float[batch, seq] x, int64[batch, seq] mask) => (float[batch, seq] y) { y = Relu(x) }"
)


def parse(text):
    return onnx.parser.parse_model(text)


def save_external(folder, count=4096):
    weight = np.arange(count, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="layer/add")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [count])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [count])],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path, weight


def test_external_data_is_mapped_not_copied(tmp_path):
    path, weight = save_external(tmp_path)
    module = import_onnx(path)
    (constant,) = [op for op in module.walk() if op.name == "graph.constant"]
    array = constant.value.array
    base = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert constant.value.name == "w"
    assert not array.flags.writeable
    (y,) = Interpreter(module).run("main", [weight])
    np.testing.assert_array_equal(y, 2 * weight)


def test_missing_external_data(tmp_path):
    path, _ = save_external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CompileError, match=r"initializer 'w'.*weights\.bin', which does not exist"):
        import_onnx(path)


def test_truncated_external_data(tmp_path):
    path, _ = save_external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    with pytest.raises(CompileError, match=r"initializer 'w'.*has only 4: the file is truncated"):
        import_onnx(path)


def test_external_data_outside_the_folder_is_refused(tmp_path):
    path, _ = save_external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "../weights.bin"
    (tmp_path / "inner").mkdir()
    onnx.save(proto, tmp_path / "inner" / "model.onnx")
    with pytest.raises(CompileError, match="not inside the model's folder"):
        import_onnx(tmp_path / "inner" / "model.onnx")


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02hello", b"not a model at all"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(CompileError, match=r"bad\.onnx' is not an ONNX model"):
        import_onnx(path)


def test_truncated_model(tmp_path):
    data = parse(SIMPLE).SerializeToString()
    with pytest.raises(CompileError, match="truncated"):
        import_onnx(data[:-10])


def test_no_such_file():
    with pytest.raises(CompileError, match=r"cannot read 'nowhere\.onnx'"):
        import_onnx("nowhere.onnx")


@pytest.mark.parametrize("opset", [0, 29, 99])
def test_opset_outside_the_range(opset):
    proto = parse(SIMPLE)
    proto.opset_import[0].version = opset
    with pytest.raises(CompileError, match=f"uses opset {opset}; supported are 1 to 28"):
        import_onnx(proto)


def test_every_unsupported_operator_is_listed():
    text = """<ir_version: 10, opset_import: ["": 18, "my.ops": 1]> main (float[N, 4] x) => (float[N, 4] y) {
        a = my.ops.Frobnicate(x) b = Relu(a) c = my.ops.Frobnicate(b) d, e = my.ops.Twist(x) y = Neg(c)
    }"""
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(parse(text))
    found = {o.operator: o.count for o in caught.value.operators}
    assert found == {"my.ops.Frobnicate": 2, "my.ops.Twist": 1}
    assert "the domain 'my.ops' is not known" in str(caught.value)


def test_unread_attributes_are_refused():
    proto = parse(HEADER + " main (float[N, 4] x) => (float[N, 4] y) { y = Relu<strange=3>(x) }")
    with pytest.raises(UnsupportedOperatorError, match="the attribute strange"):
        import_onnx(proto)


def test_names_locations_and_symbols():
    module = import_onnx(parse(SIMPLE), dims={"x": {0: "batch<=8", 1: "16<=s<=512"}})
    main = module.symbol("main")
    assert main.arg_names == ("x", "mask")
    assert main.result_names == ("y",)
    x, mask = (a.type.shape for a in main.body.args)
    assert x == mask  # The bounds given for 'seq' at x hold for mask as well.
    assert x[1].name == "s"
    assert bounds(x[0]) == (1, 8)
    assert bounds(x[1]) == (16, 512)
    (relu,) = [op for op in module.walk() if op.name == "graph.relu"]
    assert str(relu.location) == "Relu(y)"


def test_default_bounds_and_unnamed_dimensions():
    proto = parse(HEADER + " main (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    (dim, four) = import_onnx(proto).symbol("main").body.args[0].type.shape
    assert (dim.name, bounds(dim), four) == ("x_0", (1, None), 4)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"ids": {0: "b"}}, r"'ids', which is not an input.*inputs: x \(batch, seq\), mask \(batch, seq\)"),
        ({"x": {2: "b"}}, r"dimension 2.*inputs: x \(batch, seq\)"),
        ({"x": {0: "b<=8"}, "mask": {0: "c<=8"}}, "the model calls both 'batch'"),
    ],
)
def test_dims_that_do_not_fit(dims, message):
    with pytest.raises(CompileError, match=message):
        import_onnx(parse(SIMPLE), dims)


def test_a_fixed_dimension_cannot_become_dynamic():
    proto = parse(HEADER + " main (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    with pytest.raises(CompileError, match="the model fixes that dimension to 4"):
        import_onnx(proto, {"x": {1: "c<=8"}})
    assert import_onnx(proto, {"x": [2, 4]}).symbol("main").body.args[0].type.shape == (2, 4)


def test_model_local_functions_are_inlined():
    text = """<ir_version: 10, opset_import: ["": 18, "f": 1]>
        main (float[N, 4] x) => (float[N, 4] y) { a = f.Scale<factor=3.0>(x) y = f.Scale(a) }
        <domain: "f", opset_import: ["": 18]> Scale <factor: float = 2.0> (v) => (r) {
            k = Constant<value_float: float = @factor>() r = Mul(v, k)
        }"""
    module = import_onnx(parse(text))
    verify(module)
    (y,) = Interpreter(module).run("main", [np.ones((2, 4), np.float32)])
    np.testing.assert_array_equal(y, np.full((2, 4), 6, np.float32))
    multiplications = [op for op in module.walk() if op.name == "graph.mul"]
    assert str(multiplications[0].location) == "Scale(a)/Mul(r)"


def run(text, *inputs):
    module = import_onnx(parse(text) if isinstance(text, str) else text)
    verify(module)
    return Interpreter(module).run("main", list(inputs))


@pytest.mark.parametrize("flag", [True, False])
def test_attributes_of_a_call_are_seen_in_subgraphs(flag):
    text = """<ir_version: 10, opset_import: ["": 22, "f": 1]>
        main (float[N] x, bool c) => (float[N] y) { y = f.Outer<slope=0.5>(x, c) }
        <domain: "f", opset_import: ["": 13, "f": 1]> Outer <slope> (v, w) => (r) { r = f.Pick<alpha:
            float = @slope>(v, w) }
        <domain: "f", opset_import: ["": 22]> Pick <alpha> (v, w) => (r) {
            r = If (w) <then_branch = t () => (float[N] a) { a = LeakyRelu<alpha: float = @alpha>(v) },
                else_branch = e () => (float[N] b) { b = Neg(v) }>
        }"""
    (y,) = run(text, np.array([-2, 3], np.float32), np.array(flag))
    np.testing.assert_array_equal(y, [-1, 3] if flag else [2, -3])


def test_inputs_that_a_call_leaves_out():
    """An input that a call of a function leaves out is absent in the function's nodes, in its subgraphs and
    in the functions that it calls.
    """
    text = """<ir_version: 10, opset_import: ["": 22, "f": 1]>
        main (float[N] x, bool c) => (float[N] y, float[N] z) { y = f.Within(x, c)  low =
            Constant<value_float=0.0>()  z = f.Within(x, c, low) }
        <domain: "f", opset_import: ["": 22, "f": 1]> Within (v, w, low, high) => (r) { s = f.Clipped(v,
            low, high)
            r = If (w) <then_branch = t () => (float[N] a) { a = Clip(s, low, high) }, else_branch = e ()
                => (float[N] b) { b = Neg(s) }>
        }
        <domain: "f", opset_import: ["": 22]> Clipped (v, low, high) => (r) { r = Clip(v, low, high) }"""
    y, z = run(text, np.array([-2, 3], np.float32), np.array(True))
    np.testing.assert_array_equal(y, [-2, 3])
    np.testing.assert_array_equal(z, [0, 3])


def test_overloads_of_functions():
    functions, calls = [], []
    for overload in ("Neg", "Abs"):
        body = [helper.make_node(overload, ["x"], ["y"])]
        functions.append(helper.make_function("f", "g", ["x"], ["y"], body, [helper.make_opsetid("", 22)]))
        calls.append(helper.make_node("g", ["x"], [overload], domain="f"))
        functions[-1].overload = calls[-1].overload = overload
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "Neg", "Abs")]
    graph = helper.make_graph(calls, "main", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("f", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    y, z = run(model, np.array([-2, 3], np.float32))
    np.testing.assert_array_equal([y, z], [[2, -3], [2, 3]])


def test_sparse_constants():
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 4]), "places"), [2, 3])
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse)
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(
        [node, helper.make_node("Add", ["c", "w"], ["y"])], "g", [], [value], sparse_initializer=[sparse]
    )
    (y,) = run(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))
    np.testing.assert_array_equal(y, [[0, 10, 0], [0, 14, 0]])


def test_undefined_names_are_reported():
    proto = parse(SIMPLE)
    proto.graph.node[0].input[0] = "ghost"
    with pytest.raises(CompileError, match=r"node Relu\(y\) uses 'ghost'"):
        import_onnx(proto)


def test_contrib_operators():
    text = """<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
        main (float[N, 4] x, float[N, 4] skip) => (float[N, 4] y, float[N, 4] s) <float[4] w = {1, 2, 3,
            4}, float[4] b = {0, 1, 0, 1}> {
            n, m, d, s = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, skip, w, b)
            y = com.microsoft.QuickGelu(n)
        }"""
    text = text.replace("n, m, d, s =", "n, , , s =")
    module = import_onnx(parse(text))
    verify(module)
    x, skip = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y, s = Interpreter(module).run("main", [x, skip])
    np.testing.assert_allclose(s, x + skip, rtol=1e-6)
    z = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5) * [1, 2, 3, 4] + [
        0,
        1,
        0,
        1,
    ]
    np.testing.assert_allclose(y, z / (1 + np.exp(-1.702 * z)), rtol=1e-4, atol=1e-5)


def test_a_model_that_breaks_a_rule_is_explained():
    proto = parse(HEADER + " main (float[N, 4] x) => (float[N, 4] y) { y = Concat<axis=0>(x, x) }")
    del proto.graph.node[0].attribute[:]
    with pytest.raises(CompileError, match="is not valid ONNX: Required attribute 'axis' is missing"):
        import_onnx(proto)


@pytest.mark.parametrize("value", [[1.5], "text", [1]])
def test_attributes_of_another_type_are_refused(value):
    proto = parse(HEADER + " main (float[N, 4] x) => (float[N, 4] y) { y = Softmax(x) }")
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", value))
    with pytest.raises(CompileError, match=r"attribute 'axis' .* declares it as INT"):
        import_onnx(proto)


def test_tensors_that_64_bits_cannot_address_are_refused():
    text = (
        " main (float[N] x) => (float[a, b, c] y) <int64[3] n = {4294967296, 4294967296, 4}> { y "
        "= ConstantOfShape(n) }"
    )
    with pytest.raises(CompileError, match="more bytes than 64 bits"):
        import_onnx(parse(HEADER + text))


def test_sequences_of_known_length_leave_no_trace():
    text = """<ir_version: 10, opset_import: ["": 18]> main (float[N, 6] x) => (float[N, 4] y) {
        two = Constant<value_int=2>() s = SplitToSequence<axis=1>(x, two)
        i = Constant<value_int=0>() j = Constant<value_int=-1>()
        a = SequenceAt(s, i) b = SequenceAt(s, j) t = SequenceConstruct(b, a) y =
            ConcatFromSequence<axis=1>(t)
    }"""
    module = import_onnx(parse(text))
    verify(module)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    (y,) = Interpreter(module).run("main", [x])
    np.testing.assert_array_equal(y, np.concatenate([x[:, 4:], x[:, :2]], 1))

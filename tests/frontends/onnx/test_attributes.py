"""An attribute that repeats its default, or that has no effect in the operator's mode, changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.errors import UnsupportedOperatorError
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter

from ...conformance.onnx_suite import Case, cases

Schema = tuple[str, str, int]
F, I = TensorProto.FLOAT, TensorProto.INT64


def versions() -> Iterator[tuple[Schema, onnx.defs.OpSchema]]:
    """Yield all versions of all operators that have attributes with defaults."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if any(a.default_value.name for a in schema.attributes.values()):
            yield (schema.domain, schema.name, schema.since_version), schema


def by_operator() -> dict[tuple[str, str], list[Case]]:
    """Return the suite's cases of one or two nodes, by the operators they use."""
    found = defaultdict(list)
    for case in cases():
        if len(case.model.graph.node) <= 2:
            for node in case.model.graph.node:
                found[
                    node.domain.replace("ai.onnx", "", 1) if node.domain == "ai.onnx" else node.domain,
                    node.op_type,
                ].append(case)
    return found


def of_version(model: onnx.ModelProto, domain: str, version: int) -> onnx.ModelProto | None:
    """Return the model in another opset, or None if it is not valid there."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        if entry.domain.replace("ai.onnx", "") == domain.replace("ai.onnx", ""):
            entry.version = version
    try:
        onnx.checker.check_model(copy)
    except onnx.checker.ValidationError:
        return None
    return copy


def spelled_out(model: onnx.ModelProto) -> tuple[onnx.ModelProto, set[Schema]]:
    """Return the model with every default attribute written out in its nodes, and the operators whose nodes
    this has changed.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    opsets = {("" if e.domain == "ai.onnx" else e.domain): e.version for e in copy.opset_import}
    changed = set()
    for node in copy.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        given = {a.name for a in node.attribute}
        missing = [
            a.default_value for n, a in schema.attributes.items() if n not in given and a.default_value.name
        ]
        node.attribute.extend(missing)
        if missing:
            changed.add((schema.domain, schema.name, schema.since_version))
    return copy, changed


def imported(model: onnx.ModelProto, examples: list | None) -> list[str] | None:
    """Return the module's operators with the types of their operands and results, or None if the model is
    refused.
    """
    try:
        module = import_onnx(model, None, examples)
    except tw.CompileError:
        return None
    return [f"{op.name} {[str(v.type) for v in (*op.operands, *op.results)]}" for op in module.walk()]


def small(
    operator: str, version: int, *inputs: tuple, outputs: int = 1, domain: str = "", **attributes
) -> onnx.ModelProto:
    """Return a model of one node; an input is a pair of element type and shape, or an array that becomes an
    initializer.
    """
    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node(operator, names, [f"y{k}" for k in range(outputs)], domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(n, *x)
        for n, x in zip(names, inputs, strict=True)
        if isinstance(x, tuple)
    ]
    constants = [
        onnx.numpy_helper.from_array(x, n)
        for n, x in zip(names, inputs, strict=True)
        if isinstance(x, np.ndarray)
    ]
    results = [helper.make_tensor_value_info(name, F, None) for name in node.output]
    graph = helper.make_graph([node], "main", given, results, constants)
    opsets = [helper.make_opsetid(domain, version)] + ([helper.make_opsetid("", 9)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


IMAGE = (F, ["N", 2, 4, 6])
ROWS = (F, ["N", 2])
SCALES = np.array([1, 1, 2, 2], np.float32)
ML = "ai.onnx.ml"
MORE = [
    *(
        small(f"Reduce{reduction}", v, IMAGE)
        for reduction in ("Max", "Mean", "Sum", "L2", "LogSumExp")
        for v in (1, 11)
    ),
    *(small("TopK", v, IMAGE, k=2, outputs=2) for v in (1,)),
    small("TopK", 10, IMAGE, np.array([2]), outputs=2),
    small("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 2.0]),
    small("Upsample", 9, IMAGE, SCALES),
    small("Resize", 10, IMAGE, SCALES),
    small("Resize", 11, IMAGE, np.zeros(0, np.float32), SCALES),
    small("RoiAlign", 10, IMAGE, (F, [3, 4]), (I, [3])),
    small("RoiAlign", 16, IMAGE, (F, [3, 4]), (I, [3])),
    small("MaxRoiPool", 1, IMAGE, (F, [3, 5]), pooled_shape=[2, 2]),
    small("GlobalLpPool", 2, IMAGE),
    small("LpPool", 1, IMAGE, kernel_shape=[2, 2]),
    small("Pad", 2, IMAGE, pads=[0, 0, 1, 1, 0, 0, 1, 1]),
    small("Pad", 11, IMAGE, np.array([0, 0, 1, 1, 0, 0, 1, 1])),
    small("Clip", 6, IMAGE),
    small("BatchNormalization", 7, IMAGE, *[(F, [2])] * 4),
    small("GroupNormalization", 21, IMAGE, (F, [2]), (F, [2]), num_groups=2),
    small("Dropout", 7, IMAGE),
    small("DepthToSpace", 11, (F, ["N", 8, 4, 6]), blocksize=2),
    small("Multinomial", 7, ROWS),
    *(small(f"Random{what}", 1, shape=[2, 3]) for what in ("Normal", "Uniform")),
    *(small(f"Random{what}Like", 1, ROWS) for what in ("Normal", "Uniform")),
    small("RNN", 7, (F, [3, "N", 4]), (F, [1, 5, 4]), (F, [1, 5, 5]), hidden_size=5),
    small("GRU", 7, (F, [3, "N", 4]), (F, [1, 15, 4]), (F, [1, 15, 5]), hidden_size=5),
    small("LSTM", 7, (F, [3, "N", 4]), (F, [1, 20, 4]), (F, [1, 20, 5]), hidden_size=5),
    small("Binarizer", 1, ROWS, domain=ML),
    small("Normalizer", 1, ROWS, domain=ML),
    small("Imputer", 1, ROWS, domain=ML, imputed_value_floats=[1.0]),
    small("OneHotEncoder", 1, (I, ["N", 2]), domain=ML, cats_int64s=[1, 2]),
    small("LinearRegressor", 1, ROWS, domain=ML, coefficients=[1.0, 2.0]),
    small(
        "LinearClassifier", 1, ROWS, domain=ML, outputs=2,
        coefficients=[1.0] * 4, intercepts=[0.0] * 2, classlabels_ints=[0, 1]
    ),
    small("LabelEncoder", 4, (I, ["N"]), domain=ML, keys_int64s=[1, 2], values_floats=[1.0, 2.0]),
]  # fmt: skip
"""Models for operators with defaults that ONNX's test suite does not cover."""


def test_every_default_may_be_spelled_out() -> None:
    suite, covered, refused = by_operator(), set(), []

    def compare(model: onnx.ModelProto, key: Schema, examples: list | None) -> bool:
        longer, changed = spelled_out(model)
        if key not in changed:
            return False
        plain = imported(model, examples)
        if plain is not None:
            covered.add(key)
            if imported(longer, examples) != plain:
                refused.append(key)
        return plain is not None

    for key, _ in versions():
        for case in suite.get(key[:2], ())[:8]:
            model = of_version(case.model, key[0], key[2])
            if model is not None and compare(model, key, case.data_sets[0][0]):
                break
    for model in MORE:
        node = model.graph.node[0]
        schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version, node.domain)
        key = (schema.domain, schema.name, schema.since_version)
        if not compare(model, key, None):
            assert not spelled_out(model)[1], f"{node.op_type} is refused without written defaults too"
    assert refused == []
    assert len(covered) > 250


ALL_MODES = (
    'coordinate_transformation_mode="{0}", mode="{1}", nearest_mode="floor", '
    "cubic_coeff_a=-0.5, extrapolation_value=1.0, exclude_outside={2}"
)


@pytest.mark.parametrize("scales", ["1.0, 1.0, 2.0, 1.5", "1.0, 1.0, 1.0, 1.0", "1.0, 1.0, 2.0, 3.0"])
@pytest.mark.parametrize(
    "mode", [("asymmetric", "nearest", 0), ("half_pixel", "linear", 0), ("align_corners", "cubic", 1)]
)
def test_resize_with_the_attributes_of_all_modes(mode: tuple[str, str, int], scales: str) -> None:
    """A Resize node may carry the attributes of all modes, as PyTorch's exporter writes them; those that its
    mode does not use have no effect.
    """
    body = f"s = Constant<value=float[4]{{{scales}}}>() y = Resize<{ALL_MODES.format(*mode)}>(x, , s)"
    text = f"""<ir_version: 10, opset_import: ["": 18]>
        main (float[1, 2, 4, 6] x) => (float[A, B, C, D] y) {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    (found,) = Interpreter(import_onnx(proto)).run("main", [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_attribute_is_refused() -> None:
    node = "y = QuantizeLinear<nobody_knows=1>(x, s)"
    text = f'<ir_version: 10, opset_import: ["": 23]> main (float[4] x, float s) => (uint8[4] y) {{ {node} }}'
    with pytest.raises(UnsupportedOperatorError, match="the attribute nobody_knows"):
        import_onnx(onnx.parser.parse_model(text))

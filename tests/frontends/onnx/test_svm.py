"""Support vector machines, compared with ONNX Runtime, or with ONNX's reference in the cases where ONNX
Runtime does not transform the scores of two classes.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.frontends.onnx import import_onnx
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.verifier import verify


def model(columns=4, **attributes):
    node = helper.make_node("SVMClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes)
    ends = [("label", TensorProto.INT64, ["N"]), ("scores", TensorProto.FLOAT, ["N", "C"])]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", columns])],
        [helper.make_tensor_value_info(*end) for end in ends],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def machine(classes, probabilities, kernel, positive=False, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, classes).tolist()
    vectors, pairs = rng.standard_normal((sum(sizes), 4)), classes * (classes - 1) // 2
    coefficients = rng.standard_normal((classes - 1, sum(sizes)))
    found = {
        "classlabels_ints": [10 + k for k in range(classes)],
        "vectors_per_class": sizes,
        "support_vectors": vectors.ravel().tolist(),
        "coefficients": (np.abs(coefficients) if positive else coefficients).ravel().tolist(),
        "rho": (rng.standard_normal(pairs) * 0.3).tolist(),
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.1, 3.0],
    }
    if probabilities:
        found["prob_a"], found["prob_b"] = (
            rng.uniform(-2, -1, pairs).tolist(),
            rng.uniform(-0.3, 0.3, pairs).tolist(),
        )
    return found


def rows(count=9):
    return np.random.default_rng(1).standard_normal((count, 4)).astype(np.float32)


def compare(proto, native=False, reference=False):
    x = rows()
    peer = ReferenceEvaluator(proto) if reference else onnxruntime.InferenceSession(proto.SerializeToString())
    label, scores = peer.run(None, {"x": x})
    if native:
        with tw.compile(proto, cache=False) as library:
            found = library(x)
    else:
        module = import_onnx(proto)
        verify(module)
        found = Interpreter(module).run("main", [x])
    np.testing.assert_array_equal(found[0], label)
    np.testing.assert_allclose(found[1], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_votes_of_pairs(classes, probabilities, kernel):
    compare(model(**machine(classes, probabilities, kernel)))


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_transforms_of_scores(classes, transform):
    compare(model(**machine(classes, False, "RBF"), post_transform=transform), reference=True)


def test_weights_that_are_all_positive():
    compare(model(**machine(2, False, "RBF", positive=True)), reference=True)


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_scores_of_classes(classes):
    weights = np.random.default_rng(0).standard_normal((classes, 4))
    labels = list(range(5, 5 + classes))
    proto = model(
        classlabels_ints=labels,
        coefficients=weights.ravel().tolist(),
        rho=[0.1] * classes,
        kernel_type="LINEAR",
    )
    compare(proto, reference=True)


def test_probabilities_compiled():
    compare(model(**machine(4, True, "RBF")), native=True)

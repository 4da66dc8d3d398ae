"""Operators of ai.onnx.ml on numbers, compared with ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.errors import UnsupportedOperatorError

X = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)

TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
    "nodes_values": [0.1, -0.2, 0, 0, 0, 0.3, 0, 0],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 1, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}


def leaves(what: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {f"{what}_{k}": v for k, v in LEAVES.items()} | {f"{what}_ids": ids, f"{what}_weights": weights}


CASES: list[tuple[str, np.ndarray[Any, Any], dict[str, Any], int]] = [
    ("Scaler", X, {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 0.5, 1.0]}, 1),
    *(("Normalizer", X, {"norm": norm}, 1) for norm in ("MAX", "L1", "L2")),
    (
        "Imputer",
        np.where(X > 1, np.nan, X),
        {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")},
        1,
    ),
    (
        "LabelEncoder",
        np.array([[3, 1, 7]]),
        {"keys_int64s": [1, 3], "values_floats": [0.5, 2.5], "default_float": 9.0},
        1,
    ),
    ("OneHotEncoder", np.array([[3, 1, 7]]), {"cats_int64s": [1, 2, 3], "zeros": 1}, 1),
    (
        "LinearRegressor",
        X,
        {"coefficients": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "intercepts": [0.5, -0.5], "targets": 2},
        1,
    ),
    *(
        (
            "LinearClassifier",
            X,
            {
                "coefficients": [1.0, -2.0, 3.0, 0.5, 1.0, 1.0, -1.0, 0.0, 2.0],
                "intercepts": [0.1, 0.2, 0.3],
                "classlabels_ints": [4, 8, 6],
                "post_transform": post,
            },
            2,
        )
        for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    (
        "LinearClassifier",
        np.tanh(X),
        {
            "coefficients": [0.1, -0.02, 0.03, 0.05, 0.1, 0.1, -0.1, 0.0, 0.0],
            "intercepts": [0.5, 0.4, 0.6],
            "classlabels_ints": [4, 8, 6],
            "post_transform": "PROBIT",
        },
        2,
    ),
    *(
        (
            "SVMRegressor",
            X,
            {
                "coefficients": [1.0, -0.5],
                "support_vectors": [0.1, 0.2, 0.3, 1.0, -1.0, 0.5],
                "n_supports": 2,
                "rho": [0.25],
                "kernel_type": kernel,
                "kernel_params": [0.5, 0.1, 3.0],
            },
            1,
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    *(
        (
            "TreeEnsembleRegressor",
            np.where(X > 1, np.nan, X).astype(np.float32),
            TREES
            | leaves("target", [0] * 5, [1.0, -2.0, 3.0, 0.5, 0.25])
            | {"n_targets": 1, "base_values": [10.0], "aggregate_function": how},
            1,
        )
        for how in ("SUM", "AVERAGE", "MIN", "MAX")
    ),
    *(
        (
            "TreeEnsembleClassifier",
            X,
            TREES
            | leaves("class", [0, 1, 2, 1, 0], [1.0, 0.5, 3.0, 0.75, 0.25])
            | {"classlabels_int64s": [5, 6, 7], "post_transform": post},
            2,
        )
        for post in ("SOFTMAX", "SOFTMAX_ZERO")
    ),
    (
        "TreeEnsembleClassifier",
        X,
        TREES
        | leaves("class", [0] * 5, [1.0, -0.5, 3.0, -0.75, 0.25])
        | {"classlabels_int64s": [0, 1], "post_transform": "LOGISTIC"},
        2,
    ),
]


def model(op: str, x: np.ndarray[Any, Any], attributes: dict[str, Any], outputs: int) -> Any:
    names = ["y", "z"][:outputs]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attributes)
    x_info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", x.shape[1]])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 21)]
    return helper.make_model(
        helper.make_graph([node], "g", [x_info], infos), opset_imports=opsets, ir_version=10
    )


@pytest.mark.parametrize(
    ("op", "x", "attributes", "outputs"), CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)]
)
def test_as_the_reference(op: str, x: Any, attributes: dict[str, Any], outputs: int) -> None:
    proto = model(op, x, attributes, outputs)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    with tw.compile(proto, cache=False) as library:
        found = library(x)
    for got, want in zip(found if outputs > 1 else [found], expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_tree_in_a_circle_is_an_error() -> None:
    attributes = (
        TREES | {"nodes_truenodeids": [0, 3, 0, 0, 0, 1, 0, 0]} | leaves("target", [0] * 5, [1.0] * 5)
    )
    with pytest.raises(tw.CompileError, match="form a cycle"):
        tw.compile(model("TreeEnsembleRegressor", X, attributes | {"n_targets": 1}, 1))


def test_dictionaries_are_refused_with_advice() -> None:
    with pytest.raises(UnsupportedOperatorError, match="zipmap"):
        tw.compile(model("ZipMap", X, {"classlabels_int64s": [0, 1, 2]}, 1))

"""Operators of ai.onnx.ml on numbers: feature preparation, label encoding, linear models. Trees are in
`trees.py`, support vector machines in `svm.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import DType, boolean, f32, f64, i64, string
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast, scalar
from .run_time import Arithmetic
from .shape import reshape, slice_
from .strings import choose, lookup

if TYPE_CHECKING:
    from ..node import Node

_ML = "ai.onnx.ml"


def post_transform(n: Node, scores: Value, kind: str) -> Value:
    """Apply the final transformation of ai.onnx.ml models to scores (rows, classes)."""
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return n.emit(g.Sigmoid(scores))
    if kind == "SOFTMAX":
        return n.emit(g.Softmax(scores, axis=-1))
    a = Arithmetic(n, scores.type.dtype)
    if kind == "SOFTMAX_ZERO":  # 0 stays 0
        top = a.ReduceMax(scores, axes=(scores.type.rank - 1,), keepdims=True)
        powers = a.Exp(a.Sub(scores, top))
        powers = a.Select(a.Gt(a.Abs(scores), 1e-7), powers, a.Mul(scores, a.Exp(a.Neg(top))))
        total = a.ReduceSum(powers, axes=(scores.type.rank - 1,), keepdims=True)
        return a.Select(a.Eq(total, 0.0), 0.5, a.Div(powers, total))
    if kind == "PROBIT":  # Winitzki's approximation of the inverse error function
        x = a.Sub(a.Mul(scores, 2.0), 1.0)
        log = a.Log(a.Mul(a.Sub(1.0, x), a.Add(1.0, x)))
        v = a.Add(a.Mul(log, 0.5), 2.0 / (np.pi * 0.147))
        size = a.Sqrt(a.Sub(a.Sqrt(a.Sub(a.Mul(v, v), a.Div(log, 0.147))), v))
        return a.Mul(a.Mul(a.Sign(x), size), 2.0**0.5)
    raise Unsupported(f"post_transform {kind}")


def choose_label(n: Node, scores: Value, attribute: str) -> Value | None:
    """Return the label (i64 or a string) of the best class of each row, or None if that output is unused."""
    labels, names = n.attr(attribute), n.attr("classlabels_strings")
    if not n.wants(0):
        return None
    best = n.emit(g.Argmax(scores, axis=1, keepdims=False))
    return n.emit(g.Gather(n.constant(labels or names, i64 if labels else string), best, axis=0))


@importer("ArrayFeatureExtractor", domain=_ML)
def _extract(n: Node) -> Value:
    x, indices = n.value(0), n.value(1)
    columns = n.emit(g.Gather(x, reshape(n, indices, (indices.type.size,)), axis=x.type.rank - 1))
    return columns if x.type.rank > 1 else reshape(n, columns, (1, indices.type.size))


@importer("Binarizer", domain=_ML)
def _binarizer(n: Node) -> Value:
    x = n.value(0)
    return cast(n, n.emit(g.Gt(x, scalar(n, n.attr("threshold", 0.0), x))), x.type.dtype)


@importer("Scaler", domain=_ML)
def _scaler(n: Node) -> Value:
    x = n.value(0)
    wide = x if x.type.dtype is f64 else cast(n, x, f32)
    a = Arithmetic(n, wide.type.dtype)
    return cast(n, a.Mul(a.Sub(wide, n.attr("offset", [0.0])), n.attr("scale", [1.0])), f32)


@importer("Normalizer", domain=_ML)
def _normalizer(n: Node) -> Value:
    x = cast(n, n.value(0), f32)
    a, options = Arithmetic(n, f32), {"axes": (x.type.rank - 1,), "keepdims": True}
    norm = n.attr("norm", "MAX")
    if norm == "L2":
        size = a.Sqrt(a.ReduceSum(a.Mul(x, x), **options))
    elif norm in ("MAX", "L1"):
        size = (a.ReduceMax if norm == "MAX" else a.ReduceSum)(a.Abs(x), **options)
    else:
        raise Unsupported(f"norm {norm}")
    return a.Div(x, a.Max(size, 1e-30))


@importer("Imputer", domain=_ML)
def _imputer(n: Node) -> Value:
    x = n.value(0)
    kind = "float" if x.type.dtype.is_float else "int64"
    values = n.attr(f"imputed_value_{kind}s")
    if not values:
        raise ValueError(f"imputed_value_{kind}s is missing for {x.type.dtype.label}")
    replaced = n.attr(f"replaced_value_{kind}", 0)
    n.read |= set(n.attributes)  # attributes of the other type have no effect
    missing = n.emit(g.Isnan(x)) if np.isnan(replaced) else n.emit(g.Eq(x, scalar(n, replaced, x)))
    return n.emit(g.Select(missing, n.constant(values, x.type.dtype), x))


@importer("FeatureVectorizer", domain=_ML)
def _feature_vectorizer(n: Node) -> Value:
    columns = []
    for k, width in enumerate(n.attr("inputdimensions")):
        x = cast(n, n.value(k), f32)
        x = x if x.type.rank == 2 else reshape(n, x, (x.type.size, 1))
        own = x.type.shape[1]
        if not isinstance(own, int):
            raise Unsupported(f"input {k} has {own} columns")
        x = slice_(n, x, 1, 0, width) if width < own else x
        columns.append(n.emit(g.Pad(x, low=(0, 0), high=(0, width - own))) if width > own else x)
    return n.emit(g.Concat(columns, axis=1))


def _matches(n: Node, x: Value, keys: np.ndarray[Any, Any]) -> Value:
    """Compare each element with each key, along a new last dimension. NaN equals a key that is NaN."""
    lone = reshape(n, x, (*x.type.shape, 1))
    equal: Value = n.emit(g.Eq(lone, n.constant(keys, x.type.dtype)))
    if x.type.dtype.is_float and np.isnan(keys).any():
        both = n.emit(g.And(n.emit(g.Isnan(lone)), n.constant(np.isnan(keys), boolean)))
        equal = n.emit(g.Or(equal, both))
    return equal


@importer("LabelEncoder", domain=_ML)
def _label_encoder(n: Node) -> Value:
    x = n.value(0)
    if n.opset < 2:
        names = np.array(n.attr("classes_strings"), object)
        numbers = np.arange(len(names))
        keys, values = (names, numbers) if x.type.dtype is string else (numbers, names)
    else:
        keys, values = (_list(n, side) for side in ("keys", "values"))
    if len(np.unique(keys)) != len(keys):
        raise Unsupported("a key that occurs twice")
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    default = _default(n, values)
    if x.type.dtype is string:
        return choose(n, lookup(n, x, keys), values, default, DType.of(values))
    if not len(keys):
        return n.emit(g.BroadcastTo(n.constant(default, DType.of(values)), shape=x.type.shape))
    matches = _matches(n, x, keys)
    place = n.emit(g.Argmax(cast(n, matches, i64), axis=-1, keepdims=False))
    chosen = n.emit(g.Gather(n.constant(values, DType.of(values)), place, axis=0))
    known = n.emit(g.ReduceAny(matches, axes=(x.type.rank,), keepdims=False))
    return n.emit(g.Select(known, chosen, scalar(n, default, chosen)))


def _list(n: Node, side: str) -> np.ndarray[Any, Any]:
    """Return the keys or values of a LabelEncoder from the attribute that holds them."""
    tensor, strings = n.tensor_attr(f"{side}_tensor"), n.attr(f"{side}_strings")
    if strings:
        return np.array(strings, object)
    floats, integers = n.attr(f"{side}_floats"), n.attr(f"{side}_int64s")
    if tensor is not None:
        return tensor
    return np.array(floats, np.float32) if floats else np.array(integers or (), np.int64)


def _default(n: Node, values: np.ndarray[Any, Any]) -> Any:
    """Return the value for unknown keys."""
    tensor, number, integer = (
        n.tensor_attr("default_tensor"),
        n.attr("default_float", -0.0),
        n.attr("default_int64", -1),
    )
    text = n.attr("default_string", "_Unused")
    if tensor is not None:
        return tensor.reshape(-1)[0]
    if values.dtype.kind == "O":
        return text
    return integer if values.dtype.kind in "iu" else number


@importer("OneHotEncoder", domain=_ML)
def _one_hot_encoder(n: Node) -> Value:
    x, names = n.value(0), n.attr("cats_strings")
    if x.type.dtype is string:
        matches = _matches(n, lookup(n, x, names), np.arange(len(names)))
    else:
        whole = x if x.type.dtype is i64 else cast(n, x, i64)
        matches = _matches(n, whole, np.array(n.attr("cats_int64s"), np.int64))
    if not n.attr("zeros", 1):
        a = Arithmetic(n)
        a.check(
            a.ReduceAny(matches, axes=(x.type.rank,), keepdims=False), "a value is not one of the categories"
        )
    return cast(n, matches, f32)


@importer("LinearRegressor", domain=_ML)
def _linear_regressor(n: Node) -> Value:
    targets = n.attr("targets", 1)
    return post_transform(n, _linear(n, targets), n.attr("post_transform", "NONE"))


@importer("LinearClassifier", domain=_ML)
def _linear_classifier(n: Node) -> tuple[Any, Value]:
    n.read.add("multi_class")
    count = len(n.attr("classlabels_ints") or n.attr("classlabels_strings") or ())
    columns = n.value(0).type.shape[-1]
    rows = len(n.attr("coefficients")) // columns if isinstance(columns, int) else count
    if count < 2 or rows not in (1, count) or (rows == 1 and count > 2):
        raise Unsupported(f"{count} class labels for scores of {rows} classes")
    scores = _linear(n, rows)
    if rows == 1:  # the score of the second class, negated, is that of the first
        scores = n.emit(g.Concat([n.emit(g.Neg(scores)), scores], axis=1))
    return choose_label(n, scores, "classlabels_ints"), post_transform(
        n, scores, n.attr("post_transform", "NONE")
    )


def _linear(n: Node, rows: int) -> Value:
    x = cast(n, n.value(0), f32)
    x = x if x.type.rank == 2 else reshape(n, x, (1, x.type.size))
    weights = np.array(n.attr("coefficients"), np.float32).reshape(rows, -1).T
    scores = n.emit(g.Matmul(x, n.constant(weights, f32)))
    offsets = n.attr("intercepts")
    return n.emit(g.Add(scores, n.constant(offsets, f32))) if offsets else scores


@importer("ZipMap", domain=_ML)
def _zip_map(n: Node) -> Value:
    raise Unsupported(
        "a list of dictionaries; export the model without it (skl2onnx: options={'zipmap': False})"
    )


__all__ = ["choose_label", "post_transform"]

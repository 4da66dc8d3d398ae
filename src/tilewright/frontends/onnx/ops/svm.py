"""Support vector machines of ai.onnx.ml: regression, and classification by pairs of classes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.types import TensorType, boolean, f32, i64, string
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .ml import post_transform
from .run_time import Arithmetic
from .shape import broadcast, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node

_ML = "ai.onnx.ml"


@importer("SVMRegressor", domain=_ML)
def _svm_regressor(n: Node) -> Value:
    x, count = cast(n, n.value(0), f32), n.attr("n_supports", 0)
    a = Arithmetic(n, f32)
    weights = np.array(n.attr("coefficients"), np.float32).reshape(-1, 1)
    vectors, kind = n.attr("support_vectors"), n.attr("kernel_type", "LINEAR")
    parameters = n.attr("kernel_params") or [0.0, 0.0, 0.0]
    if n.attr("n_targets", 1) != 1:
        raise Unsupported("several targets")
    near = _kernel(n, x, np.array(vectors, np.float32).reshape(count, -1), kind, parameters) if count else x
    score = a.Add(a.Matmul(near, weights), n.attr("rho", [0.0])[:1])
    if n.attr("one_class", 0):
        score = a.Select(a.Gt(score, 0.0), 1.0, -1.0)
    return post_transform(n, score, n.attr("post_transform", "NONE"))


@importer("SVMClassifier", domain=_ML)
def _svm_classifier(n: Node) -> Any:
    """Each pair of classes votes for one of them; without support vectors, each class has a linear score. The
    scores are those of the pairs or, with `prob_a`, probabilities of the classes.
    """
    x = cast(n, n.value(0), f32)
    a, rows = Arithmetic(n, f32), x.type.shape[0]
    labels, names = n.attr("classlabels_ints"), n.attr("classlabels_strings")
    classes = len(labels or names or ())
    if classes < 2:
        raise Unsupported("a classifier of one class")
    sizes, rho = n.attr("vectors_per_class") or [], np.array(n.attr("rho"), np.float32)
    coefficients = np.array(n.attr("coefficients"), np.float32)
    kind, parameters = n.attr("kernel_type", "LINEAR"), n.attr("kernel_params") or [0.0, 0.0, 0.0]
    vectors, sigmoid = n.attr("support_vectors"), (n.attr("prob_a"), n.attr("prob_b"))
    transform = n.attr("post_transform", "NONE")
    if sum(sizes):
        near = _kernel(n, x, np.array(vectors, np.float32).reshape(sum(sizes), -1), kind, parameters)
        pairs = list(itertools.combinations(range(classes), 2))
        scores = a.Add(
            a.Matmul(near, _weights_of_pairs(coefficients.reshape(-1, sum(sizes)), sizes, pairs)), rho
        )
        ballots = np.eye(classes, dtype=np.float32)[np.array(pairs)]  # (pairs, 2, classes)
        first = a.Gt(scores, 0.0)
        weight = a.Matmul(
            cast(n, first, f32), ballots[:, 0] - ballots[:, 1]
        )  # votes, minus the votes for all second classes
        weight = a.Add(weight, ballots[:, 1].sum(0))
        if sigmoid[0]:
            scores = _probabilities(n, a, scores, pairs, classes, *sigmoid)
    else:
        weight = scores = a.Add(a.Matmul(x, coefficients.reshape(classes, -1).T), rho[:1])
    best = n.emit(g.Argmax(weight, axis=1, keepdims=False))
    if len(rho) == 1 and classes == 2 and not sigmoid[0] and coefficients.min() >= 0:
        most = a.ReduceMax(weight, axes=(1,), keepdims=False)
        best = Arithmetic(n, i64).Select(a.Ge(most, 0.5), 1, best)
    label = n.emit(g.Gather(n.constant(labels or names, i64 if labels else string), best, axis=0))
    if sum(sizes) and classes == 2 and not sigmoid[0]:
        scores = n.emit(g.Concat((a.Neg(scores), scores), axis=1))
    return [label, post_transform(n, reshape(n, scores, (rows, scores.type.shape[1])), transform)]


def _weights_of_pairs(
    coefficients: np.ndarray[Any, Any], sizes: list[int], pairs: list[tuple[int, int]]
) -> np.ndarray[Any, Any]:
    """Return the weight of each vector in the score of each pair, (support vectors, pairs). Vectors are
    sorted by class.
    """
    ends = np.cumsum([0, *sizes])
    weights = np.zeros((int(ends[-1]), len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        for own, other in ((i, j - 1), (j, i)):
            place = slice(ends[own], ends[own + 1])
            weights[place, column] = coefficients[other, place]
    return weights


def _probabilities(
    n: Node,
    a: Arithmetic,
    scores: Value,
    pairs: list[tuple[int, int]],
    classes: int,
    slope: Sequence[float],
    offset: Sequence[float],
) -> Value:
    """Return the probabilities of the classes from those of the pairs.

    This is pairwise coupling (Wu, Lin and Weng, 2004): sweeps over the classes until the rows have converged.
    """
    rows = scores.type.shape[0]
    of_pairs = a.Sigmoid(a.Neg(a.Add(a.Mul(scores, slope), offset)))
    of_pairs = a.Clamp(of_pairs, minimum=1e-7, maximum=1 - 1e-7)
    against = a.Sub(1.0, of_pairs)

    def column(x: Value, k: int) -> Value:
        return slice_(n, x, 1, k, k + 1)

    place = {pair: k for k, pair in enumerate(pairs)}
    beats = [
        [
            column(of_pairs, place[i, j]) if i < j else column(against, place[j, i]) if j < i else None
            for j in range(classes)
        ]
        for i in range(classes)
    ]
    # The quadratic form that the probabilities minimize, a row per class: (rows, classes).
    forms = []
    for t in range(classes):
        entries = [a.Neg(a.Mul(beats[j][t], beats[t][j])) if j != t else None for j in range(classes)]
        square = None
        for j in range(classes):
            if j != t:
                term = a.Mul(beats[j][t], beats[j][t])
                square = term if square is None else a.Add(square, term)
        entries[t] = square
        forms.append(n.emit(g.Concat(entries, axis=1)))
    start = broadcast(n, n.constant(1 / classes, f32), (rows, classes))
    block = Block([TensorType(i64, ()), start.type])
    guess = block.args[1]

    def total(x: Value) -> Value:
        return a.ReduceSum(x, axes=(1,), keepdims=True)

    with n.importer.building(Builder(block, location=n.location)):
        slope_ = n.emit(g.Concat([total(a.Mul(form, guess)) for form in forms], axis=1))
        value = total(a.Mul(guess, slope_))
        error = a.ReduceMax(a.Abs(a.Sub(slope_, value)), axes=(1,), keepdims=True)
        moving = a.Ge(error, 0.005 / classes)
        p: Value = guess
        for t, form in enumerate(forms):
            own, here = column(form, t), column(slope_, t)
            step = a.Div(a.Sub(value, here), own)
            grown = a.Add(step, 1.0)
            one = np.eye(classes, dtype=np.float32)[t : t + 1]
            value = a.Div(
                a.Add(value, a.Mul(step, a.Add(a.Mul(step, own), a.Mul(here, 2.0)))), a.Mul(grown, grown)
            )
            slope_ = a.Div(a.Add(slope_, a.Mul(step, form)), grown)
            p = a.Div(a.Add(p, a.Mul(step, one)), grown)
        p = a.Select(broadcast(n, moving, p.type.shape), p, guess)
        again = n.emit(g.ReduceAny(moving, axes=(0, 1), keepdims=False))
        n.importer.builder.insert(Yield([again, p]))
    steps = n.importer.new_symbol("sweeps")
    limit = n.constant(max(100, classes), i64)
    loop = g.While(n.constant(True, boolean), limit, [start], count=steps, regions=[Region([block])])
    n.importer.builder.insert(loop)
    return loop.results[0]


def _kernel(n: Node, x: Value, vectors: np.ndarray[Any, Any], kind: str, parameters: list[float]) -> Value:
    """Return the kernel of each row with each support vector."""
    a = Arithmetic(n, f32)
    gamma, offset, degree = parameters[:3]
    if kind == "RBF":
        # Use the differences: the expanded square would lose digits where vectors are close.
        apart = a.Sub(reshape(n, x, (x.type.shape[0], 1, x.type.shape[1])), vectors)
        return a.Exp(a.Mul(a.ReduceSum(a.Mul(apart, apart), axes=(2,), keepdims=False), -gamma))
    product = a.Matmul(x, vectors.T)
    if kind == "LINEAR":
        return product
    scaled = a.Add(a.Mul(product, gamma), offset)
    if kind == "SIGMOID":
        return a.Tanh(scaled)
    if kind == "POLY":
        return a.Pow(scaled, float(int(degree)))
    raise Unsupported(f"kernel_type {kind}")

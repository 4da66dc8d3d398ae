"""Ensembles of decision trees of ai.onnx.ml. All trees of all rows descend one level per step, for as many
steps as the deepest tree has levels.

The nodes of an ensemble form one table. A leaf is its own successor, so trees of all depths take the same
number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.interpreter import Array
from ....ir.types import DType, boolean, f32, f64, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .ml import choose_label, post_transform
from .shape import broadcast

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..node import Node


_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_COMPARE = {"LEQ": g.Le, "LT": g.Lt, "GTE": g.Ge, "GT": g.Gt, "EQ": g.Eq, "NEQ": g.Ne}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_REDUCE = {"AVERAGE": g.ReduceMean, "SUM": g.ReduceSum, "MIN": g.ReduceMin, "MAX": g.ReduceMax}


@dataclass
class Forest:
    """The nodes of all trees; each array has an entry per node."""

    modes: Array
    """Names of comparisons; "LEAF" for a leaf."""
    features: Array
    splits: Array
    yes: Array
    no: Array
    """The next node if the comparison holds (`yes`) and if it does not (`no`); a leaf's own index."""
    missing: Array
    """Whether a feature that is NaN leads to `yes`."""
    roots: Array
    members: Array | None = None
    """The sets of MEMBER nodes, padded with NaN: (nodes, size of the largest set)."""

    def depth(self) -> int:
        """Return the number of steps after which every tree has reached a leaf.

        Raises:
            ValueError: a node leads outside the table, or back to itself.
        """
        count = len(self.modes)
        for ends in (self.yes, self.no, self.roots):
            if ends.size and not (ends.min() >= 0 and ends.max() < count):
                raise ValueError("a branch of a tree leads to a node that does not exist")
        level, steps = np.unique(self.roots), 0
        while (self.modes[level] != "LEAF").any():
            level, steps = np.unique([self.yes[level], self.no[level]]), steps + 1
            if steps > count:
                raise ValueError("the nodes of a tree form a cycle")
        return steps

    def leaves(self, n: Node, x: Value) -> Value:
        """Return the leaf (i64) of each row of `x` (rows, features) in each tree: (rows, trees)."""
        steps, columns = self.depth(), x.type.shape[1]
        if isinstance(columns, int) and self.features.size and not 0 <= self.features.max() < columns:
            raise ValueError(f"a tree tests feature {self.features.max()}; the input has {columns} features")
        start = broadcast(n, n.constant(self.roots, i64), (x.type.shape[0], len(self.roots)))
        if not steps:
            return start
        block = Block([start.type])
        (place,) = block.args
        b = Builder(block, location=n.location)

        def at_node(table: Array, dtype: DType) -> Value:
            return b(g.Gather(n.constant(table, dtype), place, axis=0))

        value = b(g.GatherElements(x, at_node(self.features, i64), axis=1))
        holds = self._holds(n, b, at_node, value)
        b.insert(Yield([b(g.Select(holds, at_node(self.yes, i64), at_node(self.no, i64)))]))
        op = g.Scan([start], [], length=steps, regions=[Region([block])])
        n.importer.builder.insert(op)
        return op.results[0]

    def _holds(self, n: Node, b: Builder, at_node: Callable[[Array, DType], Value], value: Value) -> Value:
        dtype = value.type.dtype
        used = sorted(set(self.modes) - {"LEAF"})
        split = at_node(self.splits, dtype)
        holds: Value | None = None
        for mode in used:
            if mode == "MEMBER":
                assert self.members is not None
                lone = b(g.Reshape(value, shape=(*value.type.shape, 1)))
                holds_here = b(
                    g.ReduceAny(b(g.Eq(lone, at_node(self.members, dtype))), axes=(2,), keepdims=False)
                )
            else:
                holds_here = b(_COMPARE[mode](value, split))
            holds_here = (
                holds_here if len(used) == 1 else b(g.And(holds_here, at_node(self.modes == mode, boolean)))
            )
            holds = holds_here if holds is None else b(g.Or(holds, holds_here))
        assert holds is not None
        if self.missing.any() or "NEQ" in used:
            holds = b(g.Select(b(g.Isnan(value)), at_node(self.missing, boolean), holds))
        return holds


def _aggregate(n: Node, leaves: Value, weights: Array, hits: Array, how: str, dtype: DType) -> Value:
    """Combine the leaves' `weights` (nodes, targets) over all trees: (rows, targets)."""
    if how not in _REDUCE:
        raise Unsupported(f"aggregate_function {how}")
    if how in ("MIN", "MAX") and not hits.all():
        raise Unsupported(f"aggregate_function {how} where some leaves have no weight for a target")
    weight = n.emit(g.Gather(n.constant(weights, dtype), leaves, axis=0))
    return n.emit(_REDUCE[how](weight, axes=(1,), keepdims=False))


def _table(
    count: int, targets: int, nodes: Array, ids: Array, weights: Array, how: str
) -> tuple[Array, Array]:
    """Return weights by node and target, and which of them are present."""
    table, hits = np.zeros((count, targets)), np.zeros((count, targets), bool)
    if ids.size and not (ids.min() >= 0 and ids.max() < targets):
        raise ValueError(f"a leaf has a weight for target {ids.max()}; there are {targets} targets")
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
    if how in ("MIN", "MAX"):
        table[:] = np.inf if how == "MIN" else -np.inf
    combine.at(table, (nodes, ids), weights)
    hits[nodes, ids] = True
    return np.where(hits, table, 0), hits


def _rows(n: Node) -> Value:
    """Return the features as (rows, features) of a floating-point type."""
    x = n.value(0)
    if x.type.rank == 1:
        x = n.emit(g.Reshape(x, shape=(1, *x.type.shape)))
    if x.type.rank != 2:
        raise ValueError(f"features have {x.type.rank} dimensions, expected 2")
    return x if x.type.dtype in (f32, f64) else cast(n, x, f32)


@importer("TreeEnsemble", domain="ai.onnx.ml")
def _tree_ensemble(n: Node) -> Value:
    x = _rows(n)
    inner = np.array([_MODES[k] for k in _array(n, "nodes_modes")])
    leaf_count, count = len(n.attr("leaf_targetids")), len(inner)
    rest = np.arange(count, count + leaf_count)

    def table(values: npt.ArrayLike, fill: npt.ArrayLike = 0) -> Array:
        return np.concatenate([np.asarray(values), np.full(leaf_count, fill)])

    def ends(side: str) -> Array:
        places = np.array(n.attr(f"nodes_{side}nodeids")) + count * np.array(n.attr(f"nodes_{side}leafs"))
        return np.concatenate([places, rest])

    forest = Forest(
        table(inner, "LEAF"),
        table(n.attr("nodes_featureids")),
        table(_array(n, "nodes_splits"), 0.0),
        ends("true"),
        ends("false"),
        table(n.attr("nodes_missing_value_tracks_true") or [0] * count).astype(bool),
        np.array(n.attr("tree_roots")),
        _members(n, inner, leaf_count),
    )
    n.read.add("nodes_hitrates")  # statistics of training
    how = _AGGREGATES[n.attr("aggregate_function", 1)]
    targets, weights = np.array(n.attr("leaf_targetids")), _array(n, "leaf_weights")
    leaves = forest.leaves(n, x)
    by_node, hits = _table(count + leaf_count, n.attr("n_targets", 1), rest, targets, weights, how)
    scores = _aggregate(n, leaves, by_node, hits[count:], how, x.type.dtype)
    return post_transform(n, scores, _POST_TRANSFORMS[n.attr("post_transform", 0)])


def _array(n: Node, name: str) -> Array:
    array = n.tensor_attr(name)
    if array is None:
        raise ValueError(f"the attribute {name} is missing")
    return array


def _members(n: Node, inner: Array, leaf_count: int) -> Array | None:
    """Parse ``membership_values``: NaN ends each set, and sets are in the order of their nodes."""
    where = np.flatnonzero(inner == "MEMBER")
    values = n.tensor_attr("membership_values")
    if not where.size:
        return None
    values = np.zeros(0) if values is None else values
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(where):
        raise ValueError(f"membership_values has {len(ends)} sets for {len(where)} nodes")
    sets = [part[~np.isnan(part)] for part in np.split(values, ends)[: len(where)]]
    table = np.full((len(inner) + leaf_count, max(1, *map(len, sets))), np.nan)
    for node, members in zip(where, sets, strict=True):
        table[node, : len(members)] = members
    return table


@importer("TreeEnsembleRegressor", domain="ai.onnx.ml")
def _tree_regressor(n: Node) -> Value:
    x = _rows(n)
    forest, index = _numbered(n)
    how = n.attr("aggregate_function", "SUM")
    nodes = _places(n, index, "target")
    ids, weights = np.array(n.attr("target_ids")), _numbers(n, "target_weights")
    table, hits = _table(len(index), n.attr("n_targets", 1), nodes, ids, weights, how)
    scores = _aggregate(n, forest.leaves(n, x), table, hits[forest.modes == "LEAF"], how, x.type.dtype)
    base = _numbers(n, "base_values")
    scores = n.emit(g.Add(scores, n.constant(base, x.type.dtype))) if base.size else scores
    return post_transform(n, cast(n, scores, f32), n.attr("post_transform", "NONE"))


@importer("TreeEnsembleClassifier", domain="ai.onnx.ml")
def _tree_classifier(n: Node) -> tuple[Any, Value]:
    """Return labels and scores. If only one of two classes has weights, they are the score of the second."""
    x = _rows(n)
    forest, index = _numbered(n)
    nodes, ids, weights = (
        _places(n, index, "class"),
        np.array(n.attr("class_ids")),
        _numbers(n, "class_weights"),
    )
    base, post = _numbers(n, "base_values"), n.attr("post_transform", "NONE")
    count = len(n.attr("classlabels_int64s") or n.attr("classlabels_strings") or ())
    if count < 2:
        raise Unsupported(f"{count} class labels")
    binary = count == 2 and len(set(ids)) == 1
    if binary and base.size > 1:
        raise Unsupported("base_values of two classes where only one has weights")
    table, _ = _table(len(index), 1 if binary else count, nodes, 0 * ids if binary else ids, weights, "SUM")
    scores = n.emit(g.Gather(n.constant(table, x.type.dtype), forest.leaves(n, x), axis=0))
    scores = n.emit(g.ReduceSum(scores, axes=(1,), keepdims=False))
    scores = n.emit(g.Add(scores, n.constant(base, x.type.dtype))) if base.size else scores
    scores = cast(n, scores, f32)
    if binary:
        # Weights that are probabilities: the first class gets 1 minus the sum. Other weights are converted by
        # a logistic function.
        positive = bool((weights >= 0).all())
        if (post, positive) not in (("NONE", True), ("LOGISTIC", False)):
            signs = "positive weights" if positive else "weights of both signs"
            raise Unsupported(f"weights of only one of two classes: {signs} with post_transform {post}")
        first = n.emit(g.Sub(n.constant(1.0, f32), scores)) if positive else n.emit(g.Neg(scores))
        scores = n.emit(g.Concat([first, scores], axis=1))
    return choose_label(n, scores, "classlabels_int64s"), post_transform(n, scores, post)


def _numbered(n: Node) -> tuple[Forest, dict[tuple[int, int], int]]:
    """Return the forest of nodes that are numbered within each tree, and the table index of each node by tree
    and number.
    """
    trees, numbers = n.attr("nodes_treeids"), n.attr("nodes_nodeids")
    index = {key: k for k, key in enumerate(zip(trees, numbers, strict=True))}
    modes = np.array([mode.removeprefix("BRANCH_") for mode in n.attr("nodes_modes")])
    if unknown := set(modes) - {"LEAF", *_COMPARE}:
        raise Unsupported(f"nodes_modes {', '.join(sorted(unknown))}")
    nodes = range(len(modes))

    def ends(name: str) -> Array:
        successors = n.attr(name)
        return np.array(
            [k if modes[k] == "LEAF" else index.get((trees[k], successors[k]), -1) for k in nodes], np.int64
        )

    first: dict[int, int] = {}
    for k in nodes:
        first.setdefault(trees[k], k)
    leaf = modes == "LEAF"
    n.read |= {"nodes_hitrates", "nodes_hitrates_as_tensor"}
    return Forest(
        modes,
        np.where(leaf, 0, n.attr("nodes_featureids")),
        _numbers(n, "nodes_values"),
        ends("nodes_truenodeids"),
        ends("nodes_falsenodeids"),
        np.array(n.attr("nodes_missing_value_tracks_true") or [0] * len(modes), bool),
        np.array([first[t] for t in sorted(first)]),
    ), index


def _places(n: Node, index: dict[tuple[int, int], int], what: str) -> Array:
    keys: Sequence[tuple[int, int]] = list(
        zip(n.attr(f"{what}_treeids"), n.attr(f"{what}_nodeids"), strict=True)
    )
    if any(key not in index for key in keys):
        raise ValueError(f"a weight of {what} belongs to a node that does not exist")
    return np.array([index[key] for key in keys], np.int64)


def _numbers(n: Node, name: str) -> Array:
    """Return an attribute that is a list of float32, or a tensor under another name."""
    array = n.tensor_attr(f"{name}_as_tensor")
    return np.array(n.attr(name) or (), np.float32) if array is None else array


__all__ = ["Forest"]

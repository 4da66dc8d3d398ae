"""TfIdfVectorizer: counts of token sequences."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from ....ir.core import Value
from ....ir.types import f32, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .shape import broadcast, reshape, slice_
from .strings import lookup

if TYPE_CHECKING:
    from ..node import Node


@importer("TfIdfVectorizer")
def _tfidf(n: Node) -> Value:
    """Compare each n-gram of the pool at every position. A single token has no gaps, so n-grams of length 1
    are counted once.
    """
    a = Arithmetic(n)
    x, words = n.value(0), n.attr("pool_strings")
    if words:
        codes = {word: k for k, word in enumerate(dict.fromkeys(words))}
        x, pool = lookup(n, x, codes), np.array([codes[word] for word in words], np.int64)
    else:
        x, pool = cast(n, x, i64), np.array(n.attr("pool_int64s"), np.int64)
    columns = x.type.shape[-1]
    if not isinstance(columns, int):
        raise Unsupported(f"rows of a dynamic length ({columns})")
    starts = [*n.attr("ngram_counts"), len(pool)]
    targets = np.array(n.attr("ngram_indexes"), np.int64)
    shortest, longest, skips = n.attr("min_gram_length"), n.attr("max_gram_length"), n.attr("max_skip_count")
    width, batch = int(targets.max()) + 1, x.type.shape[0] if x.type.rank == 2 else 1
    rows = reshape(n, x, (batch, columns))
    total = broadcast(n, n.constant(0, f32), (batch, width))
    first = 0
    for size, (start, stop) in enumerate(itertools.pairwise(starts), 1):
        grams = pool[start:stop].reshape(-1, size)
        target, first = targets[first : first + len(grams)], first + len(grams)
        if not len(grams) or not shortest <= size <= longest:
            continue
        for distance in range(1, skips + 2 if size > 1 else 2):
            places = columns - (size - 1) * distance
            if places <= 0:
                break
            same = [
                a.Eq(
                    reshape(n, slice_(n, rows, 1, k * distance, k * distance + places), (batch, places, 1)),
                    grams[:, k],
                )
                for k in range(size)
            ]
            counts = a.ReduceSum(cast(n, reduce(a.And, same), f32), axes=(1,), keepdims=False)
            where = broadcast(n, n.constant(target, i64), (batch, len(grams)))
            total = a.ScatterElements(total, where, counts, axis=1, combiner="sum")
    mode, weights = n.attr("mode"), n.attr("weights")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise Unsupported(f"mode '{mode}'")
    total = cast(n, a.Gt(total, 0.0), f32) if mode == "IDF" else total
    if weights and mode != "TF":
        by_target = np.ones(width, np.float32)
        by_target[targets] = weights
        total = a.Mul(total, n.constant(by_target, f32))
    return reshape(n, total, (*x.type.shape[:-1], width))

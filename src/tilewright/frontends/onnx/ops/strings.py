"""Operators on strings and on encoded images. Only the interpreter runs them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects import interpreted as py
from ....ir.core import Value
from ....ir.types import DType, i64, string
from ...unsupported import Unsupported
from ..registry import importer
from .run_time import Arithmetic

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..node import Node


@importer("StringConcat")
def _concat(n: Node) -> Value:
    return n.emit(py.Concat(n.value(0), n.value(1)))


@importer("StringSplit")
def _split(n: Node) -> Any:
    count = n.importer.new_symbol("pieces")
    limit = n.attr("maxsplit", -1)
    return n.emit_all(py.Split(n.value(0), count=count, delimiter=n.attr("delimiter", ""), limit=limit))


@importer("StringNormalizer")
def _normalizer(n: Node) -> Value:
    n.attr("locale")  # Python follows Unicode's case rules in every locale
    x, case = n.value(0), n.attr("case_change_action", "NONE").lower()
    lead = x.type.shape[:-1]
    if x.type.rank not in (1, 2) or lead not in ((), (1,)):
        raise ValueError(f"strings of shape {list(x.type.shape)}: expected [C] or [1, C]")
    if case not in ("none", "lower", "upper"):
        raise Unsupported(f"case_change_action {case}")
    return n.emit(
        py.Normalize(
            x,
            count=n.importer.new_symbol("strings", 1),
            stop=tuple(n.attr("stopwords") or ()),
            case="" if case == "none" else case,
            sensitive=bool(n.attr("is_case_sensitive", 0)),
        )
    )


@importer("RegexFullMatch")
def _full_match(n: Node) -> Value:
    return n.emit(py.FullMatch(n.value(0), pattern=n.attr("pattern", "")))


def lookup(n: Node, x: Value, keys: Iterable[str]) -> Value:
    """Return the index (i64) of each string of `x` among `keys`, -1 for others."""
    return n.emit(py.Lookup(x, keys=tuple(keys)))


def choose(n: Node, place: Value, values: npt.ArrayLike, default: npt.ArrayLike, dtype: DType) -> Value:
    """Return the value at each index (i64), or `default` at index -1."""
    a = Arithmetic(n)
    known = a.Ge(place, 0)
    value = n.emit(g.Gather(n.constant(values, dtype), a.Max(place, 0), axis=0))
    return n.emit(g.Select(known, value, n.constant(default, dtype)))


@importer("CategoryMapper", domain="ai.onnx.ml")
def _category_mapper(n: Node) -> Value:
    x, names, numbers = n.value(0), n.attr("cats_strings"), np.array(n.attr("cats_int64s"), np.int64)
    name, number = n.attr("default_string", "_Unused"), n.attr("default_int64", -1)
    if len(names) != len(numbers) or len(set(names)) < len(names) or len(np.unique(numbers)) < len(numbers):
        raise ValueError(
            f"cats_strings has {len(names)} and cats_int64s {len(numbers)} entries: they must be as many, "
            "and distinct"
        )
    if x.type.dtype is string:
        return choose(n, lookup(n, x, names), numbers, number, i64)
    a = Arithmetic(n)
    same = a.Eq(n.emit(g.Reshape(x, shape=(*x.type.shape, 1))), numbers)
    place = n.emit(g.Argmax(n.emit(g.Cast(same, dtype=i64)), axis=-1, keepdims=False))
    known = n.emit(g.ReduceAny(same, axes=(x.type.rank,), keepdims=False))
    return choose(n, a.Select(known, place, -1), np.array(names, object), name, string)


@importer("ImageDecoder")
def _image_decoder(n: Node) -> Value:
    if find_spec("PIL") is None:
        raise Unsupported("images in files are read by Pillow: pip install pillow")
    pixels = n.attr("pixel_format", "RGB")
    if pixels not in ("RGB", "BGR", "Grayscale"):
        raise Unsupported(f"pixel_format {pixels}")
    height, width = (n.importer.new_symbol(s, 1) for s in ("height", "width"))
    return n.emit(py.DecodeImage(n.value(0), height=height, width=width, pixels=pixels))


__all__ = ["choose", "lookup"]

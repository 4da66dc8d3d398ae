"""Operators that only the interpreter runs, in Python beside what is compiled: on strings, and on files of
images.

A tensor of strings is a NumPy array of Python's strings. Moving, comparing and choosing them is done by the
graph's own operators; what a model computes from them is numbers as early as may be (`Lookup`), so that the
rest can be compiled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.core import Attr, Effect, IRError, Operand, Operation, Value, operation
from ..ir.interpreter import Array, Frame
from ..ir.types import TensorType, Type, boolean, i64, string, u8
from . import graph
from .graph.base import GraphOp, broadcast_shapes, tensor_type


class Interpreted(GraphOp):
    """An operator that no target has."""


def needs_interpreter(op: Operation) -> bool:
    """Whether an operation, or one inside it, is one of these or handles strings."""
    return any(
        isinstance(inner, Interpreted) or any(is_string(v) for v in (*inner.operands, *inner.results))
        for inner in op.walk()
    )


MOVE_STRINGS = frozenset(
    getattr(graph, name)
    for name in (
        *(
            "Constant",
            "Identity",
            "Eq",
            "Ne",
            "Select",
            "Reshape",
            "AssumeShape",
            "Transpose",
            "BroadcastTo",
            "Slice",
            "Concat",
        ),
        *("Tile", "Flip", "Gather", "GatherElements", "GatherNd", "If", "While", "Scan"),
    )
)
"""The graph's own operators that strings may go through."""


def is_string(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is string


def _each(x: Array, function: Callable[[Any], Any], dtype: npt.DTypeLike = object) -> Any:
    """`function` of every element."""
    result = np.empty(x.shape, dtype)
    result.reshape(-1)[:] = [function(e) for e in x.reshape(-1)]
    return result


def _shape(op: Operation, x: Value) -> Any:
    """The shape of a tensor that must be of strings."""
    if not is_string(x):
        raise IRError(f"needs strings, got {x.type}", op)
    return tensor_type(x).shape


@operation
class Concat(Interpreted):
    """Each string of `a` with one of `b` behind it, with broadcasting."""

    name = "strings.concat"
    a: Operand
    b: Operand

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(string, broadcast_shapes(_shape(self, self.a), _shape(self, self.b), op=self)),)

    def reference(self, a: Array, b: Array) -> Any:
        return np.asarray(np.add(a, b), object)


@operation
class Lookup(Interpreted):
    """The place (i64) of each string among `keys`, which differ; -1 for one that is not there."""

    name = "strings.lookup"
    x: Operand
    keys: Attr

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(i64, _shape(self, self.x)),)

    def reference(self, x: Array) -> Any:
        places = {key: k for k, key in enumerate(self.keys)}
        return _each(x, lambda s: places.get(s, -1), np.int64)


@operation
class Split(Interpreted):
    """The pieces of each string between `delimiter`s (empty: runs of white space), cut at most `limit` times
    (-1: everywhere), and how many they are (i64).

    The pieces stand along a new last dimension of the size `count`, that of the string of most pieces; empty
    strings fill the others up. Defines `count`.
    """

    name = "strings.split"
    effects = Effect.WRITE
    defines = ("count",)
    x: Operand
    count: Attr
    delimiter: Attr = ""
    limit: Attr = -1

    def infer_types(self) -> Sequence[Type]:
        shape = _shape(self, self.x)
        return (TensorType(string, (*shape, self.count)), TensorType(i64, shape))

    def interpret(self, env: Frame, x: Array) -> Any:
        pieces = _each(x, lambda s: s.split(self.delimiter or None, self.limit))
        counts = _each(pieces, len, np.int64)
        most = env.dims[self.count.name] = int(counts.max(initial=0))
        rows = np.empty((x.size, most), object)
        for row, texts in zip(rows, pieces.reshape(-1), strict=True):
            row[:] = [*texts, *[""] * (most - len(texts))]
        return rows.reshape(*x.shape, most), counts


@operation
class Normalize(Interpreted):
    """The strings along the last dimension without those among `stop`, then in lower or upper `case` (""
    keeps it); one empty string where none is left.

    Dimensions before the last are 1. Without `sensitive`, case does not matter for `stop`. Defines `count`,
    how many strings are left.
    """

    name = "strings.normalize"
    effects = Effect.WRITE
    defines = ("count",)
    x: Operand
    count: Attr
    stop: Attr = ()
    case: Attr = ""
    sensitive: Attr = True

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(string, (*_shape(self, self.x)[:-1], self.count)),)

    def interpret(self, env: Frame, x: Array) -> Any:
        same: Callable[[str], str] = (lambda s: s) if self.sensitive else str.lower
        stop = {same(s) for s in self.stop}
        change: Callable[[str], str] = {"": lambda s: s, "lower": str.lower, "upper": str.upper}[self.case]
        kept = [change(s) for s in x.reshape(-1) if same(s) not in stop] or [""]
        env.dims[self.count.name] = len(kept)
        return np.array(kept, object).reshape(*x.shape[:-1], len(kept))


@operation
class FullMatch(Interpreted):
    """Whether a regular expression, in Python's syntax, matches the whole of each string; its classes are of
    ASCII.
    """

    name = "strings.full_match"
    x: Operand
    pattern: Attr

    def infer_types(self) -> Sequence[Type]:
        try:
            re.compile(self.pattern, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            raise IRError(
                f"the pattern {self.pattern[:80]!r} is not in Python's syntax: {error}", self
            ) from None
        return (TensorType(boolean, _shape(self, self.x)),)

    def reference(self, x: Array) -> Any:
        pattern = re.compile(self.pattern, re.ASCII)
        return _each(x, lambda s: pattern.fullmatch(s) is not None, np.bool_)


@operation
class Parse(Interpreted):
    """The numbers that strings write out ("3.14", "1e-5", "NaN", "-INF"); to integers, what stands behind the
    point is dropped.
    """

    name = "strings.parse"
    x: Operand
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        if not (self.dtype.is_float or self.dtype.is_integer):
            raise IRError(f"cannot convert strings to {self.dtype.label}", self)
        return (TensorType(self.dtype, _shape(self, self.x)),)

    def reference(self, x: Array) -> Any:
        if self.dtype.is_float:
            return _each(x, float, np.float64).astype(self.dtype.numpy)
        low, high = self.dtype.limits
        return _each(x, lambda s: min(max(_whole(s), low), high), self.dtype.numpy)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


@operation
class Format(Interpreted):
    """Numbers written out, as briefly as they can be read back."""

    name = "strings.format"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        return (TensorType(string, tensor_type(self.x).shape),)

    def reference(self, x: Array) -> Any:
        return _each(x, str)


@operation
class DecodeImage(Interpreted):
    """The image in a file's bytes (u8), of shape (`height`, `width`, channels): `pixels` "RGB", "BGR" or
    "Grayscale". Defines `height` and `width`.
    """

    name = "image.decode"
    effects = Effect.WRITE
    defines = ("height", "width")
    data: Operand
    height: Attr
    width: Attr
    pixels: Attr = "RGB"

    def infer_types(self) -> Sequence[Type]:
        data = tensor_type(self.data)
        if data.dtype is not u8 or data.rank != 1:
            raise IRError(f"needs a vector of u8, got {data}", self)
        return (TensorType(u8, (self.height, self.width, 1 if self.pixels == "Grayscale" else 3)),)

    def interpret(self, env: Frame, data: Array) -> Any:
        from PIL import Image

        with Image.open(io.BytesIO(data.tobytes())) as image:
            pixels = np.asarray(image.convert("L" if self.pixels == "Grayscale" else "RGB"))
        env.dims[self.height.name], env.dims[self.width.name] = pixels.shape[:2]
        return {"RGB": pixels, "BGR": pixels[..., ::-1], "Grayscale": pixels[..., None]}[self.pixels]


__all__ = [
    "Concat",
    "DecodeImage",
    "Format",
    "FullMatch",
    "Interpreted",
    "Lookup",
    "Normalize",
    "Parse",
    "Split",
    "is_string",
    "needs_interpreter",
]

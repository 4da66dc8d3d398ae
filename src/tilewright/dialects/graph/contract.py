"""Contractions: matmul and einsum. Both lower to one sum of products, which the tensor level recognizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, Value, VariadicOperand, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import DType, TensorType, Type, boolean, f32, i8, i32, i64, u8
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, broadcast_index, broadcast_shapes, tensor_type
from .elementwise import Cast, same_shape
from .index import clamped, clamped_array, zeros
from .operands import is_zero, need_dtype
from .term import Term


def accumulate(
    t: TensorBuilder, result: TensorType, depth: Sequence[Dim], body: Callable[..., Scalar]
) -> TensorRef:
    """A sum over `depth`; 16-bit floats accumulate in float32 and are rounded once."""
    y = t.reduce("sum", result.shape, depth, body)
    return y if y.dtype is result.dtype else t.compute(result.shape, lambda *i: y[i].cast(result.dtype))


def widen(x: Scalar, dtype: DType | None = None) -> Scalar:
    """16-bit floats as float32; anything as `dtype` where that is given."""
    if dtype is not None:
        return x.cast(dtype)
    return x.cast(f32) if x.dtype.is_float and x.dtype.bits <= 16 else x


def factor_dtype(op: Any, a: TensorType, b: TensorType) -> DType:
    """The element type of a product of `a` and `b`.

    Raises:
        IRError: they differ in type and `op.dtype` does not say in which type 8-bit integers are to be
            multiplied.
    """
    if op.dtype is None:
        if a.dtype is not b.dtype:
            raise IRError(f"needs operands of one dtype, got {a.dtype.label} and {b.dtype.label}", op)
        return a.dtype
    need_dtype(op)
    if op.dtype is not i32 or any(x.dtype not in (i8, u8) for x in (a, b)):
        raise IRError(f"cannot multiply {a.dtype.label} and {b.dtype.label} in {op.dtype.label}", op)
    return i32


def of_truth(b: Builder, product: Callable[..., GraphOp], operands: Sequence[Value]) -> Value | None:
    """A contraction of booleans, counted in i32: whether any product is true, as in NumPy. None for other
    element types.
    """
    if tensor_type(operands[0]).dtype is not boolean:
        return None
    count = b(product(*(b(Cast(x, dtype=i32)) for x in operands)))
    result: Value = b(Cast(count, dtype=boolean))
    return result


@operation
class Matmul(GraphOp):
    """NumPy's matrix product: batch dimensions broadcast, 1-D operands are a row or a column.

    8-bit integers, signed or not, may be multiplied and summed in another `dtype`, i32. For booleans, the
    result is whether any pair of factors is true.
    """

    name = "graph.matmul"
    a: Operand
    b: Operand
    dtype: Attr = None

    def infer_types(self) -> Sequence[Type]:
        a, b = tensor_type(self.a), tensor_type(self.b)
        dtype = factor_dtype(self, a, b)
        if not a.rank or not b.rank:
            raise IRError("operands must have at least one dimension", self)
        if not prove_eq(a.shape[-1], b.shape[-2 if b.rank > 1 else 0]):
            raise IRError(f"inner dimensions of {a.shape} and {b.shape} differ", self)
        shape = broadcast_shapes(a.shape[:-2], b.shape[:-2], op=self)
        return (TensorType(dtype, (*shape, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ()))),)

    def reference(self, a: Array, b: Array) -> Any:
        if self.dtype is not None:
            a, b = a.astype(self.dtype.numpy), b.astype(self.dtype.numpy)
        wide = a.dtype.kind not in "iub"
        return np.asarray(
            np.matmul(a.astype(np.float64), b.astype(np.float64)) if wide else np.matmul(a, b)
        ).astype(a.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        a, b, dy = *at.operands, at.cotangent
        row, column = len(a.shape) == 1, len(b.shape) == 1
        # A vector is a matrix of one row or of one column.
        a, b = a.unsqueeze(0) if row else a, b.unsqueeze(1) if column else b
        rank = len(dy.shape) + row + column
        dy = dy.unsqueeze(*((rank - 2,) if row else ()), *((rank - 1,) if column else ()))
        da = _product(dy, b, "mn,kn->mk", a.shape) if at.needed[0] else None
        db = _product(a, dy, "mk,mn->kn", b.shape) if at.needed[1] else None
        return (
            da if da is None else da.reshape(at.operands[0].shape),
            db if db is None else db.reshape(at.operands[1].shape),
        )

    def decompose(self, b: Builder) -> Value | None:
        return of_truth(b, Matmul, (self.a, self.b))

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        a, b = operands
        batch = len(broadcast_shapes(a.shape[:-2], b.shape[:-2]))

        def body(*i: Dim) -> Scalar:
            *parallel, r = i
            lead, tail = parallel[:batch], parallel[batch:]
            row = tail[:1] if a.rank > 1 else []
            column = tail[len(row) :]
            left = a[(*broadcast_index(lead, a.shape[:-2]), *row, r)]
            right = b[(*broadcast_index(lead, b.shape[:-2]), r, *column)]
            return widen(left, self.dtype) * widen(right, self.dtype)

        return accumulate(t, self.result.type, (a.shape[-1],), body)


def _product(a: Term, b: Term, equation: str, shape: Sequence[Dim]) -> Term:
    """The products of matrices by `equation` for each index of a batch that broadcasts, summed to `shape`.

    The dimensions of the batch that `shape` lacks or has as 1 belong to the sum of products. If these are
    all and both operands have them, they are joined with the summed rows.
    """
    terms, result = equation.split("->")
    left, right = terms.split(",")
    batch = max(len(a.shape), len(b.shape)) - 2
    if len(shape) == 2 and batch and left[0] == right[0] and same_shape(a.shape[:-1], b.shape[:-1]):
        rows = TensorType(a.dtype, a.shape[:-1]).size
        a, b = (x.reshape((rows, x.shape[-1])) for x in (a, b))
        batch = 0
    letters = "ABCDEFGHIJKLOPQRSTUVWXYZ"[:batch]
    first, second = (letters[batch - len(x.shape) + 2 :] for x in (a, b))
    missing = batch - (len(shape) - 2)
    kept = "".join(c for k, c in enumerate(letters) if k >= missing and not _is_one(shape[k - missing]))
    return a.einsum(f"{first}{left},{second}{right}->{kept}{result}", b)


def _is_one(n: Dim) -> bool:
    return isinstance(n, int) and n == 1


def grouped_product(x: Term, dy: Term, index: Term, count: Dim) -> Term:
    """The gradient (count, K, N) of the matrices that the rows of `x` (S, K) chose by `index`, from that of
    the products `dy` (S, N): for each matrix ``x^T dy`` over its rows.
    """
    index = index.cast(i64)
    index = (index < 0).select(index + count, index)
    index = _binary(_binary(index, "max", 0), "min", count - 1)
    own = index.unsqueeze(1).equals(index.iota(count))
    rows = x.shape[0]
    if isinstance(rows, int) and isinstance(count, int) and count >= 4 and rows >= count:
        return _product_of_blocks(x, dy, own.cast(i64), rows, count)
    return (own.cast(x.dtype).unsqueeze(2) * x.unsqueeze(1)).einsum("sgk,sn->gkn", dy)


def _product_of_blocks(x: Term, dy: Term, own: Term, rows: int, count: int) -> Term:
    """`grouped_product` by blocks of rows / count rows that chose the same matrix, filled up with zeros.
    There are about 2 * count blocks, so the work is at most about twice that of the rows, for any `count`.

    Args:
        x: As for `grouped_product`.
        dy: As for `grouped_product`.
        own: i64 (rows, count), 1 where a row chose a matrix.
        rows: The number of rows.
        count: The number of matrices.
    """

    def before(x: Term) -> Term:
        """The sum of the elements before each one along the first axis."""
        return x.apply("cumsum", x.value, axis=0, exclusive=True, reverse=False)

    size = rows // count
    blocks = rows // size + count
    needed = (own.sum(0) + (size - 1)) // size  # blocks of a matrix
    first = before(needed)
    place = (own * (first * size + before(own))).sum(1)  # of a row among those of all blocks
    none = own.number(-1).broadcast((blocks * size,))
    row = none.apply("scatter_elements", none.value, place.value, own.iota(rows).value, axis=0)

    def blocked(x: Term) -> Term:
        held = (row >= 0).unsqueeze(1).select(x.at(row.maximum(0), 0), 0)
        return held.reshape((blocks, size, x.shape[1]))

    products = blocked(x).einsum("bsk,bsn->bkn", blocked(dy)).wide()
    # The blocks behind the last one that is needed have the number `count`, which is outside.
    matrix = (own.iota(blocks).unsqueeze(1) >= first + needed).cast(i64).sum(1)
    zeros = products.number(0).broadcast((count, *products.shape[1:]))
    return zeros.apply(
        "scatter_nd", zeros.value, matrix.unsqueeze(1).value, products.value, combiner="sum", axes=()
    )


def _binary(x: Term, name: str, limit: Dim) -> Term:
    return x.apply(name, x.value, x.number(limit).value)


def chosen(t: TensorBuilder, index: TensorRef, count: Dim) -> TensorRef:
    """Each row's choice among `count` matrices (i64), in a tensor of its own, which the product reads
    unchanged.
    """
    return t.compute(index.shape, lambda i: clamped(t, index[i], count))


def check_chosen(op: GraphOp, rows: Dim, index: TensorType) -> None:
    """Check that `index` has one integer for each row.

    Raises:
        IRError: it has not.
    """
    if index.rank != 1 or not index.dtype.is_integer or not prove_eq(index.shape[0], rows):
        raise IRError(f"needs an integer for each of {rows} rows, got {index}", op)


@operation
class GroupedMatMul(GraphOp):
    """``y[i] = x[i] @ w[index[i]]``: x (S, K), w (G, K, N), `index` (S,) integers, clamped as a gather's;
    result (S, N).

    Mixtures of experts use it. Only matrices that rows choose are read. Successive rows of equal index are
    multiplied together: if the rows are sorted by index, each matrix is read once (grouped products: Gale et
    al., "MegaBlocks", 2022).
    """

    name = "graph.grouped_matmul"
    x: Operand
    w: Operand
    index: Operand

    def infer_types(self) -> Sequence[Type]:
        x, w = tensor_type(self.x), tensor_type(self.w)
        if x.rank != 2 or w.rank != 3 or x.dtype is not w.dtype or not prove_eq(x.shape[1], w.shape[1]):
            raise IRError(f"needs x (S, K) and w (G, K, N) of one dtype, got {x} and {w}", self)
        check_chosen(self, x.shape[0], tensor_type(self.index))
        return (TensorType(x.dtype, (x.shape[0], w.shape[2])),)

    def reference(self, x: Array, w: Array, index: Array) -> Any:
        y = np.zeros((x.shape[0], w.shape[2]), x.dtype)
        if not len(w):
            return y
        wide = x.dtype if x.dtype.kind in "iub" else np.float64
        for k in set(clamped_array(index, w.shape[0]).tolist()):
            rows = clamped_array(index, w.shape[0]) == k
            y[rows] = (x[rows].astype(wide) @ w[k].astype(wide)).astype(x.dtype)
        return y

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, w, index = at.operands
        dy = at.cotangent
        dx = dy.apply("grouped_matmul", dy.value, w.transpose().value, index.value) if at.needed[0] else None
        dw = grouped_product(x, dy, index, w.shape[0]) if at.needed[1] else None
        return dx, dw, None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, w, index = operands
        if is_zero(w.shape[0]):
            return zeros(t, self.result.type)
        which = chosen(t, index, w.shape[0])
        return accumulate(
            t, self.result.type, x.shape[1:], lambda i, j, r: widen(x[i, r]) * widen(w[which[i], r, j])
        )


_EQUATION = re.compile(r"[A-Za-z.,]*(->[A-Za-z.]*)?")


@operation
class Einsum(GraphOp):
    """Einstein summation of one or two operands, in NumPy's explicit or implicit notation without ellipsis.
    For booleans, the result is whether any product is true.
    """

    name = "graph.einsum"
    inputs: VariadicOperand
    equation: Attr

    def _parse(self) -> tuple[list[str], str, dict[str, Dim]]:
        if not isinstance(self.equation, str) or not _EQUATION.fullmatch(
            text := self.equation.replace(" ", "")
        ):
            raise IRError(f"equation {self.equation!r} is not of letters, commas, '...' and one '->'", self)
        left, arrow, output = text.partition("->")
        terms = left.split(",")
        if len(terms) != len(self.inputs):
            raise IRError(
                f"equation {self.equation!r} has {len(terms)} terms for {len(self.inputs)} operands", self
            )
        if any(term.count("...") > 1 for term in (*terms, output)):
            raise IRError(f"equation {self.equation!r} has '...' twice in a term", self)
        spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
        widest = max(
            (
                tensor_type(x).rank - len(s.replace("...", ""))
                for s, x in zip(terms, self.inputs, strict=True)
                if "..." in s
            ),
            default=0,
        )
        dots = "".join(spare[:widest])
        sizes: dict[str, Dim] = {}
        for k, (term, x) in enumerate(zip(terms, self.inputs, strict=True)):
            shape = tensor_type(x).shape
            if "..." in term:
                extra = len(shape) - len(term.replace("...", ""))
                if extra < 0:
                    raise IRError(f"term {term!r} of {self.equation!r} does not fit shape {shape}", self)
                term = term.replace("...", dots[len(dots) - extra :])
            terms[k] = term
            if len(term) != len(shape):
                raise IRError(f"term {term!r} of {self.equation!r} does not fit shape {shape}", self)
            for letter, n in zip(term, shape, strict=True):
                if letter in sizes and not prove_eq(sizes[letter], n) and not (isinstance(n, int) and n == 1):
                    if not (isinstance(sizes[letter], int) and sizes[letter] == 1):
                        raise IRError(
                            f"'{letter}' is both {sizes[letter]} and {n} in {self.equation!r}", self
                        )
                    sizes[letter] = n
                sizes.setdefault(letter, n)
        if arrow:
            output = output.replace("...", dots)
        else:
            joined = "".join(terms)
            output = dots + "".join(sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots))
        unknown = next((c for k, c in enumerate(output) if c not in sizes or c in output[:k]), None)
        if unknown is not None:
            reason = "is in no operand" if unknown not in sizes else "is there twice"
            raise IRError(f"'{unknown}' of the result of {self.equation!r} {reason}", self)
        return terms, output, sizes

    def infer_types(self) -> Sequence[Type]:
        types = [tensor_type(x) for x in self.inputs]
        if any(x.dtype is not types[0].dtype for x in types):
            raise IRError(f"operands differ in dtype: {', '.join(x.dtype.label for x in types)}", self)
        _, output, sizes = self._parse()
        return (TensorType(types[0].dtype, tuple(sizes[c] for c in output)),)

    def reference(self, *inputs: Array) -> Any:
        wide = inputs[0].dtype.kind not in "iub"
        operands = [x.astype(np.float64) if wide else x for x in inputs]
        terms, output, _ = self._parse()
        equation = f"{','.join(terms)}->{output}"
        return np.einsum(equation, *operands, optimize=True).astype(inputs[0].dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        terms, output, _ = self._parse()
        found: list[Term | None] = []
        for k, (term, x) in enumerate(zip(terms, at.operands, strict=True)):
            others = [(t, y) for j, (t, y) in enumerate(zip(terms, at.operands, strict=True)) if j != k]
            if not at.needed[k]:
                found.append(None)
                continue
            # A dimension of this operand alone was summed: its gradient is the same along it. A dimension of
            # 1 that the others repeat is summed.
            known = output + "".join(t for t, _ in others)
            sizes = dict(zip(term, x.shape, strict=True))
            kept = "".join(c for c, n in sizes.items() if c in known and not _is_one(n))
            left = ",".join([output, *(t for t, _ in others)])
            dy = at.cotangent.einsum(f"{left}->{kept}", *(y for _, y in others))
            if kept != term:
                first = [term.index(c) == d and c in kept for d, c in enumerate(term)]
                dy = dy.reshape([n if is_first else 1 for is_first, n in zip(first, x.shape, strict=True)])
            dy = dy.broadcast(x.shape)
            for d, c in enumerate(term):
                if term.index(c) != d:  # only the diagonal was read
                    row, column = (dy.iota(x.shape[d]).along_axis(e, len(term)) for e in (d, term.index(c)))
                    dy = row.equals(column).select(dy, 0)
            found.append(dy)
        return found

    def products(self) -> Dim:
        """Number of products that the sum adds up in all."""
        return math.prod(self._parse()[2].values())

    def decompose(self, b: Builder) -> Value | None:
        return of_truth(b, lambda *x: Einsum(list(x), equation=self.equation), self.inputs)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        terms, output, sizes = self._parse()
        summed = [c for c in sizes if c not in output]

        def body(*i: Dim) -> Scalar:
            where = dict(zip((*output, *summed), i, strict=True))
            value: Scalar | None = None
            for term, x in zip(terms, operands, strict=True):
                index = tuple(
                    0 if isinstance(n, int) and n == 1 else where[c]
                    for c, n in zip(term, x.shape, strict=True)
                )
                factor = widen(x[index])
                value = factor if value is None else value * factor
            assert value is not None
            return value

        if summed:
            return accumulate(t, self.result.type, [sizes[c] for c in summed], body)
        return t.compute(self.result.type.shape, lambda *i: body(*i).cast(self.result.type.dtype))

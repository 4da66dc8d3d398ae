"""Scaled dot-product attention and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import prove_eq
from ...ir.types import TensorType, Type, boolean
from .base import GraphOp, tensor_type
from .contract import Einsum
from .elementwise import BINARY, UNARY, Cast, Select, constant
from .norm import narrow, widen
from .operands import (
    check_broadcast,
    check_floating,
    check_number,
    check_rank,
    check_same_type,
    check_shape,
    need_numbers,
)
from .reduce import ReduceMax, ReduceSum
from .shape import Concat, Iota, Reshape, Slice


@operation
class Attention(GraphOp):
    """``softmax(scale * q k^T + mask) v``. Vaswani et al., 2017.

    Shapes: q (B, H, S, D), k (B, G, T, D), v (B, G, T, E), result (B, H, S, E); H is a multiple of G (grouped
    queries; Ainslie et al., 2023). `mask` broadcasts to (B, H, S, T): boolean (True attends) or added to the
    scores. `causal` hides keys j > i. `scale` None is ``1 / sqrt(D)``; a `softcap` c other than 0 caps scores
    below the masks: ``c * tanh(scores / c)``. A row with every key hidden gives zeros, as in PyTorch and
    ONNX.

    Keys and values may be qvalues of any type, multiplied by `k_scale` and `v_scale` (B, G, T). `sinks` (H)
    are scores that take part in each row's softmax and have no value (Xiao et al., 2024; learned, as in
    GPT-OSS).

    With queries of 16 bits, targets may round the weights and scaled keys and values to their type; sums are
    of 32 bits.
    """

    name = "graph.attention"
    q: Operand
    k: Operand
    v: Operand
    mask: OptionalOperand
    k_scale: OptionalOperand
    v_scale: OptionalOperand
    sinks: OptionalOperand
    scale: Attr = None
    causal: Attr = False
    softcap: Attr = 0.0

    def infer_types(self) -> Sequence[Type]:
        q, k, v = tensor_type(self.q), tensor_type(self.k), tensor_type(self.v)
        if not (q.rank == k.rank == v.rank == 4):
            raise IRError(f"needs q, k, v of rank 4, got {q.shape}, {k.shape}, {v.shape}", self)
        check_floating(self, "q")
        for name, x in (("k", k), ("v", v)):
            if x.shape[0] != 1 and not prove_eq(x.shape[0], q.shape[0]):
                raise IRError(f"{name} has batch size {x.shape[0]}, q has {q.shape[0]}", self)
        heads, groups = q.shape[1], k.shape[1]
        whole = isinstance(heads, int) and isinstance(groups, int) and groups == v.shape[1]
        if not whole or (heads % groups if groups else heads):  # of no heads over no groups there is nothing
            raise IRError(
                f"the number of query heads, {heads}, must be a multiple of that of key and value heads, "
                f"{groups} and {v.shape[1]}",
                self,
            )
        if not prove_eq(q.shape[3], k.shape[3]) or not prove_eq(k.shape[2], v.shape[2]):
            raise IRError(
                f"shapes {q.shape}, {k.shape}, {v.shape} of q, k and v differ in head size or in the number "
                "of keys",
                self,
            )
        check_shape(self, "k_scale", k.shape[:3], proved=True)
        check_shape(self, "v_scale", v.shape[:3], proved=True)
        check_shape(self, "sinks", (heads,), proved=True)
        check_broadcast(self, "mask", (*q.shape[:3], k.shape[2]))
        need_numbers(self, "softcap", *(("scale",) if self.scale is not None else ()))
        return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])),)

    @property
    def factor(self) -> float:
        if self.scale is not None:
            return float(self.scale)
        depth = tensor_type(self.q).shape[3]
        if not isinstance(depth, int):
            raise IRError("the head size is symbolic: give a scale", self)
        return 1.0 / math.sqrt(depth)

    def reference(self, q: Array, k: Array, v: Array, *rest: Array) -> Any:
        given = iter(rest)
        mask, k_scale, v_scale, sinks = (
            None if x is None else next(given) for x in (self.mask, self.k_scale, self.v_scale, self.sinks)
        )
        k, v = (
            x.astype(np.float64) * (1 if by is None else by[..., None].astype(np.float64))
            for x, by in ((k, k_scale), (v, v_scale))
        )
        repeat = q.shape[1] // max(k.shape[1], 1)
        k, v = (np.repeat(x, repeat, axis=1) for x in (k, v))
        scores = q.astype(np.float64) @ np.swapaxes(k, 2, 3) * self.factor
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        if self.causal:
            scores = np.where(np.tri(*scores.shape[2:]).astype(bool), scores, -np.inf)
        with np.errstate(invalid="ignore", over="ignore"):
            top = scores.max(-1, keepdims=True, initial=-np.inf)  # of no keys, as of hidden ones
            e = np.exp(scores - top)
            total = e.sum(-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks.astype(np.float64)[:, None, None] - top)
            weights = np.where(np.isneginf(top), 0.0, e / total)
            return (weights @ v).astype(q.dtype)

    def decompose(self, b: Builder) -> Value:
        given, q = tensor_type(self.q).dtype, widen(b, self.q)
        k, v = narrow(b, self.k, q), narrow(b, self.v, q)
        qt, kt, vt = tensor_type(q), tensor_type(k), tensor_type(v)
        heads, groups = qt.shape[1], kt.shape[1]
        assert isinstance(heads, int) and isinstance(groups, int)
        repeat = heads // groups
        batch, _, rows, depth = qt.shape
        keys = kt.shape[2]
        # With grouped queries everything has an axis more, so that each row stays a row.
        lead, letters = ((batch, groups, repeat), "bgr") if repeat > 1 else ((batch, heads), "bg")
        ones = (1,) * (len(lead) - 1)
        if repeat > 1:
            q = b(Reshape(q, shape=(*lead, rows, depth)))

        def of_keys(scale: Value) -> Value:
            return b(Reshape(narrow(b, scale, q), shape=(tensor_type(scale).shape[0], groups, *ones, keys)))

        def product(factors: tuple[Value, Value], equation: str) -> Value:
            op = b.insert(Einsum(factors, equation=equation))
            if given.is_float and given.bits == 16:
                notes.FACTORS.set(op, given.name)
            result: Value = op.result
            return result

        scores = product((q, k), f"{letters}sd,bgtd->{letters}st")
        if self.k_scale is not None:
            scores = b(BINARY["mul"](scores, of_keys(self.k_scale)))
        scores = b(BINARY["mul"](scores, constant(b, self.factor / (self.softcap or 1.0), scores)))
        if self.softcap:
            scores = b(BINARY["mul"](b(UNARY["tanh"](scores)), constant(b, self.softcap, scores)))
        if self.mask is not None:
            mask = self.mask if repeat == 1 else self._grouped_mask(b, groups, repeat)
            if tensor_type(mask).dtype is boolean:
                scores = b(Select(mask, scores, constant(b, -np.inf, scores)))
            else:
                dtype = tensor_type(scores).dtype
                mask = mask if tensor_type(mask).dtype is dtype else b(Cast(mask, dtype=dtype))
                scores = b(BINARY["add"](scores, mask))
        if self.causal:
            row, column = (b(Iota(shape=(rows, keys), axis=a)) for a in (0, 1))
            scores = b(Select(b(BINARY["le"](column, row)), scores, constant(b, -np.inf, scores)))
        top = b(ReduceMax(scores, axes=(len(lead) + 1,), keepdims=True))
        e = b(UNARY["exp"](b(BINARY["sub"](scores, top))))
        total = b(ReduceSum(e, axes=(len(lead) + 1,), keepdims=True))
        if self.sinks is not None:
            sinks = b(Reshape(narrow(b, self.sinks, q), shape=(1, *lead[1:], 1, 1)))
            total = b(BINARY["add"](total, b(UNARY["exp"](b(BINARY["sub"](sinks, top))))))
        weights = e if self.v_scale is None else b(BINARY["mul"](e, of_keys(self.v_scale)))
        weights = b(BINARY["div"](weights, total))
        if self.mask is not None:  # nothing else can hide a whole row
            hidden = b(BINARY["eq"](top, constant(b, -np.inf, scores)))
            weights = b(Select(hidden, constant(b, 0, scores), weights))
        y = narrow(b, product((weights, v), f"{letters}st,bgte->{letters}se"), self.q)
        return b(Reshape(y, shape=(batch, heads, rows, vt.shape[3]))) if repeat > 1 else y

    def _grouped_mask(self, b: Builder, groups: int, repeat: int) -> Value:
        """The mask with its dimension of heads, if it has one, cut into groups and heads of a group."""
        assert self.mask is not None
        shape = tensor_type(self.mask).shape
        if len(shape) < 3:
            return self.mask
        heads = (1, 1) if shape[-3] == 1 else (groups, repeat)
        return b(Reshape(self.mask, shape=(*shape[:-3], *heads, *shape[-2:])))


@operation
class Rotary(GraphOp):
    """Rotary position embedding of `x` (..., S, D) by `cos` and `sin` broadcastable to it. Su et al., 2021.

    Not `interleaved`: the two halves of D form the pairs; else neighbours do.
    """

    name = "graph.rotary"
    x: Operand
    cos: Operand
    sin: Operand
    interleaved: Attr = False

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        check_rank(self, "x", 1)
        check_number(self, "x")
        if not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
            raise IRError(f"needs an even last dimension, got {x.shape}", self)
        for name in ("cos", "sin"):
            check_same_type(self, name, x.dtype)
            check_broadcast(self, name, x.shape)
        return (x,)

    def reference(self, x: Array, cos: Array, sin: Array) -> Any:
        wide = x.astype(np.float64)
        if self.interleaved:
            turned = np.stack((-wide[..., 1::2], wide[..., ::2]), -1).reshape(wide.shape)
        else:
            half = x.shape[-1] // 2
            turned = np.concatenate((-wide[..., half:], wide[..., :half]), -1)
        return (wide * cos + turned * sin).astype(x.dtype)

    def decompose(self, b: Builder) -> Value:
        x = tensor_type(self.x)
        zero = (0,) * (x.rank - 1)
        lead, n = x.shape[:-1], x.shape[-1]
        assert isinstance(n, int)
        ones = (1,) * (x.rank - 1)

        def part(start: int, stop: int, step: int) -> Value:
            return b(Slice(self.x, starts=(*zero, start), stops=(*lead, stop), steps=(*ones, step)))

        if self.interleaved:
            odd, even = part(1, n, 2), part(0, n, 2)
            pairs = [b(Reshape(v, shape=(*lead, n // 2, 1))) for v in (b(UNARY["neg"](odd)), even)]
            turned = b(Reshape(b(Concat(pairs, axis=-1)), shape=x.shape))
        else:
            turned = b(Concat((b(UNARY["neg"](part(n // 2, n, 1))), part(0, n // 2, 1)), axis=-1))
        return b(BINARY["add"](b(BINARY["mul"](self.x, self.cos)), b(BINARY["mul"](turned, self.sin))))


__all__ = ["Attention", "Rotary"]

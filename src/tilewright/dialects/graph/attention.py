"""Scaled dot-product attention and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import prove_eq
from ...ir.types import TensorType, Type
from .attention_blocks import gradients_in_blocks, in_blocks
from .attention_terms import AttentionTerms
from .base import Adjoint, GraphOp, tensor_type
from .elementwise import BINARY, UNARY
from .operands import (
    check_broadcast,
    check_floating,
    check_number,
    check_rank,
    check_same_type,
    check_shape,
    need_numbers,
)
from .shape import Concat, Reshape, Slice
from .term import Term


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

    def _terms(self, operands: Sequence[Term]) -> AttentionTerms:
        q, k, v, *rest = operands
        left = iter(rest)
        optional = [
            None if x is None else next(left) for x in (self.mask, self.k_scale, self.v_scale, self.sinks)
        ]
        return AttentionTerms(
            q.wide(), k, v, self.factor, bool(self.causal), float(self.softcap), q.dtype, *optional
        )

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        names = [
            n for n in ("q", "k", "v", "mask", "k_scale", "v_scale", "sinks") if getattr(self, n) is not None
        ]
        terms = self._terms(at.operands)
        # The gradient of a mask is as large as all scores.
        masked = "mask" in names and at.needed[names.index("mask")]
        blocks = in_blocks(terms) and not masked
        found = (gradients_in_blocks if blocks else AttentionTerms.gradients)(terms, at.result, at.cotangent)
        return [found.get(name) for name in names]

    def decompose(self, b: Builder) -> Value:
        return self._terms([Term(b, v) for v in self.operands]).result().value


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

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, cos, sin = (v.wide() for v in at.operands)
        dy = at.cotangent.wide()
        # The transpose of the turn by 90 degrees is its negative.
        dx = dy * cos - x.of(self._turned(at.b, (dy * sin).value)) if at.needed[0] else None
        dsin = dy * x.of(self._turned(at.b, x.value)) if at.needed[2] else None
        return dx, dy * x if at.needed[1] else None, dsin

    def _turned(self, b: Builder, x: Value) -> Value:
        """Each pair ``(u, v)`` of `x` as ``(-v, u)``."""
        shape = tensor_type(x).shape
        lead, n = shape[:-1], shape[-1]
        zero, ones = (0,) * len(lead), (1,) * len(lead)
        assert isinstance(n, int)

        def part(start: int, stop: int, step: int) -> Value:
            return b(Slice(x, starts=(*zero, start), stops=(*lead, stop), steps=(*ones, step)))

        if self.interleaved:
            odd, even = part(1, n, 2), part(0, n, 2)
            pairs = [b(Reshape(v, shape=(*lead, n // 2, 1))) for v in (b(UNARY["neg"](odd)), even)]
            return b(Reshape(b(Concat(pairs, axis=-1)), shape=shape))
        return b(Concat((b(UNARY["neg"](part(n // 2, n, 1))), part(0, n // 2, 1)), axis=-1))

    def decompose(self, b: Builder) -> Value:
        turned = self._turned(b, self.x)
        return b(BINARY["add"](b(BINARY["mul"](self.x, self.cos)), b(BINARY["mul"](turned, self.sin))))


__all__ = ["Attention", "Rotary"]

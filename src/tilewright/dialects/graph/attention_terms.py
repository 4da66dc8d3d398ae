"""The scores, the weights and the gradients of attention, as terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...ir import notes
from ...ir.types import DType, boolean
from .term import Term


@dataclass(frozen=True)
class AttentionTerms:
    """The operands of `graph.attention` as terms, of which `q` is at least float32, and its attributes.

    `q`, `y` and everything of their rows has the leading dimensions (B, G, R) of R query heads for each of G
    key heads, or (B, G) where R is 1.
    """

    q: Term
    k: Term
    v: Term
    factor: float
    causal: bool
    softcap: float
    given: DType
    """The element type of the queries before they were widened."""
    mask: Term | None = None
    k_scale: Term | None = None
    v_scale: Term | None = None
    sinks: Term | None = None
    places: Term | None = None
    """The numbers (S) of the rows of `q` for `causal`; None: 0, 1, ..."""

    @property
    def groups(self) -> tuple[int, int]:
        """The number of key heads, and that of query heads for each."""
        heads, groups = self.q.shape[1], self.k.shape[1]
        assert isinstance(heads, int) and isinstance(groups, int)
        return groups, heads // max(groups, 1)

    @property
    def letters(self) -> str:
        return "bg" if self.groups[1] == 1 else "bgr"

    def cut(self, x: Term) -> Term:
        """A term (B, H, ...), whose heads may be 1, with its heads cut into groups and heads of a group."""
        groups, repeat = self.groups
        if repeat == 1:
            return x
        heads = (1, 1) if x.shape[1] == 1 else (groups, repeat)
        return x.reshape((x.shape[0], *heads, *x.shape[2:]))

    def joined(self, x: Term) -> Term:
        """The inverse of `cut`."""
        groups, repeat = self.groups
        return x if repeat == 1 else x.reshape((x.shape[0], groups * repeat, *x.shape[3:]))

    def product(self, equation: str, a: Term, b: Term) -> Term:
        """An Einstein summation whose factors may be rounded to the given 16-bit type; L stands for the
        leading dimensions.
        """
        y = a.einsum(equation.replace("L", self.letters), b)
        op = y.value.defining_op
        if self.given.is_float and self.given.bits == 16 and op is not None:
            notes.FACTORS.set(op, self.given.name)
        return y

    def of_keys(self, scale: Term) -> Term:
        """Factors (B, G, T) of keys, broadcastable to scores."""
        ones = (1,) * (len(self.letters) - 1)
        return scale.cast(self.q.dtype).reshape((*scale.shape[:2], *ones, scale.shape[2]))

    def of_heads(self, sinks: Term) -> Term:
        """One number for each query head, broadcastable to scores."""
        return self.cut(sinks.cast(self.q.dtype).reshape((1, *sinks.shape, 1, 1)))

    def scores(self) -> tuple[Term, Term]:
        """The scores (*lead, S, T) with their factor and below their cap, and these behind the masks."""
        q = self.cut(self.q)
        scores = self.product("Lsd,bgtd->Lst", q, self.k.cast(q.dtype))
        if self.k_scale is not None:
            scores = scores * self.of_keys(self.k_scale)
        scores = scores * (self.factor / (self.softcap or 1.0))
        if self.softcap:
            scores = scores.unary("tanh") * self.softcap
        return scores, self._masked(scores)

    def _masked(self, scores: Term) -> Term:
        rows, keys = self.q.shape[2], self.k.shape[2]
        if self.mask is not None:
            mask = self.mask if len(self.mask.shape) < 3 else self._of_heads_mask(self.mask)
            scores = (
                mask.select(scores, -math.inf) if mask.dtype is boolean else scores + mask.cast(scores.dtype)
            )
        if self.causal:
            row, column = (scores.apply("iota", shape=(rows, keys), axis=a) for a in (0, 1))
            if self.places is not None:
                row = self.places.unsqueeze(1)
            scores = (column <= row).select(scores, -math.inf)
        return scores

    def _of_heads_mask(self, mask: Term) -> Term:
        """A mask (..., H or 1, S, T) with its heads cut into groups."""
        groups, repeat = self.groups
        if repeat == 1:
            return mask
        heads = (1, 1) if mask.shape[-3] == 1 else (groups, repeat)
        return mask.reshape((*mask.shape[:-3], *heads, *mask.shape[-2:]))

    def result(self) -> Term:
        """The result (B, H, S, E)."""
        scores = self.scores()[1]
        last = len(scores.shape) - 1
        top = scores.max(last, keepdims=True)
        e = (scores - top).unary("exp")
        total = e.sum(last, keepdims=True)
        if self.sinks is not None:
            total = total + (self.of_heads(self.sinks) - top).unary("exp")
        weights = (e if self.v_scale is None else e * self.of_keys(self.v_scale)) / total
        if self.mask is not None:  # nothing else can hide a whole row
            weights = top.equals(-math.inf).select(0, weights)
        y = self.product("Lst,bgte->Lse", weights, self.v.cast(weights.dtype))
        return self.joined(y.cast(self.given))

    def gradients(self, y: Term, dy: Term, logsumexp: Term | None = None) -> dict[str, Term | None]:
        """The gradients of the operands by name, not yet summed to their shapes, from the result and its
        gradient; None for those that have none.

        The weights are computed anew from the scores (Dao, "FlashAttention-2", 2023), and the sums of weights
        times their gradients are those of the result times its gradient. `logsumexp` (B, H, S) are the
        logarithms of the rows' sums of exponentials, if they are known.
        """
        wide = self.q.dtype
        k, v = (
            x.cast(wide) if scale is None else x.cast(wide) * scale.cast(wide).unsqueeze(3)
            for x, scale in ((self.k, self.k_scale), (self.v, self.v_scale))
        )
        # The scores of the forward pass are not kept for it.
        now = replace(self, q=self.q.apply("after", self.q.value, [dy.value]))
        q, y, dy = (self.cut(x.cast(wide)) for x in (now.q, y, dy))
        capped, scores = now.scores()
        if logsumexp is None:
            weights, of_sinks = self._weights(scores)
        else:
            weights = (scores - self.cut(logsumexp.cast(wide)).unsqueeze(-1)).unary("exp")
            of_sinks = None
        dot = (dy * y).sum(len(y.shape) - 1, keepdims=True)
        d = weights * (self.product("Lse,bgte->Lst", dy, v) - dot)
        dv = self.product("Lst,Lse->bgte", weights, dy)
        mask = None if self.mask is None or self.mask.dtype is boolean else self.joined(d)
        sinks = None
        if of_sinks is not None:
            sinks = self.joined(-(of_sinks * dot)).sum((0, 2, 3))
        if self.softcap:
            t = capped * (1.0 / self.softcap)
            d = d * (1 - t * t)
        d = d * self.factor
        dq = self.joined(self.product("Lst,bgtd->Lsd", d, k))
        dk = self.product("Lst,Lsd->bgtd", d, q)
        found: dict[str, Term | None] = {"q": dq, "k": dk, "v": dv, "mask": mask, "sinks": sinks}
        for name, x, scale in (("k", self.k, self.k_scale), ("v", self.v, self.v_scale)):
            if scale is not None:
                dx = dk if name == "k" else dv
                found[name] = dx * scale.cast(wide).unsqueeze(3)
                found[f"{name}_scale"] = (dx * x.cast(wide)).sum(3)
        return found

    def _weights(self, scores: Term) -> tuple[Term, Term | None]:
        """The weights of the values, and those of the sinks. They have derivatives also where a row's keys
        are all hidden.
        """
        last = len(scores.shape) - 1
        hidden = None
        if self.mask is not None:
            hidden = scores.max(last, keepdims=True).equals(-math.inf)
            scores = hidden.select(0, scores)
        if self.sinks is None:
            weights, of_sinks = scores.apply("softmax", scores.value, axis=last), None
        else:
            own = self.of_heads(self.sinks)
            top = scores.max(last, keepdims=True)
            e, of_sinks = (scores - top).unary("exp"), (own - top).unary("exp")
            total = e.sum(last, keepdims=True) + of_sinks
            weights, of_sinks = e / total, of_sinks / total
        return weights if hidden is None else hidden.select(0, weights), of_sinks


__all__ = ["AttentionTerms"]

"""The gradients of attention a block of query rows at a time, without a matrix of all scores.

Dao ("FlashAttention-2", 2023) computes the scores anew in blocks of queries and keys, and stores the
logarithms of the rows' sums of exponentials so that a block needs no other. The blocks here have all keys of
their rows, so the sums are computed anew as well: loops over batch, key heads and blocks of rows, whose body
is the formula of `AttentionTerms.gradients`. Its five products have the sizes of a block, which fills about
the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ir.symbolic import Dim, bounds
from .attention_terms import AttentionTerms
from .term import Term, scan

DENSE_BYTES = 8 << 20
"""The largest size of all scores in float32 that are computed at once. A larger value takes more memory; a
smaller one divides attention that the caches hold.
"""
DENSE_HEAD = 64 << 10
"""The largest size, in bytes, of the scores of one key head that are computed at once with those of the other
heads. Smaller products do not fill two threads.
"""
BLOCK_BYTES = 1 << 20
"""The size of a block of scores in float32. A larger block adds up the gradients of keys and values less
often, and leaves the second-level cache.
"""
LEAST_ROWS = 64
"""The fewest rows of a block, unless there are fewer rows. A larger value takes more memory with many keys.
"""
CAUSAL_PARTS = 4
"""The parts of the rows of causal attention. The keys behind a part are left out of its products: with p
parts, ``(p + 1) / 2p`` of the products are left. A larger value leaves out more, and makes more operators.
"""

_SUMMED = ("k", "v", "k_scale", "v_scale", "sinks")
"""The operands whose gradients are sums over blocks of rows."""

Values = dict[str, Term]
Gradients = Callable[[Values], Values]


def in_blocks(t: AttentionTerms) -> bool:
    """Whether the gradients are computed in blocks: by the bytes of the scores, at the upper bounds of
    symbolic sizes.
    """
    batch, heads, rows, _ = t.q.shape
    head = _most(t.groups[1] * rows * t.k.shape[2] * 4)
    whole = _most(batch * heads * rows * t.k.shape[2] * 4)
    return (whole is None or whole > DENSE_BYTES) and (head is None or head > DENSE_HEAD)


def gradients_in_blocks(t: AttentionTerms, y: Term, dy: Term) -> dict[str, Term | None]:
    """As `AttentionTerms.gradients`, except that masks have no gradient. No intermediate value is larger than
    the operands or than a block of scores.
    """
    named = {"q": t.q, "y": y, "dy": dy, **{n: getattr(t, n) for n in (*_SUMMED, "mask")}}
    values = {n: x for n, x in named.items() if x is not None}
    if t.causal:
        values["places"] = t.q.iota(t.q.shape[2])
    if t.mask is not None:
        values["mask"] = t.mask.reshape((*(1,) * (4 - len(t.mask.shape)), *t.mask.shape))
    return dict(_Blocks(t).of_batch(values))


class _Blocks:
    """The loops. Their values are the operands by name, each with all its dimensions, those that a loop goes
    along of size 1 inside of it.
    """

    def __init__(self, t: AttentionTerms) -> None:
        self.t = t
        self.heads = t.groups[0]

    def of_batch(self, values: Values) -> Values:
        """A loop over the batch."""
        shared = ("sinks", "places")
        cut = {n: x.unsqueeze(1) for n, x in values.items() if n not in shared and not _is_one(x.shape[0])}
        if "q" not in cut:
            return self.of_heads(values)
        found = _each(values, cut, self.of_heads)
        return {n: x.reshape(values[n].shape) if n in cut else x for n, x in found.items()}

    def of_heads(self, values: Values) -> Values:
        """A loop over key heads, with all query heads of each."""
        if self.heads == 1:
            return self.of_rows(values)
        cut = {
            n: x.reshape((self.heads, -(-x.shape[0] // self.heads)))
            if n == "sinks"
            else x.reshape((self.heads, 1, x.shape[1] // self.heads, *x.shape[2:]))
            for n, x in values.items()
            if n != "places" and (n == "sinks" or x.shape[1] != 1)
        }
        found = _each(values, cut, self.of_rows)
        return {n: x.reshape(values[n].shape) for n, x in found.items()}

    def of_rows(self, values: Values) -> Values:
        """Parts of the rows, one after the other, and in each a loop over blocks."""
        rows, keys = values["q"].shape[2], values["k"].shape[2]
        if not (self.t.causal and isinstance(rows, int) and isinstance(keys, int)):
            return self.of_part(values, {})
        size = max(LEAST_ROWS, -(-rows // CAUSAL_PARTS))
        parts: list[Term] = []
        sums: Values = {}
        for first in range(0, rows, size):
            last = min(first + size, rows)
            seen = min(last, keys)
            found = self.of_part(_part(values, first, last, seen), _with_keys(sums, seen))
            parts.append(found.pop("q"))
            sums = found
        dq = parts[0].apply("concat", [x.value for x in parts], axis=2) if len(parts) > 1 else parts[0]
        return {"q": dq, **_with_keys(sums, keys)}

    def of_part(self, values: Values, sums: Values) -> Values:
        """A loop over blocks of rows; `sums` are added to the gradients that have no rows."""
        q = values["q"]
        heads, rows, keys = q.shape[1], q.shape[2], values["k"].shape[2]
        height = _block_rows(heads, rows, keys)
        if height is None:
            found = self.of_block(values)
            return {n: x + sums[n] if n in sums else x for n, x in found.items()}
        count = (rows + height - 1) // height

        def blocks(n: str, x: Term) -> Term:
            axis = 0 if n == "places" else 2
            padded = x.pad_axis(axis, 0, count * height - x.shape[axis])
            whole = padded.reshape((*x.shape[:axis], count, height, *x.shape[axis + 1 :]))
            order = [axis, *(k for k in range(len(whole.shape)) if k != axis)]
            return whole.transpose(order)

        of_rows = ["q", "y", "dy", "places"]
        if "mask" in values and not _is_one(values["mask"].shape[2]):
            of_rows.append("mask")
        cut = {n: blocks(n, x) for n, x in values.items() if n in of_rows}
        found = _each(values, cut, self.of_block, sums)
        dq = found["q"].transpose((1, 2, 0, 3, 4)).reshape((*q.shape[:2], count * height, q.shape[3]))
        return {**found, "q": dq.slice(2, 0, rows)}

    def of_block(self, values: Values) -> Values:
        """The gradients of the rows of one block."""
        q, k, v = (values[n] for n in "qkv")
        mask, k_scale, v_scale, sinks, places = (
            values.get(n) for n in ("mask", "k_scale", "v_scale", "sinks", "places")
        )
        block = replace(
            self.t,
            q=q,
            k=k,
            v=v,
            mask=mask,
            k_scale=k_scale,
            v_scale=v_scale,
            sinks=sinks,
            places=places,
        )
        found = block.gradients(values["y"], values["dy"])
        return {n: x.sum_to(values[n].shape) for n, x in found.items() if x is not None and n != "mask"}


def _each(
    values: Values, cut: Mapping[str, Term], compute: Gradients, sums: Mapping[str, Term] | None = None
) -> Values:
    """Run `compute` for the slices of `cut` along their leading axes, in the places of the values of the same
    names. Return the gradients: stacked for those that are cut, else added to `sums`, or to zeros.
    """
    q = values["q"]
    totals = [n for n in _SUMMED if n in values and n not in cut]
    stacked = [n for n in ("q", *_SUMMED) if n in cut]
    given = sums or {}
    initial = [given[n] if n in given else q.number(0).broadcast(values[n].shape) for n in totals]

    def body(*args: Term) -> tuple[list[Term], list[Term]]:
        slices = dict(zip(cut, args, strict=False))
        before = args[len(cut) :]
        # No pass may compute the products of all steps before the loop.
        slices |= {n: slices[n].apply("after", slices[n].value, [slices["y"].value]) for n in ("q", "dy")}
        b = slices["q"].b
        found = compute({**{n: Term(b, x.value) for n, x in values.items()}, **slices})
        return [x + found[n] for n, x in zip(totals, before, strict=True)], [found[n] for n in stacked]

    last, slices = scan(q.b, list(cut.values()), initial, body)
    return {**dict(zip(totals, last, strict=True)), **dict(zip(stacked, slices, strict=True))}


def _part(values: Values, first: int, last: int, keys: int) -> Values:
    """The values of the rows `first` to `last` and of the first `keys` keys."""
    part: Values = {}
    for n, x in values.items():
        if n in ("q", "y", "dy") or (n == "mask" and not _is_one(x.shape[2])):
            x = x.slice(2, first, last)
        if n in ("k", "v", "k_scale", "v_scale"):
            x = x.slice(2, 0, keys)
        if n == "mask" and not _is_one(x.shape[3]):
            x = x.slice(3, 0, keys)
        part[n] = x.slice(0, first, last) if n == "places" else x
    return part


def _with_keys(sums: Values, keys: int) -> Values:
    """Sums of fewer keys, with zeros for the others."""
    return {n: x if n == "sinks" else x.pad_axis(2, 0, keys - x.shape[2]) for n, x in sums.items()}


def _block_rows(heads: Dim, rows: Dim, keys: Dim) -> int | None:
    """The rows of a block of scores; None for all rows."""
    most_rows, most_keys = _most(rows), _most(heads * keys)
    height = LEAST_ROWS if most_keys is None else max(BLOCK_BYTES // (4 * max(most_keys, 1)), LEAST_ROWS)
    if most_rows is None:
        return height
    count = -(-most_rows // height)
    return None if count <= 1 else -(-most_rows // count)


def _is_one(size: Dim) -> bool:
    return isinstance(size, int) and size == 1


def _most(size: Dim) -> int | None:
    return bounds(size)[1]


__all__ = ["gradients_in_blocks", "in_blocks"]

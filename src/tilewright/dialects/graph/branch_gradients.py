"""Gradients of `graph.if`: the backward pass is a branch on the same condition."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.builder import Builder
from ...ir.cleanup import dce_block
from ...ir.core import Block, Operation, OpResult, Region, Value
from .base import Adjoint, tensor_type
from .residuals import copy_residuals, substitute
from .term import Term, operator


def branch_gradient(op: Operation, at: Adjoint) -> list[Term | None]:
    """The gradients of the condition (None) and of the values that the branches capture.

    A value that the backward pass reads from a branch is a further result of the forward operation, zero
    where the other branch runs.
    """
    sources = [r.block for r in op.regions]
    captured = [v for v, wanted in zip(at.captured, at.needed[1:], strict=True) if wanted]
    given = [None if dy is None else dy.value for dy in at.cotangents]
    blocks: list[Block] = []
    found: list[list[Value | None]] = []
    for source in sources:
        block = Block([])
        found.append(at.backward(Builder(block, location=op.location), source, given, captured))
        blocks.append(block)
    wanted = [k for k in range(len(captured)) if any(values[k] is not None for values in found)]
    for block, values in zip(blocks, found, strict=True):
        inside = Builder(block, location=op.location)
        ends = [_or_zero(inside, values[k], captured[k]) for k in wanted]
        inside.insert(operator("yield")(ends))
        dce_block(block)
    _store_residuals(op, blocks, sources)
    if not wanted:
        return [None] * (1 + len(at.captured))
    made = at.b.insert(operator("if")(op.operands[0], regions=[Region([block]) for block in blocks]))
    gradients = dict(zip((captured[k] for k in wanted), made.results, strict=True))
    return [None, *(Term(at.b, gradients[v]) if v in gradients else None for v in at.captured)]


def _or_zero(b: Builder, value: Value | None, like: Value) -> Value:
    if value is not None:
        return value
    kind = tensor_type(like)
    return Term(b, like).number(0, kind.dtype).broadcast(kind.shape).value


def _store_residuals(op: Operation, blocks: Sequence[Block], sources: Sequence[Block]) -> None:
    """Let the forward operation yield what its backward blocks read. Values of equal type of the two branches
    share a result.
    """
    left = [copy_residuals(block, source) for block, source in zip(blocks, sources, strict=True)]
    pairs: list[list[Value | None]] = [[v, None] for v in left[0]]
    for v in left[1]:
        partner = next((p for p in pairs if p[1] is None and p[0] is not None and p[0].type is v.type), None)
        if partner is None:
            pairs.append([None, v])
        else:
            partner[1] = v
    for pair in pairs:
        like = next(v for v in pair if v is not None)
        result = OpResult(like.type, op, len(op.results))
        op.results.append(result)
        for value, source, block in zip(pair, sources, blocks, strict=True):
            end = source.terminator
            end.set_operands([*end.operands, _or_zero(Builder(source, end, op.location), value, like)])
            if value is not None:
                substitute(block, {value: result})


__all__ = ["branch_gradient"]

"""Checking a module: structure, dominance, types, and every operation's own rule."""

from __future__ import annotations

from .core import Block, IRError, Operation, Value
from .notes import notes_of, verify_note
from .run_time_symbols import defined_by, definitions, symbols_in, symbols_of


def verify(root: Operation) -> None:
    """Check `root` and everything inside it.

    Raises:
        IRError: An operation breaks a rule; the message names both and the place in the user's model.
    """
    _verify_op(root, set())


def _verify_op(op: Operation, visible: set[Value]) -> None:
    for index, value in enumerate(op.operands):
        if value not in visible:
            raise IRError(f"operand {index} is used before (or outside of where) it is defined", op)
        if (op, index) not in value._uses:
            raise IRError(f"operand {index} does not know of this use", op)
    if op.results:
        try:
            inferred = list(op.infer_types())
        except IRError as error:
            if "result types must be given" not in str(error):
                raise
            inferred = [r.type for r in op.results]
        actual = [r.type for r in op.results]
        if inferred != actual:
            raise IRError(f"results have types {actual}, inference gives {inferred}", op)
    op.verify()
    for key, value in notes_of(op):
        verify_note(op, key, value)
    for region in op.regions:
        if region.parent is not op:
            raise IRError("a region does not know its operation", op)
        for block in region.blocks:
            _verify_block(block, visible)


def _verify_block(block: Block, visible: set[Value]) -> None:
    inner = visible | set(block.args) if block.args else set(visible)
    later = set(definitions(block))
    if later:
        given = next((s for s in symbols_in([a.type for a in block.args]) if s in later), None)
        if given is not None:
            raise IRError(
                f"the run computes the symbol '{given.name}', which is a size of an argument", block.parent_op
            )
    for op in block.ops:
        if later:
            own = set(defined_by(op))
            early = next((s for s in symbols_of(op) if s in later and s not in own), None)
            if early is not None:
                raise IRError(f"the symbol '{early.name}' is used before the run computes it", op)
            later -= own
        if op.parent is not block:
            raise IRError("does not know its block", op)
        if op.terminator and op is not block.last:
            raise IRError("is a terminator in the middle of a block", op)
        _verify_op(op, inner)
        inner.update(op.results)

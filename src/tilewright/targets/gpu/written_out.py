"""Loops that are written out, and arrays of a thread that become variables (`Dialect.explicit`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...dialects import loop, simt
from ...ir.core import Operation, Value
from .vector_access import holds_lanes

MOST_STATEMENTS = 1024
"""The most statements that a loop becomes. A larger value writes out more loops: compiling takes longer, and
kernels may exceed the cache of instructions.
"""

FEW = 4
"""The most iterations of other loops that are written out."""
FEW_STATEMENTS = 64
"""The most statements that such a loop becomes."""


_BARRIERS = (simt.Barrier, simt.AllReduce, simt.Argsort)
_REPEATED = (loop.LoopKind.SERIAL, loop.LoopKind.UNROLL, loop.LoopKind.VECTORIZE)


def has_barriers(op: Operation) -> bool:
    """Whether all threads of a block wait for each other inside a statement."""
    return any(isinstance(x, _BARRIERS) for x in op.walk())


def hands_on(kernel: loop.Kernel, may_share: Callable[[Value, Value], bool]) -> bool:
    """Whether barriers order reads and writes of the same global memory.

    Args:
        kernel: A block program.
        may_share: Whether two buffers may be the same memory.
    """
    kinds = (loop.Load, loop.Store, loop.Accumulate)
    ops = list(kernel.walk())
    barriers = [k for k, op in enumerate(ops) if isinstance(op, _BARRIERS)]
    accesses = [(k, op) for k, op in enumerate(ops) if isinstance(op, kinds)]
    for buffer in {op.buffer for _, op in accesses if not isinstance(op, loop.Load)} & {*kernel.body.args}:
        mine = [(k, op) for k, op in accesses if may_share(op.buffer, buffer)]
        if all(isinstance(op, loop.Store) for _, op in mine):
            continue
        (first, _), (last, _) = mine[0], mine[-1]
        if any(first < k < last for k in barriers) or any(_repeats_barriers(op) for _, op in mine):
            return True
    return False


def _repeats_barriers(op: Operation) -> bool:
    """Whether a loop around a statement has barriers."""
    while (parent := op.parent_op) is not None:
        is_loop = isinstance(parent, loop.For) and parent.kind in _REPEATED or isinstance(parent, loop.Runs)
        if is_loop and has_barriers(parent):
            return True
        op = parent
    return False


def is_written_out(f: loop.For) -> bool:
    """Whether the iterations of a loop become statements that follow each other: those of loops to unroll and
    of short ones, if the statements are not too many, and of loops over vector lanes.
    """
    return _repeated(f, _statements(f.body.ops)) is not None


def _repeated(f: loop.For, statements: int) -> int | None:
    """How often the `statements` of a loop's body are written out; None if the loop stays one."""
    if f.kind in (loop.LoopKind.THREAD_X, loop.LoopKind.PARALLEL) or not isinstance(f.extent, int):
        return None
    if f.kind == loop.LoopKind.UNROLL:
        is_short = f.extent * statements <= MOST_STATEMENTS
    else:
        is_short = holds_lanes(f) or (f.extent <= FEW and f.extent * statements <= FEW_STATEMENTS)
    return f.extent if f.extent == 1 or (f.extent and is_short and not has_barriers(f)) else None


def _statements(ops: Iterable[Operation]) -> int:
    """The statements that operations become."""
    count = 0
    for op in ops:
        inner = sum(_statements(region.block.ops) for region in op.regions)
        repeated = _repeated(op, inner) if isinstance(op, loop.For) else None
        count += 1 + inner * (1 if repeated is None else repeated)
    return count


def with_variables(lines: Sequence[str], arrays: Mapping[str, tuple[str, str]], form: str) -> list[str]:
    """Lines in which those arrays of a thread are variables whose indices are all numbers.

    Args:
        lines: The lines of a kernel.
        arrays: By the name of each array its declaration and the type of its elements.
        form: The declaration of a variable: ``{name}``, ``{type}``.
    """
    used: dict[str, set[int]] = {name: set() for name in arrays}
    kept = set()
    for line in lines:
        for name, index in re.findall(r"\b(\w+)\b(?:\[(\d+)\])?", line):
            if name in used and index:
                used[name].add(int(index))
            elif name in used and line.strip() != arrays[name][0]:
                kept.add(name)
    found: list[str] = []
    declarations = {text: name for name, (text, _) in arrays.items() if name not in kept}

    def variable(match: re.Match[str]) -> str:
        name, index = match.groups()
        return f"{name}_{index}" if name in used and name not in kept else match.group()

    for line in lines:
        name = declarations.get(line.strip())
        if name is None:
            found.append(re.sub(r"\b(\w+)\[(\d+)\]", variable, line))
            continue
        indent = line[: len(line) - len(line.lstrip())]
        found += [indent + form.format(name=f"{name}_{k}", type=arrays[name][1]) for k in sorted(used[name])]
    return found


__all__ = ["has_barriers", "is_written_out", "with_variables"]

"""Loops that are written out, and arrays of a thread that become variables (`Dialect.explicit`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ...dialects import loop, simt
from ...ir.core import Operation
from .vector_access import holds_lanes

MOST_STATEMENTS = 1024
"""The most statements that a loop becomes. A larger value writes out more loops: compiling takes longer, and
kernels may exceed the cache of instructions.
"""


def has_barriers(op: Operation) -> bool:
    """Whether all threads of a block wait for each other inside a statement."""
    return any(isinstance(x, (simt.Barrier, simt.AllReduce, simt.Argsort)) for x in op.walk())


def is_written_out(f: loop.For) -> bool:
    """Whether the iterations of a loop become statements that follow each other: those of loops to unroll, if
    the statements are not too many, of loops over vector lanes, and of loops of one iteration.
    """
    if f.kind in (loop.LoopKind.THREAD_X, loop.LoopKind.PARALLEL) or not isinstance(f.extent, int):
        return False
    if f.extent <= 1 or holds_lanes(f):
        return f.extent == 1 or not has_barriers(f)
    if f.kind != loop.LoopKind.UNROLL or has_barriers(f):
        return False
    return f.extent * _statements(f.body.ops) <= MOST_STATEMENTS


def _statements(ops: Iterable[Operation]) -> int:
    """The statements that operations become."""
    count = 0
    for op in ops:
        inner = sum(_statements(region.block.ops) for region in op.regions)
        is_repeated = isinstance(op, loop.For) and is_written_out(op)
        count += 1 + inner * (op.extent if is_repeated else 1)
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

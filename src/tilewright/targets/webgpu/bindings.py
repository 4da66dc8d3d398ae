"""Which buffers of a kernel are one binding: no dispatch may bind a buffer twice if it writes it, in WebGPU.

A copy of the buffer could stand in, but not where a kernel writes several parts of one buffer that lie
between each other, as those of a concatenation along the last axis do: each copy would bring back old
elements of the other parts.

A kernel with more buffers than a device binds gets some in one binding although they are not parts of one
buffer: the runtime copies them into one before the dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...dialects import host
from ...dialects.func import Func, entries
from ...ir.core import BlockArgument, Module, Value
from ...ir.symbolic import prove_divisible
from ...ir.types import DType
from ...lowering.memory_plan import root
from ..gpu.dialect import Dialect


def shared_bindings(module: Module, dialect: Dialect) -> dict[str, tuple[int, ...]]:
    """For each launched kernel the number of each buffer's binding, in ascending order of first buffers.

    Buffers share a binding if all launches give views of one buffer for them, and their elements have one
    size and one type in memory.
    """
    kinds: dict[str, list[tuple[object, ...]]] = {}
    for op in (op for function in entries(module) for op in function.walk()):
        if isinstance(op, host.Launch):
            found = kinds.setdefault(op.kernel, [_stored(b.type.dtype, dialect) for b in op.buffers])
            kinds[op.kernel] = [(*k, _memory(b)) for k, b in zip(found, op.buffers, strict=True)]
    return {name: _numbered(found) for name, found in kinds.items()}


class Parameters(NamedTuple):
    """The properties that all launches of a kernel share."""

    bindings: tuple[int, ...] = ()
    """The number of each buffer's binding; empty: each buffer has its own."""
    aligned: frozenset[int] = frozenset()
    """The numbers of the buffers that begin at multiples of 16 bytes of a buffer of the device."""


def parameters(module: Module, dialect: Dialect) -> dict[str, Parameters]:
    """The parameters of each launched kernel."""
    bindings, aligned = shared_bindings(module, dialect), aligned_buffers(module)
    return {name: Parameters(found, aligned[name]) for name, found in bindings.items()}


def aligned_buffers(module: Module) -> dict[str, frozenset[int]]:
    """For each launched kernel the numbers of the buffers that begin at multiples of 16 bytes of a buffer of
    the device in all its launches.
    """
    found: dict[str, frozenset[int]] = {}
    for op in (op for function in entries(module) for op in function.walk()):
        if isinstance(op, host.Launch):
            mine = frozenset(k for k, buffer in enumerate(op.buffers) if _is_aligned(buffer))
            found[op.kernel] = found.get(op.kernel, mine) & mine
    return found


def _is_aligned(buffer: Value) -> bool:
    """Whether a buffer begins at a multiple of 16 bytes. Buffers that loops hand on may not."""
    while isinstance(op := buffer.defining_op, host.View):
        size = min(op.result.type.dtype.itemsize, 4)
        if not prove_divisible(op.offset * size, 16):
            return False
        buffer = op.source
    if isinstance(buffer, BlockArgument):
        return isinstance(buffer.block.parent_op, Func)
    return isinstance(buffer.defining_op, host.Alloc | host.Constant)


def _memory(buffer: Value) -> object:
    """The memory of a buffer: equal for views of one buffer of the device."""
    value = root(buffer)
    op = value.defining_op
    if isinstance(op, host.Alloc) and op.slot is None and op.offset is not None:
        return str(op.offset)  # an output may have the planned place of an input that the launch reads last
    return id(value)


def _stored(dtype: DType, dialect: Dialect) -> tuple[object, ...]:
    """The type of a buffer's elements in memory; a type that kernels do not support is its own."""
    if dtype in dialect.packed:
        return dtype.itemsize, dialect.words
    storage = dialect.storage.get(dtype)
    return dtype.itemsize, dtype.name if storage is None else storage.type


def _numbered(kinds: list[tuple[object, ...]]) -> tuple[int, ...]:
    numbers: dict[tuple[object, ...], int] = {}
    return tuple(numbers.setdefault(kind, len(numbers)) for kind in kinds)


def merged_bindings(
    buffers: Sequence[Value],
    bindings: Sequence[int],
    written: Sequence[bool],
    limit: int,
    dialect: Dialect,
) -> tuple[int, ...]:
    """Bindings of which there are at most `limit`, if the types of elements allow that.

    The smallest buffers with one type of elements share a binding, those that are only read first.

    Args:
        buffers: The kernel's buffers.
        bindings: The number of each buffer's binding.
        written: Whether the kernel writes each binding.
        limit: The most bindings of a kernel.
        dialect: The language.
    """
    groups = [[k for k, b in enumerate(bindings) if b == number] for number in range(len(written))]

    def cost(group: list[int]) -> tuple[bool, int]:
        sizes = [buffers[k].type.size for k in group]
        return any(written[bindings[k]] for k in group), sum(
            s if isinstance(s, int) else 1 << 40 for s in sizes
        )

    while len(groups) > limit:
        kinds: dict[tuple[object, ...], list[list[int]]] = {}
        for group in sorted(groups, key=cost):
            kinds.setdefault(_stored(buffers[group[0]].type.dtype, dialect), []).append(group)
        pairs = [found[:2] for found in kinds.values() if len(found) > 1]
        if not pairs:
            break
        first, second = min(pairs, key=lambda pair: [cost(group) for group in reversed(pair)])
        groups.remove(second)
        first += second
    groups.sort(key=min)
    numbers = {k: number for number, group in enumerate(groups) for k in group}
    return tuple(numbers[k] for k in range(len(buffers)))


__all__ = ["Parameters", "merged_bindings", "parameters", "shared_bindings"]

"""Which buffers of a kernel are one binding: no dispatch may bind a buffer twice if it writes it, in WebGPU.

A copy of the buffer could stand in, but not where a kernel writes several parts of one buffer that lie
between each other, as those of a concatenation along the last axis do: each copy would bring back old
elements of the other parts.
"""

from __future__ import annotations

from ...dialects import host
from ...dialects.func import entries
from ...ir.core import Module, Value
from ...ir.types import DType
from ...lowering.memory_plan import root
from ..gpu.dialects.wgsl import WGSL


def shared_bindings(module: Module) -> dict[str, tuple[int, ...]]:
    """For each launched kernel the number of each buffer's binding, in ascending order of first buffers.

    Buffers share a binding if all launches give views of one buffer for them, and their elements have one
    size and one type in memory.
    """
    kinds: dict[str, list[tuple[object, ...]]] = {}
    for op in (op for function in entries(module) for op in function.walk()):
        if isinstance(op, host.Launch):
            found = kinds.setdefault(op.kernel, [_stored(b.type.dtype) for b in op.buffers])
            kinds[op.kernel] = [(*k, _memory(b)) for k, b in zip(found, op.buffers, strict=True)]
    return {name: _numbered(found) for name, found in kinds.items()}


def _memory(buffer: Value) -> object:
    """The memory of a buffer: equal for views of one buffer of the device."""
    value = root(buffer)
    op = value.defining_op
    if isinstance(op, host.Alloc) and op.slot is None and op.offset is not None:
        return str(op.offset)  # an output may have the planned place of an input that the launch reads last
    return id(value)


def _stored(dtype: DType) -> tuple[object, ...]:
    """The type of a buffer's elements in memory; a type that kernels do not support is its own."""
    if dtype in WGSL.packed:
        return dtype.itemsize, WGSL.words
    storage = WGSL.storage.get(dtype)
    return dtype.itemsize, dtype.name if storage is None else storage.type


def _numbered(kinds: list[tuple[object, ...]]) -> tuple[int, ...]:
    numbers: dict[tuple[object, ...], int] = {}
    return tuple(numbers.setdefault(kind, len(numbers)) for kind in kinds)


__all__ = ["shared_bindings"]

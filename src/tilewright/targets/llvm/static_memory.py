"""The memory of a model that allocates none: what its functions need at the largest sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...dialects import func, host, loop
from ...ir import notes
from ...ir.core import Module
from ...ir.symbolic import Dim, bounds
from ...ir.types import i4, i8
from ...passes.tensor.pack_operands import shares_bytes
from .kernel import KernelCode


def static_memory(module: Module, codes: Mapping[str, KernelCode]) -> dict[str, Any]:
    """The bytes of memory that the host functions of `module` share, as metadata have them.

    Returns:
        ``arena`` and ``scratch``: bytes at the upper bounds of all sizes. ``states``: bytes of each state.
        ``four_bits``: bytes of constants whose values fit 4 bits: those with two values in each, and those
        with one. ``refused``: why the model needs memory whose size is not known before it runs; "" if it
        does not.
    """
    functions = func.entries(module)
    kernels = {k.sym_name: k for k in module.functions(loop.Kernel)}
    arena = _largest([notes.ARENA_SIZE.of(function) for function in functions])
    scratch = _largest([codes[name].scratch for name in kernels])
    refused = ""
    if arena is None or scratch is None:
        refused = "a size has no upper bound; state one, such as dims={'x': {0: 'batch<=8'}}"
    elif any(notes.BUFFER_SLOTS.get(function, 0) for function in functions):
        places = [
            str(op.location.portable)
            for function in functions
            for op in function.walk()
            if isinstance(op, host.BindSize)
        ]
        refused = f"a size is known only after the model has computed it, at {', '.join(places) or 'a loop'}"
    states = {
        name: type_.size * type_.dtype.itemsize for name, (type_, _) in func.shared_states(functions).items()
    }
    return {
        "arena": arena,
        "scratch": scratch,
        "states": states,
        "four_bits": _of_four_bits(functions),
        "refused": refused,
    }


def _of_four_bits(functions: list[func.Func]) -> tuple[int, int]:
    """The bytes of weights of 4 bits, with two in each byte and with one."""
    shared = alone = 0
    for data in {op.value for f in functions for op in f.walk() if isinstance(op, host.Constant)}:
        if shares_bytes(data):
            shared += data.nbytes
        elif data.dtype is i8 and data.size > 1 and i4.holds(data.array):
            alone += data.nbytes
    return shared, alone


def _largest(sizes: list[Dim]) -> int | None:
    """The largest value of any of the sizes; None: it has no bound."""
    tops = [size if isinstance(size, int) else bounds(size)[1] for size in sizes]
    known = [top for top in tops if top is not None]
    return max(known, default=0) if len(known) == len(tops) else None


__all__ = ["static_memory"]

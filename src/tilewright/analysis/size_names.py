"""Kernels with numbered sizes: ``size_0``, ``size_1``, ... in place of the model's names, so that kernels
which differ in the names of their sizes only become equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..dialects import loop
from ..ir.printer import print_op
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, free_symbols, is_symbol, symbol
from ..ir.types import BufferType


def number_sizes(kernel: loop.Kernel) -> tuple[loop.Kernel, tuple[str, ...]]:
    """A copy of a kernel, scheduled or not, in which its sizes are called ``size_0``, ``size_1``, ..., and
    the names that these have in `kernel`.

    The sizes are numbered by their first place as a dimension of an argument. One that is only a part of
    other dimensions, such as ``a + b``, comes after these: the one next whose kernel has the least text if
    the sizes without a number are all called alike. So the numbers do not depend on the names, unless two
    sizes cannot be told apart.
    """
    sizes = set(kernel.dims)
    shapes = (d for a in kernel.body.args for d in cast(BufferType, a.type).shape)
    order = list(dict.fromkeys(d for d in shapes if is_symbol(d) and d in sizes))
    left = sorted(sizes - set(order), key=lambda s: s.name)
    while left:
        order.append(min(left, key=lambda s: _text(kernel, [*order, s])) if len(left) > 1 else left[0])
        left.remove(order[-1])
    return _renamed(kernel, {s: f"size_{k}" for k, s in enumerate(order)}), tuple(s.name for s in order)


def _text(kernel: loop.Kernel, numbered: list[Expr]) -> str:
    """The text of a kernel of which some sizes have numbers."""
    names = {s: f"size_{k}" for k, s in enumerate(numbered)}
    return print_op(_renamed(kernel, {s: names.get(s, "size") for s in kernel.dims}))


def _renamed(kernel: loop.Kernel, names: dict[Expr, str]) -> loop.Kernel:
    """A copy of a kernel with other names of its sizes. Symbols are replaced before anything is printed,
    because the order of terms and factors depends on their names.
    """
    known: dict[Expr, Expr] = {}

    def renewed(old: Expr) -> Expr:
        """A symbol with its new name and bounds: those of a loop's variable may depend on sizes."""
        if old not in known:
            upper = None if old.upper is None else dim(old.upper)
            known[old] = symbol(names.get(old, old.name), old.lower, upper, old.multiple_of)
        return known[old]

    def dim(e: Dim) -> Dim:
        return e if isinstance(e, int) else substitute(e, {s: renewed(s) for s in free_symbols(e)})

    copy = cast(loop.Kernel, kernel.clone())
    for op in copy.walk():
        op.attributes = {name: _map(value, dim) for name, value in op.attributes.items()}
        for value in (*op.results, *(a for region in op.regions for b in region.blocks for a in b.args)):
            value.type = _map(value.type, dim)
    copy.dims = tuple(sorted(copy.dims, key=lambda s: s.name))
    return copy


def _map(value: Any, dim: Callable[[Dim], Dim]) -> Any:
    """An attribute or a type with a function applied to all symbolic integers in it."""
    if isinstance(value, Expr):
        return dim(value)
    if isinstance(value, BufferType):
        return BufferType(value.dtype, tuple(map(dim, value.shape)), value.space)
    if isinstance(value, tuple):
        parts = [_map(part, dim) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


__all__ = ["number_sizes"]

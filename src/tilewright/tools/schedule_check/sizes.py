"""Small sizes of a kernel at which its schedule still has full tiles and tails, for the interpreter.

Dynamic sizes are chosen within their bounds. Axes of constant length are shortened: the kernel computes the
same formula on smaller tensors.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from ...analysis.loop_nest import accesses_of, substitute_tree, walk_blocks, walk_loops
from ...dialects import loop
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.core import Operation, Value
from ...ir.substitution import evaluate, substitute
from ...ir.symbolic import Dim, Expr, bounds, free_symbols, symbol
from ...ir.types import BufferType
from ...schedule import PRIMITIVES, Step

_SCALED = (loop.Kernel, loop.For, loop.Block, loop.Alloc, loop.Load, loop.Store, loop.Accumulate, loop.If)
"""Operations of kernels whose axes can be shortened, besides those on scalars."""
SIZES_AT_ONCE = 3
"""The most sets of dynamic sizes at which a kernel is checked."""


def points(kernel: loop.Kernel, sizes: Mapping[str, int], shorter: Mapping[int, int] = {}) -> int:
    """The number of points of a naive kernel's blocks at some sizes and with `shorter` lengths of axes, where
    axes that depend on others count as long as they get."""
    total = 0
    for block in walk_blocks(kernel):
        count = 1
        for axis in (*block.axes, *block.reduce_axes):
            longest = substitute(extent(axis), {a: a.upper for a in block.axes})
            length = int(evaluate(longest, sizes))
            count *= max(0, shorter.get(length, length) if isinstance(longest, int) else length)
        total += count
    return total


def parts(kernel: loop.Kernel, trace: Sequence[Step]) -> dict[Dim, int]:
    """The largest part that a trace splits the loops of a naive kernel into, by the extent of the loop.

    Splits of fused loops, and those of loops that depend on others, are left out.
    """
    stride: dict[str, tuple[Dim, int]] = {f.iv.name: (f.extent, 1) for f in walk_loops(kernel)}
    found: dict[Dim, int] = {}

    def split(name: str, factor: int, outer: str, inner: str) -> None:
        if name in stride:
            whole, step = stride[name]
            found[whole] = max(found.get(whole, 1), factor * step)
            stride[outer], stride[inner] = (whole, factor * step), (whole, step)

    for step in trace:
        primitive = PRIMITIVES.get(step.name)
        if primitive is None:
            continue
        given = inspect.signature(primitive).bind(None, *step.arguments, **dict(step.options)).arguments
        if step.name == "split":
            split(given["name"], given["factor"], *step.result)
        elif step.name == "tile":
            rows, columns, row, column = step.result
            split(given["rows"], given["row_factor"], rows, row)
            split(given["columns"], given["column_factor"], columns, column)
        elif step.name == "unroll" and given.get("factor", 0) > 0:
            split(given["name"], given["factor"], "", given["name"])
        elif step.name == "compute_at":  # its loops are named after the block's former ones
            for name in step.result:
                former = re.sub(r"_\d+$", "", name)
                if former in stride:
                    stride[name] = (stride[former][0], 1)
    return found


def lengths_to_try(
    kernel: loop.Kernel, found: Mapping[Dim, int], at: Sequence[Mapping[str, int]], limit: int
) -> Iterator[dict[int, int]]:
    """Shorter lengths of a naive kernel's axes of constant length, by their lengths, in the order to try.

    With them, runs at all sizes `at` have at most `limit` points together. The first is empty if the
    kernel's own lengths have no more. In the others a loop that the schedule splits has one whole
    part, and a second one or a tail if it has one in the model and the number of points allows it. Lengths
    with more of these come first, then those with more iterations of the other loops.

    Args:
        kernel: The kernel.
        found: The parts that the schedule splits loops into: see `parts`.
        at: The dynamic sizes of each run.
        limit: The most points.
    """

    def cost(shorter: Mapping[int, int]) -> int:
        return sum(points(kernel, sizes, shorter) for sizes in at)

    if cost({}) <= limit:
        yield {}
    own = sorted({f.extent for f in walk_loops(kernel) if isinstance(f.extent, int) and f.extent > 1})
    candidates: list[dict[int, int]] = []
    for iterations in (16, 8, 4, 2):
        steps = {n: _growing(n, found.get(n), iterations) for n in own}
        lengths = {n: growing[0] for n, growing in steps.items()}
        for second_part in (True, False):
            while True:
                longer = [
                    {**lengths, n: x}
                    for n in own
                    for x in steps[n]
                    if x > lengths[n] and (lengths[n] <= found.get(n, 0) or not second_part)
                ]
                count, least = min(((cost(x), k) for k, x in enumerate(longer)), default=(limit + 1, 0))
                if count > limit:
                    break
                lengths = longer[least]
        if cost(lengths) <= limit:
            candidates.append({n: x for n, x in lengths.items() if x < n})
    several = [
        sum(isinstance(n, int) and lengths.get(n, n) > part for n, part in found.items())
        for lengths in candidates
    ]
    for _, k in sorted((-count, k) for k, count in enumerate(several)):
        if candidates[k] and candidates[k] not in candidates[:k]:
            yield candidates[k]


def _growing(n: int, part: int | None, iterations: int) -> list[int]:
    """Lengths in place of `n`, in the order of their use; at least `iterations` where nothing splits it."""
    if part is None:
        return [n if n <= iterations else iterations + n % iterations]
    tail = n % part
    if not tail:
        return sorted({min(n, part), min(n, 2 * part)})
    return sorted({min(n, part + min(tail, 3)), min(n, part + tail)})


def shortened(kernel: loop.Kernel, chosen: Mapping[int, int]) -> loop.Kernel | None:
    """A naive kernel of the same formulas in which axes are shorter: those of one length all alike.

    Buffers are as large as the indices need. A kernel that reads an intermediate result where the shorter
    loops do not write it, or with operations whose sizes are no axes (sorting, kernels of a user's), gives
    None.
    """
    if any(not isinstance(op, _SCALED) and not op.name.startswith("scalar.") for op in kernel.walk()):
        return None
    copy = kernel.clone()
    assert isinstance(copy, loop.Kernel)
    mapping: dict[Expr, Dim] = {}

    def renewed(old: Expr) -> Expr:
        upper = substitute(old.upper, mapping) if isinstance(old.upper, Expr) else old.upper
        if isinstance(upper, int) and upper + 1 in chosen:
            upper = chosen[upper + 1] - 1
        if upper is old.upper or upper == old.upper:
            return old
        mapping[old] = new = symbol(old.name, old.lower, upper)
        return new

    for op in list(copy.walk()):
        if isinstance(op, loop.For):
            op.iv = renewed(op.iv)
        elif isinstance(op, loop.Block):
            op.axes = tuple(map(renewed, op.axes))
            op.reduce_axes = tuple(map(renewed, op.reduce_axes))
    substitute_tree(copy, mapping)
    for buffer in (*copy.body.args, *(op.result for op in copy.walk() if isinstance(op, loop.Alloc))):
        if not _resize(buffer):
            return None
    inputs = len(copy.body.args) - copy.num_outputs
    for output, source in notes.BUFFER_ALIASES.get(copy, ()):
        if copy.body.args[inputs + output].type.shape != copy.body.args[source].type.shape:
            return None
    return copy


def _resize(buffer: Value) -> bool:
    """Give a buffer the size that its accesses need; False if it is read where nothing is written."""
    old: BufferType = buffer.type
    alloc = buffer.defining_op
    shape: list[Dim] = []
    accesses = accesses_of(buffer)
    for d, n in enumerate(old.shape):
        if not isinstance(n, int):
            shape.append(n)
            continue
        limits = {op: _limits(op, op.indices[d], n) for op in accesses}
        shape.append(max((high for _, high in limits.values()), default=n - 1) + 1)
        if alloc is not None:
            written = [span for op, span in limits.items() if not isinstance(op, loop.Load)]
            low, high = min(low for low, _ in written), max(high for _, high in written)
            if any(span[0] < low or span[1] > high for span in limits.values()):
                return False
    if tuple(shape) != old.shape:
        buffer.type = BufferType(old.dtype, shape, old.space)
        if isinstance(alloc, loop.Alloc):
            alloc.buffer = buffer.type
    return True


def _limits(op: Operation, index: Dim, n: int) -> tuple[int, int]:
    """The least and the greatest place that an access touches in a dimension of `n` elements."""
    low, high = bounds(index)
    return max(0, low or 0), n - 1 if high is None else max(0, min(n - 1, high))


def dynamic_sizes(
    kernel: loop.Kernel, found: Mapping[Dim, int], guards: Sequence[Dim]
) -> list[dict[str, int]]:
    """Up to `SIZES_AT_ONCE` sets of small sizes for the symbols of a kernel, the smallest first.

    Args:
        kernel: The naive kernel.
        found: The parts that a schedule splits loops into.
        guards: Expressions that must be >= 0.

    Returns:
        One empty set for a kernel without symbols; nothing if no small sizes meet the guards.
    """
    candidates = [sorted(_candidates(s, found.get(s), guards)) for s in kernel.dims]
    possible: list[tuple[int, int, dict[str, int]]] = []
    for values in itertools.islice(itertools.product(*candidates), 4096):
        sizes = {s.name: v for s, v in zip(kernel.dims, values, strict=True)}
        if all(evaluate(g, sizes) >= 0 for g in guards):
            possible.append((points(kernel, sizes), len(possible), sizes))
    chosen = [sizes for _, _, sizes in sorted(possible)]
    if len(chosen) <= SIZES_AT_ONCE:
        return chosen
    last = len(chosen) - 1
    return [chosen[last * k // (SIZES_AT_ONCE - 1)] for k in range(SIZES_AT_ONCE)]


def _candidates(size: Expr, part: int | None, guards: Sequence[Dim]) -> Iterator[int]:
    low, high = bounds(size)
    low = max(0, low or 0)
    wanted = {low, low + 1, low + 4 if part is None else part + 1}
    # The numbers of a condition are the borders of the ranges for which it holds.
    for guard in guards:
        if isinstance(guard, Expr) and size in free_symbols(guard):
            borders = {abs(c) for c, atoms in guard.terms if not atoms}
            wanted |= {b + d for b in borders for d in (0, 1, part or 1)}
    step = size.multiple_of
    for value in {-(-v // step) * step for v in wanted}:
        if value >= low and (high is None or value <= high):
            yield value


__all__ = ["dynamic_sizes", "lengths_to_try", "parts", "points", "shortened"]

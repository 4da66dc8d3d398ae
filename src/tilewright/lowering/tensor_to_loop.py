"""Lowers a group to a naive loop kernel: one nest and one block for each computation, intermediates in local
buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..analysis.cumulative import CumulativeReduction, match_cumulative
from ..analysis.index_maps import at_same_point, flatten_index, product
from ..analysis.loop_nest import substitute_tree
from ..analysis.recurrence import match_recurrence
from ..dialects import kernels, loop, scalar, simd, tensor
from ..dialects.places import place_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import IRError, Operation, OpResult, Value
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, symbol
from ..ir.types import BufferType, Shape, TensorType, i32, u32, u64


def kernel_of_group(group: tensor.Group, name: str) -> loop.Kernel:
    """The unscheduled kernel that computes a group; its arguments are the group's inputs, then its results.

    Raises:
        IRError: the group contains an operation that has no loops.
    """
    outputs = list(group.body.terminator.operands)
    kernel = loop.Kernel(sym_name=name, num_outputs=len(outputs), location=group.location)
    buffers: dict[Value, Value] = {}
    for arg in group.body.args:
        buffers[arg] = kernel.body.add_arg(_buffer(arg.type, "global"), arg.hint)
    copied = not notes.OVERWRITES.present(group)
    any_places = {value: place_of(result) for value, result in zip(outputs, group.results, strict=True)}
    places = {value: place for value, place in any_places.items() if place is not None}
    for k, value in enumerate(outputs):
        type_ = value.type
        if value in places:
            type_ = TensorType(type_.dtype, places[value].shape(type_.shape))
        argument = kernel.body.add_arg(_buffer(type_, "global"), f"out{k}")
        if value not in buffers:
            buffers[value] = argument
    builder = Builder(kernel.body, location=group.location)
    for op in group.body.ops:
        if op.terminator:
            break
        for result in op.results:
            if result not in buffers and not isinstance(op, tensor.Scan):
                buffers[result] = builder(
                    loop.Alloc(buffer=_buffer(result.type, "local"), location=op.location)
                )
    names: set[str] = set()
    for op in group.body.ops:
        if (
            group.kind == tensor.GroupKind.CUMULATIVE
            and isinstance(op, tensor.Compute)
            and (run := match_cumulative(op)) is not None
        ):
            _lower_cumulative(builder, op, run, buffers, _unique(op, names))
        elif isinstance(op, tensor.Compute):
            _lower_compute(builder, op, buffers, _unique(op, names))
        elif isinstance(op, tensor.Scatter):
            _lower_scatter(builder, op, buffers, _unique(op, names), copied=copied)
        elif isinstance(op, tensor.Argsort):
            _lower_argsort(builder, op, buffers, _unique(op, names))
        elif isinstance(op, kernels.Run):
            _lower_run(builder, op, buffers)
        elif isinstance(op, tensor.Scan):
            _lower_recurrence(builder, op, buffers, names)
        elif not op.terminator:
            raise IRError("cannot be lowered to loops", op)
    for value, place in places.items():
        for access in buffers[value].users:
            access.attributes["indices"] = place.index(value.type.shape, access.attributes["indices"])
    kernel.dims = dims_of(kernel)
    return kernel


def dims_of(kernel: loop.Kernel) -> tuple[Expr, ...]:
    """The shape symbols that a kernel uses: all symbols that no loop and no block binds, sorted by name."""
    bound: set[Expr] = set()
    used: set[Expr] = set()

    def use(values: Iterable[object]) -> None:
        for v in values:
            if isinstance(v, Expr):
                used.update(free_symbols(v))
            elif isinstance(v, tuple):
                use(v)
            elif isinstance(v, BufferType):
                use(v.shape)

    use(a.type for a in kernel.body.args)
    for op in kernel.walk():
        if isinstance(op, loop.Kernel):
            continue
        if isinstance(op, loop.For):
            bound.add(op.iv)
            use((op.iv.upper,))
        elif isinstance(op, loop.Block):
            axes = (*op.axes, *op.reduce_axes)
            bound.update(axes)
            use(a.upper for a in axes)
        use(op.attributes.values())
    free = {s for s in used - bound if not tensor.is_dynamic_symbol(s)}
    return tuple(sorted(free, key=lambda s: s.name))


def _unique(op: Operation, names: set[str]) -> str:
    base = str(notes.ORIGIN.get(op) or ("reduce" if getattr(op, "combiner", None) else "map"))
    return _numbered("".join(c if c.isalnum() else "_" for c in base), names)


def _numbered(base: str, names: set[str]) -> str:
    name, n = base, 1
    while name in names:
        n += 1
        name = f"{base}{n}"
    names.add(name)
    return name


def _buffer(type: TensorType, space: str) -> BufferType:
    return BufferType(type.dtype, type.shape, space)


def _nest(
    builder: Builder,
    name: str,
    axes: tuple[Expr, ...],
    reduce_axes: tuple[Expr, ...],
    given: Mapping[Expr, Dim] = {},
) -> loop.Block:
    """Append loops over the axes with an empty block inside; return the block.

    `given` has the values of axes that enclosing loops traverse.
    """
    mapping: dict[Expr, Dim] = dict(given)
    ivs = []
    bindings: list[Dim] = []
    for axis in (*axes, *reduce_axes):
        if axis in given:
            bindings.append(given[axis])
            continue
        if isinstance(axis.upper, int) and axis.upper == 0:
            mapping[axis] = 0
            bindings.append(0)
            continue
        upper = substitute(axis.upper, mapping) if isinstance(axis.upper, Expr) else axis.upper
        iv = symbol(f"{name}_{axis.name}", 0, upper)
        mapping[axis] = iv
        ivs.append(iv)
        bindings.append(iv)
    block = loop.Block(
        sym_name=name, axes=axes, reduce_axes=reduce_axes, bindings=tuple(bindings), location=builder.location
    )
    top: Operation = block
    for iv in reversed(ivs):
        f = loop.For(iv=iv, location=builder.location)
        f.body.append(top)
        top = f
    builder.insert(top)
    return block


def _lower_body(body: Builder, source: Operation, buffers: dict[Value, Value]) -> list[Value]:
    """Clone a computation's body with loads in place of reads; return the yielded values."""
    values: dict[Value, Value] = {}
    for op in source.body.ops:
        if isinstance(op, tensor.Read):
            load = loop.Load(
                buffers[op.source],
                [values[v] for v in op.dynamic],
                None if op.otherwise is None else values[op.otherwise],
                indices=op.indices,
                guard=op.guard,
                location=op.location,
            )
            body.insert(load)
            values[op.result] = load.result
        elif op.terminator:
            return [values[v] for v in op.operands]
        else:
            body.insert(op.clone(values))
    raise IRError("body has no terminator", source)


def _lower_compute(
    builder: Builder,
    op: tensor.Compute,
    buffers: dict[Value, Value],
    name: str,
    given: Mapping[Expr, Dim] = {},
) -> None:
    with builder.at(op.location):
        block = _nest(builder, name, op.axes, op.reduce_axes, given)
        notes.copy(op, block)
        body = Builder(block.body, location=op.location)
        (value,) = _lower_body(body, op, buffers)
        target = buffers[op.result]
        if op.is_reduction:
            body.insert(loop.Accumulate(value, target, (), combiner=op.combiner, indices=op.axes))
        else:
            body.insert(loop.Store(value, target, (), indices=op.axes))


def _lower_cumulative(
    builder: Builder, op: tensor.Compute, run: CumulativeReduction, buffers: dict[Value, Value], name: str
) -> None:
    """Append the loops of a cumulative reduction.

    A running value, a local buffer of one element for each of the other axes, is updated along the axis and
    copied to the result.
    """
    with builder.at(op.location):
        target, outer = buffers[op.result], tuple(a for d, a in enumerate(op.axes) if d != run.axis)
        last = op.axes[run.axis].upper
        reduced = symbol(op.reduce_axes[0].name, 0, last)
        shape = tuple(a.upper + 1 for a in outer)
        running = builder(loop.Alloc(buffer=BufferType(op.dtype, shape, "local")))
        block = _nest(builder, name, outer, (reduced,))
        body = Builder(block.body, location=op.location)
        (value,) = _lower_body(body, op, buffers)
        body.insert(loop.Accumulate(value, running, (), combiner=op.combiner, indices=outer))
        substitute_tree(block, {op.reduce_axes[0]: reduced})
        copy = loop.Block(
            sym_name=f"{name}_out", axes=(*outer, reduced), bindings=block.bindings, location=op.location
        )
        body = Builder(copy.body, location=op.location)
        place = last - reduced if run.reverse else reduced
        indices = list(outer)
        indices.insert(run.axis, place)
        body.insert(
            loop.Store(body(loop.Load(running, (), None, indices=outer)), target, (), indices=tuple(indices))
        )
        assert block.parent is not None
        block.parent.insert_after(block, copy)


def _lower_scatter(
    builder: Builder, op: tensor.Scatter, buffers: dict[Value, Value], name: str, copied: bool
) -> None:
    """Append the loops of a scatter; with `copied`, first those that copy the unchanged elements to the
    result's buffer.
    """
    with builder.at(op.location):
        target = buffers[op.result]
        if copied:
            axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(op.dest.type.shape))
            copy = _nest(builder, f"{name}_copy", axes, ())
            body = Builder(copy.body, location=op.location)
            body.insert(
                loop.Store(
                    body(loop.Load(buffers[op.dest], (), None, indices=axes)), target, (), indices=axes
                )
            )
        block = _nest(builder, name, op.axes, ())
        notes.KEEPS_CONTENTS.set(block, True)
        body = Builder(block.body, location=op.location)
        value, *where = _lower_body(body, op, buffers)
        # Dimensions in which every element is written at its own index have an index expression, which
        # schedules can analyze. Only the other indices depend on data.
        indices: list[Dim] = []
        guard: list[Dim] = []
        dynamic: list[Value] = []
        for v, n in zip(where, target.type.shape, strict=True):
            place: Dim = symbol(f"v{len(dynamic)}", None, None)
            if isinstance(own := v.defining_op, scalar.Index):
                place = own.expr
            else:
                dynamic.append(v)
            indices.append(place)
            guard += [e for e in (place, n - 1 - place) if not prove_le(0, e)]
        options: dict[str, Any] = {"indices": tuple(indices), "guard": tuple(guard)}
        if op.combiner is None:
            body.insert(loop.Store(value, target, dynamic, **options))
        else:
            body.insert(loop.Accumulate(value, target, dynamic, combiner=op.combiner, **options))


def _lower_argsort(builder: Builder, op: tensor.Argsort, buffers: dict[Value, Value], name: str) -> None:
    """Append a loop for every axis but the sorted one around a `simd.argsort`."""
    x, y = buffers[op.x], buffers[op.result]
    with builder.at(op.location):
        dtype, shape, n = x.type.dtype, x.type.shape, x.type.shape[op.axis]
        bits = max(dtype.bits, 32)
        keys = builder(loop.Alloc(buffer=BufferType(u64 if bits == 64 else u32, (2 * n,), "local")))
        places = builder(loop.Alloc(buffer=BufferType(i32, (2 * n,), "local")))
        ivs = [symbol(f"{name}_i{d}", 0, size - 1) for d, size in enumerate(shape) if d != op.axis]
        where: list[Dim] = [*ivs[: op.axis], 0, *ivs[op.axis :]]
        step = product(shape[op.axis + 1 :])
        top: Operation = simd.Argsort(
            x, y, keys, places, n=n, k=op.k, x_offset=flatten_index(where, shape), x_step=step,
            y_offset=flatten_index(where, y.type.shape), y_step=step, largest=op.largest,
            location=op.location,
        )  # fmt: skip
        for iv in reversed(ivs):
            f = loop.For(iv=iv, location=op.location)
            f.body.append(top)
            top = f
        builder.insert(top)


def _lower_run(builder: Builder, op: kernels.Run, buffers: dict[Value, Value]) -> None:
    """Append the call of a kernel of the user's."""
    definition = kernels.definition_of(op)
    ranges = [n for s, n in zip(definition.symbols, op.sizes, strict=True) if s.name == definition.split]
    call = kernels.Call(
        [*(buffers[v] for v in op.inputs), *(buffers[r] for r in op.results)],
        kernel=op.kernel,
        digest=op.digest,
        scalars=op.scalars,
        sizes=op.sizes,
        num_outputs=len(op.results),
        range=ranges[0] if ranges else 1,
        location=op.location,
    )
    builder.insert(call)


def _lower_recurrence(
    builder: Builder, scan: tensor.Scan, buffers: dict[Value, Value], names: set[str]
) -> None:
    """Append loops over the columns that contain all steps, with one computation after another in each step.

    A carried value is replaced in its buffer: at once if nothing reads the old value afterwards, otherwise at
    the end of the step. A slice is computed in the stacked result.
    """
    columns, count = match_recurrence(scan), len(scan.initial)
    assert columns is not None
    members = [op for op in scan.body.ops if isinstance(op, tensor.Compute)]
    carried, ends = scan.body.args, list(scan.body.terminator.operands)
    slices = [s for s in zip(ends[count:], scan.results[count:], scan.places, strict=True) if s[1] in buffers]
    stacked = _recurrence_buffers(builder, scan, members, slices, buffers)

    shape = carried[0].type.shape
    ivs: dict[int, Dim] = {}
    for d in (*range(columns.front), *range(-columns.back, 0)):
        ivs[d] = 0
        if not prove_eq(shape[d], 1):
            f = loop.For(iv=symbol(f"column{d % len(shape)}", 0, shape[d] - 1), location=scan.location)
            builder.insert(f)
            builder, ivs[d] = Builder(f.body, location=scan.location), f.iv

    def given(axes: tuple[Expr, ...]) -> dict[Expr, Dim]:
        return {axes[d]: iv for d, iv in ivs.items()}

    def copy(at: Builder, source: Value, target: Value, shape: Shape, place: tuple[Dim, ...] = ()) -> None:
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
        body = Builder(
            _nest(at, _numbered("copy", names), axes, (), given(axes)).body, location=scan.location
        )
        body.insert(
            loop.Store(body(loop.Load(source, (), None, indices=axes)), target, (), indices=(*place, *axes))
        )

    for arg, first in zip(carried, scan.initial, strict=True):
        copy(builder, buffers[first], buffers[arg], arg.type.shape)
    steps = loop.For(iv=scan.step, location=scan.location)
    notes.SEQUENTIAL.set(steps, True)
    builder.insert(steps)
    step = Builder(steps.body, location=scan.location)
    for value, result, place in slices:
        if value in carried:
            copy(step, buffers[value], buffers[result], value.type.shape, (place,))
    for m in members:
        _lower_compute(step, m, buffers, _unique(m, names), given(m.axes))
    for value, result, place in slices:
        if buffers[value] is not buffers[result] and value not in carried:
            copy(step, buffers[value], buffers[result], value.type.shape, (place,))
    for arg, end, result in zip(carried, ends, scan.results, strict=False):
        if buffers[end] is not buffers[arg]:
            copy(step, buffers[end], buffers[arg], arg.type.shape)
        if result in buffers:
            copy(builder, buffers[arg], buffers[result], arg.type.shape)
    # Accesses to a value that is stored in a stacked result, copies included, use the step's slice.
    for value, place in stacked.items():
        for access in buffers[value].users:
            access.attributes["indices"] = (place, *access.attributes["indices"])


def _recurrence_buffers(
    builder: Builder,
    scan: tensor.Scan,
    members: list[tensor.Compute],
    slices: list[tuple[Value, OpResult, Dim]],
    buffers: dict[Value, Value],
) -> dict[Value, Dim]:
    """Add buffers of the carried values and of the members' results to `buffers`.

    `slices` are tuples (value of the body, stacked result, index of the step). Returns the values that are
    computed in a stacked result's buffer, with that index.
    """
    for arg, end in zip(scan.body.args, scan.body.terminator.operands, strict=False):
        buffers[arg] = builder(loop.Alloc(buffer=_buffer(arg.type, "local"), location=scan.location))
        if _may_replace(members, end, arg):
            buffers[end] = buffers[arg]
    stacked: dict[Value, Dim] = {}
    for value, result, place in slices:
        if value not in buffers:
            buffers[value], stacked[value] = buffers[result], place
    for m in members:
        if m.result not in buffers:
            buffers[m.result] = builder(
                loop.Alloc(buffer=_buffer(m.result.type, "local"), location=m.location)
            )
    return stacked


def _may_replace(members: list[tensor.Compute], new: Value, old: Value) -> bool:
    """Whether a computation among `members` may write its result to a carried value's buffer.

    All reads of the old value must precede it or be at the same point.
    """
    at = next(k for k, m in enumerate(members) if m.result is new)
    reads = [(k, r) for k, m in enumerate(members[at:]) for r in m.reads if r.source is old]
    return not members[at].is_reduction and all(
        k == 0 and at_same_point(r.indices, members[at].axes) for k, r in reads
    )

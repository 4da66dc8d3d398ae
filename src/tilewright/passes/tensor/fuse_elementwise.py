"""Fuses elementwise producers into their consumers by substituting their bodies for the reads.

Index maps are composed, so slices, transposes, broadcasts, pads, gathers and chains of arithmetic are fused
into their consumers, also through a reshape between the two. These remain computations of their own:
reductions, results with several consumers that are expensive to recompute, and operands of contractions that
are more than a rearrangement of another tensor's elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...analysis.contraction import has_few_readers, match_contraction
from ...analysis.index_maps import (
    affine_coefficients,
    at_same_point,
    flatten_index,
    product,
    reshape_index,
    substitute_all,
    symbols_of,
)
from ...dialects import func, graph, scalar, tensor
from ...dialects.tensor import extent, free_symbols_of, is_dynamic_symbol
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import cse, dce
from ...ir.core import BlockArgument, Module, Operation, Value
from ...ir.refusal import Refusal, refused
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr, bounds, depth_of, free_symbols, prove_le, symbol
from ...ir.target_info import TargetInfo
from ...ir.types import boolean, f32, i64

MAX_BODY = 160
"""Largest number of operations of a body that still takes producers. A larger value fuses more, at the price
of registers and code size.
"""

MAX_DEPTH = 3
"""Deepest nesting of divisions in an index of a body that still takes producers.

Reshapes and transpositions that do not cancel nest divisions ever deeper. Each level costs more to compute
than a load, and more to simplify than all levels before it. A larger value fuses longer chains of them.
"""

SHORT = 8
"""Iterations of an innermost axis that fill a vector. With a larger value, more rearranged operands with a
stride along that axis are copied (`_turns`).
"""

LARGE = 1 << 14
"""Elements from which on such an operand is copied: fewer stay in the first-level cache. A larger value
copies fewer.
"""

Computation = tensor.Compute | tensor.Scatter


def fuse_elementwise(module: Module, info: TargetInfo | None = None) -> None:
    """Substitute producers into their consumers wherever that does not repeat expensive work.

    On a GPU, factors of contractions remain results of gathers until `form_groups` (`prologues`).
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, (tensor.Compute, tensor.Scatter)):
                compose_into(op, info)
    dce(module)


def compose_into(consumer: Computation, info: TargetInfo | None) -> None:
    """Substitute the producers of a computation into it wherever that does not repeat expensive work."""
    on_gpu = info is not None and info.gpu is not None
    most = info.gpu.max_buffers if info is not None and info.gpu is not None else None
    if notes.QUANTIZED.present(consumer):
        return  # operands of quantized products are packed as they are
    changed = False
    pending = consumer.reads
    while pending:
        read = pending.pop()
        if read.parent is None:
            continue
        if _inline_splat(read):
            changed = True
            continue
        producer = producer_of(read)
        verdict = _verdict(consumer, read, producer, on_gpu, most)
        if producer is None or not verdict:
            if (source := _behind_reshapes(read.source)) is not None:
                refused("fuse-elementwise", verdict, consumer, [source])
            continue
        read_value = read.source
        pending.extend(_inline(read, producer))
        changed = True
        _erase_unused(read_value)
    if changed:
        _drop_round_trips(consumer)
        cse(consumer)
        dce(consumer)


def _drop_round_trips(consumer: Computation) -> None:
    """Replace casts to a wider float type and back by the number itself."""
    for op in list(consumer.body.ops):
        if isinstance(op, scalar.Cast) and isinstance(wide := op.x.defining_op, scalar.Cast):
            narrow = wide.x.type
            if narrow is op.dtype and narrow.is_float and wide.dtype is f32 and narrow.bits <= 16:
                op.replace_by(wide.x)


def substitute_producer(read: tensor.Read) -> None:
    """Substitute the elementwise computation behind `read` into the computation around it, at any cost."""
    producer, consumer = producer_of(read), read.parent_op
    assert producer is not None and isinstance(consumer, tensor.Compute)
    source = read.source
    _drop_round_trips(producer.op)
    _inline(read, producer)
    _erase_unused(source)
    cse(consumer)
    dce(consumer)


def _erase_unused(value: Value) -> None:
    """Erase the producers of a value without uses: as consumers they would keep other computations from being
    fused.
    """
    op = value.defining_op
    while op is not None and not any(r.has_uses for r in op.results):
        behind = op.x.defining_op if isinstance(op, tensor.Reshape) else None
        op.erase()
        op = behind


@dataclass(frozen=True)
class Producer:
    """An elementwise computation behind a read, and the index at which it is read."""

    op: tensor.Compute
    indices: tuple[Dim, ...]
    through_reshape: bool


def producer_of(read: tensor.Read) -> Producer | None:
    """The elementwise computation behind a read, through views; None where there is none, or where indices
    would nest too deeply.
    """
    source: Value = read.source
    indices: tuple[Dim, ...] = tuple(read.indices)
    through = False
    if _depth_behind(read) > MAX_DEPTH:
        return None
    while isinstance(view := source.defining_op, tensor.Reshape):
        indices = reshape_index(indices, view.result.type.shape, view.x.type.shape)
        source = view.x
        through = True
    op = source.defining_op
    if not isinstance(op, tensor.Compute) or op.is_reduction:
        return None
    return Producer(op, indices, through)


def _depth_behind(read: tensor.Read) -> int:
    """The depth of nested divisions in the producer's indices after substitution into the consumer."""
    depth = max(map(depth_of, read.indices), default=0)
    through = isinstance(read.source.defining_op, tensor.Reshape)
    op = _behind_reshapes(read.source)
    inner = [depth_of(e) for r in op.reads for e in r.indices] if isinstance(op, tensor.Compute) else []
    return depth + through + max(inner, default=0) if depth + through else 0


def _behind_reshapes(value: Value) -> Operation | None:
    op = value.defining_op
    while isinstance(op, tensor.Reshape):
        op = op.x.defining_op
    return op


def _inline_splat(read: tensor.Read) -> bool:
    """Replace a read of a constant whose elements are all equal by the literal."""
    op = read.source.defining_op
    if not isinstance(op, graph.Constant) or read.guard or not op.value.is_splat:
        return False
    element = (
        op.value.array.reshape(-1)[0]
        if op.value.array.size == 1
        else op.value.array[(0,) * op.value.array.ndim]
    )
    dtype = read.result.type
    literal = bool(element) if dtype is boolean else float(element) if dtype.is_float else int(element)
    read.replace_by(Builder.before(read)(scalar.Constant(value=literal, dtype=dtype)))
    return True


def is_relabelling(op: tensor.Compute) -> bool:
    """Whether each element is one unguarded element of another tensor."""
    ops = list(op.body.ops)
    return len(ops) == 2 and isinstance(ops[0], tensor.Read) and not ops[0].guard and not ops[0].dynamic


def cost_of(op: tensor.Compute) -> tuple[int, int, int]:
    """The numbers of (heavy functions, cheap functions, reads) of one element."""
    heavy = cheap = reads = 0
    for child in op.body.ops:
        if child.name in scalar.EXPENSIVE:
            heavy += 1
        elif isinstance(child, tensor.Read):
            reads += 1
        elif not isinstance(child, (scalar.Constant, scalar.Index)) and not child.terminator:
            cheap += 1
    return heavy, cheap, reads


def points(consumer: Computation) -> Dim:
    """How often a computation evaluates its body."""
    axes = (*consumer.axes, *getattr(consumer, "reduce_axes", ()))
    return product(extent(a) for a in axes)


def _verdict(
    consumer: Computation, read: tensor.Read, producer: Producer | None, on_gpu: bool, most: int | None
) -> bool | Refusal:
    """Whether a producer is substituted into its consumer; where not, the reason."""
    if producer is None:
        if isinstance(op := _behind_reshapes(read.source), tensor.Compute) and not op.is_reduction:
            return NESTED
        return SUM if isinstance(op, tensor.Compute) else NOT_ELEMENTWISE
    verdict = _worthwhile(consumer, read, producer, on_gpu)
    if verdict and most is not None and not _few_buffers(consumer, producer.op, most):
        return Refusal(f"the kernel would have more than the {most} buffers that the target allows")
    return verdict


NESTED = Refusal(f"the indices of the producer would nest divisions more than {MAX_DEPTH} deep")
SUM = Refusal("the producer is a reduction, which is not computed again for each of its readers")
NOT_ELEMENTWISE = Refusal(
    "the producer computes more than one element at a time: it has no body to substitute"
)


def _worthwhile(consumer: Computation, read: tensor.Read, producer: Producer, on_gpu: bool) -> bool | Refusal:
    op = producer.op
    contraction = match_contraction(consumer) if isinstance(consumer, tensor.Compute) else None
    if contraction is not None and read in (contraction.a.read, contraction.b.read):
        gathered = read is contraction.b.read and has_few_readers(contraction) and gathers(op) and not on_gpu
        return (
            _keeps_contraction(consumer, read, producer)
            or gathered
            or Refusal("the reader is a contraction, whose factors are read as they lie in memory")
        )
    if contraction is not None and read is contraction.index:
        return Refusal("the kernel of a grouped contraction looks for runs of rows with equal index in it")
    if len(consumer.body) + len(op.body) > MAX_BODY:
        return Refusal(f"the body would have more than {MAX_BODY} operations")
    if _would_overwrite(consumer, op):
        return Refusal("the reader overwrites in place elements that the producer still has to read")
    if _needs_index_values(op) and any(_is_dynamic(e) for e in producer.indices):
        return Refusal("the producer uses its indices as numbers, and the reader's depend on data")
    if read.guard and read.dynamic:
        return Refusal("the reader's index depends on data and may lie outside")
    if not on_gpu and _turns(consumer, read, producer):
        return Refusal("the reader would read it with a stride along its short innermost axis")
    if _rounds_to_bytes(op):
        return Refusal("it rounds the sums of a contraction to bytes, which take a quarter of their memory")
    heavy, cheap, reads = cost_of(op)
    if heavy == 0 and reads <= 1 and cheap <= 1:
        return True  # rearrangement, conversion, fill or ramp: recomputing costs no more than loading
    if op.parent is not consumer.parent:
        return Refusal("the producer stands before the loop of its reader: each step would compute it again")
    if not _only_reshapes_to(op.result, consumer):
        return (reads == 0 and heavy == 0 and cheap <= 4) or Refusal(
            "the result has other readers, and computing it for each costs more than loading it"
        )
    if belongs_to_contraction(op) and not at_same_point(producer.indices, consumer.axes):
        # As an epilogue it costs nothing; a mere rearrangement can be fused into later consumers.
        return Refusal(
            "the producer is the epilogue of a contraction, and the reader has its elements elsewhere"
        )
    copies = sum(1 for r in consumer.reads if _behind_reshapes(r.source) is op)
    repeated = not prove_le(points(consumer), op.result.type.size)
    if not repeated and copies == 1:
        return True
    # It would be evaluated more often than it has elements, which is worthwhile only if it is cheap.
    return (heavy == 0 and (cheap + reads) * copies <= 8) or Refusal(
        "each element would be computed several times, which costs more than loading it"
    )


def _rounds_to_bytes(op: tensor.Compute) -> bool:
    """Whether a computation is the epilogue of a contraction that rounds its sums to bytes.

    In a consumer that reads other sums, too, it would leave its own to be stored in four times the memory.
    """
    dtype = op.result.type.dtype
    return dtype.is_integer and dtype.bits == 8 and belongs_to_contraction(op)


def _turns(consumer: Computation, read: tensor.Read, producer: Producer) -> bool:
    """Whether a rearrangement makes an elementwise consumer that calculates read with a stride along a short
    innermost axis, and has a long one itself: the kernel elements of a weight, whose gradient has them
    outermost, are a part of a long axis of the copy.

    The lanes of a vector would have to run along another axis, with a stride in all other operands. A copy in
    the consumer's order costs less.
    """
    reads = producer.op.reads
    if not isinstance(consumer, tensor.Compute) or consumer.is_reduction or len(reads) != 1:
        return False
    axes = [axis for axis in consumer.axes if extent(axis) != 1]
    if not axes or prove_le(SHORT, extent(axes[-1])) or is_relabelling(consumer):
        return False
    if not producer.op.axes or not prove_le(SHORT, extent(producer.op.axes[-1])):
        return False
    (inner,) = reads
    mapping: dict[Expr, Dim] = dict(zip(producer.op.axes, producer.indices, strict=True))
    address = flatten_index(substitute_all(inner.indices, mapping), inner.source.type.shape)
    affine = affine_coefficients(address, axes)
    size = bounds(product(inner.source.type.shape))[1]
    return (
        affine is not None
        and affine[0][-1] not in (0, 1)
        and 1 in affine[0]
        and (size is None or size >= LARGE)
    )


def _few_buffers(consumer: Computation, producer: tensor.Compute, most: int) -> bool:
    """Whether a kernel of the consumer with the producer's body has at most `most` buffers, or no more than
    without it.
    """
    before = {_behind_views(r.source) for r in consumer.reads}
    after = before - {producer.result} | {_behind_views(r.source) for r in producer.reads}
    return len(after) + 1 <= most or len(after) <= len(before)


def _would_overwrite(consumer: Computation, producer: tensor.Compute) -> bool:
    """Whether an in-place scatter reads, through the producer, elements of the tensor that it overwrites.

    The tensor may be an argument that the function updates (a cache), or the result of another scatter. The
    producer must have read all elements before the scatter writes.
    """
    if not isinstance(consumer, tensor.Scatter):
        return False
    versions = [_behind_views(consumer.dest)]
    while isinstance(scatter := versions[-1].defining_op, tensor.Scatter):
        versions.append(_behind_views(scatter.dest))
    if not _is_updated(versions[-1]):
        versions.pop()
    return any(_behind_views(r.source) in versions for r in producer.reads)


def _is_updated(value: Value) -> bool:
    """Whether a value is an argument that its function updates."""
    if not isinstance(value, BlockArgument) or not isinstance(function := value.block.parent_op, func.Func):
        return False
    return bool(function.updates) and any(argument is value for argument, _ in function.updated)


def _behind_views(value: Value) -> Value:
    while isinstance(view := value.defining_op, tensor.View):
        value = view.x
    return value


def belongs_to_contraction(op: tensor.Compute) -> bool:
    """Whether an elementwise computation can be the epilogue of the contraction that it reads, or transforms
    back the tiles whose products it reads.
    """
    for read in op.reads:
        source = read.source.defining_op
        if isinstance(source, tensor.Compute) and (
            notes.TRANSFORMED.present(source)
            or (
                at_same_point(read.indices, op.axes)
                and (notes.QUANTIZED.present(source) or match_contraction(source) is not None)
            )
        ):
            return set(source.result.users) <= set(op.reads)
    return False


def _only_reshapes_to(value: Value, consumer: Operation) -> bool:
    """Whether `consumer` is the only reader of a value, directly or through views."""
    return all(user.parent_op is consumer for user in tensor.readers(value))


def gathers(op: tensor.Compute) -> bool:
    """Whether each element is one element of another tensor at a data-dependent index (the pages of a cache).

    The element may be converted, or be some bits of the other one. With few consumers it is not worth a copy.
    """
    value = op.body.terminator.operands[0]
    while (made := value.defining_op) is not None and isinstance(made, (scalar.Cast, *UNPACKING)):
        if len(made.operands) > 1 and not (value.type.is_integer and _is_static(made.operands[1])):
            return False
        value = made.operands[0]
    return isinstance(made, tensor.Read) and bool(made.dynamic) and not made.guard


UNPACKING = tuple(scalar.BINARY[name] for name in ("shr", "and", "sub"))
"""Scalar operations that extract a number of few bits from a byte."""


def _is_static(value: Value) -> bool:
    op = value.defining_op
    return isinstance(op, scalar.Constant) or (
        isinstance(op, tensor.Read) and not op.dynamic and not op.guard
    )


def _keeps_contraction(consumer: Computation, read: tensor.Read, producer: Producer) -> bool:
    """Whether the operands of a contraction would remain plain affine reads."""
    op = producer.op
    if not is_relabelling(op):
        return False
    (inner, _) = op.body.ops
    assert isinstance(inner, tensor.Read) and isinstance(consumer, tensor.Compute)
    indices = substitute_all(inner.indices, dict(zip(op.axes, producer.indices, strict=True)))
    axes = (*consumer.axes, *consumer.reduce_axes)
    return affine_coefficients(flatten_index(indices, inner.source.type.shape), axes) is not None


def _is_dynamic(e: Dim) -> bool:
    return any(is_dynamic_symbol(s) for s in free_symbols_of(e))


def _needs_index_values(op: tensor.Compute) -> bool:
    return any(isinstance(x, scalar.Index) for x in op.body.ops)


def _inline(read: tensor.Read, producer: Producer) -> list[tensor.Read]:
    """Clone the producer's body before the read and replace the read; return the new reads."""
    op = producer.op
    mapping: dict[Expr, Dim] = dict(zip(op.axes, producer.indices, strict=True))
    builder = Builder.before(read)
    outer = list(read.dynamic)
    guard = tuple(read.guard)
    values: dict[Value, Value] = {}
    created: list[tensor.Read] = []
    result: Value | None = None
    for child in op.body.ops:
        if isinstance(child, tensor.Read):
            own = {
                symbol(f"v{k}", None, None): symbol(f"v{k + len(outer)}", None, None)
                for k in range(len(child.dynamic))
            }
            full = {**mapping, **own}
            new_guard = (*substitute_all(child.guard, full), *guard)
            otherwise = values[child.otherwise] if child.otherwise is not None else None
            if new_guard and otherwise is None and is_relabelling(op):
                otherwise = read.otherwise
            elif new_guard and otherwise is None:
                dtype = child.result.type
                otherwise = builder(
                    scalar.Constant(
                        value=False if dtype is boolean else 0.0 if dtype.is_float else 0, dtype=dtype
                    )
                )
            indices, new_guard, dynamic = _used_dynamic(
                substitute_all(child.indices, full), new_guard, [*outer, *(values[v] for v in child.dynamic)]
            )
            new = tensor.Read(
                child.source, dynamic, otherwise, indices=indices, guard=new_guard, location=child.location
            )
            builder.insert(new)
            created.append(new)
            values[child.result] = new.result
        elif isinstance(child, scalar.Index):
            values[child.result] = builder(
                scalar.Index(expr=substitute(child.expr, mapping), location=child.location)
            )
        elif child.terminator:
            result = values[child.operands[0]]
        else:
            builder.insert(child.clone(values))
    assert result is not None
    if guard and not any(r.result is result and _same(r.otherwise, read.otherwise) for r in created):
        assert read.otherwise is not None
        inside: Value | None = None
        for e in guard:
            zero = builder(scalar.Constant(value=0, dtype=i64))
            test = builder(scalar.BINARY["ge"](builder(scalar.Index(expr=e)), zero))
            inside = test if inside is None else builder(scalar.BINARY["and"](inside, test))
        assert inside is not None
        result = builder(scalar.Select(inside, result, read.otherwise))
    read.replace_by(result)
    return created


def _same(a: Value | None, b: Value | None) -> bool:
    """Whether two values of a body are the same, or constants of equal bits."""
    if a is None or b is None or a is b:
        return a is b
    x, y = a.defining_op, b.defining_op
    if not (isinstance(x, scalar.Constant) and isinstance(y, scalar.Constant) and a.type is b.type):
        return False
    return bool(x.value == y.value and math.copysign(1, x.value) == math.copysign(1, y.value))


def _used_dynamic(
    indices: tuple[Dim, ...], guard: tuple[Dim, ...], dynamic: list[Value]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], list[Value]]:
    """Drop data-dependent operands that no expression mentions, and renumber the others."""
    used = {s.name for s in symbols_of((*indices, *guard)) if is_dynamic_symbol(s)}
    kept = [k for k in range(len(dynamic)) if f"v{k}" in used]
    mapping: dict[Expr, Dim] = {
        symbol(f"v{k}", None, None): symbol(f"v{n}", None, None) for n, k in enumerate(kept)
    }
    return substitute_all(indices, mapping), substitute_all(guard, mapping), [dynamic[k] for k in kept]


def absorb_permutations(module: Module, info: TargetInfo | None = None) -> None:
    """Let a reduction compute its result in the order of dimensions that its only consumer writes.

    ``t[b, h, s, d] = sum ...`` followed by ``y[b, s, h, d] = f(t[b, h, s, d])`` becomes ``t[b, s, h, d] = sum
    ...`` and an elementwise ``y``. The last dimension keeps its place, so contiguous elements stay
    contiguous.
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and not op.is_reduction:
                for read in op.reads:
                    _absorb(op, read)
    fuse_elementwise(module, info)


def _is_unit(axis: Expr) -> bool:
    return isinstance(axis.upper, int) and axis.upper == 0


def _absorb(consumer: tensor.Compute, read: tensor.Read) -> None:
    producer = read.source.defining_op
    if not isinstance(producer, tensor.Compute) or not producer.is_reduction or read.guard or read.dynamic:
        return
    reads = [r for r in consumer.reads if r.source is read.source]
    indices = tuple(read.indices)
    if set(read.source.users) != set(reads) or any(tuple(r.indices) != indices for r in reads):
        return
    axes = tuple(consumer.axes)
    # With a single point the index may be written as 0: it then stands for the consumer's next axis of one
    # point.
    units = [a for a in axes if _is_unit(a) and a not in indices]
    indices = tuple(
        units.pop(0) if isinstance(e, int) and e == 0 and _is_unit(a) and units else e
        for e, a in zip(indices, producer.axes, strict=True)
    )
    if (
        len(indices) != len(axes)
        or set(indices) != set(axes)
        or indices == axes
        or indices[-1] is not axes[-1]
    ):
        return
    # Axis d of the producer is axis position[d] of the consumer.
    position = [axes.index(e) for e in indices]
    mapping: dict[Expr, Dim] = dict(zip(producer.axes, (axes[p] for p in position), strict=True))
    if any(
        not isinstance(r.upper, int) and not free_symbols(r.upper).isdisjoint(producer.axes)
        for r in producer.reduce_axes
    ):
        return
    new = tensor.Compute(
        axes=axes,
        reduce_axes=producer.reduce_axes,
        combiner=producer.combiner,
        result_types=[type(producer.result.type)(producer.dtype, consumer.result.type.shape)],
        location=producer.location,
    )
    notes.copy(producer, new)
    tensor.clone_body(producer, new, mapping)
    assert producer.parent is not None
    producer.parent.insert_before(producer, new)
    for r in reads:
        r.set_operand(0, new.result)
        r.indices = axes
    producer.erase()

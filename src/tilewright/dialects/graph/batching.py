"""Operators on a batch: every one of a block is replaced by one that computes it for all elements of a batch.

A batched value has the batch as its leading dimension. Common operators take it as one more dimension
(`RULES`), control flow batches its regions, and any other operator runs in a scan over the batch. A function
in which a size depends on the element runs in a scan as a whole. After `jax.vmap` (Frostig et al., "Compiling
machine learning programs via high-level tracing", 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.core import Block, Effect, Operation, Region, Value
from ...ir.run_time_symbols import defined_by, definitions, symbols_of
from ...ir.symbolic import Dim
from ...ir.types import TensorType, boolean
from . import elementwise, index, linalg, norm, reduce, shape
from .attention import Attention
from .base import tensor_type
from .checks import ElementCheck
from .contract import Einsum, Matmul
from .control_flow import Check, If, While
from .conv import Conv, ConvTranspose
from .conv_weight import ConvWeightGradient
from .derivative_marks import After, Checkpoint, CustomGradient
from .pool import AdaptiveAvgPool, Pool
from .random import Threefry
from .residuals import inner_uses, is_local
from .scan import Scan, Yield
from .term import Term


class Batch:
    """A batch of `size` elements, which is built at `b`. `values` has the batched form of each value of the
    function that depends on the element; `mapping` the copies of those that do not.
    """

    def __init__(
        self, b: Builder, size: Dim, values: dict[Value, Value], mapping: dict[Value, Value]
    ) -> None:
        self.b = b
        self.size = size
        self.values = values
        self.mapping = mapping

    def inside(self, block: Block, location: Any) -> Batch:
        """The same batch at the end of another block."""
        return Batch(Builder(block, location=location), self.size, dict(self.values), dict(self.mapping))

    def known(self, value: Value) -> Term:
        """The copy of a value that is the same for all elements."""
        return Term(self.b, self.mapping.get(value, value))

    def whole(self, value: Value) -> Term:
        """The batched form of any value, repeated where it is the same for all elements."""
        if value in self.values:
            return Term(self.b, self.values[value])
        x = self.known(value)
        return x.unsqueeze(0).broadcast((self.size, *x.shape))

    def aligned(self, value: Value, rank: int) -> Term:
        """A value that broadcasts against batched ones of `rank` dimensions an element."""
        if value not in self.values:
            return self.known(value)
        x = Term(self.b, self.values[value])
        return x.reshape((x.shape[0], *(1,) * (rank + 1 - len(x.shape)), *x.shape[1:]))

    def run(self, block: Block) -> None:
        """Append the operations of a block, batched."""
        for op in block.ops:
            if op.terminator:
                continue
            with self.b.at(op.location):
                self._visit(op)

    def _visit(self, op: Operation) -> None:
        if not any(v in self.values for v in inner_uses(op)):
            self.b.insert(op.clone(self.mapping))
            return
        symbols = set(defined_by(op))
        block = op.parent
        assert block is not None
        if symbols and any(s in symbols for other in block.ops if other is not op for s in symbols_of(other)):
            raise _DependentSizeError
        rule = next((RULES[c] for c in type(op).__mro__ if c in RULES), None)
        found = rule(self, op) if rule is not None else None
        if found is None:
            found = _each(self, op)
        for r, term in zip(op.results, found, strict=True):
            self.values[r] = term.value


Rule = Callable[[Batch, Any], "Sequence[Term] | None"]
"""Builds the batched results; None: the operator runs in a scan over the batch."""


def batched(b: Builder, block: Block, args: dict[Value, Value], size: Dim) -> list[tuple[Value, bool]]:
    """Append the operations of a block at `b`, for all elements of a batch.

    Args:
        b: The place.
        block: A block that ends in a `graph.yield`.
        args: The batched form of arguments of the block; other values are the same for all elements.
        size: The number of elements.

    Returns:
        For each yielded value, its batched form and True, or a value that is the same for all and False.

    Raises:
        CompileError: The shape of a result depends on the element.
    """
    place = Block([])
    batch = Batch(Builder(place, location=b.location), size, dict(args), {})
    try:
        batch.run(block)
        found = [
            (batch.values[v], True) if v in batch.values else (batch.known(v).value, False)
            for v in block.terminator.operands
        ]
    except _DependentSizeError:
        for op in place.ops:
            op.drop_all()
        return [(v, True) for v in _one_by_one(b, block, args, size)]
    for op in place.ops:
        b.insert(op)
    return found


class _DependentSizeError(Exception):
    """A size, or an effect, depends on the element of the batch."""


def _one_by_one(b: Builder, block: Block, args: dict[Value, Value], size: Dim) -> list[Value]:
    """A whole block in a scan over the batch."""
    symbols = definitions(block)
    for v in block.terminator.operands:
        if is_local(v, symbols):
            where = next(iter(symbols.values())).location
            raise CompileError(
                f"the shape {list(tensor_type(v).shape)} of a result depends on the element of a tw.vmap: "
                f"all elements need results of one shape (at {where})"
            )
    own = list(args)
    body = Block([v.type for v in own])
    mapping: dict[Value, Value] = dict(zip(own, body.args, strict=True))
    for op in block.ops:
        body.append(op.clone(mapping))
    xs = [args[v] for v in own]
    return list(b.insert(Scan([], xs, length=size, regions=[Region([body])])).results)


def _with(batch: Batch, op: Operation, operands: Sequence[Term], **attributes: Any) -> list[Term]:
    """The results of an operator of the same kind on other operands."""
    copy = op.clone({v: x.value for v, x in zip(op.operands, operands, strict=True)})
    for k, x in enumerate(operands):
        copy.set_operand(k, x.value)
    copy.attributes.update(attributes)
    for r, kind in zip(copy.results, copy.infer_types(), strict=True):
        r.type = kind
    return [Term(batch.b, r) for r in batch.b.insert(copy).results]


def _each(batch: Batch, op: Operation) -> list[Term]:
    """Any operator, in a scan over the batch."""
    if op.effects != Effect.PURE or op.regions:
        raise _DependentSizeError
    own = [v for v in dict.fromkeys(op.operands) if v in batch.values]
    block = Block([v.type for v in own])
    copy = op.clone({**batch.mapping, **dict(zip(own, block.args, strict=True))})
    block.append(copy)
    block.append(Yield(list(copy.results)))
    xs = [batch.values[v] for v in own]
    scan = batch.b.insert(Scan([], xs, length=batch.size, regions=[Region([block])]))
    return [Term(batch.b, r) for r in scan.results]


def _rank(value: Value) -> int:
    return len(tensor_type(value).shape)


def _broadcasting(batch: Batch, op: Operation) -> list[Term]:
    rank = max(map(_rank, op.operands))
    return _with(batch, op, [batch.aligned(v, rank) for v in op.operands])


def _leading(batch: Batch, op: Operation) -> list[Term]:
    """Operators whose leading dimensions are a batch already."""
    return _with(batch, op, [batch.whole(v) for v in op.operands])


def _along_axis(batch: Batch, op: Any) -> list[Term]:
    rank = _rank(op.operands[0])
    return _with(batch, op, [batch.whole(v) for v in op.operands], axis=op.axis % max(rank, 1) + 1)


def _along_axes(batch: Batch, op: Any) -> list[Term] | None:
    if len(op.operands) > 1:
        return None
    rank = _rank(op.operands[0])
    return _with(batch, op, [batch.whole(op.operands[0])], axes=tuple(a % rank + 1 for a in op.axes))


def _matmul(batch: Batch, op: Matmul) -> list[Term]:
    a, b = batch.aligned(op.a, _rank(op.a)), batch.aligned(op.b, _rank(op.b))
    row, column = _rank(op.a) == 1, _rank(op.b) == 1
    a = a.unsqueeze(len(a.shape) - 1) if row else a
    b = b.unsqueeze(len(b.shape)) if column else b
    rank = max(_rank(op.a), _rank(op.b), 2)
    if op.a in batch.values:
        a = a.reshape((a.shape[0], *(1,) * (rank + 1 - len(a.shape)), *a.shape[1:]))
    if op.b in batch.values:
        b = b.reshape((b.shape[0], *(1,) * (rank + 1 - len(b.shape)), *b.shape[1:]))
    (y,) = _with(batch, op, [a, b])
    return [y.reshape((batch.size, *tensor_type(op.result).shape))]


def _einsum(batch: Batch, op: Einsum) -> list[Term] | None:
    if "->" not in op.equation or "." in op.equation:
        return None
    letter = next((c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in op.equation), None)
    if letter is None:
        return None
    left, result = op.equation.replace(" ", "").split("->")
    terms = [letter + t if v in batch.values else t for t, v in zip(left.split(","), op.inputs, strict=True)]
    operands = [Term(batch.b, batch.values[v]) if v in batch.values else batch.known(v) for v in op.inputs]
    return _with(batch, op, operands, equation=f"{','.join(terms)}->{letter}{result}")


def _reshape(batch: Batch, op: Any) -> list[Term]:
    return _with(batch, op, [batch.whole(op.operands[0])], shape=(batch.size, *op.shape))


def _broadcast_to(batch: Batch, op: Any) -> list[Term]:
    x = batch.aligned(op.x, len(op.shape))
    return _with(batch, op, [x], shape=(batch.size, *op.shape))


def _transpose(batch: Batch, op: Any) -> list[Term]:
    return _with(batch, op, [batch.whole(op.x)], permutation=(0, *(p + 1 for p in op.permutation)))


def _slice(batch: Batch, op: Any) -> list[Term]:
    bounds = {"starts": (0, *op.starts), "stops": (batch.size, *op.stops), "steps": (1, *op.steps)}
    return _with(batch, op, [batch.whole(op.x)], **bounds)


def _pad(batch: Batch, op: Any) -> list[Term] | None:
    if op.fill is not None:
        return None
    return _with(batch, op, [batch.whole(op.x)], low=(0, *op.low), high=(0, *op.high))


def _tile(batch: Batch, op: Any) -> list[Term]:
    return _with(batch, op, [batch.whole(op.x)], repeats=(1, *op.repeats))


def _update_slice(batch: Batch, op: Any) -> list[Term]:
    return _with(batch, op, [batch.whole(op.x), batch.whole(op.part)], starts=(0, *op.starts))


def _gather(batch: Batch, op: Any) -> list[Term] | None:
    axis = op.axis % _rank(op.x)
    if op.indices not in batch.values:
        return _with(batch, op, [batch.whole(op.x), batch.known(op.indices)], axis=axis + 1)
    if op.x in batch.values:
        return None
    (y,) = _with(batch, op, [batch.known(op.x), batch.whole(op.indices)], axis=axis)
    return [y.transpose((axis, *(k for k in range(len(y.shape)) if k != axis)))]


def _folded(x: Term, axis: int = 0) -> Term:
    """`x` with its leading dimension, the batch, moved in front of dimension `axis` of an element and joined
    with it.
    """
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(x.shape)))
    x = x.transpose(order) if axis else x
    return x.reshape((*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def _unfolded(batch: Batch, op: Any, y: Term, axis: int = 0) -> list[Term]:
    """The batched result of an operator from one whose dimension `axis` has the batch in it."""
    shape = tensor_type(op.result).shape
    y = y.reshape((*shape[:axis], batch.size, *shape[axis:]))
    return [y.transpose((axis, *range(axis), *range(axis + 1, len(y.shape)))) if axis else y]


def _pool(batch: Batch, op: Any) -> list[Term]:
    (y,) = _with(batch, op, [_folded(batch.whole(op.x))])
    return _unfolded(batch, op, y)


def _conv(batch: Batch, op: Conv | ConvTranspose) -> list[Term] | None:
    """With one weight for all elements they are further images of the convolution's own batch, with a weight
    for each they are groups of channels.
    """
    x, *parameters = op.operands
    if not any(v in batch.values for v in parameters):
        (y,) = _with(batch, op, [_folded(batch.whole(x)), *map(batch.known, parameters)])
        return _unfolded(batch, op, y)
    return _in_groups(
        batch, op, [_folded(batch.whole(x), 1), *(_folded(batch.whole(v)) for v in parameters)], 1
    )


def _conv_weight_gradient(batch: Batch, op: ConvWeightGradient) -> list[Term] | None:
    return _in_groups(batch, op, [_folded(batch.whole(v), 1) for v in op.operands], 0)


def _in_groups(batch: Batch, op: Any, operands: Sequence[Term], axis: int) -> list[Term] | None:
    """A convolution whose groups are those of all elements; `axis` is that of the result's channels."""
    if not isinstance(batch.size, int) or op.layout != "channels_first":
        return None
    (y,) = _with(batch, op, operands, groups=op.groups * batch.size)
    return _unfolded(batch, op, y, axis)


def _attention(batch: Batch, op: Attention) -> list[Term] | None:
    """Elements are further sequences of the operator's own batch."""
    if op.sinks is not None and op.sinks in batch.values:
        return None
    count = tensor_type(op.q).shape[0]
    operands = []
    for v in op.operands:
        rank = 4 if v is op.mask else _rank(v)
        shared = v is op.sinks or _rank(v) < rank or tensor_type(v).shape[0] == 1
        if shared and v not in batch.values:
            operands.append(batch.known(v))
            continue
        x = batch.aligned(v, rank) if v in batch.values else batch.whole(v)
        operands.append(_folded(x.broadcast((batch.size, count, *x.shape[2:]))))
    (y,) = _with(batch, op, operands)
    return _unfolded(batch, op, y)


def _check(batch: Batch, op: Check) -> list[Term]:
    held = batch.whole(op.condition)
    batch.b.insert(Check(held.apply("reduce_all", held.value, axes=(0,)).value, message=op.message))
    return []


def _element_check(batch: Batch, op: ElementCheck) -> list[Term]:
    return _with(batch, op, [batch.whole(op.x)])


# -- Regions -------------------------------------------------------------------------------------------------


def _results(inner: Batch, block: Block) -> list[Term]:
    """Run a block and return what it yields, batched."""
    inner.run(block)
    return [inner.whole(v) for v in block.terminator.operands]


def _scan(batch: Batch, op: Scan) -> list[Term]:
    count = len(op.initial)
    block = Block([])
    inner = batch.inside(block, op.location)
    initial = [batch.whole(v) for v in op.initial]
    for arg, x in zip(op.carried, initial, strict=True):
        inner.values[arg] = block.add_arg(x.value.type)
    scanned = []
    for arg, v in zip(op.slices, op.scanned, strict=True):
        if v in batch.values:
            x = _exchanged(batch.whole(v))
            inner.values[arg] = block.add_arg(TensorType(x.dtype, x.shape[1:]))
        else:
            x = batch.known(v)
            inner.mapping[arg] = block.add_arg(arg.type)
        scanned.append(x.value)
    block.append(Yield([x.value for x in _results(inner, op.body)]))
    made = batch.b.insert(
        Scan(
            [x.value for x in initial],
            scanned,
            length=op.length,
            backward=op.backward,
            regions=[Region([block])],
        )
    )
    found = [Term(batch.b, r) for r in made.results]
    return [*found[:count], *map(_exchanged, found[count:])]


def _exchanged(x: Term) -> Term:
    """`x` with its first two dimensions exchanged."""
    return x.transpose((1, 0, *range(2, len(x.shape))))


def _if(batch: Batch, op: If) -> list[Term]:
    if op.condition in batch.values:
        held = batch.whole(op.condition)
        first, second = (
            _results(Batch(batch.b, batch.size, batch.values, batch.mapping), r.block) for r in op.regions
        )
        return [_select(held, x, y) for x, y in zip(first, second, strict=True)]
    regions = []
    for region in op.regions:
        block = Block([])
        block.append(Yield([x.value for x in _results(batch.inside(block, op.location), region.block)]))
        regions.append(Region([block]))
    made = batch.b.insert(If(batch.known(op.condition).value, regions=regions))
    return [Term(batch.b, r) for r in made.results]


def _select(held: Term, x: Term, y: Term) -> Term:
    """Elements of a batch from `x` where `held` (batch), else from `y`."""
    return held.reshape((*held.shape, *(1,) * (len(x.shape) - 1))).select(x, y)


def _while(batch: Batch, op: While) -> list[Term]:
    """A loop that runs until it has ended for every element; those that have ended keep their values."""
    if len(op.results) > len(op.initial):
        raise _DependentSizeError
    running = batch.whole(op.condition)
    initial = [running, *map(batch.whole, op.initial)]
    block = Block([op.body.args[0].type, *(x.value.type for x in initial)])
    inner = batch.inside(block, op.location)
    inner.mapping[op.body.args[0]] = block.args[0]
    before = [Term(inner.b, a) for a in block.args[1:]]
    inner.values |= {a: x.value for a, x in zip(op.body.args[1:], before[1:], strict=True)}
    again, *after = _results(inner, op.body)
    ends = [before[0] & again]
    ends += [_select(before[0], new, old) for new, old in zip(after, before[1:], strict=True)]
    block.append(Yield([_any(ends[0]).value, *(x.value for x in ends)]))
    limit = None if op.limit is None else batch.known(op.limit).value
    values = [x.value for x in initial]
    made = batch.b.insert(
        While(_any(running).value, limit, values, count=op.count, regions=[Region([block])])
    )
    return [Term(batch.b, r) for r in made.results[1:]]


def _any(x: Term) -> Term:
    assert x.dtype is boolean
    return x.apply("reduce_any", x.value, axes=(0,))


def _checkpoint(batch: Batch, op: Checkpoint) -> list[Term]:
    block = Block([])
    block.append(Yield([x.value for x in _results(batch.inside(block, op.location), op.body)]))
    return [Term(batch.b, r) for r in batch.b.insert(Checkpoint(regions=[Region([block])])).results]


def _custom_gradient(batch: Batch, op: CustomGradient) -> list[Term]:
    """The gradient of an input that is the same for all elements is the sum of theirs."""
    values = [batch.whole(v) for v in op.values]
    taken = [*(x for x in values if x.dtype.is_float), *values][: len(op.body.args)]
    block = Block([x.value.type for x in taken])
    inner = batch.inside(block, op.location)
    inner.values |= dict(zip(op.body.args, block.args, strict=True))
    ends = [
        x if v in batch.values else x.sum(0) for v, x in zip(op.inputs, _results(inner, op.body), strict=True)
    ]
    block.append(Yield([x.value for x in ends]))
    inputs = [batch.values[v] if v in batch.values else batch.known(v).value for v in op.inputs]
    made = batch.b.insert(CustomGradient(inputs, [x.value for x in values], regions=[Region([block])]))
    return [Term(batch.b, r) for r in made.results]


RULES: dict[type, Rule] = {
    **dict.fromkeys(
        (
            *(elementwise.Unary, elementwise.Binary, elementwise.Select, elementwise.Cast),
            *(elementwise.Activation, elementwise.Identity, Threefry),
        ),
        _broadcasting,
    ),
    **dict.fromkeys(
        (
            *(shape.Triangular, linalg.Cholesky, linalg.TriangularSolve, linalg.Lu, linalg.HouseholderQr),
            *(linalg.Reflect, linalg.Eigh, linalg.Svd, After),
        ),
        _leading,
    ),
    **dict.fromkeys(
        (
            *(shape.Concat, index.GatherElements, index.ScatterElements, norm.Softmax, norm.LogSoftmax),
            *(reduce.ArgReduction, reduce.CumulativeOp, reduce.Topk),
        ),
        _along_axis,
    ),
    **dict.fromkeys((reduce.Reduction, shape.Flip), _along_axes),
    Matmul: _matmul,
    Einsum: _einsum,
    shape.Reshape: _reshape,
    shape.BroadcastTo: _broadcast_to,
    shape.Transpose: _transpose,
    shape.Slice: _slice,
    shape.Pad: _pad,
    shape.Tile: _tile,
    shape.UpdateSlice: _update_slice,
    index.Gather: _gather,
    Pool: _pool,
    AdaptiveAvgPool: _pool,
    Conv: _conv,
    ConvTranspose: _conv,
    ConvWeightGradient: _conv_weight_gradient,
    Attention: _attention,
    Check: _check,
    ElementCheck: _element_check,
    Scan: _scan,
    If: _if,
    While: _while,
    Checkpoint: _checkpoint,
    CustomGradient: _custom_gradient,
}
"""The rule of an operator's class, or of the nearest class that it is derived from."""


__all__ = ["RULES", "batched"]
